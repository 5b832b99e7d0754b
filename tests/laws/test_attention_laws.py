"""The laws that every attention obeys (see GraphContext for the contract).

A row of the table that does not promise one of them names it in ``breaks``: "alone", "permutation", "shapes",
"gradients", "deterministic", "precision", "inputs", "batch_vector".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.registry import Spec
from tests.laws.cases import attend, build, graph_alone, make_batch, pair_dim, permuted, promised

ROUNDING = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums of a few hundred terms in another order
SIZES = [7, 1, 12, 5]


def test_a_graph_alone_gives_the_same_output_as_in_a_batch(attention_row: Spec) -> None:
    promised(attention_row, "alone")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    in_batch = attend(attention, x, context)
    alone = [attend(attention, *graph_alone(x, context, graph)) for graph in range(len(SIZES))]
    torch.testing.assert_close(torch.cat(alone), in_batch, **ROUNDING)


def test_permuting_the_nodes_and_edges_permutes_the_output(attention_row: Spec) -> None:
    promised(attention_row, "permutation")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    shuffled_x, shuffled, order = permuted(x, context)
    torch.testing.assert_close(
        attend(attention, shuffled_x, shuffled), attend(attention, x, context)[order], **ROUNDING
    )


@pytest.mark.parametrize(
    ("sizes", "num_edges"),
    [([1], 0), ([1, 1, 1], 2), ([6, 3], 0), ([2, 3], 2), ([20], 2), ([4, 0, 5], 2), ([0], 0), ([], 0)],
    ids=["one node", "one-node graphs", "no edges", "tiny", "one graph", "empty graph within", "no nodes", "no graphs"],
)
def test_graphs_of_any_shape_give_finite_outputs_and_gradients(
    attention_row: Spec, sizes: list[int], num_edges: int
) -> None:
    promised(attention_row, "shapes")
    attention = build(attention_row)
    x, context = make_batch(sizes, num_edges=num_edges, pair_dim=pair_dim(attention_row))
    out = attend(attention, x.requires_grad_(), context)
    assert out.shape == x.shape
    assert out.isfinite().all()
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in attention.parameters())


def test_gradients_reach_the_input_and_every_parameter(attention_row: Spec) -> None:
    promised(attention_row, "gradients")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    attend(attention, x.requires_grad_(), context).square().sum().backward()
    reached = {name: _largest(parameter.grad) > 1e-10 for name, parameter in attention.named_parameters()}
    zero = {name for name in reached if any(fnmatch(name, pattern) for pattern in attention_row.traits.zero_grad)}
    missed = {name for name, value in reached.items() if not value}
    assert missed == zero, "parameters without a gradient must be those that zero_grad of the row names, and no others"
    assert (x.grad.abs().amax(1) > 1e-10).all()


def test_gradients_equal_finite_differences(attention_row: Spec) -> None:
    promised(attention_row, "gradients")
    attention = build(attention_row)
    x, context = make_batch([3, 1, 2], pair_dim=pair_dim(attention_row))
    parameters = dict(attention.named_parameters())

    def output(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(_Called(attention), _prefixed(given), (x, context))

    assert torch.autograd.gradcheck(output, (x.requires_grad_(), *parameters.values()), fast_mode=True)


def test_gradients_of_gradients_equal_finite_differences_or_are_an_error(attention_row: Spec) -> None:
    promised(attention_row, "gradients")
    attention = build(attention_row)
    x, context = make_batch([3, 1, 2], pair_dim=pair_dim(attention_row))

    def output(x: Tensor) -> Tensor:
        return attend(attention, x, context)

    def second() -> bool:
        return torch.autograd.gradgradcheck(output, (x.clone().requires_grad_(),), fast_mode=True)

    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative, and says so
        assert second()
    try:
        assert second()
    except GradcheckError:  # a wrong one
        raise
    except RuntimeError as error:
        assert "not implemented" in str(error)  # noqa: PT017


def test_eval_mode_is_deterministic(attention_row: Spec) -> None:
    promised(attention_row, "deterministic")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    first = attend(attention, x, context)
    torch.manual_seed(99)
    assert torch.equal(attend(attention, x, context), first)


def test_the_state_dict_carries_the_whole_function(attention_row: Spec) -> None:
    promised(attention_row, "deterministic")
    attention, other = build(attention_row), build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    assert not torch.equal(attend(other, x, context), attend(attention, x, context))
    other.load_state_dict(attention.state_dict())
    assert torch.equal(attend(other, x, context), attend(attention, x, context))


def test_float32_is_close_to_float64(attention_row: Spec) -> None:
    promised(attention_row, "precision")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    expected = attend(attention, x, context)
    out = attend(attention.float(), x.float(), _cast(context))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_autocast_gives_finite_outputs_and_gradients(attention_row: Spec) -> None:
    promised(attention_row, "precision")
    attention = build(attention_row).float()
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(attention, x.float(), _cast(context))
    assert out.shape == x.shape
    out.float().square().sum().backward()
    assert out.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [SIZES, [1], [0], []], ids=["graphs", "one node", "no nodes", "no graphs"])
def test_half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients(
    attention_row: Spec, sizes: list[int], dtype: torch.dtype
) -> None:
    promised(attention_row, "precision")
    attention = build(attention_row)
    x, context = make_batch(sizes, pair_dim=pair_dim(attention_row))
    expected = attend(attention, x, context)
    given = x.to(dtype).requires_grad_()
    halved = replace(context, edge_attr=context.edge_attr.to(dtype), pair_attr=context.pair_attr.to(dtype))
    out = attend(attention.to(dtype), given, halved)
    assert out.dtype == dtype
    # k-MIP may take another key of nearly the same score, so that a single output is further off
    assert not len(x) or float((out - expected).detach().abs().median()) < 0.1
    out.float().square().sum().backward()
    assert given.grad.isfinite().all()


def test_inputs_are_not_modified_in_place(attention_row: Spec) -> None:
    promised(attention_row, "inputs")
    attention = build(attention_row).train()
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    tensors = [x, context.batch, context.ptr, context.edge_index, context.edge_attr, context.pair_index]
    tensors.append(context.pair_attr)
    before = [tensor.clone() for tensor in tensors]
    attend(attention, x, context)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))


def test_a_plain_batch_vector_serves_as_context(attention_row: Spec) -> None:
    promised(attention_row, "batch_vector")
    attention = build(attention_row)
    x, context = make_batch(SIZES, num_edges=0, pair_dim=pair_dim(attention_row))
    expected = attend(attention, x, GraphContext(context.batch, context.ptr))
    torch.testing.assert_close(attend(attention, x, context.batch), expected, rtol=0, atol=0)
    torch.testing.assert_close(attend(attention, x[:7], None), expected[:7], **ROUNDING)


def test_an_attention_with_a_state_makes_its_own_where_none_is_given(attention_row: Spec) -> None:
    promised(attention_row, "batch_vector")
    attention = build(attention_row)
    x, context = make_batch(SIZES, pair_dim=pair_dim(attention_row))
    out = attention(x, context)
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out, attend(attention, x, context), rtol=0, atol=0)


def _largest(grad: Tensor | None) -> float:
    return 0.0 if grad is None else float(grad.abs().max())


def _cast(context: GraphContext) -> GraphContext:
    return replace(context, edge_attr=context.edge_attr.float(), pair_attr=context.pair_attr.float())


def _prefixed(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"attention.{name}": value for name, value in values.items()}


class _Called(torch.nn.Module):
    """An attention behind `attend`, for functional_call."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        return attend(self.attention, x, context)
