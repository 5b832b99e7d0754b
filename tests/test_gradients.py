"""Second derivatives of fused operators are errors; their own tests compare the first ones with float64 formulas."""

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
from graphgps_kmip.ops.gated_mean import gated_mean
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.search import topk_inner_product

PTR = torch.tensor([0, 4, 4, 5, 11])  # a graph without nodes, one of a single node
BATCH = torch.repeat_interleave(PTR.diff())
SOURCE, TARGET = torch.tensor([[0, 1, 4, 3, 3, 10, 5, 6, 6, 7], [1, 0, 4, 1, 1, 5, 10, 6, 9, 9]])
EDGES = torch.stack([SOURCE, TARGET, torch.arange(len(SOURCE)) % 4])
NORM = GraphLayerNorm(3).double()


def kmip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), PTR, PTR, 3)
    return selected.sparse_attention(q, k, v, index, score)


def kmip_in_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with mock.patch.object(selected, "implementation", return_value=(selected.torch_forward, selected.torch_backward)):
        return kmip(q, k, v)


HEADS, FEATURES, FACTOR = (11, 2, 3), (len(SOURCE), 3), (len(SOURCE), 1)
CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "k-MIP attention": (kmip, [HEADS, HEADS, (11, 2, 4)]),
    "k-MIP attention in plain torch": (kmip_in_torch, [HEADS, HEADS, (11, 2, 4)]),
    "full attention": (lambda qkv: full_attention(qkv, GraphContext(BATCH, PTR), 2), [(11, 18)]),
    "attention along edges": (lambda *x: clamped.clamped_attention(*x, EDGES), [HEADS, HEADS, HEADS, (4, 2, 3)]),
    "gated sums": (lambda *x: gated_sum(*x, SOURCE, TARGET, 11)[0], [FEATURES, (11, 3), FACTOR]),
    "gated means in C": (lambda *x: gated_mean(*x, SOURCE, TARGET)[0], [(11, 6), (11, 6), FEATURES, FACTOR]),
    "layer norm of a graph": (lambda x: NORM(x, BATCH, 4), [(11, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_refused(name: str) -> None:
    if name in ("full attention", "gated means in C") and unavailable_reason("full_attention") is not None:
        pytest.skip("no C compiler")
    operator, shapes = CASES[name]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(operator(*inputs).square().sum(), inputs, create_graph=True)


def test_every_backward_of_the_package_refuses_second_derivatives_or_is_made_of_its_own_function() -> None:
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
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
            (backward,) = (part for part in node.body if getattr(part, "name", "") == "backward")
            yield node.name, ast.unparse(backward)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "operator":
            for keyword in node.keywords:
                if keyword.arg == "gradients":
                    yield ast.unparse(keyword.value), ast.unparse(functions[ast.unparse(keyword.value)])
