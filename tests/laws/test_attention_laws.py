"""Every attention obeys the laws of `graphgps_kmip.testing.laws`, and each law is seen to fail."""

# ruff: noqa: ARG005 (functions of a table have one signature)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.attention import GraphContext, SANAttention
from graphgps_kmip.registry import AttentionTraits, Spec, entries
from graphgps_kmip.testing import laws
from graphgps_kmip.testing.laws import LAWS, Law, Trial, attend

# name, options, and what the row does not promise with them
OPTIONS: list[tuple[str, dict[str, Any], dict[str, tuple[str, ...]]]] = [
    ("kMIP", {"k": 4, "diversity": 2.0}, {}),
    ("kMIP", {"k": 2, "dim_kq": 3, "dim_val": 5, "head_agg": "Linear"}, {}),
    ("BigBird", {"block_size": 1, "num_random_blocks": 1}, {}),
    # a single layer: nothing reads the new features of virtual nodes
    ("Exphormer", {"num_virt_node": 2}, {"zero_grad": ("initial_state.to_virtual.weight",)}),
    ("Exphormer", {"use_exp_edges": False}, {"zero_grad": ("initial_state.expander.weight",)}),
    ("Exphormer", {"add_edge_index": False}, {}),
    ("ScoreEstimator", {"elementwise": True, "normalise_values": False}, {}),
    ("SAN", {"gamma": 0.3}, {}),
    ("SAN", {"secondary_edges": "none"}, {"zero_grad": ("initial_state.feature.weight",)}),
    ("SAN", {"secondary_edges": "expander", "gamma": 0.3}, {"breaks": ("batch_vector",)}),
    ("SAN", {"separate": True}, {}),
    ("SAN", {"separate": True, "secondary_edges": "none"}, {"breaks": ("gradients",)}),
    ("SAN", {"separate": True, "secondary_edges": "expander"}, {"breaks": ("batch_vector",)}),
    ("sL2", {"scale": "paper", "key_norm": "none"}, {}),
    ("sL2", {"key_norm": "learned", "urpe": False}, {"zero_grad": ("pair.bias",)}),
    ("GECO", {"form": "gate_first", "local": "convolution"}, {}),
]


def with_options() -> list[Spec]:
    """Every row of the registry, and the options that change what is computed."""
    table = entries("attention") | {"SAN": Spec("attention", "SAN", SANAttention, "", traits=AttentionTraits())}
    specs = list(entries("attention").values())
    for name, options, less in OPTIONS:
        spec, described = table[name], ", ".join(f"{key}={value}" for key, value in options.items())
        component, traits = partial(spec.component, **options), replace(spec.traits, **less)
        specs.append(replace(spec, name=f"{name}({described})", component=component, traits=traits))
    return specs


SPECS = with_options()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.check.__name__)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_attention_obeys(spec: Spec, law: Law) -> None:
    if law.promise in spec.traits.breaks:
        pytest.skip(f"{spec.name} does not promise {law.promise!r} (its row says so)")
    law.check(Trial(spec))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_dropout_acts_in_training_only(spec: Spec) -> None:
    trial = Trial(replace(spec, component=partial(spec.component, dropout=0.5)))
    attention, (x, context) = trial.layer(), trial.batch([7, 5])
    assert torch.equal(attend(attention, x, context), attend(attention, x, context))
    attention.train()
    assert not torch.equal(attend(attention, x, context), attend(attention, x, context))


@pytest.mark.parametrize("law", [law for law in LAWS if not law.exact], ids=lambda law: law.check.__name__)
def test_laws_that_are_not_exact_hold_in_float32(law: Law) -> None:
    law.check(Trial(entries("attention")["kMIP"], dtype=torch.float32))


class Lawful(nn.Module):
    """The mean of each graph through a linear map, beside another one of the node itself."""

    def __init__(self, dim: int, num_heads: int) -> None:  # noqa: ARG002
        super().__init__()
        self.node, self.mean = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        context = GraphContext.of(context, x)
        total = x.new_zeros(context.num_graphs, x.size(1)).index_add(0, context.batch, x)
        mean = total / context.sizes.clamp(min=1).to(x.dtype)[:, None]
        return self.node(x).tanh() + self.mean(mean)[context.batch]


class WrongSecond(torch.autograd.Function):
    """x squared, whose derivative is right and whose second one is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2 * ctx.saved_tensors[0].detach()


def _changed_in_place(x: Tensor, out: Tensor) -> Tensor:
    x.data.add_(1)
    return out


def _without_gradient_of_the_first(x: Tensor, out: Tensor) -> Tensor:
    x.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:1]), gradient[1:]]))
    return out


class WithState(Lawful):
    """Returns its state also where it was given none."""

    def initial_state(self, context: GraphContext) -> Tensor:
        return context.ptr

    def forward(self, x: Tensor, context: Any, state: Any = None) -> Any:
        return super().forward(x, context), state


Spoil = Callable[[Tensor, Tensor, Any], Tensor]
TRAINING = "this matters for float32 and bfloat16 training"
HARMLESS = "float32 and bfloat16 training are not affected"
ALL = r"node\.weight, node\.bias, mean\.weight, mean\.bias"
# law, how an attention is spoiled, and what is said of it
BROKEN: list[tuple[Callable[[Trial], None], Spoil | type[nn.Module], str]] = [
    (
        laws.a_graph_alone_gives_the_same_output_as_in_a_batch,
        lambda x, out, _: out + x.mean(0),
        rf"the output of graphs alone is off by 0?[1-9].* of its largest number: {TRAINING}",
    ),
    (
        laws.a_graph_alone_gives_the_same_output_as_in_a_batch,
        lambda x, out, _: out + 1e-6 * x.mean(0),
        rf"off by .*e-0[67] of its largest number: {HARMLESS}",
    ),
    (
        laws.permuting_the_nodes_and_edges_permutes_the_output,
        lambda x, out, _: out + torch.arange(len(x), dtype=x.dtype)[:, None],
        "the output of permuted nodes is off",
    ),
    (
        laws.graphs_of_any_shape_give_finite_outputs_and_gradients,
        lambda x, out, _: out / (len(x) - 1),
        "one node: the output is not finite",
    ),
    (
        laws.graphs_of_any_shape_give_finite_outputs_and_gradients,
        lambda x, out, _: out + (x - x).abs().sqrt(),
        rf"one node: the gradient of the input x is not finite: {TRAINING}",
    ),
    (
        laws.gradients_reach_the_input_and_every_parameter,
        lambda x, out, _: out.detach() + x,
        "parameters without a gradient",
    ),
    (
        laws.gradients_reach_the_input_and_every_parameter,
        lambda x, out, _: _without_gradient_of_the_first(x, out),
        rf"the input x has no gradient in the rows of nodes \[0\]: {TRAINING}",
    ),
    (
        laws.gradients_equal_finite_differences,
        lambda x, out, _: out + x.detach(),
        rf"the gradient of the input x differs from finite differences: {TRAINING}",
    ),
    (
        laws.gradients_equal_finite_differences,
        lambda x, out, _: out + out.detach(),
        rf"the gradient of the input x, {ALL} differs from finite differences: {TRAINING}",
    ),
    (
        laws.gradients_equal_finite_differences,
        lambda x, out, _: out.float().double(),
        rf"differs from finite differences: only float32's rounding shows, {HARMLESS}",
    ),
    (
        laws.gradients_of_gradients_equal_finite_differences_or_are_an_error,
        lambda x, out, _: out + WrongSecond.apply(x),
        rf"second derivative by the input x is wrong: {HARMLESS}",
    ),
    (
        laws.eval_mode_does_not_depend_on_the_random_state,
        lambda x, out, _: out + 1e-3 * torch.rand_like(x),
        r"another random state is off by .*: bfloat16 rounds more than that, but this matters for float32 training",
    ),
    (laws.the_state_dict_carries_the_whole_function, lambda x, out, _: x, "other weights give the same output"),
    (
        laws.float32_is_close_to_float64,
        lambda x, out, _: out + 0.01 * (x.dtype == torch.float32),
        "the output in float32 is off",
    ),
    (
        laws.bfloat16_autocast_gives_finite_outputs_and_gradients,
        lambda x, out, _: out / (not torch.is_autocast_enabled(x.device.type)),
        r"the output under bfloat16 autocast is not finite: this matters for bfloat16 training \(bf16-mixed\), not",
    ),
    (
        laws.half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients,
        lambda x, out, _: out + (x.dtype == torch.float16),
        rf"in torch.float16 half of the outputs are off by .*: {HARMLESS}",
    ),
    (
        laws.inputs_are_not_modified_in_place,
        lambda x, out, context: _changed_in_place(context.edge_attr, out),
        rf"the input context.edge_attr has changed: {TRAINING}",
    ),
    (
        laws.a_plain_batch_vector_serves_as_context,
        lambda x, out, context: out + context.ptr.numel() * 0.0,
        "has no attribute 'ptr'",
    ),
    (laws.an_attention_with_a_state_makes_its_own_where_none_is_given, WithState, "it gives a tuple, not the output"),
]


def _trial(component: type[nn.Module]) -> Trial:
    return Trial(Spec("attention", "Tried", component, "tried here", traits=AttentionTraits()))


@pytest.mark.parametrize(("law", "spoil", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_lawful_attention_passes_and_of_a_broken_law_it_is_said_where_and_what_it_means_for_training(
    law: Callable[[Trial], None], spoil: Spoil | type[nn.Module], message: str
) -> None:
    class Spoiled(Lawful):
        def forward(self, x: Tensor, context: Any) -> Tensor:
            return spoil(x, super().forward(x, context), context)

    law(_trial(Lawful))
    with pytest.raises((AssertionError, AttributeError), match=message):
        law(_trial(spoil if isinstance(spoil, type) else Spoiled))


def test_every_law_is_seen_to_fail() -> None:
    assert {law.check for law in LAWS} == {law for law, _, _ in BROKEN}
