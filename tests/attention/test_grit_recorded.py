"""GRIT attention, whole GRIT layers and RRWP's linear encoders against the recorded original."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphgps_kmip.attention import GraphContext, GRITAttention
from graphgps_kmip.attention.grit import GRITState, PairUpdate, first_pairs
from graphgps_kmip.attention.grit_operator import PairFeatures
from graphgps_kmip.common.node_pairs import all_pairs
from graphgps_kmip.common.row_layers import row_norms
from graphgps_kmip.encoding.rrwp_linear import RRWPLinear
from graphgps_kmip.model.grit_layer import GRITLayer
from tests.recorded import check, load, part

DIM, HEADS = 8, 2
ATTENTION = {
    "Q.": "query.",
    "K.": "key.",
    "V.": "value.",
    "E.": "edge.",
    "VeRow": "pair_value",
    "Aw": "logit",
    "O_h.": "out.",
    "O_e.": "pairs.linear.",
    "alpha1_e": "pairs.alpha",
    "deg_coef": "degree_factors",
}


def rename_attention(name: str) -> str:
    """Return our name of a parameter of the recorded attention, or of what stands beside it in the recorded layer."""
    name = name.removeprefix("attention.")
    for old, new in ATTENTION.items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


def rename_layer(name: str) -> str:
    """Return our name of a parameter of the recorded layer."""
    if name == "alpha1_h":
        return "attention_alpha"
    for norm in ("batch_norm", "layer_norm"):
        for old, new in (("1_h", "attention_norm"), ("2_h", "ffn_norm"), ("1_e", "attention.0.pairs.norm")):
            if name.startswith(f"{norm}{old}."):
                return name.replace(f"{norm}{old}.", f"{new}.0.")
    for old, new in {"FFN_h_layer1": "ffn.0", "FFN_h_layer2": "ffn.3", "alpha2_h": "ffn_alpha"}.items():
        if name.startswith(old):
            return name.replace(old, new)
    return f"attention.0.{rename_attention(name)}"


def in_order(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return query and key of the recorded pairs, sorted, and where each of them was."""
    key, query = inputs["edge_index"]
    order = (query * len(inputs["x"]) + key).argsort()
    return torch.stack([query, key])[:, order], order


def first_state(inputs: dict[str, Tensor], form: str) -> tuple[GRITState, Tensor]:
    """Return the recorded pairs as a state, complete or as a list, and the places of its pairs in the record."""
    index, order = in_order(inputs)
    if form == "complete":
        assert torch.equal(index, all_pairs(inputs["ptr"]))
        index = None
    else:  # in the order of the record, which is none
        index, order = inputs["edge_index"].flip(0), torch.arange(len(order))
    pairs = PairFeatures(inputs["edge_attr"][order], index)
    return GRITState(pairs, inputs["log_deg"].detach()[:, None]), order  # the recorded code, too, takes no gradient


class Alone(nn.Module):
    """The recorded attention: without the scales of degrees and the output maps, which are set to do nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        update = PairUpdate(DIM, norm=nn.Sequential(), linear=False)
        self.attention = GRITAttention(DIM, HEADS, pairs=update, deg_scaler=False, **options)
        self.attention.out = nn.Identity()

    def forward(self, x: Tensor, context: GraphContext, state: GRITState) -> tuple[Tensor, Tensor]:
        h, new = self.attention(x, context, state)
        return h, new.pairs.value - state.pairs.value  # without the residual


OPTIONS: dict[str, dict[str, Any]] = {
    "b3": {},
    "b3_bias": {"use_bias": True},
    "b3_noclamp": {"clamp": None},
    "b3_noenhance": {"edge_enhance": False},
    "b3_sparse": {},
}
FORMS = [(name, form) for name in OPTIONS for form in ("complete", "list") if (name, form) != ("b3_sparse", "complete")]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_output_and_gradients_match_the_recorded_attention(name: str, form: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        state, order = first_state(inputs, form)
        h, s = module(inputs["x"], GraphContext(inputs["batch"], inputs["ptr"]), state)
        return {"h": h.unflatten(1, (HEADS, -1)), "e": s[order.argsort()]}

    module = Alone(**OPTIONS[name]).double()
    record = load(f"G_grit/attention_{name}")
    check(module, forward, record, lambda name: f"attention.{rename_attention(name)}")


LAYERS: dict[str, dict[str, Any]] = {
    "bn_b3": {},
    "bn_gelu_b3": {"act": nn.GELU},
    "bn_noOe_b3": {"linear": False, "norm_e": False},
    "bn_noupdate_b3": {"update": False},
    "bn_rezero_b3": {"rezero": True},
    "bn_sparse_b3": {},
    "ln_b3": {"layer_norm": True, "batch_norm": False},
}
LAYER_FORMS = [
    (name, form) for name in LAYERS for form in ("complete", "list") if (name, form) != ("bn_sparse_b3", "complete")
]


def layer(
    act: type[nn.Module] = nn.ReLU, linear: bool = True, norm_e: bool = True, update: bool = True, **options: Any
) -> GRITLayer:
    norms = {key: value for key, value in options.items() if key != "rezero"}
    norm = row_norms(DIM, **norms) if norm_e else nn.Sequential()
    pairs = PairUpdate(DIM, 0.0, norm, linear=linear, update=update, rezero=options.get("rezero", False))
    return GRITLayer(DIM, GRITAttention(DIM, HEADS, pairs=pairs), act=act, **options)


@pytest.mark.parametrize(("name", "form"), LAYER_FORMS)
def test_whole_layers_match_the_recorded_original(name: str, form: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        state, order = first_state(inputs, form)
        x, _, (state,) = module(inputs["x"], GraphContext(inputs["batch"], inputs["ptr"]), (state,))
        return {"h": x, "e": state.pairs.normalised()[order.argsort()]}

    module = layer(**LAYERS[name]).double()
    check(module, forward, load(f"G_grit/layer_{name}"), rename_layer)


def test_the_linear_encoder_of_nodes_is_that_of_the_record() -> None:
    record = load("G_grit/rrwp_linear_node")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        # graphs of one node: all RRWP is on the diagonal
        ptr = torch.arange(len(inputs["x"]) + 1)
        return {"x": encoder(Data(x=inputs["x"], rrwp=inputs["rrwp"], ptr=ptr, batch=ptr[:-1])).x}

    encoder = RRWPLinear(5, DIM).double()
    record["state/pair.weight"] = torch.zeros(DIM, 5, dtype=torch.float64)
    check(encoder, forward, record, lambda name: name.replace("fc.", "node."))


def test_the_linear_encoder_of_pairs_and_the_edges_at_their_pairs_are_those_of_the_record() -> None:
    record = load("G_grit/rrwp_linear_edge_nopad")
    recorded = record["eval/extra/edge_index"]
    # zeros for a pad that nothing adds, and for x, which only the encoder of nodes changes
    record = {key: value for key, value in record.items() if "padding" not in key}
    record["state/node.weight"] = torch.zeros(DIM, 5, dtype=torch.float64)

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        (column, row), ptr = inputs["rrwp_index"], part(record, "in")["batch"].bincount().cumsum(0)
        ptr = torch.cat([ptr.new_zeros(1), ptr])
        order = (row * len(inputs["x"]) + column).argsort()
        assert torch.equal(torch.stack([row, column])[:, order], all_pairs(ptr))
        batch = encoder(Data(x=inputs["x"], rrwp=inputs["rrwp_val"][order], ptr=ptr, batch=inputs["batch"]))
        batch.edge_index, batch.edge_attr = inputs["edge_index"], inputs["edge_attr"]
        pairs = first_pairs(GraphContext.from_data(batch), torch.zeros(2 * DIM, DIM, dtype=torch.float64))
        assert pairs.index is None
        place = (recorded[1] * len(inputs["x"]) + recorded[0]).argsort().argsort()
        return {"edge_attr": pairs.value[place]}

    encoder = RRWPLinear(5, DIM).double()
    check(encoder, forward, record, lambda name: name.replace("fc.", "pair."))
