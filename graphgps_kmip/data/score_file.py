"""Score file: attention scores of every edge and layer of a trained estimator, with the facts of the run that made it.

One file of torch.save, which is memory-mapped when it is read: ``{"version", "facts", "layers"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.errors import ResultsError

VERSION = 1
TENSORS = ("ptr", "source", "kind", "score")


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Edges of the attention graph of one layer, sorted by target, with their attention scores.

    Args:
        ptr (Tensor): the edges into node i are those from ``ptr[i]`` to ``ptr[i + 1]``.
        source (Tensor): source of each edge.
        kind (Tensor): kind of each edge: number of a name of the fact ``kinds``.
        score (Tensor): attention weight of each edge; the sum over the edges into a node is 1.

    Shapes: ptr (N+1,) int64, source (E,) int32, kind (E,) uint8, score (E,) float32.
    """

    ptr: Tensor
    source: Tensor
    kind: Tensor
    score: Tensor

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.ptr) - 1


@dataclass(frozen=True, eq=False)
class AttentionScores:
    """Scores of every layer of an estimator, which may share tensors.

    Facts are ``data`` and ``split`` (hashes of `graph_facts`), ``settings`` (config hash of the estimator's run),
    ``seed``, ``epoch``, ``num_nodes`` and ``kinds`` (names, joined by ", ").
    """

    layers: list[LayerScores]
    facts: Mapping[str, str | int | float]


def write_scores(path: str | Path, scores: AttentionScores) -> None:
    """Write a score file in one step: a reader finds the old file or the new one."""
    layers = [{name: getattr(layer, name) for name in TENSORS} for layer in scores.layers]
    save_plain(Path(path), {"version": VERSION, "facts": dict(scores.facts), "layers": layers})


def read_scores(path: str | Path) -> AttentionScores:
    """Read a score file; its tensors stay on disk until they are used, and must not be changed.

    Raises:
        ResultsError: the file is missing, damaged, or not a score file; one line that names it.
    """
    fix = "remove it, and the estimator's command writes it again"
    try:
        content = load_plain(Path(path), mmap=True)
    except UnreadableFile as error:
        raise ResultsError(f"{path}: the score file cannot be read: {error}: {fix}") from error
    if not isinstance(content, dict) or not {"version", "facts", "layers"} <= content.keys():
        raise ResultsError(f"{path} is not a score file: give the scores.pt of an estimator's run folder")
    if content["version"] != VERSION:
        raise ResultsError(f"{path} is a score file of version {content['version']}, not {VERSION}: {fix}")
    return AttentionScores([LayerScores(**layer) for layer in content["layers"]], content["facts"])


def check_scores(
    scores: AttentionScores,
    path: str | Path,
    *,
    data: str,
    split: str,
    num_nodes: int,
    layers: int,
    settings: str | None = None,
) -> None:
    """Refuse scores that an estimator made of something else than what a sparse network is to be trained on.

    ``settings`` is the config hash that the estimator's run must have, None for any.
    """
    facts, again = scores.facts, "train the estimator again (spexphormer.estimator) or give other spexphormer.scores"
    wrong = ""
    if facts["num_nodes"] != num_nodes:
        wrong = f"scores of {facts['num_nodes']} nodes for a graph of {num_nodes}: {again}"
    elif facts["data"] != data:
        wrong = f"the estimator saw other edges, features or labels than this run: {again}"
    elif facts["split"] != split:
        wrong = (
            "the estimator was trained on another split, so labels of this run's validation or test nodes may be in "
            f"its scores: give both configs the same dataset.split_mode and split, and {again}"
        )
    elif settings is not None and facts["settings"] != settings:
        wrong = f"scores of settings {facts['settings']}, the estimator's config now has {settings}: {again}"
    elif len(scores.layers) < layers:
        wrong = f"scores of {len(scores.layers)} layers for a network of {layers}: lower gt.layers, or train an "
        wrong += "estimator of as many"
    if wrong:
        raise ResultsError(f"{path}: {wrong}")
