"""Layers of PPGT equal the recorded ones; layer scale, stochastic depth, SwiGLU and class attention as documented."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import ClassAttention, SimplifiedL2Attention
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.ppgt_layer import (
    BranchOptions,
    ClassAttentionLayer,
    PPGTLayer,
    ResidualBranch,
    SwiGLU,
    feed_forward,
)
from tests.recorded import check, load, part

# Recorded name -> ours; norms of a batch are one level deeper here.
NAMES = {
    "norm1_h.norm_layer": "attention_norm",
    "norm2_h.norm_layer": "ffn_norm",
    "attention.Q": "attention.0.heads.query",
    "attention.KV": "attention.0.heads.key_value",
    "attention.O": "attention.0.heads.out",
    "attention.P": "attention.0.pair",
    "FFN.0": "ffn.0",
    "FFN.4": "ffn.3",
    "FFN.fc1": "ffn.gate",
    "FFN.fc2": "ffn.value",
    "FFN.fc3": "ffn.out",
}
RECORDS = {
    "layer_ada_b1": {},
    "layer_ada_b3": {},
    "layer_ada_dot_b3": {"key_norm": "none"},
    "layer_ada_ffn4_dimedge6_b3": {"dim_pair": 6, "ratio": 4},
    "layer_ada_swiglu_b3": {"swiglu": True},
    "layer_batchnorm_b3": {"norm": "batch_norm"},
    "layer_rms_b3": {"norm": "rms_norm"},
}


def layer_of(
    norm: str = "ada_rms_norm",
    ratio: float = 2,
    swiglu: bool = False,
    dim_pair: int = 0,
    key_norm: str = "fixed",
) -> PPGTLayer:
    attention = SimplifiedL2Attention(8, 2, dim_pair=dim_pair, key_norm=key_norm)
    ffn = SwiGLU(8, ratio) if swiglu else feed_forward(8, ratio)
    return PPGTLayer(8, attention, ffn, BranchOptions(norm=norm)).double()


@pytest.mark.parametrize("file", RECORDS)
def test_outputs_and_gradients_equal_the_recorded_layer(file: str) -> None:
    record, layer = load(f"F_model/{file}"), layer_of(**RECORDS[file])
    ours = set(layer.state_dict())

    def rename(name: str) -> str:
        head, _, last = name.rpartition(".")
        name = f"{NAMES[head]}.{last}"
        return name if name in ours else f"{name.rpartition('.')[0]}.module.{last}"

    # a layer without a learned scale has a constant 1 in the records
    record = {key: value for key, value in record.items() if RECORDS[file].get("layer_scale") or "res_layer" not in key}

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        key, query = inputs["edge_index"]
        context = GraphContext(
            inputs["batch"], inputs["ptr"], pair_index=torch.stack([query, key]), pair_attr=inputs["edge_attr"]
        )
        return {"h": layer(inputs["x"], context)[0]}

    assert ours == {rename(key) for key in part(record, "state")}
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
    layer = PPGTLayer(4, constant(1.0), constant(10.0), BranchOptions(drop_path=0.5, drop_path_scale=False))
    y = layer(torch.zeros(len(context.batch), 4), context)[0]
    firsts = y[context.ptr[:-1], 0]
    torch.testing.assert_close(y, firsts[context.batch, None].expand(-1, 4))
    values, counts = firsts.unique(return_counts=True)
    assert values.tolist() == [0.0, 1.0, 10.0, 11.0]
    assert (counts > 220).all(), "four equally likely outcomes of 1200 graphs: 300 each, standard deviation 15"
    assert layer.eval()(torch.zeros(len(context.batch), 4), context)[0].unique().tolist() == [11.0]


def test_scaled_stochastic_depth_keeps_the_mean() -> None:
    torch.manual_seed(0)
    context = context_of([1] * 4000)
    layer = PPGTLayer(1, constant(1.0), constant(0.0), BranchOptions(drop_path=0.25))
    assert abs(float(layer(torch.zeros(4000, 1), context)[0].mean()) - 1) < 0.05


def test_a_dropped_graph_gives_its_branch_no_gradient_and_its_stream_all_of_it() -> None:
    torch.manual_seed(0)
    branch, x, h = ResidualBranch(2, drop_path=0.5), *(torch.zeros(9, 2, requires_grad=True) for _ in range(2))
    branch(x, h, torch.tensor([0, 4, 9])).sum().backward()
    assert (x.grad == 1).all()
    assert set(h.grad.unique().tolist()) <= {0.0, 2.0}


def test_layer_scale_starts_at_its_value_and_learns() -> None:
    branch = ResidualBranch(3, layer_scale=1e-4)
    x, h = torch.ones(2, 3), torch.full((2, 3), 10.0)
    torch.testing.assert_close(branch(x, h), torch.full((2, 3), 1.001))
    branch(x, h).sum().backward()
    assert branch.layer_scale.grad.tolist() == [20.0] * 3
    assert not list(ResidualBranch(3).parameters())


def test_dropout_of_a_branch_leaves_the_stream_alone() -> None:
    torch.manual_seed(0)
    y = ResidualBranch(1000, dropout=0.5)(torch.ones(1, 1000), torch.ones(1, 1000))
    assert y.unique().tolist() == [1.0, 3.0]


def test_swiglu_has_two_thirds_of_the_hidden_width_and_drops_hidden_numbers() -> None:
    network = SwiGLU(48, 2.0, dropout=0.9999)
    assert network.gate.out_features == network.value.out_features == 64
    torch.testing.assert_close(network(torch.randn(3, 48)), network.out.bias.expand(3, 48), atol=0.5, rtol=0)
    x = torch.randn(3, 48)
    gate, value = network.gate(x), network.value(x)
    torch.testing.assert_close(network.eval()(x), network.out(gate / (1 + (-gate).exp()) * value))


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
    drops = ClassAttentionLayer(1, constant(1.0), constant(0.0), BranchOptions(drop_path=0.5, drop_path_scale=False))
    tokens = drops(torch.zeros(1000, 1), torch.zeros(1000, 1), context_of([1] * 1000))
    assert 400 < int(tokens.sum()) < 600


@pytest.mark.parametrize("layer", [PPGTLayer, ClassAttentionLayer])
def test_an_unknown_norm_is_refused_with_near_misses(layer: type) -> None:
    with pytest.raises(ConfigError, match="ppgt.norm: unknown name 'ada_rms'. Did you mean ada_rms_norm"):
        layer(4, constant(0.0), constant(0.0), BranchOptions(norm="ada_rms"))
