"""Second derivatives of every fused operator: those of the formula in float64, or an error in every case."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention import clamped_attention as clamped
from graphgps_kmip.attention import sparse_attention as selected
from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.attention.full import _full_attention, drop_factors, full_attention
from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.common.gradients import differentiable_gradients, once_only
from graphgps_kmip.model.norms import GraphLayerNorm
from graphgps_kmip.mpnn.gated_mean import gated_mean
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from graphgps_kmip.native import unavailable_reason
from graphgps_kmip.search import topk_inner_product
from tests.reference import attention as reference

PTR = torch.tensor([0, 4, 4, 5, 11])  # a graph without nodes, one of a single node
BATCH = torch.repeat_interleave(PTR.diff())
SOURCE, TARGET = torch.tensor([[0, 1, 4, 3, 3, 10, 5, 6, 6, 7], [1, 0, 4, 1, 1, 5, 10, 6, 9, 9]])
Operator = Callable[..., Tensor]
needs_c = pytest.mark.skipif(unavailable_reason("full_attention") is not None, reason="no C compiler")


def kmip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), PTR, PTR, 3)
    return sparse_attention(q, k, v, index, score)


def kmip_in_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with mock.patch.object(selected, "implementation", return_value=(selected.torch_forward, selected.torch_backward)):
        return kmip(q, k, v)


def kmip_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference.kmip_attention(q, k, v, PTR.tolist(), 3)


def full(qkv: Tensor) -> Tensor:
    return full_attention(qkv, GraphContext(BATCH, PTR), 2)


def full_formula(qkv: Tensor) -> Tensor:
    return reference.full_attention(*qkv.unflatten(1, (3, 2, -1)).unbind(1), PTR.tolist()).flatten(1)


def along_edges(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
    edges = torch.stack([SOURCE, TARGET, torch.arange(len(SOURCE)) % len(e)])
    return clamped_attention(3 * q, k, v, e, edges)


def along_edges_formula(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
    kind = torch.arange(len(SOURCE)) % len(e)
    score = (3 * q[TARGET] * k[SOURCE] * e[kind]).sum(-1) / q.size(-1) ** 0.5
    score = score.clamp(-5, 5).exp()
    into = torch.nn.functional.one_hot(TARGET, len(q)).T.to(q)  # (N, E)
    total = into @ score + 1e-6
    return torch.einsum("ne,eh,ehc->nhc", into, score, v[SOURCE]) / total[..., None]


def sums(gate: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    return torch.cat(gated_sum(gate, value, factor, SOURCE, TARGET, 11), dim=1)


def sums_formula(gate: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    into = torch.nn.functional.one_hot(TARGET, 11).T.to(gate)
    weight = factor * gate.sigmoid()
    return torch.cat([into @ (weight * value[SOURCE]), into @ weight], dim=1)


def means(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor) -> Tensor:
    return torch.cat(gated_mean(own, other, edge, factor, SOURCE, TARGET))


def means_formula(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor) -> Tensor:
    (a, d), (b, h) = own.chunk(2, 1), other.chunk(2, 1)
    gate = edge + d[TARGET] + h[SOURCE]
    total, normaliser = sums_formula(gate, b, factor).chunk(2, 1)
    return torch.cat([a + total / (normaliser + 1e-6), gate])


NORM = GraphLayerNorm(3).double()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.func.functional_call(NORM, {"weight": weight, "bias": bias}, (x, BATCH, 4))


def layer_norm_formula(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    graphs = [rows for rows in x.split(PTR.diff().tolist()) if len(rows)]
    spread = [(rows.var(correction=0) + 1e-5).sqrt() for rows in graphs]
    return torch.cat([(rows - rows.mean()) / s * weight + bias for rows, s in zip(graphs, spread, strict=True)])


HEADS, EDGES = (11, 2, 3), (len(SOURCE), 3)
CASES: dict[str, tuple[Operator, Operator, list[tuple[int, ...]]]] = {
    "k-MIP attention": (kmip, kmip_formula, [HEADS, HEADS, (11, 2, 4)]),
    "k-MIP attention in plain torch": (kmip_in_torch, kmip_formula, [HEADS, HEADS, (11, 2, 4)]),
    "full attention": (full, full_formula, [(11, 18)]),
    "attention along edges": (along_edges, along_edges_formula, [HEADS, HEADS, HEADS, (4, 2, 3)]),
    "gated sums": (sums, sums_formula, [EDGES, (11, 3), (len(SOURCE), 1)]),
    "gated means in C": (means, means_formula, [(11, 6), (11, 6), EDGES, (len(SOURCE), 1)]),
    "layer norm of a graph": (layer_norm, layer_norm_formula, [(11, 3), (3,), (3,)]),
}
C_ONLY = ("full attention", "gated means in C")
every_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_c, id=name) if name in C_ONLY else pytest.param(case, id=name)
             for name, case in CASES.items()]
)  # fmt: skip


def make(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def second(operator: Operator, inputs: list[Tensor], cotangent: Tensor, along: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradient of <gradient of <operator, cotangent>, along>: as in a gradient penalty."""
    first = torch.autograd.grad(operator(*inputs), inputs, cotangent, create_graph=True, materialize_grads=True)
    product = sum((grad * direction).sum() for grad, direction in zip(first, along, strict=True))
    wanted = [*inputs, cotangent] if cotangent.requires_grad else inputs
    return torch.autograd.grad(product, wanted, materialize_grads=True)


@every_case
@pytest.mark.parametrize("with_cotangent", [False, True], ids=["of a sum", "of a cotangent with a gradient"])
def test_gradients_of_gradients_equal_those_of_the_formula(
    case: tuple[Operator, Operator, list], with_cotangent: bool
) -> None:
    operator, formula, shapes = case
    inputs, along = make(shapes), make(shapes)
    out = formula(*inputs)
    cotangent = torch.randn_like(out).requires_grad_(with_cotangent)
    torch.testing.assert_close(operator(*inputs), out, rtol=1e-10, atol=1e-10)
    found, expected = (second(function, inputs, cotangent, along) for function in (operator, formula))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert sum(float(grad.abs().sum()) for grad in expected) > 0.1


@every_case
def test_gradients_of_gradients_equal_finite_differences(case: tuple[Operator, Operator, list]) -> None:
    operator, _, shapes = case
    assert torch.autograd.gradgradcheck(operator, make(shapes), fast_mode=True)


@pytest.mark.parametrize("operator", ["k-MIP attention", "full attention", "attention along edges"])
def test_a_second_derivative_drops_what_the_forward_dropped(operator: str) -> None:
    edges = torch.stack([SOURCE, TARGET, torch.arange(len(SOURCE)) % 4])

    def dropping(*inputs: Tensor) -> Tensor:
        torch.manual_seed(3)
        if operator == "full attention":
            return full_attention(*inputs, GraphContext(BATCH, PTR), 2, 0.4)
        if operator == "attention along edges":
            return clamped_attention(*inputs, edges, 0.4)
        index, score = topk_inner_product(*(t.detach().transpose(0, 1) for t in inputs[:2]), PTR, PTR, 3)
        return sparse_attention(*inputs, index, score, 0.4)

    if operator == "full attention" and unavailable_reason("full_attention"):
        pytest.skip("no C compiler")
    inputs = make(CASES[operator][2])
    cotangent = torch.randn_like(dropping(*inputs))
    plain = torch.autograd.grad(dropping(*inputs), inputs, cotangent)
    with_graph = torch.autograd.grad(dropping(*inputs), inputs, cotangent, create_graph=True)
    torch.testing.assert_close(list(with_graph), list(plain), rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradgradcheck(dropping, inputs, fast_mode=True)


@needs_c
def test_the_hash_of_dropped_weights_is_that_of_the_kernel() -> None:
    graphs, heads, nodes, dropout, seed = 2, 3, 40, 0.3, 2**61 + 12345
    qkv = torch.zeros(graphs * nodes, 3, heads, nodes, dtype=torch.float64)
    qkv[:, 2] = torch.eye(nodes, dtype=torch.float64).repeat(graphs, 1)[:, None]  # values show the weights
    ptr = torch.arange(graphs + 1) * nodes
    out = _full_attention(qkv.flatten(1), ptr, heads, dropout, torch.tensor(seed))[0] * nodes
    found = out.view(graphs, nodes, heads, nodes).transpose(1, 2)
    torch.testing.assert_close(found, drop_factors(graphs, heads, nodes, dropout, seed))


def test_a_tensor_that_is_given_twice_has_both_gradients_twice() -> None:
    (x,) = make([HEADS])
    along = make([HEADS])

    def shared(x: Tensor) -> Tensor:
        return kmip(x, x, x)

    cotangent = torch.randn(HEADS, dtype=torch.float64)
    expected = second(lambda x: kmip_formula(x, x, x), [x], cotangent, along)
    torch.testing.assert_close(second(shared, [x], cotangent, along), expected, rtol=1e-9, atol=1e-9)


@every_case
def test_forward_mode_and_function_transforms_are_refused_and_never_wrong(
    case: tuple[Operator, Operator, list],
) -> None:
    operator, formula, shapes = case
    inputs = [x.detach() for x in make(shapes)]
    tangents = tuple(torch.randn_like(x) for x in inputs)
    _, expected = torch.func.jvp(formula, tuple(inputs), tangents)
    for forward_mode in (_jvp, _dual):
        try:
            found = forward_mode(operator, inputs, tangents)
        except RuntimeError:
            continue
        torch.testing.assert_close(found, expected)
    stacked = [torch.stack([x, 2 * x]) for x in inputs]
    try:
        found = torch.func.vmap(operator)(*stacked)
    except RuntimeError:
        return
    torch.testing.assert_close(found, torch.stack([formula(*(x[i] for x in stacked)) for i in range(2)]))


def _jvp(function: Operator, inputs: list[Tensor], tangents: tuple[Tensor, ...]) -> Tensor:
    return torch.func.jvp(function, tuple(inputs), tangents)[1]


def _dual(function: Operator, inputs: list[Tensor], tangents: tuple[Tensor, ...]) -> Tensor:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        tangent = forward_ad.unpack_dual(function(*duals)).tangent
        return torch.zeros(()) if tangent is None else tangent


class _Doubled(torch.autograd.Function):
    """x * y whose gradient can be taken once."""

    @staticmethod
    def forward(ctx, x, y):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205
        x, y = ctx.saved_tensors
        return once_only("a product", lambda: (grad * y, grad * x), (grad, x, y))


def test_an_operator_of_one_derivative_gives_it_and_raises_however_a_second_one_is_reached() -> None:
    x, y = make([(3,), (3,)])
    cotangent = torch.ones(3, dtype=torch.float64)
    for wanted in ([x], [y], [x, y]):
        first = torch.autograd.grad(_Doubled.apply(x, y), wanted, cotangent, create_graph=True)
        torch.testing.assert_close(first[0].detach(), (y if wanted[0] is x else x).detach())
        for leaf in (x, y):
            with pytest.raises(RuntimeError, match="a product has no second derivative"):
                torch.autograd.grad(first[0].sum(), leaf, allow_unused=True)


def test_a_gradient_of_nothing_is_zero() -> None:
    (x,) = make([(3,)])
    (found, nothing) = differentiable_gradients(lambda *given: given[0].detach(), (x, None), (torch.ones(3),))
    assert found.tolist() == [0, 0, 0]
    assert nothing is None


def test_every_backward_of_the_package_either_asks_for_grad_mode_or_is_made_of_its_own_function() -> None:
    """No ``once_differentiable``: it is silent where the second derivative flows through saved tensors alone."""
    package = Path(clamped.__file__).parents[1]
    seen = 0
    for file in sorted(package.rglob("*.py")):
        for name, text in backwards(ast.parse(file.read_text())):
            assert "once_differentiable" not in text, f"{file.name}: {name}"
            seen += 1
            assert "is_grad_enabled" in text or f"{name}.apply" in text or "raise" in text or "gradients(ctx" in text, (
                f"{file.name}: the backward of {name} ignores create_graph=True"
            )
    assert seen >= 13


def backwards(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and code of the backward of each Function, and of the gradients of each operator (`operators`)."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
            (backward,) = (part for part in node.body if getattr(part, "name", "") == "backward")
            yield node.name, ast.unparse(backward)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "operator":
            for keyword in node.keywords:
                if keyword.arg == "gradients":
                    yield ast.unparse(keyword.value), ast.unparse(functions[ast.unparse(keyword.value)])
