"""Recorded layers, encoders and networks of the public codes, loaded under their own names: all that was recorded."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import (
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    GraphContext,
    PerformerAttention,
)
from graphgps_kmip.attention.exphormer import ExphormerState
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.checkpoint_names import PUBLIC
from graphgps_kmip.compat.parameter_renaming import finder, rename_parameters
from graphgps_kmip.compat.public_faults import FirstRowGINE, repeat_faults
from graphgps_kmip.encoding import laplacian as laplacian_encoder
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.model import GPSLayer
from graphgps_kmip.model.gps import initial_states
from graphgps_kmip.mpnn import GAT, GCN, GIN, GINE, PNA, GatedGCN, GENConv
from tests.encoding.test_public_encoders import RECORDS as ENCODERS
from tests.gym.networks import configure
from tests.gym.test_network_recorded import CUSTOM, PLAIN, STOCK
from tests.record_files import kind_of_records
from tests.recorded import check, load, part

FILE = Path("there.ckpt")
DIM, HEADS = 8, 2
Builder = Callable[..., nn.Module]
LOCAL: dict[str, Builder] = {
    "CustomGatedGCN": GatedGCN,
    "GAT": partial(GAT, heads=HEADS),
    "GCN": GCN,
    "GENConv": GENConv,
    "GIN": GIN,
    "GINE": GINE,
    "PNA": PNA,
}
# Where a code differs. LRGB adds GatedGCN's residual outside: the same mathematics.
BY_CODE: dict[str, dict[str, Builder]] = {
    "gps": {},
    "gps_eslappe": {
        "CustomGatedGCN": partial(GatedGCN, equivstable_pe=True),
        "GINE": partial(FirstRowGINE, equivstable_pe=True),
    },
    "kmip": {"CustomGatedGCN": partial(GatedGCN, residual=False), "GINE": partial(GINE, inner="norm_linear")},
    "lrgb": {"GINE": partial(GINE, inner="norm_linear")},
}
ELSEWHERE = ("exph_", "kmip_sparse_attention_", "performer_projection")  # tests/attention, or below
RECORDS = sorted(name for name in kind_of_records("B_layers") if not name.startswith(ELSEWHERE))
FAULTS_ON = {"gt.performer.mask_keys": False, "gt.performer.detach_stabiliser": True, "gt.bigbird.pattern": "public"}


def check_names(
    module: nn.Module,
    forward: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    record: Mapping[str, Tensor],
    public_start: str = "",
    start: str = "",
) -> None:
    """Load a record under its names, which begin with `public_start` (here `start`), and compare all."""
    module = module.double()
    target = {f"{start}{key}": value for key, value in module.state_dict().items()}
    state = {f"{public_start}{key}": value for key, value in part(record, "state").items()}
    full = {key.removeprefix(start): value for key, value in rename_parameters(state, target, PUBLIC, FILE).items()}
    find = finder(state, target, PUBLIC)
    public = part(record, "state")
    names = {key: next((place for place in find(f"{public_start}{key}") if place in target), "") for key in public}
    values = {key: value for key, value in record.items() if not key.startswith("state/")}
    values = {
        key: value for key, value in values.items() if names.get(re.sub(".*/(grad_param|state_after)/", "", key), key)
    }
    values |= {f"state/{key}": value for key, value in full.items()}
    check(module, forward, values, lambda key: key if key in full else names[key].removeprefix(start))


def attention_of(name: str, pad_keys: bool) -> nn.Module | None:
    """Make the attention of a record; k-MIP with the public code's fault, which has an effect on unequal graphs."""
    if "_SparseAttention_" not in name:
        return FullAttention(DIM, HEADS) if "_Transformer_" in name else None
    head_agg, dim_kq, dim_val, k = re.search(r"_agg([A-Za-z]+)_kq(\d+)_v(\d+)_k(\d+)_", name).groups()
    options = {"k": int(k), "dim_kq": int(dim_kq), "dim_val": int(dim_val)}
    return repeat_faults(build_kmip(DIM, HEADS, head_agg=head_agg, **options), {"gt.kmip.pad_keys": pad_keys})


def layer_of(name: str, pad_keys: bool) -> GPSLayer:
    code, local, attention, norm = re.match(r"([a-z]+)_([A-Za-z]+)_([A-Za-z]+)_(batch|layer|no)_norm", name).groups()
    act = nn.GELU if "_gelu" in name else nn.ReLU
    kind = f"{code}_eslappe" if name.endswith("_eslappe") else code
    branch = None if local == "None" else (LOCAL | BY_CODE[kind])[local](DIM, act=act)
    special = {
        "Performer": lambda: PerformerAttention(DIM, HEADS),
        "BigBird": lambda: BigBirdAttention(DIM, HEADS, num_random_blocks=1),
    }
    attend = special.get(attention, lambda: attention_of(name, pad_keys))()
    return repeat_faults(GPSLayer(DIM, branch, attend, norm={"no": "none"}.get(norm, norm), act=act), FAULTS_ON)


def compare_layer(name: str, pad_keys: bool = True) -> None:
    layer, record = layer_of(name, pad_keys), load(f"B_layers/{name}")
    if "_Performer_" in name:  # its buffer is recorded once for all
        projection = load("B_layers/performer_projection")["projection_matrix"].double()
        record["state/self_attn.fast_attention.projection_matrix"] = projection

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(Data.from_dict(inputs)))
        return {"x": x, "edge_attr": edge_attr}

    check_names(layer, forward, record, "layers.0.", "layers.0.")


@pytest.mark.parametrize("name", RECORDS)
def test_a_gps_layer_of_the_public_codes_loads_under_its_own_names_and_equals_it(name: str) -> None:
    compare_layer(name)


class Stack(nn.Module):
    """Layers that pass on edge features and state, as a model's."""

    def __init__(self, *layers: GPSLayer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor, ExphormerState]:
        states = initial_states(self.layers[0].attention, context)
        for layer in self.layers:
            x, edge_attr, states = layer(x, context, states)
            context = context.with_edge_attr(edge_attr)
        return x, context.edge_attr, states[0]


def gps(*local: Callable[[int], nn.Module], **options: Any) -> GPSLayer:
    return GPSLayer(DIM, [build(DIM) for build in local], ExphormerAttention(DIM, HEADS, **options))


def two_layers() -> list[GPSLayer]:
    layers = [gps(GatedGCN, num_virt_node=2), gps(GatedGCN, num_virt_node=2)]
    del layers[1].attention[0].initial_state
    return layers


LAYERS: dict[str, Callable[[], list[GPSLayer]]] = {
    "CustomGatedGCN-Exphormer_L1_batch_norm_virt0_addei_b3": lambda: [gps(GatedGCN)],
    "CustomGatedGCN-Exphormer_L1_batch_norm_virt2_addei_b1": lambda: [gps(GatedGCN, num_virt_node=2)],
    "CustomGatedGCN-Exphormer_L1_batch_norm_virt2_addei_noexp_b3": lambda: [
        gps(GatedGCN, num_virt_node=2, use_exp_edges=False)
    ],
    "CustomGatedGCN-Exphormer_L1_batch_norm_virt2_noaddei_b3": lambda: [
        gps(GatedGCN, num_virt_node=2, add_edge_index=False)
    ],
    "CustomGatedGCN-Exphormer_L2_batch_norm_virt2_addei_b3": two_layers,
    "Exphormer_L1_batch_norm_virt2_addei_b3": lambda: [gps(num_virt_node=2)],
    "GCN-Exphormer_L1_batch_norm_virt2_addei_b3": lambda: [gps(GCN, num_virt_node=2)],
    "GENConv-GAT-Exphormer_L1_batch_norm_virt2_addei_b3": lambda: [
        gps(GENConv, partial(GAT, heads=HEADS), num_virt_node=2)
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_exphormers_layers_of_any_number_of_branches_load_under_their_own_names(name: str) -> None:
    stack, record = Stack(*LAYERS[name]()), load(f"B_layers/exph_{name}")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ptr = torch.cat([torch.zeros(1, dtype=torch.long), inputs["batch"].bincount().cumsum(0)])
        edges = [inputs[f"expander_edges_graph{i}"].T + ptr[i] for i in range(len(ptr) - 1)]
        sets = {"expander": (torch.cat(edges, 1), None)}
        context = GraphContext(inputs["batch"], ptr, inputs["edge_index"], inputs["edge_attr"], sets)
        x, edge_attr, state = stack(inputs["x"], context)
        return {"x": x, "edge_attr": edge_attr, "virt_h": state.virtual}

    check_names(stack, forward, record)


@pytest.mark.parametrize("name", CUSTOM)
def test_a_layer_of_custom_gnn_loads_under_its_own_names(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_mp": 1, "gnn.act": "relu"}
    configure(PLAIN | defaults | CUSTOM[name])
    layer, record = build_network("custom_gnn", 8, 3).layers[0], load(f"A_layers/{name.split()[0]}")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(**{"batch": inputs["edge_index"].new_zeros(len(inputs["x"])), **inputs})
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(batch))
        return {"x": x, "edge_attr": edge_attr}

    check_names(layer, forward, record, "gnn_layers.0.", "layers.0.")


@pytest.mark.parametrize("name", STOCK)
def test_graphgyms_own_network_loads_under_its_own_names(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_pre_mp": 1, "gnn.layers_mp": 2, "gnn.l2norm": False}
    configure(PLAIN | defaults | {"model.type": "gnn"} | STOCK[name])
    network, record = build_network("gnn", 8, 3), load(f"A_layers/core_gnn_{name}_b3")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = inputs["batch"].bincount()
        batch = Batch(**inputs, y=None, ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        batch._num_graphs = len(sizes)
        return {"pred": network(batch)[0]}

    check_names(network, forward, record)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_of_the_public_codes_loads_under_its_own_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, encoder = load(f"D_encoders/{name}"), ENCODERS[name]()
    if "train/extra/sign_flip" in record:
        monkeypatch.setattr(laplacian_encoder, "random_signs", lambda *_, **__: record["train/extra/sign_flip"])

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = encoder(Batch(**inputs, eigvecs_es=inputs.get("EigVecs")))
        return {key: batch[key] for key in part(record, "eval/out")}

    check_names(encoder, forward, record, "encoder.node_encoder.", "encoder.node.")


def test_every_record_of_a_whole_layer_is_compared() -> None:
    assert len(RECORDS) == 45
    assert {f"exph_{name}" for name in LAYERS} == {
        name for name in kind_of_records("B_layers") if name.startswith("exph_") and "exph_attention" not in name
    }


@pytest.mark.parametrize("name", [name for name in RECORDS if "_SparseAttention_" in name])
def test_the_fault_of_recorded_kmip_shows_only_where_graphs_are_padded(name: str) -> None:
    with contextlib.nullcontext() if name.endswith("_b1") else pytest.raises(AssertionError, match="eval/out/x"):
        compare_layer(name, pad_keys=False)
