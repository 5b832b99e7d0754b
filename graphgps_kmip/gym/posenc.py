"""Positional encodings in the config: groups ``posenc_<name>``, what a run precomputes, parts of encoder names.

It knows no encoding by name: the registry has them, from this package and from a user's own file.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.data import Encoding
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding, encoding_parts, from_settings, own_options
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.registry import Spec, entries


def posenc_group(component: type[PositionalEncoding]) -> CfgNode:
    """Return the config group of an encoding: ``enable``, and its options with their defaults."""
    return CfgNode({"enable": False, **own_options(component)})


def check_encoding(spec: Spec) -> None:
    """Raise a `ConfigError` where a component that is registered as an encoding is no `PositionalEncoding`."""
    if not (isinstance(spec.component, type) and issubclass(spec.component, PositionalEncoding)):
        raise ConfigError(
            f"register encoding: {spec.name!r} is no subclass of NodeEncoding, EdgeEncoding or PositionalEncoding of "
            "graphgps_kmip.encoding: make it one"
        )


def current(spec: Spec) -> PositionalEncoding:
    """Return a registered encoding with the options that ``cfg`` gives it."""
    return from_settings(spec.component, spec.name, cfg)


def enabled() -> list[Spec]:
    """Return the encodings that the config enables."""
    return [spec for spec in entries("encoding").values() if spec.group in cfg and cfg[spec.group].enable]


def encoding_facts(graphs: Sequence[Data]) -> dict[str, int]:
    """Return facts of the data set that enabled encodings need, such as the width of ERN: ``share.<name>`` -> value.

    Args:
        graphs (Sequence[Data]): All of the data set.
    """
    return {f"share.{name}": value for spec in enabled() for name, value in current(spec).facts(graphs).items()}


def enabled_encodings(settings: CfgNode) -> list[Encoding]:
    """Return what the config asks to be precomputed for each graph.

    Args:
        settings (CfgNode): The config with the `encoding_facts` of its graphs.

    Raises:
        ConfigError: a part of an encoder's name is not enabled, or its group has a wrong value.
    """
    for kind, parts in (("node", encoding_parts()), ("edge", encoding_parts(on_edges=True))):
        names = settings.dataset[f"{kind}_encoder_name"].split("+") if settings.dataset[f"{kind}_encoder"] else ()
        for name in names:
            if name in parts and not settings[parts[name].group].enable:
                raise ConfigError(f"dataset.{kind}_encoder_name: {name} needs {parts[name].group}.enable True")
    encodings = [from_settings(spec.component, spec.name, settings) for spec in enabled()]
    return [precomputation(one) for one in encodings if not one.computed_in_batch]


def precomputation(encoding: PositionalEncoding) -> Encoding:
    """Return what is precomputed for an encoding, with the settings that key its cache on disk."""
    settings = encoding.settings()
    return Encoding(
        encoding.name,
        settings | _source(type(encoding)),
        partial(encoding.attributes, settings=settings),
        version=encoding.version,
        random=encoding.random,
        float64=encoding.float64,
        reads=encoding.reads,
    )


def _source(component: type[PositionalEncoding]) -> dict[str, str]:
    """Return a digest of the user's file that defines an encoding; for those of this package there are versions."""
    if component.__module__.startswith("graphgps_kmip."):
        return {}
    try:
        return {"source": hashlib.sha256(Path(inspect.getfile(component)).read_bytes()).hexdigest()}
    except (TypeError, OSError):  # typed into an interpreter
        return {}
