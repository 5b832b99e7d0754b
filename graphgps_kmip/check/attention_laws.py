"""The laws that every attention obeys (see GraphContext for the contract), on any device.

A row of the registry that does not promise one of them names it in ``breaks``: "alone", "permutation", "shapes",
"gradients", "deterministic", "precision", "inputs", "batch_vector".
"""

# ruff: noqa: D103 (the name of each function is the sentence of its law)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.check.attention_batches import Trial, attend, graph_alone, permuted

SIZES = [7, 1, 12, 5]
SHAPES = {
    "one node": ([1], 0),
    "one-node graphs": ([1, 1, 1], 2),
    "no edges": ([6, 3], 0),
    "tiny": ([2, 3], 2),
    "one graph": ([20], 2),
    "empty graph within": ([4, 0, 5], 2),
    "no nodes": ([0], 0),
    "no graphs": ([], 0),
}
# what sums of a few hundred terms in another order may differ by
ROUNDING = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-4, "atol": 1e-4}}


class LawBroken(AssertionError):
    """An attention does not do what the law says."""


@dataclass(frozen=True)
class Law:
    """One law.

    Args:
        name (str): its sentence.
        promise (str): what a row writes into ``breaks`` that does not promise it.
        check (callable): ``check(trial)``, raises AssertionError.
        exact (bool): needs float64; otherwise it holds in float32 too, to rounding.
    """

    name: str
    promise: str
    check: Callable[[Trial], None]
    exact: bool


LAWS: list[Law] = []


def _law(promise: str, *, exact: bool = False) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    def add(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        LAWS.append(Law(check.__name__.replace("_", " "), promise, check, exact))
        return check

    return add


def _require(holds: object, broken: str) -> None:
    if not holds:
        raise LawBroken(broken)


@_law("alone")
def a_graph_alone_gives_the_same_output_as_in_a_batch(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES)
    alone = [attend(attention, *graph_alone(x, context, graph)) for graph in range(len(SIZES))]
    torch.testing.assert_close(torch.cat(alone), attend(attention, x, context), **ROUNDING[trial.dtype])


@_law("permutation")
def permuting_the_nodes_and_edges_permutes_the_output(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES)
    shuffled_x, shuffled, order = permuted(x, context)
    torch.testing.assert_close(
        attend(attention, shuffled_x, shuffled), attend(attention, x, context)[order], **ROUNDING[trial.dtype]
    )


@_law("shapes")
def graphs_of_any_shape_give_finite_outputs_and_gradients(trial: Trial) -> None:
    for name, (sizes, num_edges) in SHAPES.items():
        attention, (x, context) = trial.attention(), trial.batch(sizes, num_edges)
        out = attend(attention, x.requires_grad_(), context)
        _require(out.shape == x.shape, f"{name}: the output has shape {tuple(out.shape)}, not {tuple(x.shape)}")
        out.square().sum().backward()
        _require(out.isfinite().all(), f"{name}: the output is not finite")
        _require(_finite_gradients(attention, x), f"{name}: a gradient is not finite")


@_law("gradients")
def gradients_reach_the_input_and_every_parameter(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES)
    attend(attention, x.requires_grad_(), context).square().sum().backward()
    least = 1e-10 if trial.dtype == torch.float64 else 1e-5  # above what rounding makes of a gradient of zero
    missed = {name for name, parameter in attention.named_parameters() if _largest(parameter.grad) <= least}
    patterns = trial.spec.traits.zero_grad
    zero = {name for name, _ in attention.named_parameters() if any(fnmatch(name, pattern) for pattern in patterns)}
    _require(
        missed == zero,
        f"parameters without a gradient ({sorted(missed)}) must be those that zero_grad of the row names "
        f"({sorted(zero)}), and no others",
    )
    _require((x.grad.abs().amax(1) > least).all(), "a node's features have no gradient")


@_law("gradients", exact=True)
def gradients_equal_finite_differences(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch([3, 1, 2])
    parameters = dict(attention.named_parameters())

    def output(x: Tensor, *values: Tensor) -> Tensor:
        given = {f"attention.{name}": value for name, value in zip(parameters, values, strict=True)}
        return torch.func.functional_call(_Called(attention), given, (x, context))

    _require(
        torch.autograd.gradcheck(output, (x.requires_grad_(), *parameters.values()), fast_mode=True, **_atomics(x)),
        "gradcheck failed",
    )


@_law("gradients", exact=True)
def gradients_of_gradients_equal_finite_differences_or_are_an_error(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch([3, 1, 2])

    def second() -> bool:
        inputs = (x.clone().requires_grad_(),)
        return torch.autograd.gradgradcheck(
            lambda x: attend(attention, x, context), inputs, fast_mode=True, **_atomics(x)
        )

    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative, and says so
        _require(second(), "gradgradcheck failed")
    try:
        _require(second(), "gradgradcheck failed")
    except GradcheckError:  # a wrong one
        raise
    except RuntimeError as error:
        _require("not implemented" in str(error), f"the second derivative raises {error}")


@_law("deterministic")
def eval_mode_does_not_depend_on_the_random_state(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES)
    first = attend(attention, x, context)
    torch.manual_seed(99)
    _same(attend(attention, x, context), first, trial)


@_law("deterministic")
def the_state_dict_carries_the_whole_function(trial: Trial) -> None:
    attention, other = trial.attention(), trial.attention()
    x, context = trial.batch(SIZES)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    expected = attend(attention, x, context)
    _require(not torch.equal(attend(other, x, context), expected), "other weights give the same output")
    other.load_state_dict(attention.state_dict())
    _same(attend(other, x, context), expected, trial)


@_law("precision", exact=True)
def float32_is_close_to_float64(trial: Trial) -> None:
    expected = attend(trial.attention(), *trial.batch(SIZES))
    single = replace(trial, dtype=torch.float32)
    out = attend(single.attention(), *single.batch(SIZES))
    _require(out.dtype == torch.float32, f"float32 inputs give {out.dtype}")
    torch.testing.assert_close(out.double(), expected, **ROUNDING[torch.float32])


@_law("precision", exact=True)
def bfloat16_autocast_gives_finite_outputs_and_gradients(trial: Trial) -> None:
    single = replace(trial, dtype=torch.float32)
    attention, (x, context) = single.attention(), single.batch(SIZES)
    with torch.autocast(trial.device.type, dtype=torch.bfloat16):
        out = attend(attention, x.requires_grad_(), context)
    _require(out.shape == x.shape, f"the output has shape {tuple(out.shape)}, not {tuple(x.shape)}")
    out.float().square().sum().backward()
    _require(out.isfinite().all(), "the output is not finite")
    _require(_finite_gradients(attention, x), "a gradient is not finite")


@_law("precision", exact=True)
def half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients(trial: Trial) -> None:
    for sizes in (SIZES, [1], [0], []):
        expected = attend(trial.attention(), *trial.batch(sizes))
        for dtype in (torch.bfloat16, torch.float16):
            half = replace(trial, dtype=dtype)
            attention, (x, context) = half.attention(), half.batch(sizes)
            out = attend(attention, x.requires_grad_(), context)
            _require(out.dtype == dtype, f"{dtype} inputs give {out.dtype}")
            # k-MIP may take another key of nearly the same score, so that a single output is further off
            off = float((out - expected).detach().abs().median()) if len(x) else 0.0
            _require(off < 0.1, f"in {dtype} half of the outputs are off by {off:.3g} and more")
            out.float().square().sum().backward()
            _require(_finite_gradients(attention, x), f"a gradient in {dtype} is not finite")


@_law("inputs")
def inputs_are_not_modified_in_place(trial: Trial) -> None:
    attention, (x, context) = trial.attention().train(), trial.batch(SIZES)
    tensors = [x, context.batch, context.ptr, context.edge_index, context.edge_attr, context.pair_index]
    tensors.append(context.pair_attr)
    before = [tensor.clone() for tensor in tensors]
    attend(attention, x, context)
    unchanged = all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))
    _require(unchanged, "an input has changed")


@_law("batch_vector")
def a_plain_batch_vector_serves_as_context(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES, num_edges=0)
    expected = attend(attention, x, GraphContext(context.batch, context.ptr))
    _same(attend(attention, x, context.batch), expected, trial)
    torch.testing.assert_close(attend(attention, x[:7], None), expected[:7], **ROUNDING[trial.dtype])


@_law("batch_vector")
def an_attention_with_a_state_makes_its_own_where_none_is_given(trial: Trial) -> None:
    attention, (x, context) = trial.attention(), trial.batch(SIZES)
    out = attention(x, context)
    _require(isinstance(out, Tensor), f"without a state it gives a {type(out).__name__}, not the output alone")
    _same(out, attend(attention, x, context), trial)


def _same(found: Tensor, expected: Tensor, trial: Trial) -> None:
    """The same bits on the CPU; on a GPU sums by atomic additions have no fixed order."""
    exact = {"rtol": 0, "atol": 0} if trial.device.type == "cpu" else ROUNDING[trial.dtype]
    torch.testing.assert_close(found, expected, **exact)


def _atomics(x: Tensor) -> dict[str, Any]:
    return {} if x.device.type == "cpu" else {"nondet_tol": 1e-10}


def _finite_gradients(attention: nn.Module, x: Tensor) -> bool:
    gradients = [x.grad, *(parameter.grad for parameter in attention.parameters())]
    return all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)


def _largest(grad: Tensor | None) -> float:
    return float(grad.abs().max()) if grad is not None and grad.numel() else 0.0


class _Called(nn.Module):
    """An attention behind `attend`, for functional_call."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        return attend(self.attention, x, context)
