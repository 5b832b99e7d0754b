"""GRIT against sums written as loops, finite differences and the record; batch norms of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphgps_kmip.attention import GraphContext, GRITAttention
from graphgps_kmip.attention.grit import GRITState, PairUpdate, first_pairs
from graphgps_kmip.encoding.rrwp import RRWPLinear
from graphgps_kmip.model.gps import checkpoint_layer
from graphgps_kmip.model.transformer_layers import PostNormLayer
from graphgps_kmip.ops import grit_operator
from graphgps_kmip.ops.context import all_pairs
from graphgps_kmip.ops.grit_operator import PairFeatures, PairMaps, PairSettings, grit_attention, signed_root
from graphgps_kmip.ops.row_layers import RowBatchNorm, row_norms
from tests.attention.contexts import context_of
from tests.recorded import check, load, part

DIM, HEADS = 6, 2
ROUNDING = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
SIZES = {"graphs": [4, 1, 0, 6], "empty graphs": [0, 0], "no graphs": []}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def arguments(sizes: list[int], scaled: bool = True, mapped: bool = True) -> tuple[list[Tensor | None], Tensor]:
    """Return q, k, v, pair features, scale, shift, five weights, and the boundaries of graphs of these sizes."""
    torch.manual_seed(3)
    nodes, pairs = sum(sizes), sum(size**2 for size in sizes)
    tensors = [random(nodes, DIM) for _ in range(3)] + [random(pairs, DIM)]
    tensors += [random(DIM), random(DIM)] if scaled else [None, None]
    tensors += [random(2 * DIM, DIM), random(2 * DIM), random(DIM)]
    tensors += [random(DIM, DIM), random(DIM)] if mapped else [None, None]
    return tensors, torch.tensor([0, *sizes]).cumsum(0)


def call(
    tensors: list[Tensor | None], ptr: Tensor, index: Tensor | None, settings: PairSettings, **options: Any
) -> Any:
    q, k, v, value, scale, shift, *maps = tensors
    pairs = PairFeatures(value, index, scale, shift)
    return grit_attention(q, k, v, pairs, ptr, PairMaps(*maps), settings, **options)


def results(
    tensors: list[Tensor | None], ptr: Tensor, index: Tensor | None, *args: Any, **options: Any
) -> list[Tensor]:
    torch.manual_seed(5)
    outputs = [out for out in call(tensors, ptr, index, *args, **options) if out is not None]
    torch.manual_seed(7)
    loss = sum((out * torch.randn(out.shape, dtype=torch.float64).to(out)).sum() for out in outputs)
    inputs = [tensor for tensor in tensors if tensor is not None]
    return [*outputs, *torch.autograd.grad(loss, inputs, materialize_grads=True)]


@pytest.mark.parametrize("clamp", [1.0, None])
def test_the_operator_is_its_formula(clamp: float | None) -> None:
    tensors, ptr = arguments(SIZES["graphs"])
    q, k, v, value, scale, shift, edge, edge_bias, logit, out, out_bias = (tensor.detach() for tensor in tensors)
    attended, score_sums, pair_sums = call(tensors, ptr, None, PairSettings(HEADS, clamp))
    width, pairs, clamped = DIM // HEADS, all_pairs(ptr), 0
    for i in range(len(q)):
        rows = [row for row in range(pairs.size(1)) if pairs[0, row] == i]
        e = [value[row] * scale + shift for row in rows]
        scores, keys = [], [int(pairs[1, row]) for row in rows]
        for features, j in zip(e, keys, strict=True):
            product = (q[i] + k[j]) * (edge[:DIM] @ features + edge_bias[:DIM])
            root = torch.tensor([math.copysign(math.sqrt(abs(x)), x) for x in product.tolist()], dtype=q.dtype)
            scores.append((root + edge[DIM:] @ features + edge_bias[DIM:]).clamp(min=0))
        for row, features, s in zip(rows, e, scores, strict=True):
            torch.testing.assert_close(pair_sums[row], features + out @ s + out_bias, **ROUNDING)
        for head in range(HEADS):
            at = slice(head * width, (head + 1) * width)
            z = [float(logit[at] @ s[at]) for s in scores]
            clamped += sum(clamp is not None and abs(number) > clamp for number in z)
            z = z if clamp is None else [max(-clamp, min(clamp, number)) for number in z]
            weight = [math.exp(number) / sum(map(math.exp, z)) for number in z]
            values = sum(w * v[j, at] for w, j in zip(weight, keys, strict=True))
            sums = sum(w * s[at] for w, s in zip(weight, scores, strict=True))
            torch.testing.assert_close(attended[i, at], values, **ROUNDING)
            torch.testing.assert_close(score_sums[i, at], sums, **ROUNDING)
    assert (clamped > 0) == (clamp is not None)


# pairs times channels of a chunk; bytes kept for the backward pass
FORMS = {"query by query": (1, 0), "some queries": (72, 1000), "all graphs": (2**19, 2**20)}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    ("scaled", "relu", "dropout", "update"), [(1, 1, 0, 1), (0, 1, 0.4, 1), (1, 0, 0.4, 0), (0, 0, 0, 0)]
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_chunks_of_complete_pairs_give_outputs_and_gradients_of_the_plain_form(
    sizes: list[int], scaled: int, relu: int, dropout: float, update: int, mapped: bool, form: tuple, monkeypatch: Any
) -> None:
    entries, keep = form
    monkeypatch.setattr(grit_operator, "CHUNK_ENTRIES", entries)
    monkeypatch.setattr(grit_operator, "KEEP_BYTES", keep)
    tensors, ptr = arguments(sizes, bool(scaled), mapped)
    settings = PairSettings(HEADS, 1.5, bool(relu), dropout, dropout)
    both = [results(tensors, ptr, index, settings, update_pairs=bool(update)) for index in (None, all_pairs(ptr))]
    torch.testing.assert_close(*both, **ROUNDING)


@pytest.mark.parametrize("dims", [(8, 8), (4, 24), (1, 3)], ids=str)  # heads and channels of each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loop_is_the_plain_form_for_heads_of_any_width(dims: tuple[int, int], dtype: torch.dtype) -> None:
    heads, width = dims[0], dims[0] * dims[1]
    torch.manual_seed(0)
    ptr = torch.tensor([0, 40, 41, 46])
    shapes = [(46, width)] * 3 + [(1626, width), (width,), (width,), (2 * width, width), (2 * width,), (width,)]
    shapes += [(width, width), (width,)]
    tensors = [torch.randn(shape, dtype=dtype).div_(8) for shape in shapes]
    tensors[0] += 2  # no root is near 0, where its slope has no bound
    tensors[7][:width] += 2
    tensors = [tensor.requires_grad_() for tensor in tensors]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    loop, again = (results(tensors, ptr, None, PairSettings(heads)) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(loop, again, strict=True))
    for ours, plain in zip(loop, results(wide, ptr, all_pairs(ptr), PairSettings(heads)), strict=True):
        error = (ours.double() - plain).norm() / plain.norm()
        assert error < (1e-11 if dtype == torch.float64 else 1e-3)


def test_the_signed_root_has_derivative_zero_at_zero_and_an_unbounded_one_near_it() -> None:
    x = torch.tensor([-4.0, -1e-8, 0.0, 1e-8, 4.0], dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(signed_root(x).sum(), x, create_graph=True)
    torch.testing.assert_close(slope, torch.tensor([0.25, 5e3, 0.0, 5e3, 0.25], dtype=torch.float64))
    [curvature] = torch.autograd.grad(slope.sum(), x)
    assert curvature.isfinite().all()
    assert curvature[2] == 0


@pytest.mark.parametrize("complete", [True, False])
def test_scores_of_zero_have_finite_gradients(complete: bool) -> None:
    tensors, ptr = arguments([3])
    tensors[0], tensors[1] = (torch.zeros_like(tensor).requires_grad_() for tensor in tensors[:2])
    outputs = results(tensors, ptr, None if complete else all_pairs(ptr), PairSettings(HEADS))
    assert all(tensor.isfinite().all() for tensor in outputs)
    assert not outputs[3].any()  # gradient of q: all products are 0


def test_a_query_without_pairs_has_zeros_and_a_pair_listed_twice_counts_twice() -> None:
    tensors, ptr = arguments([3])
    value, index = tensors[3], torch.tensor([[0, 0, 0], [1, 2, 2]])
    tensors[3] = value[[0, 1, 1]]
    out, rows, _ = call(tensors, ptr, index, PairSettings(HEADS))
    assert not out[1:].any()
    assert not rows[1:].any()
    tensors[3] = value[[0, 1]]
    once = call(tensors, ptr, index[:, :2], PairSettings(HEADS))[0]
    assert not torch.equal(out, once)


@pytest.mark.parametrize("rows", [2, 50])
def test_batch_norm_of_rows_is_that_of_torch(rows: int) -> None:
    norm = RowBatchNorm(DIM).double()
    reference = nn.BatchNorm1d(DIM).double()
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    reference.load_state_dict(norm.state_dict())
    x = random(rows, DIM)
    for training in (True, True, False):
        outcomes = []
        for module in (norm, reference):
            out = module.train(training)(x)
            outcomes.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *module.parameters()])])
        torch.testing.assert_close(*outcomes, **ROUNDING)
        torch.testing.assert_close(norm.state_dict(), reference.state_dict(), **ROUNDING)


@pytest.mark.parametrize("rows", [0, 1])
def test_batch_norm_of_one_row_or_none_is_finite_and_leaves_the_statistics(rows: int) -> None:
    norm = RowBatchNorm(DIM).double()
    state = {name: value.clone() for name, value in norm.state_dict().items()}
    x = random(rows, DIM)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(dict(norm.state_dict()), state, rtol=0, atol=0)


def test_a_layer_that_is_computed_again_for_its_gradients_counts_a_batch_once() -> None:
    context, x, states = context_of([3, 2], pair_attr=random(13, RECORDED_DIM)), random(5, RECORDED_DIM), []
    for call in (lambda module, *args: module(*args), checkpoint_layer):
        torch.manual_seed(0)
        module = layer().double()
        call(module, x, context, (module.attention[0].initial_state(context),))[0].sum().backward()
        states.append(dict(module.state_dict()))
    torch.testing.assert_close(*states)


def graphs(**pairs: Tensor) -> GraphContext:
    """Two graphs, of 3 and of 2 nodes; the edges 0 -> 1 and 4 -> 3."""
    edges, features = torch.tensor([[0, 4], [1, 3]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return context_of([3, 2], edge_index=edges, edge_attr=features, **pairs)


def test_edge_features_are_added_to_the_pair_whose_query_is_the_target() -> None:
    pairs = first_pairs(graphs(), torch.zeros(4, 2))
    expected = torch.zeros(13, 2)
    expected[3], expected[10] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])  # (1, 0) and (3, 4)
    assert pairs.index is None
    torch.testing.assert_close(pairs.value, expected)


def test_a_list_of_pairs_gets_those_of_the_edges_and_each_node_with_itself() -> None:
    listed = graphs(pair_index=torch.tensor([[2, 1], [0, 0]]), pair_attr=torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    pairs = first_pairs(listed, torch.zeros(4, 2))
    features = {tuple(pair): value for pair, value in zip(pairs.index.T.tolist(), pairs.value.tolist(), strict=True)}
    nodes = {(n, n): [0.0, 0.0] for n in range(5)}
    assert features == nodes | {(2, 0): [5.0, 6.0], (1, 0): [8.0, 10.0], (3, 4): [3.0, 4.0]}


def test_what_no_layer_reads_is_not_computed_in_eval_mode_and_has_its_statistics_in_training() -> None:
    attention = GRITAttention(DIM, HEADS, pairs=PairUpdate(DIM, update=False)).double()
    context = context_of([3], pair_attr=random(9, DIM))
    state = attention.initial_state(context)
    norm = attention.pairs.norm[0]
    assert attention.eval()(random(3, DIM), context, state)[1].pairs is state.pairs
    assert norm.num_batches_tracked == 0
    assert attention.train()(random(3, DIM), context, state)[1].pairs is state.pairs
    assert norm.num_batches_tracked == 1


RECORDED_DIM, RECORDED_HEADS = 8, 2
ATTENTION = {
    "Q.": "query.",
    "K.": "key.",
    "V.": "value.",
    "E.": "edge.",
    "VeRow": "pair_value",
    "Aw": "logit",
    "O_h.": "out.",
    "O_e.": "pairs.linear.",
    "deg_coef": "degree_factors",
}
LAYER = {"FFN_h_layer1": "ffn.0", "FFN_h_layer2": "ffn.3"}
for kind in ("batch_norm", "layer_norm"):
    parts = {"1_h": "attention_norm", "2_h": "ffn_norm", "1_e": "attention.0.pairs.norm"}
    LAYER |= {f"{kind}{old}.": f"{new}.0." for old, new in parts.items()}


def rename(name: str, attention: str = "attention.") -> str:
    """Return our name of a parameter of the recorded layer, or of its attention, which has a name in the module."""
    for old, new in LAYER.items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    name = name.removeprefix("attention.")
    for old, new in ATTENTION.items():
        if name.startswith(old):
            return attention + name.replace(old, new, 1)
    return attention + name


def first_state(inputs: dict[str, Tensor], form: str) -> tuple[GRITState, Tensor]:
    """Return the recorded pairs as a state, complete or as a list, and the places of its pairs in the record."""
    index, order = inputs["edge_index"].flip(0), torch.arange(len(inputs["edge_attr"]))  # query, key; in no order
    if form == "complete":
        order = (index[0] * len(inputs["x"]) + index[1]).argsort()
        assert torch.equal(index[:, order], all_pairs(inputs["ptr"]))
        index = None
    pairs = PairFeatures(inputs["edge_attr"][order], index)
    return GRITState(pairs, inputs["log_deg"].detach()[:, None]), order  # the recorded code, too, takes no gradient


class Alone(nn.Module):
    """The recorded attention: without the scales of degrees and the output maps, which are set to do nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        update = PairUpdate(RECORDED_DIM, norm=nn.Sequential())
        self.attention = GRITAttention(RECORDED_DIM, RECORDED_HEADS, pairs=update, **options)
        self.attention.out = nn.Identity()

    def forward(self, x: Tensor, context: GraphContext, state: GRITState) -> tuple[Tensor, Tensor]:
        h, new = self.attention(x, context, state)
        return h, new.pairs.value - state.pairs.value  # without the residual


OPTIONS: dict[str, dict[str, Any]] = {
    "b3": {},
    "b3_noclamp": {"clamp": None},
    "b3_sparse": {},
}


def forms(names: Iterable[str]) -> pytest.MarkDecorator:
    cases = [(name, form) for name in names for form in ("complete", "list") if form == "list" or "sparse" not in name]
    return pytest.mark.parametrize(("name", "form"), cases)


@forms(OPTIONS)
def test_output_and_gradients_match_the_recorded_attention(name: str, form: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        state, order = first_state(inputs, form)
        h, s = module(inputs["x"], GraphContext(inputs["batch"], inputs["ptr"]), state)
        return {"h": h.unflatten(1, (RECORDED_HEADS, -1)), "e": s[order.argsort()]}

    module = Alone(**OPTIONS[name]).double()
    record = load(f"G_grit/attention_{name}")
    eye = torch.eye(RECORDED_DIM, dtype=torch.float64)
    record["state/O_e.weight"], record["state/O_e.bias"] = eye, torch.zeros_like(eye[0])
    record["state/deg_coef"] = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, RECORDED_DIM, 2)
    check(module, forward, record, rename)


LAYERS: dict[str, dict[str, Any]] = {
    "bn_b3": {},
    "bn_gelu_b3": {"act": nn.GELU},
    "bn_noupdate_b3": {"update": False},
    "bn_sparse_b3": {},
    "ln_b3": {"layer_norm": True, "batch_norm": False},
}


def layer(act: type[nn.Module] = nn.ReLU, update: bool = True, **options: Any) -> PostNormLayer:
    norm = partial(row_norms, **options)
    pairs = PairUpdate(RECORDED_DIM, 0.0, norm(RECORDED_DIM), update=update)
    attention = GRITAttention(RECORDED_DIM, RECORDED_HEADS, pairs=pairs)
    return PostNormLayer(RECORDED_DIM, attention, norm, act=act)


@forms(LAYERS)
def test_whole_layers_match_the_recorded_original(name: str, form: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        state, order = first_state(inputs, form)
        x, _, (state,) = module(inputs["x"], GraphContext(inputs["batch"], inputs["ptr"]), (state,))
        return {"h": x, "e": state.pairs.normalise()[order.argsort()]}

    module = layer(**LAYERS[name]).double()
    check(module, forward, load(f"G_grit/layer_{name}"), lambda name: rename(name, "attention.0."))


def test_the_linear_encoder_of_nodes_is_that_of_the_record() -> None:
    record = load("G_grit/rrwp_linear_node")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        # graphs of one node: all RRWP is on the diagonal
        ptr = torch.arange(len(inputs["x"]) + 1)
        return {"x": encoder(Data(x=inputs["x"], rrwp=inputs["rrwp"], ptr=ptr, batch=ptr[:-1])).x}

    encoder = RRWPLinear(5, RECORDED_DIM).double()
    record["state/pair.weight"] = torch.zeros(RECORDED_DIM, 5, dtype=torch.float64)
    check(encoder, forward, record, lambda name: name.replace("fc.", "node."))


def test_the_linear_encoder_of_pairs_and_the_edges_at_their_pairs_are_those_of_the_record() -> None:
    record = load("G_grit/rrwp_linear_edge_nopad")
    recorded = record["eval/extra/edge_index"]
    # zeros for a pad that nothing adds, and for x, which only the encoder of nodes changes
    record = {key: value for key, value in record.items() if "padding" not in key}
    record["state/node.weight"] = torch.zeros(RECORDED_DIM, 5, dtype=torch.float64)

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        (column, row), ptr = inputs["rrwp_index"], part(record, "in")["batch"].bincount().cumsum(0)
        ptr = torch.cat([ptr.new_zeros(1), ptr])
        order = (row * len(inputs["x"]) + column).argsort()
        assert torch.equal(torch.stack([row, column])[:, order], all_pairs(ptr))
        batch = encoder(Data(x=inputs["x"], rrwp=inputs["rrwp_val"][order], ptr=ptr, batch=inputs["batch"]))
        batch.edge_index, batch.edge_attr = inputs["edge_index"], inputs["edge_attr"]
        like = torch.zeros(2 * RECORDED_DIM, RECORDED_DIM, dtype=torch.float64)
        pairs = first_pairs(GraphContext.from_data(batch), like)
        assert pairs.index is None
        place = (recorded[1] * len(inputs["x"]) + recorded[0]).argsort().argsort()
        return {"edge_attr": pairs.value[place]}

    encoder = RRWPLinear(5, RECORDED_DIM).double()
    check(encoder, forward, record, lambda name: name.replace("fc.", "pair."))
