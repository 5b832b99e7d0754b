"""Positional and structural encodings by name: their config groups, and what is computed of each graph."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial

from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.data import Encoding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.posenc_build import enter_width, times
from graphgps_kmip.gym.posenc_table import EDGE_PARTS, NODE_PARTS, POSENC, PosEnc
from graphgps_kmip.ranges import default_of

__all__ = ["EDGE_PARTS", "NODE_PARTS", "POSENC", "PosEnc", "enabled_encodings", "posenc_group", "times"]


def posenc_group(row: PosEnc) -> CfgNode:
    """Return the config group of an encoding with the public defaults."""
    inner = {
        name: CfgNode({key: copy(default_of(one)) for key, one in keys.items()}) for name, keys in row.inner.items()
    }
    return CfgNode({**{key: copy(default_of(one)) for key, one in row.keys.items()}, **inner})


def enabled_encodings(graphs: Sequence[Data]) -> list[Encoding]:
    """Return what the config asks to be computed of each graph, having entered the width of ERN into the share.

    Args:
        graphs: all of the data set, for the width of ERN.

    Raises:
        ConfigError: a part of an encoder's name is not enabled, or its block has a wrong value.
    """
    for kind, parts in (("node", NODE_PARTS), ("edge", EDGE_PARTS)):
        names = cfg.dataset[f"{kind}_encoder_name"].split("+") if cfg.dataset[f"{kind}_encoder"] else ()
        for name in names:
            if name in parts and not cfg[parts[name].group].enable:
                raise ConfigError(f"dataset.{kind}_encoder_name: {name} needs {parts[name].group}.enable True")
    enter_width(graphs)
    return [_encoding(row) for row in POSENC.values() if cfg[row.group].enable]


def _encoding(row: PosEnc) -> Encoding:
    settings = row.settings(cfg[row.group])
    reads = ("edge_index", "edge_attr") if settings.get("longest") else ("edge_index",)
    return Encoding(row.name, settings, partial(row.compute, settings=settings), random=row.random, reads=reads)
