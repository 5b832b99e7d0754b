"""Every attention obeys the laws of `graphgps_kmip.check.attention_laws`, and each law is seen to fail."""

# ruff: noqa: ARG005 (functions of a table have one signature)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.check import attention_laws as laws
from graphgps_kmip.check.attention_batches import Trial, attend
from graphgps_kmip.check.attention_laws import LAWS, Law
from graphgps_kmip.registry import AttentionTraits, Spec, entries


@pytest.mark.parametrize("law", LAWS, ids=[law.name.replace(" ", "_") for law in LAWS])
def test_the_attention_obeys(attention_row: Spec, law: Law) -> None:
    if law.promise in attention_row.traits.breaks:
        pytest.skip(f"{attention_row.name} does not promise {law.promise!r} (its row says so)")
    law.check(Trial(attention_row))


def test_dropout_acts_in_training_only(attention_row: Spec) -> None:
    trial = Trial(replace(attention_row, component=partial(attention_row.component, dropout=0.5)))
    attention, (x, context) = trial.attention(), trial.batch([7, 5])
    assert torch.equal(attend(attention, x, context), attend(attention, x, context))
    attention.train()
    assert not torch.equal(attend(attention, x, context), attend(attention, x, context))


@pytest.mark.parametrize("law", [law for law in LAWS if not law.exact], ids=lambda law: law.name.replace(" ", "_"))
def test_laws_that_are_not_exact_hold_in_float32(law: Law) -> None:
    law.check(Trial(entries("attention")["kMIP"], dtype=torch.float32))


class Lawful(nn.Module):
    """The mean of each graph through a linear map, beside another one of the node itself."""

    def __init__(self, dim: int, num_heads: int) -> None:  # noqa: ARG002
        super().__init__()
        self.own, self.mean = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        context = GraphContext.of(context, x)
        total = x.new_zeros(context.num_graphs, x.size(1)).index_add(0, context.batch, x)
        mean = total / context.sizes.clamp(min=1).to(x.dtype)[:, None]
        return self.own(x).tanh() + self.mean(mean)[context.batch]


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


def _only_context(context: Any) -> float:
    return context.ptr.numel() * 0.0


Spoil = Callable[[Tensor, Tensor, Any], Tensor]
BROKEN: dict[Callable[[Trial], None], Spoil] = {
    laws.a_graph_alone_gives_the_same_output_as_in_a_batch: lambda x, out, _: out + x.mean(0),
    laws.permuting_the_nodes_and_edges_permutes_the_output: lambda x, out, _: (
        out + torch.arange(len(x), dtype=x.dtype)[:, None]
    ),
    laws.graphs_of_any_shape_give_finite_outputs_and_gradients: lambda x, out, _: out / (len(x) - 1),
    laws.gradients_reach_the_input_and_every_parameter: lambda x, out, _: out.detach() + x,
    laws.gradients_equal_finite_differences: lambda x, out, _: out + x.detach(),
    laws.gradients_of_gradients_equal_finite_differences_or_are_an_error: lambda x, out, _: out + WrongSecond.apply(x),
    laws.eval_mode_does_not_depend_on_the_random_state: lambda x, out, _: out + torch.rand_like(x),
    laws.the_state_dict_carries_the_whole_function: lambda x, out, _: x,
    laws.float32_is_close_to_float64: lambda x, out, _: out + 0.01 * (x.dtype == torch.float32),
    laws.bfloat16_autocast_gives_finite_outputs_and_gradients: lambda x, out, _: (
        out / (not torch.is_autocast_enabled(x.device.type))
    ),
    laws.half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients: lambda x, out, _: (
        out + (x.dtype == torch.float16)
    ),
    laws.inputs_are_not_modified_in_place: lambda x, out, _: _changed_in_place(x, out),
    laws.a_plain_batch_vector_serves_as_context: lambda x, out, context: out + _only_context(context),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name.replace(" ", "_"))
def test_a_lawful_attention_passes_and_a_spoiled_one_does_not(law: Law) -> None:
    def trial(component: type[nn.Module]) -> Trial:
        return Trial(Spec("attention", "Tried", component, "tried here", traits=AttentionTraits()))

    law.check(trial(Lawful))
    with pytest.raises((AssertionError, RuntimeError, AttributeError)):
        law.check(trial(_spoiled(BROKEN[law.check]) if law.check in BROKEN else WithState))


def _spoiled(spoil: Spoil) -> type[nn.Module]:
    class Spoiled(Lawful):
        def forward(self, x: Tensor, context: Any) -> Tensor:
            return spoil(x, super().forward(x, context), context)

    return Spoiled


TRAINING = "this matters for float32 and bfloat16 training"
ALL = r"own\.weight, own\.bias, mean\.weight, mean\.bias"
# law, how an attention is spoiled, and what is said of it
SAID: list[tuple[Callable[[Trial], None], Spoil, str]] = [
    (
        laws.a_graph_alone_gives_the_same_output_as_in_a_batch,
        lambda x, out, _: out + x.mean(0),
        rf"the output of graphs alone is off by 0?[1-9].* of its largest number: {TRAINING}",
    ),
    (
        laws.a_graph_alone_gives_the_same_output_as_in_a_batch,
        lambda x, out, _: out + 1e-6 * x.mean(0),
        r"off by .*e-0[67] of its largest number: float32 and bfloat16 training are not affected",
    ),
    (
        laws.eval_mode_does_not_depend_on_the_random_state,
        lambda x, out, _: out + 1e-3 * torch.rand_like(x),
        r"another random state is off by .*: bfloat16 rounds more than that, but this matters for float32 training",
    ),
    (
        laws.graphs_of_any_shape_give_finite_outputs_and_gradients,
        lambda x, out, _: out + (x - x).abs().sqrt(),
        rf"one node: the gradient of the input x is not finite: {TRAINING}",
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
        r"differs from finite differences: only float32's rounding shows, float32 and bfloat16 training are not aff",
    ),
    (
        laws.gradients_of_gradients_equal_finite_differences_or_are_an_error,
        lambda x, out, _: out + WrongSecond.apply(x),
        r"second derivative by the input x is wrong: float32 and bfloat16 training are not affected",
    ),
    (
        laws.bfloat16_autocast_gives_finite_outputs_and_gradients,
        BROKEN[laws.bfloat16_autocast_gives_finite_outputs_and_gradients],
        r"the output under bfloat16 autocast is not finite: this matters for bfloat16 training \(bf16-mixed\), not",
    ),
    (
        laws.half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients,
        lambda x, out, _: out + (x.dtype == torch.float16),
        r"in torch.float16 half of the outputs are off by .*: float32 and bfloat16 training are not affected",
    ),
    (
        laws.inputs_are_not_modified_in_place,
        lambda x, out, context: _changed_in_place(context.edge_attr, out),
        rf"the input context.edge_attr has changed: {TRAINING}",
    ),
]


@pytest.mark.parametrize(("law", "spoil", "said"), SAID, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_law_names_the_parameter_or_input_and_what_it_means_for_training(
    law: Callable[[Trial], None], spoil: Spoil, said: str
) -> None:
    with pytest.raises(laws.LawBroken, match=said):
        law(Trial(Spec("attention", "Tried", _spoiled(spoil), "tried here", traits=AttentionTraits())))


class WithState(Lawful):
    """Returns its state also where it was given none."""

    def initial_state(self, context: GraphContext) -> Tensor:
        return context.ptr

    def forward(self, x: Tensor, context: Any, state: Any = None) -> Any:
        return super().forward(x, context), state
