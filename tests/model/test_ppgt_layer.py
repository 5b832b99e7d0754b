"""Layers of PPGT equal the recorded ones; their options and initial weights are as documented."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import ClassAttention, SimplifiedL2Attention
from graphgps_kmip.model.ppgt_model import (
    BranchOptions,
    ClassAttentionLayer,
    PPGTLayer,
    ResidualBranch,
    feed_forward,
    initialise_ppgt,
)
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.row_layers import AdaRMSNorm
from tests.recorded import check, load, part

# Recorded name -> name here; norms of a batch are one level deeper here.
NAMES = {
    "norm1_h.norm_layer": "attention_norm",
    "norm2_h.norm_layer": "ffn_norm",
    "attention.Q": "attention.0.heads.query",
    "attention.KV": "attention.0.heads.key_value",
    "attention.O": "attention.0.heads.out",
    "attention.P": "attention.0.pair",
    "FFN.0": "ffn.0",
    "FFN.4": "ffn.3",
}
RECORDS = {
    "layer_ada_b1": {},
    "layer_ada_b3": {},
    "layer_ada_dot_b3": {"key_norm": "none"},
    "layer_ada_ffn4_dimedge6_b3": {"dim_pair": 6, "ratio": 4},
    "layer_batchnorm_b3": {"norm": "batch_norm"},
    "layer_rms_b3": {"norm": "rms_norm"},
}


def layer_of(norm: str = "ada_rms_norm", ratio: float = 2, dim_pair: int = 0, key_norm: str = "fixed") -> PPGTLayer:
    attention = SimplifiedL2Attention(8, 2, dim_pair=dim_pair, key_norm=key_norm)
    return PPGTLayer(8, attention, feed_forward(8, ratio), BranchOptions(norm=norm)).double()


@pytest.mark.parametrize("file", RECORDS)
def test_outputs_and_gradients_equal_the_recorded_layer(file: str) -> None:
    record, layer = load(f"F_model/{file}"), layer_of(**RECORDS[file])
    names = set(layer.state_dict())

    def rename(name: str) -> str:
        head, _, last = name.rpartition(".")
        name = f"{NAMES[head]}.{last}"
        return name if name in names else f"{name.rpartition('.')[0]}.module.{last}"

    # a layer without a learned scale has a constant 1 in the records
    record = {key: value for key, value in record.items() if RECORDS[file].get("layer_scale") or "res_layer" not in key}

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        key, query = inputs["edge_index"]
        context = GraphContext(
            inputs["batch"], inputs["ptr"], pair_index=torch.stack([query, key]), pair_attr=inputs["edge_attr"]
        )
        return {"h": layer(inputs["x"], context)[0]}

    assert names == {rename(key) for key in part(record, "state")}
    check(layer, forward, record, rename)


def constant(value: float) -> nn.Module:
    class Constant(nn.Module):
        def forward(self, x: Tensor, *others: object) -> Tensor:  # noqa: ARG002
            return torch.full_like(x, value)

    return Constant()


def context_of(sizes: list[int]) -> GraphContext:
    sizes = torch.tensor(sizes)
    ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return GraphContext(torch.repeat_interleave(sizes), ptr)


def test_each_branch_drops_whole_graphs_by_its_own_draw() -> None:
    torch.manual_seed(0)
    context = context_of([3, 1, 2] * 400)
    layer = PPGTLayer(4, constant(1.0), constant(10.0), BranchOptions(drop_path=0.5))
    y = layer(torch.zeros(len(context.batch), 4), context)[0]
    firsts = y[context.ptr[:-1], 0]
    torch.testing.assert_close(y, firsts[context.batch, None].expand(-1, 4))
    values, counts = firsts.unique(return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]
    assert (counts > 220).all(), "four equally likely outcomes of 1200 graphs: 300 each, standard deviation 15"
    assert layer.eval()(torch.zeros(len(context.batch), 4), context)[0].unique().tolist() == [11.0]


def test_layer_scale_starts_at_its_value_and_learns() -> None:
    branch = ResidualBranch(3, layer_scale=1e-4)
    x, h = torch.ones(2, 3), torch.full((2, 3), 10.0)
    torch.testing.assert_close(branch(x, h), torch.full((2, 3), 1.001))
    branch(x, h).sum().backward()
    assert branch.layer_scale.grad.tolist() == [20.0] * 3
    assert not list(ResidualBranch(3).parameters())


def test_class_attention_reads_raw_nodes_and_normalised_tokens() -> None:
    seen = {}

    class Recorder(nn.Module):
        def forward(self, token: Tensor, x: Tensor, context: GraphContext) -> Tensor:
            seen.update(token=token, x=x, context=context)
            return token

    layer, context = ClassAttentionLayer(4, Recorder(), constant(0.0)), context_of([2, 3])
    token, x = 5 * torch.ones(2, 4), 7 * torch.ones(5, 4)
    layer(token, x, context)
    torch.testing.assert_close(seen["token"], torch.ones(2, 4))
    assert seen["x"] is x
    assert seen["context"] is context


def test_class_tokens_of_graphs_do_not_mix_and_each_has_its_own_draw() -> None:
    torch.manual_seed(0)
    layer = ClassAttentionLayer(8, ClassAttention(8, 2), feed_forward(8)).double().eval()
    context, token = context_of([3, 5]), torch.randn(2, 8, dtype=torch.float64)
    x = torch.randn(8, 8, dtype=torch.float64)
    whole = layer(token, x, context)
    torch.testing.assert_close(whole[1:], layer(token[1:], x[3:], context_of([5])), rtol=1e-12, atol=1e-12)
    drops = ClassAttentionLayer(1, constant(1.0), constant(0.0), BranchOptions(drop_path=0.5))
    tokens = drops(torch.zeros(1000, 1), torch.zeros(1000, 1), context_of([1] * 1000))
    assert 400 < int((tokens == 2).sum()) < 600


def assert_uniform(linear: nn.Linear, bound: float) -> None:
    largest = float(linear.weight.detach().abs().max())
    assert 0.999 * bound < largest <= bound * (1 + 1e-6)
    assert abs(float(linear.weight.detach().std()) * math.sqrt(3) / bound - 1) < 0.01


def test_initial_weights_of_trunk_encoders_and_stems() -> None:
    torch.manual_seed(0)
    trunk, bare, norm = nn.Linear(300, 300), nn.Linear(4, 4, bias=False), AdaRMSNorm(4)
    encoder = nn.Sequential(nn.Linear(300, 300), nn.Embedding(100, 300))
    stem = nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300))
    initialise_ppgt(nn.ModuleList([trunk, encoder, stem, bare, norm]), [encoder], [stem])
    weight = trunk.weight.detach()
    assert abs(float(weight.std()) - 0.02) < 2e-4
    assert float(weight.abs().max()) > 4 * 0.02
    assert bare.weight.std() < 0.05
    linear, embedding = encoder
    assert_uniform(linear, 1 / math.sqrt(300))
    assert abs(float(embedding.weight.detach().std()) - 1) < 0.02
    assert float(embedding.weight.detach().abs().max()) > 3
    assert_uniform(stem[0], math.sqrt(6 / 300))
    assert_uniform(stem[2], math.sqrt(6 / 300))
    assert_uniform(stem[4], math.sqrt(3 / 300))  # half the variance
    assert not any(linear.bias.any() for linear in (trunk, encoder[0], stem[0], stem[2], stem[4]))
    assert (norm.beta == 1).all()
    assert (norm.alpha == 0).all()
