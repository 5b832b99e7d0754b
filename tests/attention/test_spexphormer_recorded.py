"""Both stages of the low-width method against the recorded original: attentions, whole layers, temperatures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import ExphormerAttention, GraphContext, SampledEdgeAttention, ScoreEstimatorAttention
from graphgps_kmip.attention.exphormer import ExphormerState
from graphgps_kmip.attention.score_estimator import temperature
from graphgps_kmip.compat.public_faults import MixedHeadsAttention
from graphgps_kmip.model.spexphormer_layer import SpexphormerLayer
from tests.recorded import TOLERANCE, check, load

DIM = 8
NAMES = {
    "attention_layer.self_attn.": "attention.0.",
    "attention_layer.norm1_attn.": "attention_norm.0.norm.module.",
    "norm2.": "ffn_norm.norm.module.",
    "ff_linear1.": "ffn.0.",
    "ff_linear2.": "ffn.3.",
    "QKV.": "qkv.",
    "V_scale": "value_scale",
    "E1.": "edge.",
    "E2.": "edge_bias.",
    "Q.": "query.",
    "K.": "key.",
    "V.": "value.",
    "E.": "edge.",
}


def rename(name: str) -> str:
    """Return our name of a parameter: the first pair that fits each part of theirs."""
    for old, new in NAMES.items():
        if old in name:
            return rename_rest(name, old, new)
    return name


def rename_rest(name: str, old: str, new: str) -> str:
    before, _, after = name.partition(old)
    return f"{before}{new}{rename(after)}"


def state_of(inputs: dict[str, Tensor]) -> ExphormerState:
    """Return the edges of a record: of three kinds with a vector each, or with a vector of each edge."""
    kind = inputs["edge_attr"]
    features = inputs.get("edge_embeddings", kind)
    if kind.is_floating_point():
        kind = torch.arange(len(kind))
    elif features is kind:  # no features at all
        features = torch.zeros(3, DIM, dtype=torch.double)
    return ExphormerState(torch.cat([inputs["edge_index"], kind[None]]), features, features[:0])


def sampled(inputs: dict[str, Tensor], layer: int) -> tuple[Tensor, int, Tensor]:
    """Return edges, number of targets and vectors of the kinds of edges of a layer."""
    kind = inputs[f"edge_type_layer_{layer}"]
    types = inputs.get("edge_embeddings", kind)
    row = torch.arange(len(kind)) if kind.is_floating_point() else kind
    edges = torch.cat([inputs[f"edge_index_layer_{layer}"], row[None]])
    return edges, int(inputs["num_layer_nodes"][layer + 1]), types


@pytest.mark.parametrize(
    "name", ["T0.3_h1_types", "T0.3_h1_types_scaled4.0", "T0.3_h2_types", "T0.3_h2_vecs", "T1.0_h2_types"]
)
def test_the_estimator_matches_the_recorded_attention(name: str) -> None:
    check_estimator(name, ScoreEstimatorAttention(DIM, int(name[6])))


def test_the_estimator_without_types_matches_the_recorded_attention() -> None:
    check_estimator("T1.0_h1_types_noedge", ScoreEstimatorAttention(DIM, 1, use_edge_types=False))


def check_estimator(name: str, attention: ScoreEstimatorAttention) -> None:
    record = load(f"C_spex/ase_attention_{name}")
    del attention.initial_state
    record["state/temperature"] = record["eval/extra/T"]

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"h": attention(inputs["x"], inputs["batch"], state_of(inputs))[0]}

    check(attention.double(), forward, record, rename)
    if "eval/extra/attention_scores" in record:  # the sums of the record do not have the 1e-6 either
        inputs = {key.removeprefix("in/"): value for key, value in record.items() if key.startswith("in/")}
        edges, weight = attention.edge_scores(inputs["x"], inputs["batch"], state_of(inputs))
        assert torch.equal(edges[:2], inputs["edge_index"])
        expected = record["eval/extra/attention_scores"].squeeze(-1)
        torch.testing.assert_close(weight, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["h1_deg4_types", "h2_deg4_types", "h2_deg4_vecs"])
def test_attention_along_sampled_edges_matches_the_recorded_one(name: str) -> None:
    # with two heads the recorded code mixes them up
    kind = SampledEdgeAttention if name[1] == "1" else MixedHeadsAttention
    attention = kind(DIM, int(name[1])).double()
    record = load(f"C_spex/spex_attention_{name}")
    check(attention, lambda inputs: {"h": attention(inputs["x"], *sampled(inputs, 0))}, record, rename)


class Stack(nn.ModuleList):
    """Layers, called one after the other."""

    def whole(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, states = inputs["x"], (state_of(inputs),)
        for layer in self:
            x, _, states = layer(x, GraphContext.of(inputs["batch"], x), states)
        return {"x": x}

    def sampled(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = inputs["x"]
        for number, layer in enumerate(self):
            x = layer.along_sampled_edges(x, *sampled(inputs, number))
        return {"x": x}


@pytest.mark.parametrize("ffn", [True, False])
def test_layers_of_the_estimator_match_the_recorded_original(ffn: bool) -> None:
    attention = ScoreEstimatorAttention(DIM, 1)
    del attention.initial_state
    record = load(f"C_spex/full_ASE_batch_norm_{'ffn' if ffn else 'noffn'}_L1")
    record["state/0.attention_layer.self_attn.temperature"] = torch.tensor(0.3, dtype=torch.double)
    stack = Stack([SpexphormerLayer(DIM, attention, ffn=ffn)]).double()
    check(stack, stack.whole, record, rename)


def test_layers_of_exphormer_with_typed_edges_match_the_recorded_original() -> None:
    attention = ExphormerAttention(DIM, 2)
    del attention.initial_state
    stack = Stack([SpexphormerLayer(DIM, attention)]).double()
    check(stack, stack.whole, load("C_spex/full_Exphormer_batch_norm_ffn_L1"), rename)


@pytest.mark.parametrize(("name", "layers", "ffn"), [("ffn_L2", 2, True), ("noffn_L1", 1, False)])
def test_layers_of_the_sparse_network_match_the_recorded_original(name: str, layers: int, ffn: bool) -> None:
    stack = Stack(SpexphormerLayer(DIM, MixedHeadsAttention(DIM, 2), ffn=ffn) for _ in range(layers)).double()
    check(stack, stack.sampled, load(f"C_spex/full_Spexphormer_batch_norm_{name}"), rename)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_temperatures_of_epochs_match_the_recorded_schedule(number: int) -> None:
    record = load("C_spex/temperature_schedule")
    wait, ratio, minimum = record[f"in/wait_ratio_min_{number}"].tolist()
    found = [temperature(epoch, int(wait), ratio, minimum) for epoch in range(20)]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.double), record[f"out/T_{number}"], rtol=1e-14, atol=0)
