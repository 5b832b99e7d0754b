"""GPS layer and model against the recorded originals, and the laws of a whole model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import FullAttention, GraphContext, KMIPAttention
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead
from graphgps_kmip.mpnn import GatedGCN
from tests.recorded import check, load

KMIP = {"k": 3, "dim_kq": 8}
# record -> (GatedGCN options or None, attention, norm, activation). The k-MIP code has no node residual in GatedGCN.
RECORDS: dict[str, tuple[dict[str, bool] | None, Any, str, type[nn.Module]]] = {
    "gps_CustomGatedGCN_Transformer_batch_norm_relu_b3": ({}, FullAttention, "batch", nn.ReLU),
    "gps_CustomGatedGCN_Transformer_layer_norm_relu_b1": ({}, FullAttention, "layer", nn.ReLU),
    "gps_CustomGatedGCN_Transformer_layer_norm_gelu_b3": ({}, FullAttention, "layer", nn.GELU),
    "gps_CustomGatedGCN_Transformer_no_norm_relu_b3": ({}, FullAttention, "none", nn.ReLU),
    "gps_CustomGatedGCN_None_batch_norm_gelu_b3": ({}, None, "batch", nn.GELU),
    "gps_None_Transformer_batch_norm_relu_b3": (None, FullAttention, "batch", nn.ReLU),
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggnone_kq8_v4_k3_b1": (
        {"residual": False},
        lambda dim, heads: KMIPAttention(dim, heads, dim_val=4, **KMIP),
        "batch",
        nn.ReLU,
    ),
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggLinear_kq8_v8_k3_b1": (
        {"residual": False},
        lambda dim, heads: KMIPAttention(dim, heads, dim_val=8, head_agg="Linear", **KMIP),
        "batch",
        nn.ReLU,
    ),
}
NAMES = {
    "local_model.bn_node_x.": "local.0.node_norm.module.",
    "local_model.bn_edge_e.": "local.0.edge_norm.module.",
    "local_model.": "local.0.",
    "self_attn.in_proj_": "attention.0.qkv.",
    "self_attn.out_proj.": "attention.0.out.",
    "self_attn.MQs.": "attention.0.query.",
    "self_attn.MKs.": "attention.0.key.",
    "self_attn.MVs.": "attention.0.value.",
    "self_attn.MO.": "attention.0.out.",
    "ff_linear1.": "ffn.0.",
    "ff_linear2.": "ffn.3.",
}


def rename(norm: str) -> Any:
    inner = "norm.module." if norm == "batch" else "norm."
    norms = {"norm1_local.": "local_norm.0.", "norm1_attn.": "attention_norm.0.", "norm1_global.": "attention_norm.0."}
    table = NAMES | {old: new + inner for old, new in (norms | {"norm2.": "ffn_norm."}).items()}

    def to_ours(name: str) -> str:
        return next((new + name[len(old) :] for old, new in table.items() if name.startswith(old)), name)

    return to_ours


@pytest.mark.parametrize("name", RECORDS)
def test_a_layer_matches_the_recorded_original(name: str) -> None:
    gated, attention, norm, act = RECORDS[name]
    local = None if gated is None else GatedGCN(8, act=act, **gated)
    layer = GPSLayer(8, local, attention and attention(8, 2), norm=norm, act=act).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        data = Data(edge_index=inputs["edge_index"], edge_attr=inputs["edge_attr"], batch=inputs["batch"])
        data.x = inputs["x"]
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(data))
        return {"x": x, "edge_attr": edge_attr}

    # the originals also make the norm of a branch that is not there, and never call it
    unused = {"norm1_local": gated is None, "norm1_attn": attention is None}
    record = {key: v for key, v in load(f"B_layers/{name}").items() if not any(unused[n] for n in unused if n in key)}
    check(layer, forward, record, rename(norm))


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 8)

    def forward(self, batch: Any) -> Any:
        batch.x = self.linear(batch.x)
        return batch


def model(attention: nn.Module | None = None, norm: str = "layer") -> GPSModel:
    torch.manual_seed(0)
    layers = [GPSLayer(8, GatedGCN(8), attention or KMIPAttention(8, 2, k=3), norm=norm) for _ in range(2)]
    return GPSModel(FeatureEncoder(8, Embed(), None), layers, GraphHead(8, 4)).double().eval()


def graphs(sizes: tuple[int, ...] = (5, 1, 9)) -> list[Data]:
    torch.manual_seed(1)
    made = []
    for n in sizes:
        edges = torch.randint(0, n, (2, 3 * n if n > 1 else 0))
        attr = torch.randn(edges.size(1), 8).double()
        made.append(Data(x=torch.randn(n, 3).double(), edge_index=edges, edge_attr=attr, y=torch.tensor([n])))
    return made


@pytest.mark.parametrize("norm", ["batch", "layer", "graph", "none"])
def test_a_graph_alone_gives_the_same_prediction_as_in_a_batch(norm: str) -> None:
    network, data = model(norm=norm), graphs()
    together = network(Batch.from_data_list(data))[0]
    for i, graph in enumerate(data):
        alone = network(Batch.from_data_list([graph]))[0][0]
        torch.testing.assert_close(alone, together[i], rtol=1e-9, atol=1e-9)  # float64, sums in another order


def test_the_model_keeps_the_keys_of_the_batch_and_its_inputs() -> None:
    batch = Batch.from_data_list(graphs())
    keys, x, edge_attr = set(batch.keys()), batch.x, batch.edge_attr
    before = x.clone(), edge_attr.clone()
    model()(batch)
    assert set(batch.keys()) == keys
    torch.testing.assert_close((x, edge_attr), before, rtol=0, atol=0)


class Counting(nn.Module):
    """Carries a state: how many layers it has seen."""

    def initial_state(self, context: GraphContext) -> Tensor:
        return torch.zeros(context.num_graphs)

    def forward(self, x: Tensor, _context: GraphContext, state: Tensor) -> tuple[Tensor, Tensor]:
        assert (state == self.expected).all()
        return x, state + 1


def test_the_stack_threads_an_attentions_state_through_its_layers() -> None:
    network = model()
    for expected, layer in enumerate(network.layers):
        layer.attention[0] = Counting()
        layer.attention[0].expected = expected
    network(Batch.from_data_list(graphs()))


def test_a_layer_without_branches_and_an_unknown_norm_are_refused() -> None:
    with pytest.raises(ValueError, match="None\\+None"):
        GPSLayer(8, None, None)
    with pytest.raises(ValueError, match="unknown norm"):
        GPSLayer(8, GatedGCN(8), None, norm="instance")
