"""Public files of PPGT and GRIT at a small size, read as they are, equal what their codes computed from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.checkpoint_names import choose_names
from graphgps_kmip.compat.parameter_renaming import finder, rename_parameters
from tests.compat.pair_files import load
from tests.recorded import check, part
from tests.recorded import load as load_record

STEM = "gt.pos_enc.edge_encoder.MLPSinEdgeEncoder.hid_dim"
BLOCKS = "gt.pos_enc.edge_encoder.EdgeFFN"
SMALL = {
    **{"gt.layers": 2, "gt.n_heads": 2, "gt.dim_hidden": 8, "gnn.dim_inner": 8, "posenc_RRWP.ksteps": 4},
    **{"gt.dropout": 0.0, "gt.attn_dropout": 0.0, "gt.drop_path": 0.0, STEM: "16", f"{BLOCKS}.num_blocks": 2},
}
TYPES = {"dataset.node_encoder_name": "TypeDictNode", "dataset.node_encoder_num_types": 6}
BONDS = {"dataset.edge_encoder_name": "TypeDictEdge", "dataset.edge_encoder_num_types": 3}
NARROW_EDGES = {"gt.dim_edge": 6, "gt.alpha": 0.1}
CLASS = NARROW_EDGES | {f"{BLOCKS}.layer_scale": False, f"{BLOCKS}.drop_path": 0.0, "gnn.dropout": 0.0}
CLASS |= {"gt.class_attn.drop_path": 0.0, "gt.pos_enc.node_encoder.NodeMask.mask_rate": 0.0}
HOPS = {"posenc_I2SG.k_hop": 2, "gt.pos_enc.subgraph_encoder.num_layers": 2}
# Record -> public file, columns of x and edge_attr, outputs, and what of the file is changed beside SMALL.
RECORDS: dict[str, tuple[str, tuple[int, int, int], dict[str, Any]]] = {
    "F_model/model_graph_zinclike": ("zinc-PPGT", (1, 1, 1), {**TYPES, **BONDS}),
    "F_model/model_graph_funclike": ("func-PPGT", (1, 1, 5), {**TYPES, **BONDS}),
    "F_model/model_graph_cifarlike": ("sp-cifar-PPGT", (5, 1, 10), {}),
    "F_model/model_node_patternlike": ("pattern-PPGT", (3, 0, 4), {}),
    "F_model/model_graph_pcqmlike": ("pcqm4mv2-PPGT-ViT-B-BS256x2GPU", (1, 1, 1), TYPES | BONDS | NARROW_EDGES),
    "F_model/model_class_arxivlike": ("ogbn-arxiv-PPGT-2x128+CA-SG10", (6, 0, 4), CLASS),
    "F_model/model_brec": ("brec-PPGT", (1, 0, 1), {}),
    "F_model/model_brec_i2gin": ("brec-I2GIN+PPGT", (1, 0, 1), HOPS),
    "G_grit/model_graph_zinclike": ("zinc-GRIT-RRWP", (1, 1, 1), {**TYPES, **BONDS, "posenc_RRWP.ksteps": 5}),
    "G_grit/model_node_patternlike": ("pattern-GRIT-RRWP", (3, 0, 4), {"posenc_RRWP.ksteps": 5}),
}
IN_FLOAT64 = ("posenc_RRWP.precision", "float64", "posenc_RRWP.where", "batch")


@pytest.mark.parametrize("name", RECORDS)
def test_a_public_file_at_a_small_size_equals_its_code(name: str, tmp_path: Path) -> None:
    public, (dim_in, edge_dim, dim_out), changes = RECORDS[name]
    changes = SMALL | changes
    if "GRIT" in public:
        changes = {key: value for key, value in changes.items() if "pos_enc" not in key and key != "gt.drop_path"}
    load(public, tmp_path, *IN_FLOAT64, **changes)
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = dim_in, dim_out, edge_dim
    model = create_model(to_device=False).model.double()
    record = load_record(name)
    state, target = part(record, "state"), model.state_dict()
    names = choose_names(state)
    full = rename_parameters(state, target, names, tmp_path)
    find = finder(state, target, names)
    places = {key: next((place for place in find(key) if place in target), "") for key in state}
    gone = tuple(f"/{key}" for key, place in places.items() if not place)
    expected = {
        key: value for key, value in record.items() if not key.startswith("state/") and not key.endswith(gone or "|")
    }
    expected |= {f"state/{key}": value for key, value in full.items()}

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = inputs["batch"].bincount()
        ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        batch = Batch(**(inputs | {"ptr": ptr}), y=torch.zeros(1))
        batch._num_graphs = len(sizes)
        return {"pred": model(batch)[0]}

    check(model, forward, expected, lambda key: key if key in full else places[key])
