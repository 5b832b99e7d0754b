"""Settings of the two stages of low-width score estimation: which config is an estimator, which a sparse network.

Both are of ``model.type Spexphormer``. The estimator, ``gt.layer_type ScoreEstimator``, is trained on the whole
attention graph and writes the scores of its edges; the sparse network, ``gt.layer_type Spexphormer``, reads some
edges of each node, drawn by these scores.
"""

from __future__ import annotations

from yacs.config import CfgNode

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.registry import named

NETWORK = "Spexphormer"  # value of model.type
SPARSE = "Spexphormer"  # value of gt.layer_type
ESTIMATOR = "ScoreEstimator"  # value of gt.layer_type


def is_sparse(config: CfgNode) -> bool:
    """Return whether a config is of a sparse network, which reads sampled edges by layer."""
    return _is_network(config) and config.gt.layer_type == SPARSE


def is_estimator(config: CfgNode) -> bool:
    """Return whether a config is of a score estimator, whose run writes the scores of its edges."""
    spec = named("attention").get(config.gt.layer_type)
    return _is_network(config) and spec is not None and spec.name == ESTIMATOR


def _is_network(config: CfgNode) -> bool:
    spec = named("network").get(config.model.type)
    return spec is not None and spec.name == NETWORK


def layer_degrees(config: CfgNode) -> list[int]:
    """Return the edges into a node that each layer of a sparse network reads, from the first layer to the last.

    Raises:
        ConfigError: ``spexphormer.degree`` has neither one entry nor one for each layer.
    """
    degrees, layers = list(config.spexphormer.degree), config.gt.layers
    if len(degrees) not in (1, layers):
        raise ConfigError(
            f"spexphormer.degree: {degrees} has {len(degrees)} entries for gt.layers {layers}: give one for all "
            "layers, or one for each, the first layer's first"
        )
    return degrees * layers if len(degrees) == 1 else degrees


def check_estimator(config: CfgNode, sparse: CfgNode, file: str) -> None:
    """Refuse an estimator whose scores could not serve a sparse network, before it is trained.

    Args:
        config: of the estimator.
        sparse: of the sparse network.
        file: the estimator's YAML, for messages.

    Raises:
        ConfigError: it is a sparse network itself, keeps no checkpoint of its best epoch, has fewer layers, or is of
            another data set.
    """
    place = f"spexphormer.estimator: {file}"
    if is_sparse(config):
        raise ConfigError(
            f"{place} is a sparse network itself (gt.layer_type {SPARSE}): name the YAML of a network that sees all "
            f"edges, such as gt.layer_type {ESTIMATOR}"
        )
    check_keeps_best(config, f"{file}: ")
    if config.gt.layers < sparse.gt.layers:
        raise ConfigError(
            f"{place} has gt.layers {config.gt.layers}, the sparse network {sparse.gt.layers}: each layer draws by the "
            "scores of the estimator's: give the estimator as many layers or more"
        )
    for key in ("format", "name", "sample"):
        if config.dataset[key] != sparse.dataset[key]:
            raise ConfigError(
                f"{place} has dataset.{key} {config.dataset[key]}, the sparse network {sparse.dataset[key]}: give "
                "both the same data"
            )


def check_keeps_best(config: CfgNode, place: str = "") -> None:
    """Refuse an estimator that keeps no checkpoint of its best epoch, whose scores are written.

    Args:
        config: of the estimator.
        place (default: none): begins the message.

    Raises:
        ConfigError: it keeps none.
    """
    for key in ("enable_ckpt", "ckpt_best"):
        if not config.train[key]:
            raise ConfigError(
                f"{place}train.{key} is False: the scores of an estimator are those of its best epoch, which only "
                f"its checkpoint has: set train.{key} True"
            )
