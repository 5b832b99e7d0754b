"""Exphormer attention and layers against the recorded original."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.exphormer import ExphormerAttention, ExphormerState
from graphgps_kmip.model import GPSLayer
from graphgps_kmip.model.gps import initial_states
from graphgps_kmip.mpnn.gat import GAT
from graphgps_kmip.mpnn.gatedgcn import GatedGCN
from graphgps_kmip.mpnn.gcn import GCN
from graphgps_kmip.mpnn.genconv import GENConv
from tests.recorded import check, load

DIM, HEADS = 8, 2


def following(**options: Any) -> ExphormerAttention:
    """Return the attention of a layer that is not the first."""
    attention = ExphormerAttention(DIM, HEADS, **options).double()
    del attention.initial_state
    return attention


@pytest.mark.parametrize("name", ["virt0_nobias_b3", "virt2_bias_b3", "virt2_nobias_b1", "virt2_nobias_b3"])
def test_output_and_gradients_match_the_recorded_attention(name: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sets = [kind for kind in ("expander", "virt") if f"{kind}_edge_index" in inputs]
        edge_index = torch.cat([inputs[f"{kind}_edge_index"] for kind in sets], 1)
        features = torch.cat([inputs[f"{kind}_edge_attr"] for kind in sets])
        edges = torch.cat([edge_index, torch.arange(len(features))[None]])
        state = ExphormerState(edges, features, inputs.get("virt_h", inputs["x"][:0]))
        h, state = attention(inputs["x"], inputs["batch"], state)
        return {"h": h, "virt_h": state.virtual}

    def rename(name: str) -> str:
        layer, parameter = name.split(".")
        return f"{ {'Q': 'query', 'K': 'key', 'V': 'value', 'E': 'edge'}[layer] }.{parameter}"

    attention = following(use_bias="_bias" in name)
    check(attention, forward, load(f"B_layers/exph_attention_{name}"), rename)


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
    return GPSLayer(DIM, [one(DIM) for one in local], ExphormerAttention(DIM, HEADS, **options))


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
START = "layers.0.attention.0.initial_state."
NAMES = {
    "exp_edge_fixer.exp_edge_attr.": f"{START}expander.",
    "exp_edge_fixer.virt_node_emb.": f"{START}virtual.",
    "exp_edge_fixer.virt_edge_in_emb.": f"{START}to_virtual.",
    "exp_edge_fixer.virt_edge_out_emb.": f"{START}from_virtual.",
    ".models.1.local_model.": ".local.1.conv.",
    ".models.1.norm1_local.": ".local_norm.1.norm.module.",
    **{f".models.{branch}.": "." for branch in range(3)},
    ".norm1_local.": ".local_norm.0.norm.module.",
    ".norm1_attn.": ".attention_norm.0.norm.module.",
    ".norm2.": ".ffn_norm.norm.module.",
    ".local_model.bn_node_x.": ".local.0.node_norm.module.",
    ".local_model.bn_edge_e.": ".local.0.edge_norm.module.",
    ".local_model.mlp.1.": ".local.0.conv.mlp.1.module.",
    **{f".local_model.{name}": f".local.0.conv.{name}" for name in ("mlp.", "bias", "lin.")},
    ".local_model.": ".local.0.",
    ".self_attn.Q.": ".attention.0.query.",
    ".self_attn.K.": ".attention.0.key.",
    ".self_attn.V.": ".attention.0.value.",
    ".self_attn.E.": ".attention.0.edge.",
    ".ff_linear1.": ".ffn.0.",
    ".ff_linear2.": ".ffn.3.",
}


def rename(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


@pytest.mark.parametrize("name", LAYERS)
def test_whole_layers_match_the_recorded_original(name: str) -> None:
    stack = Stack(*LAYERS[name]()).double()
    record = load(f"B_layers/exph_{name}")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = inputs["batch"]
        ptr = torch.cat([torch.zeros(1, dtype=torch.long), batch.bincount().cumsum(0)])
        expander = torch.cat([inputs[f"expander_edges_graph{i}"].T + ptr[i] for i in range(len(ptr) - 1)], 1)
        sets = {"expander": (expander, None)}
        context = GraphContext(batch, ptr, inputs["edge_index"], inputs["edge_attr"], sets)
        x, edge_attr, state = stack(inputs["x"], context)
        return {"x": x, "edge_attr": edge_attr, "virt_h": state.virtual}

    check(stack, forward, record, rename)
