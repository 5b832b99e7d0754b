"""Derivatives of every fused operator: first ones are those of the formula in float64, second ones are errors."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.model.norms import GraphLayerNorm
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from graphgps_kmip.ops import clamped_attention as clamped
from graphgps_kmip.ops import sparse_attention as selected
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.gated_mean import gated_mean
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.testing import references

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
    return references.kmip_attention(q, k, v, PTR.tolist(), 3)


def full(qkv: Tensor) -> Tensor:
    return full_attention(qkv, GraphContext(BATCH, PTR), 2)


def full_formula(qkv: Tensor) -> Tensor:
    return references.full_attention(*qkv.unflatten(1, (3, 2, -1)).unbind(1), PTR.tolist()).flatten(1)


def along_edges(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
    edges = torch.stack([SOURCE, TARGET, torch.arange(len(SOURCE)) % len(e)])
    return clamped_attention(3 * q, k, v, e, edges)


def along_edges_formula(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
    edges = torch.stack([SOURCE, TARGET, torch.arange(len(SOURCE)) % len(e)])
    return references.clamped_attention(3 * q, k, v, e, edges)


def sums(gate: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    return torch.cat(gated_sum(gate, value, factor, SOURCE, TARGET, 11), dim=1)


def sums_formula(gate: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    into = torch.nn.functional.one_hot(TARGET, 11).T.to(gate)
    weight = factor * gate.sigmoid()
    return torch.cat([into @ (weight * value[SOURCE]), into @ weight], dim=1)


def means(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor) -> Tensor:
    return torch.cat(gated_mean(own, other, edge, factor, SOURCE, TARGET))


def means_formula(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor) -> Tensor:
    return references.gated_mean(own, other, edge, factor, SOURCE, TARGET)


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


def make(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_c if name in C_ONLY else [], id=name) for name, case in CASES.items()]
)
def test_first_derivatives_are_those_of_the_formula_and_second_ones_are_refused(
    case: tuple[Operator, Operator, list],
) -> None:
    operator, formula, shapes = case
    inputs = make(shapes)
    out, expected = operator(*inputs), formula(*inputs)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, cotangent), rtol=1e-9, atol=1e-9)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(operator(*inputs), inputs, cotangent, create_graph=True)


def test_every_backward_of_the_package_refuses_second_derivatives_or_is_made_of_its_own_function() -> None:
    """No ``once_differentiable``: it is silent where the second derivative flows through saved tensors alone."""
    package = Path(clamped.__file__).parents[1]
    seen = 0
    for file in sorted(package.rglob("*.py")):
        for name, text in backwards(ast.parse(file.read_text())):
            assert "once_differentiable" not in text, f"{file.name}: {name}"
            seen += 1
            answers = "refuse_second_derivative", f"{name}.apply", "gradients(ctx"
            assert any(answer in text for answer in answers), (
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
