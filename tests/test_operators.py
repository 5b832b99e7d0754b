"""The operators of the package as torch's: opcheck, torch.compile, torch.export, torch.func."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import load, save
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import FullAttention, full_attention
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.errors import InputError
from graphgps_kmip.model import GPSLayer, GPSModel, GraphHead
from graphgps_kmip.model.export_model import export_model, tensors_of
from graphgps_kmip.mpnn import GatedGCN
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from graphgps_kmip.ops import operators
from graphgps_kmip.ops.gated_mean import gated_mean
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.ops.native.compile_kernels import without_kernels
from graphgps_kmip.ops.sparse_attention import sparse_attention

PTR = torch.tensor([0, 4, 4, 5, 11])  # a graph without nodes, one of a single node
BATCH = torch.repeat_interleave(PTR.diff())
EDGES = torch.tensor([[0, 1, 4, 3, 3, 10, 5, 6, 6, 7], [1, 0, 4, 1, 1, 5, 10, 6, 9, 9]])
OPS = torch.ops.graphgps_kmip
IN_C = pytest.mark.skipif(unavailable_reason("full_attention") is not None, reason="no C compiler")


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def selected(keep: bool) -> tuple[Any, ...]:
    rows = torch.randint(-1, 22, (22, 5), dtype=torch.int32)
    score = torch.randn(22, 5, dtype=torch.float64).masked_fill(rows < 0, -torch.inf)
    dropped = (torch.rand(22, 5) > 0.3, 0.3) if keep else (None, 0.0)
    return random(22, 3), random(22, 3), random(22, 4), rows, score, *dropped


CASES: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
    "search": ("topk_inner_product", lambda: (*torch.randn(2, 2, 11, 3), PTR, PTR, 5, "auto", True)),
    "search in plain torch": ("topk_inner_product", lambda: (*torch.randn(2, 11, 3), None, None, 5, "chunked", False)),
    "sparse attention": ("sparse_attention", lambda: selected(False)),
    "sparse attention with dropout": ("sparse_attention", lambda: selected(True)),
    "sparse attention in plain torch": ("sparse_attention", lambda: selected(True)),
    "full attention": ("full_attention", lambda: (random(11, 18), PTR, 2, 0.0, None)),
    "full attention with dropout": ("full_attention", lambda: (random(11, 18), PTR, 2, 0.3, torch.tensor(5))),
    "gated means": ("gated_mean", lambda: (random(11, 6), random(11, 6), random(10, 3), random(10, 1), *EDGES)),
    "gated means without factor": ("gated_mean", lambda: (random(11, 6), random(11, 6), random(10, 3), None, *EDGES)),
    "gated sums": ("gated_sum", lambda: (random(10, 3), random(11, 3), random(10, 1), *EDGES, 11)),
    "gated sums without factor": ("gated_sum", lambda: (random(10, 3), random(11, 3), None, *EDGES, 11)),
}  # fmt: skip
NEEDS_C = ("full attention", "gated means")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=IN_C if case.startswith(NEEDS_C) else ()) for case in CASES]
)  # fmt: skip
def test_opcheck_passes(case: str) -> None:
    name, make = CASES[case]
    with without_kernels() if case.endswith("plain torch") else contextlib.nullcontext():
        assert set(torch.library.opcheck(getattr(OPS, name).default, make()).values()) == {"SUCCESS"}


def test_every_operator_that_is_defined_is_checked() -> None:
    defined = {str(operator).split(".")[1] for operator in operators.implementations}
    assert {name for name in defined if not name.endswith("_backward")} == {name for name, _ in CASES.values()}


def kmip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    index = torch.arange(3).expand(2, 6, 3)
    score = torch.einsum("nhd,mhd->hnm", q, k).gather(2, index).detach()
    return sparse_attention(q, k, v, index, score)


TRANSFORMED: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "sparse_attention": (kmip, [torch.randn(6, 2, 3) for _ in range(3)]),
    "full_attention": (lambda qkv: full_attention(qkv, GraphContext(BATCH, PTR), 2), [torch.randn(11, 18)]),
    "gated_mean": (lambda *x: gated_mean(*x, None, *EDGES)[0], [*torch.randn(2, 11, 6), torch.randn(10, 3)]),
    "gated_sum": (lambda *x: gated_sum(*x, None, *EDGES, 11)[0], [torch.randn(10, 3), torch.randn(11, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=IN_C) for name in TRANSFORMED])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "hessian"])
def test_derivatives_of_torch_func_are_refused_in_one_line(name: str, transform: str) -> None:
    function, inputs = TRANSFORMED[name]
    calls = {
        "grad": lambda: torch.func.grad(lambda *x: function(*x).sum())(*inputs),
        "vjp": lambda: torch.func.vjp(function, *inputs),
        "jvp": lambda: torch.func.jvp(function, tuple(inputs), tuple(inputs)),
        "hessian": lambda: torch.func.hessian(lambda *x: function(*x).sum())(*inputs),
    }
    message = rf"^{name} has no derivatives by torch.func .* take first derivatives by [^\n]*$"
    with pytest.raises(RuntimeError, match=message):
        calls[transform]()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Linear(3, 8), nn.Linear(2, 8)

    def forward(self, batch: Batch) -> Batch:
        batch.x, batch.edge_attr = self.nodes(batch.x), self.edges(batch.edge_attr)
        return batch


def model_of(attention: str) -> GPSModel:
    model = GPSModel(Encoder(), [GPSLayer(8, GatedGCN(8), ATTENTIONS[attention]())], GraphHead(8, 4))
    for _ in range(2):  # statistics of batch norms that are not those of the start
        model(graphs(4, 9))[0].sum().backward()
    return model


def graphs(*sizes: int) -> Batch:
    rows = [(torch.randn(n, 3), torch.randint(n, (2, 3 * n)), torch.randn(3 * n, 2)) for n in sizes]
    return Batch.from_data_list([Data(x, edges, attr) for x, edges, attr in rows])


ATTENTIONS = {"k-MIP": lambda: KMIPAttention(8, 2, k=3), "full": lambda: FullAttention(8, 2)}


@IN_C
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_an_exported_model_gives_the_same_numbers_on_graphs_of_any_size(attention: str, tmp_path: Path) -> None:
    model = model_of(attention).eval()
    exported = export_model(model, graphs(5, 7, 9))
    save(exported, tmp_path / "model.pt2")
    program = load(tmp_path / "model.pt2").module()
    for sizes in ((5, 7, 9), (2, 2, 30, 1), (12,)):
        batch = graphs(*sizes)
        torch.testing.assert_close(program(tensors_of(batch)), model(batch)[0], rtol=1e-6, atol=1e-6)
    called = {str(node.target) for node in exported.graph.nodes if "graphgps_kmip" in str(node.target)}
    expected = ["full_attention"] if attention == "full" else ["sparse_attention", "topk_inner_product"]
    assert sorted(called) == [f"graphgps_kmip.{name}.default" for name in sorted([*expected, "gated_mean"])]


def test_a_model_in_training_mode_and_a_batch_of_one_graph_are_not_exported() -> None:
    model = model_of("k-MIP")
    with pytest.raises(InputError, match="model.eval"):
        export_model(model, graphs(5, 7))
    with pytest.raises(InputError, match="two or more graphs"):
        export_model(model.eval(), graphs(5))


@IN_C
@pytest.mark.parametrize("attention", ["k-MIP", pytest.param("full", marks=pytest.mark.thorough)])
def test_a_compiled_layer_is_one_graph_with_the_same_gradients(attention: str) -> None:
    layer = GPSLayer(8, GatedGCN(8), ATTENTIONS[attention]())
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in ((5, 7, 9), (3, 12)):
        batch, x = graphs(*sizes), torch.randn(sum(sizes), 8, requires_grad=True)
        batch.edge_attr = batch.edge_attr.repeat(1, 4)
        context = GraphContext.from_data(batch)
        outputs = [function(x, context)[0] for function in (compiled, layer)]
        torch.testing.assert_close(*outputs)
        grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in outputs]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("form", ["compile", "export"])
def test_the_attention_of_the_readme_is_one_program_for_batch_vectors_of_any_length(form: str) -> None:
    attention, x, batch = KMIPAttention(64, 4, k=10), torch.randn(100, 64), torch.tensor([0] * 60 + [1] * 40)
    if form == "compile":
        program = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    else:
        sizes = {0: torch.export.Dim.AUTO}
        program = torch.export.export(attention, (x, batch), dynamic_shapes=(sizes, sizes)).module()
    for graph in (batch, torch.tensor([0] * 3 + [4] * 54), torch.tensor([2] * 5)):  # numbers without a node, too
        nodes = x[: len(graph)].clone().requires_grad_()
        outputs = [function(nodes, graph) for function in (program, attention)]
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), nodes)[0] for out in outputs))
    with pytest.raises(RuntimeError, match="the batch vector must be non-decreasing"):
        program(x, batch.flip(0))
