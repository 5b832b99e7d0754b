"""Hashes of one large graph and of its split: whether two runs see the same data, without a copy of it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.errors import InputError

DATA = ("edge_index", "x", "y")
BYTES = 64 * 2**20  # of a tensor at a time: one that is mapped from disk need not fit into memory


def graph_facts(graph: Data) -> dict[str, Any]:
    """Return hashes of what a model learns from: edges, features and labels as ``data``, the masks as ``split``.

    Further edge sets and encodings, which follow from these by a config, do not count.

    Args:
        graph: one graph with edge_index, x, y and the masks (N,) of a split.

    Returns:
        ``data`` and ``split`` (16 hexadecimal digits each) and ``num_nodes``.

    Raises:
        ValueError: an attribute is missing or no dense tensor.
    """
    masks = [f"{split}_mask" for split in SPLITS]
    return {"data": _hashed(graph, DATA), "split": _hashed(graph, masks), "num_nodes": graph.num_nodes}


def _hashed(graph: Data, names: list[str] | tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        value = graph.get(name)
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise InputError(f"a graph without a dense tensor {name} cannot be compared with that of another run")
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        step = max(1, BYTES // max(1, value[:1].nbytes))
        for at in range(0, len(value), step):
            part = value[at : at + step].detach().cpu().reshape(-1).contiguous()
            digest.update(part.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
