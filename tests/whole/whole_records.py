"""Records of whole original models: settings, graphs, weights by a rule, and what their own code computes of them.

Two places hold records, in the same form (`<name>.json.gz`): `tests/whole/fixtures.json.gz` a selection, and the folder
that GRAPHGPS_KMIP_WHOLE_RECORDS names all, with the settings of their YAML files in `settings.json.gz`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.graphormer_bias import NO_EDGE, UNREACHABLE

FIXTURES = Path(__file__).parent / "fixtures.json.gz"
VARIABLE = "GRAPHGPS_KMIP_WHOLE_RECORDS"
Record = dict[str, Any]


def all_records() -> Path | None:
    """Return the folder of all records, None where the variable is not set."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


@cache
def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def fixture_names() -> list[str]:
    """Return the names of the selection."""
    return sorted(_read(FIXTURES)) if FIXTURES.is_file() else []


def all_names() -> list[str]:
    """Return the names of all records, none where the variable is not set."""
    folder = all_records()
    return sorted(path.name.removesuffix(".json.gz") for path in (folder / "records").glob("*.gz")) if folder else []


def load_record(name: str) -> tuple[dict[str, Any], Record]:
    """Return the settings of a YAML file, flat, and the record."""
    if name in fixture_names():
        row = _read(FIXTURES)[name]
        return row["settings"], row["record"]
    folder = all_records()
    settings = _read(folder / "settings.json.gz")[f"{name}.json.gz"]
    record = json.loads(gzip.decompress((folder / "records" / f"{name}.json.gz").read_bytes()))
    return settings, record


def normal(name: str, shape: tuple[int, ...] | list[int]) -> Tensor:
    """Return the standard normal numbers of a name, row-major, float64."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return torch.from_numpy(np.asarray(generator.standard_normal(tuple(shape))))


def fingerprint(values: Tensor, name: str) -> list[float]:
    """Return sum, sum of squares, and inner product with the numbers of a name: the third sees order and sign."""
    flat = values.detach().double().reshape(-1)
    return [float(flat.sum()), float(flat.square().sum()), float(flat @ normal(f"probe/{name}", (flat.numel(),)))]


def weights(rows: list[list[Any]], built: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict under its original names, by the rule of each row's kind.

    Args:
        rows: [name, shape, kind, and for some kinds a value].
        kept: tensors as built, for rows that say so.
    """
    state: dict[str, Tensor] = {}
    for name, shape, kind, *value in rows:
        z = None if kind in "k=" else normal(name, shape)
        if kind == "w":
            state[name] = z / math.sqrt(max(1, math.prod(shape[1:])))
        elif kind == "e":
            state[name] = z
        elif kind == "n":
            state[name] = 1 + 0.1 * z
        elif kind in "bm":
            state[name] = 0.1 * z
        elif kind == "v":
            state[name] = 4 * (1 + 0.1 * z.abs())
        elif kind == "=":
            state[name] = state[value[0]].clone()
        elif value[0] == "as built":
            state[name] = built.get(name, torch.zeros(shape, dtype=torch.long))
        else:
            state[name] = torch.tensor(value[0]).reshape(shape)
    return state


def tensor(value: Any) -> Any:
    """Return one recorded attribute as a tensor; numbers are float64, null is NaN."""
    if not isinstance(value, dict):
        return value
    if "rule" in value:
        full = normal(value["rule"], value["shape"])
        return full[value["rows"]] if "rows" in value else full
    data = [math.nan if number is None else number for number in value["data"]]
    return torch.tensor(data, dtype=getattr(torch, value["dtype"])).reshape(value["shape"])


def batch_of(record: Record) -> Data:
    """Return the recorded graphs, collated, under our names of attributes."""
    if "num_layer_nodes" in record["graphs"][0]:
        return _sparse(record["graphs"][0])
    tables = [shape for name, shape, *_ in record["state"] if name.endswith("spatial_encoder.weight")]
    far = tables[0][0] - 1 if tables else -1
    batch = Batch.from_data_list([_graph(graph, far) for graph in record["graphs"]])
    batch.split = "train"
    if record["head"] == "inductive_node":  # of ogbn-arxiv, the loops of some codes take the nodes of the split
        batch.train_mask = torch.ones(batch.num_nodes, dtype=torch.bool)
    return batch


def _graph(recorded: dict[str, Any], far: int) -> Data:
    """Return one graph; ``far`` is the recorded distance of nodes between which there is no path."""
    fields = {name: tensor(value) for name, value in recorded.items()}
    fields.pop("graph_index", None)  # all pairs, in the same order
    kind = fields.get("edge_attr")
    if "expander_edges" in fields and kind is not None and kind.dim() == 1 and not kind.is_floating_point():
        _divide_kinds(fields)
    if "expander_edges" in fields:
        fields["expander_edge_index"] = fields.pop("expander_edges").T.contiguous()
    for pairs, labels in (("edge_index_labeled", "edge_label"), ("train_edge_index", "train_edge_label")):
        if pairs in fields:
            fields["edge_label_index"], fields["edge_label"] = fields.pop(pairs), fields.pop(labels)
    if "EigVecs" in fields:  # of EquivStableLapPE, which has an attribute of its own here
        fields["eigvecs_es"] = fields["EigVecs"]
    if "shortest_path_types" in fields:  # zeros behind the end of a path there
        types, length = fields.pop("shortest_path_types"), fields["spatial_types"]
        behind = (torch.arange(types.size(1)) >= length[:, None]) | (length == far)[:, None]
        fields["path_types"] = types.masked_fill(behind, NO_EDGE)
    if "spatial_types" in fields:
        fields["spatial_types"] = fields["spatial_types"].masked_fill(fields["spatial_types"] == far, UNREACHABLE)
    return Data(**fields)


def _divide_kinds(fields: dict[str, Any]) -> None:
    """Leave the edges of the graph alone, of the three kinds that Sp_Exphormer joins: ours joins them in the model."""
    kind, edge_index = fields.pop("edge_attr"), fields["edge_index"]
    loops = torch.arange(fields["num_nodes"]).expand(2, -1)
    assert torch.equal(edge_index[:, kind == 2], loops)
    assert torch.equal(edge_index[:, kind == 1], fields["expander_edges"].T)
    fields["edge_index"] = edge_index[:, kind == 0]


def _sparse(recorded: dict[str, Any]) -> Data:
    """Return the batch of sampled edges of Sp_Exphormer's second stage under our names."""
    fields = {name: tensor(value) for name, value in recorded.items()}
    sizes = fields["num_layer_nodes"].tolist()
    edges = [
        torch.cat([fields[f"edge_index_layer_{layer}"], fields[f"edge_type_layer_{layer}"][None]])
        for layer in range(len(sizes) - 1)
    ]
    batch = Data(x=fields["x"], y=fields["y"], layer_sizes=sizes, layer_edges=edges)
    batch.split = "train"
    return batch
