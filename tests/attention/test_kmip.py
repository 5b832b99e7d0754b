"""k-MIP attention against the formula, full attention and the record; its other choices of keys against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch_geometric.data import Data

from graphgps_kmip.attention import AnnealedKeys, FullAttention, GraphContext, KMIPAttention, kmip
from graphgps_kmip.attention.kmip import build_kmip, diverse_keys, draw_keys
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.errors import TrainingDiverged
from graphgps_kmip.model.gps import checkpoint_layer
from graphgps_kmip.testing.references import kmip_attention
from graphgps_kmip.train.loop import explain_errors
from tests.attention.contexts import context_of
from tests.recorded import check, load

SIZES = [5, 0, 1, 20]  # the second graph has no node
CONTEXT = context_of(SIZES)
EXACT = {"rtol": 1e-12, "atol": 1e-12}
RECORDS: dict[str, dict[str, Any]] = {
    "aggLinear_kq4_v4_k3_2x9x8": {"dim_kq": 4, "dim_val": 4, "head_agg": "Linear"},
    "aggLinear_kq8_v8_k3_2x9x8": {"dim_kq": 8, "dim_val": 8, "head_agg": "Linear"},
    "aggLinear_kq8_v8_k3_9x8": {"dim_kq": 8, "dim_val": 8, "head_agg": "Linear"},
    "aggnone_kq8_v4_k3_2x9x8": {"dim_kq": 8, "dim_val": 4},
}


@pytest.mark.parametrize("name", RECORDS)
def test_output_and_gradients_match_the_recorded_original(name: str) -> None:
    attention = KMIPAttention(8, 2, k=3, **RECORDS[name]).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = inputs["x"]  # (9, 8) or (2, 9, 8): graphs of nine nodes
        flat = x.reshape(-1, 8)
        return {"x": attention(flat, torch.arange(len(flat)) // 9).view_as(x)}

    names = {"MQs": "query", "MKs": "key", "MVs": "value", "MO": "out"}

    def rename(name: str) -> str:
        layer, parameter = name.split(".")
        return f"{names[layer]}.{parameter}"

    check(attention, forward, load(f"B_layers/kmip_sparse_attention_{name}"), rename)


def random_nodes(size: int = 26) -> Tensor:
    return torch.randn(size, 8, dtype=torch.float64)


def project(attention: KMIPAttention, x: Tensor) -> list[Tensor]:
    return [linear(x).unflatten(1, (2, -1)) for linear in (attention.query, attention.key, attention.value)]


@pytest.mark.parametrize("search", ["auto", "exact", "chunked"])
@pytest.mark.parametrize("options", [{}, {"dim_kq": 3, "dim_val": 5, "head_agg": "Linear"}])
def test_it_equals_the_formula_in_each_graph(search: str, options: dict[str, Any]) -> None:
    attention = KMIPAttention(8, 2, k=4, search=search, **options).double()
    x = random_nodes()
    q, k, v = project(attention, x)
    expected = attention.out(kmip_attention(q, k, v, CONTEXT.ptr.tolist(), 4).flatten(1))
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)


@pytest.mark.parametrize("k", [20, 21, 1000])
def test_with_k_at_least_n_it_is_full_attention(k: int) -> None:
    full, kmip = FullAttention(8, 2).double(), KMIPAttention(8, 2, k=k, head_agg="Linear").double()
    nn.init.normal_(full.qkv.bias)
    for part, linear in enumerate((kmip.query, kmip.key, kmip.value)):
        linear.load_state_dict({name: value.chunk(3)[part] for name, value in full.qkv.state_dict().items()})
    kmip.out.load_state_dict(full.out.state_dict())
    x = random_nodes()
    torch.testing.assert_close(kmip(x, CONTEXT), full(x, CONTEXT), **EXACT)


def test_an_infinite_value_stays_in_its_graph() -> None:
    attention = KMIPAttention(8, 2, k=4)
    with torch.no_grad():
        attention.query.weight[:, 0] = attention.key.weight[:, 0] = 0
    x = torch.randn(5, 8)
    x[0, 0] = 1e38
    attention.value.weight.data[:, 0] = 1e3  # overflows in the values of the first graph alone
    out = attention(x, torch.tensor([0, 1, 2, 2, 2]))
    assert not out[0].isfinite().all()
    assert out[1:].isfinite().all()


@pytest.mark.parametrize("attention", [KMIPAttention, FullAttention])
def test_inner_products_that_overflow_end_a_training_with_their_cause(attention: type[torch.nn.Module]) -> None:
    layer, x = attention(16, 2), 1e20 * torch.randn(20, 16)
    cause = r"met NaN or infinite values in epoch 3: inner products of queries up to .* overflow float32.*learning rate"
    with pytest.raises(TrainingDiverged, match=cause), explain_errors(None, "epoch 3"):
        layer(x, None)
    with pytest.raises(ValueError, match="overflow float32"):
        layer(x, None)
    assert layer.double()(x.double(), None).isfinite().all()


def test_boundaries_that_are_not_those_of_the_nodes_are_refused_before_compiled_code_reads_them() -> None:
    for ptr in ([0, 9, 500], [0, 9], [0, 12, 7, 20], [1, 20]):
        context = GraphContext(torch.zeros(20, dtype=torch.long), torch.tensor(ptr, dtype=torch.long))
        with pytest.raises(ValueError, match="ptr must|ptr_q must"):
            KMIPAttention(16, 2)(torch.randn(20, 16), context)
        with pytest.raises(ValueError, match="ptr must increase from 0 to 20"):
            FullAttention(16, 2)(torch.randn(20, 16), context)


def diverse_layer(**options: Any) -> KMIPAttention:
    torch.manual_seed(3)
    return build_kmip(8, 2, **{"k": 4, "diversity": 2.0, **options}).double()


def greedy(logit: Tensor, keys: Tensor, num_keys: int, weight: float) -> list[int]:
    """One query: candidates one after the other, each time that of the largest value."""
    taken: list[int] = []
    while len(taken) < min(num_keys, len(keys)):
        values = {}
        for j in set(range(len(keys))) - set(taken):
            near = max([0.0] + [float(cosine_similarity(keys[i], keys[j], dim=0)) for i in taken])
            values[j] = logit[j].item() - weight * near
        taken.append(max(values, key=values.__getitem__))
    return taken


@pytest.mark.parametrize("weight", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("entries", [1, kmip.CHUNK_ENTRIES])
def test_the_keys_are_those_of_a_greedy_choice(weight: float, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmip, "CHUNK_ENTRIES", entries)
    k, q = torch.randn(2, 9, 3), torch.randn(2, 6, 3)
    score, index = (q @ k.mT).topk(7)
    index[:, 2, 4:], score[:, 2, 4:] = -1, -torch.inf  # a query with four candidates
    selected, scores = diverse_keys(index, score, k, 5, weight)
    for head in range(2):
        for query in range(6):
            real = index[head, query][index[head, query] >= 0]
            taken = greedy(score[head, query] / 3**0.5, k[head, real], 5, weight)
            expected = [*real[taken].tolist(), *[-1] * (5 - len(taken))]
            assert selected[head, query].tolist() == expected
            assert scores[head, query, : len(taken)].tolist() == score[head, query, taken].tolist()
            assert (scores[head, query, len(taken) :] == -torch.inf).all()


def test_it_attends_to_diverse_keys_among_twice_as_many_candidates() -> None:
    attention, x = diverse_layer(), random_nodes()
    q, key, v = project(attention, x)
    expected = []
    for node in range(26):
        graph = (CONTEXT.batch == CONTEXT.batch[node]).nonzero().squeeze(1)
        for head in range(2):
            logit = key[graph, head] @ q[node, head] / 2
            best = graph[logit.topk(min(8, len(graph))).indices]
            taken = best[greedy(key[best, head] @ q[node, head] / 2, key[best, head].detach(), 4, 2.0)]
            expected.append((key[taken, head] @ q[node, head] / 2).softmax(0) @ v[taken, head])
    torch.testing.assert_close(attention(x, CONTEXT), torch.stack(expected).view(26, 8), **EXACT)


def test_missing_slots_of_diverse_keys_can_be_filled_with_the_first_key() -> None:
    repeated = {"gt.kmip.repeat_first_key": True}
    filled, x = repeat_faults(diverse_layer(k=7), repeated), random_nodes(5)
    plain = repeat_faults(build_kmip(8, 2, k=7), repeated).double()
    plain.load_state_dict(filled.state_dict())
    torch.testing.assert_close(filled(x), plain(x), **EXACT)  # five keys are all taken: the rest is the first one
    assert (filled(x) - diverse_layer(k=7)(x)).abs().max() > 1e-3


def test_cosines_are_not_rounded_under_autocast() -> None:
    k = torch.tensor([[[1.0, 0.0], [1.0, 0.01], [1.0, 0.02]]])
    score, index = torch.zeros(1, 1, 3), torch.arange(3).view(1, 1, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diverse_keys(index, score, k, 2, 1.0)[0].tolist() == [[[0, 2]]]


def random_layer(**options: Any) -> KMIPAttention:
    return build_kmip(8, 2, random_attention=True, **options).double()


@pytest.mark.parametrize(
    ("fraction", "counts"), [(0.1, [1, 0, 1, 2]), (0.5, [2, 0, 1, 10]), (0.99, [4, 0, 1, 19]), (1.0, [5, 0, 1, 20])]
)
def test_a_share_of_each_graphs_nodes_is_drawn_without_repetition(fraction: float, counts: list[int]) -> None:
    drawn, ptr = draw_keys(CONTEXT, 3, fraction)
    assert ptr.diff().tolist() == counts
    for head in drawn:
        for graph, keys in enumerate(head.split(counts)):
            assert len(keys.unique()) == counts[graph]
            assert (CONTEXT.batch[keys] == graph).all()


def test_every_node_is_drawn_as_often_in_every_head() -> None:
    often, alike = torch.zeros(2, 26), 0
    for _ in range(1000):
        drawn = draw_keys(CONTEXT, 2, 0.5)[0]
        alike += torch.equal(*drawn.sort(dim=1).values)
        for head, keys in enumerate(drawn):
            often[head, keys] += 1
    assert alike < 10  # heads draw apart: one in 10 * 184756 is alike
    expected = torch.tensor([0.4] * 5 + [1.0] + [0.5] * 20).expand(2, -1)
    torch.testing.assert_close(often / 1000, expected, rtol=0, atol=0.08)  # five standard deviations


@pytest.mark.parametrize("k", [1, 3, 50])
def test_it_attends_to_the_best_of_the_drawn_keys(k: int) -> None:
    attention, x = random_layer(k=k, random_fraction=0.3), random_nodes()
    torch.manual_seed(7)
    out = attention(x, CONTEXT)
    torch.manual_seed(7)
    drawn, _ = draw_keys(CONTEXT, 2, 0.3)
    q, key, v = project(attention, x)
    expected = torch.zeros(26, 2, 4, dtype=torch.float64)
    for node, head in torch.cartesian_prod(torch.arange(26), torch.arange(2)).tolist():
        graph = [j for j in drawn[head].tolist() if CONTEXT.batch[j] == CONTEXT.batch[node]]
        taken = sorted(graph, key=lambda j: -(q[node, head] @ key[j, head]).item())[:k]  # noqa: B023
        weight = (key[taken, head] @ q[node, head] / 2).softmax(0)
        expected[node, head] = weight @ v[taken, head]
    torch.testing.assert_close(out, expected.flatten(1), **EXACT)


def test_the_learned_graph_has_empty_slots_where_fewer_are_drawn() -> None:
    graph = random_layer(k=4, random_fraction=0.3).attention_graph(random_nodes(), CONTEXT)
    counts = torch.tensor([1] * 6 + [4] * 20).expand(2, -1)  # 0.3 of 5, of 1 and of 20 nodes, at most k
    assert torch.equal((graph.index >= 0).sum(-1), counts)
    assert torch.equal(graph.weight > 0, graph.index >= 0)


def test_a_seed_repeats_it_and_every_call_draws_anew_in_eval_mode_too() -> None:
    attention, x = random_layer(k=2, random_fraction=0.3).eval(), random_nodes()
    torch.manual_seed(0)
    first, second = attention(x, CONTEXT), attention(x, CONTEXT)
    torch.manual_seed(0)
    assert torch.equal(attention(x, CONTEXT), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("diversity", [0.0, 2.0])
def test_computed_again_in_the_backward_pass_it_has_the_same_keys(diversity: float) -> None:
    attention, x = random_layer(k=3, random_fraction=0.5, diversity=diversity), random_nodes()
    gradients = []
    for call in (checkpoint_layer, lambda module, *args: module(*args)):
        torch.manual_seed(0)
        leaf = x.clone().requires_grad_()
        call(attention, leaf, CONTEXT).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [[0], [], [1, 1], [0, 3, 2]])
def test_graphs_of_any_size_give_finite_outputs_and_gradients(sizes: list[int]) -> None:
    x = random_nodes(sum(sizes)).requires_grad_()
    out = random_layer(k=3)(x, context_of(sizes))
    assert out.shape == x.shape
    out.square().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("progress", "k"), [(0.0, 80), (0.1, 40), (0.3, 10), (0.4, 5), (0.7, 5), (1.0, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_k_halves_in_equal_times_of_the_training_and_evaluations_have_the_final_k(
    progress: float, k: int, training: bool
) -> None:
    k = k if training else 5
    attention = build_kmip(8, 2, k=5, k_start=80, anneal_until=0.4).double().train(training)
    plain = KMIPAttention(8, 2, k=k).double()
    plain.load_state_dict(attention.state_dict())
    x = random_nodes(90)
    context = context_of([90], progress=progress)
    assert torch.equal(attention(x, context), plain(x, context))
    assert attention.attention_graph(x, context).index.size(-1) == k


def test_with_padding_among_the_keys_k_decreases_too() -> None:
    pad_keys = {"gt.kmip.pad_keys": True}
    attention = repeat_faults(build_kmip(8, 2, k=1, k_start=4, anneal_until=1.0), pad_keys)
    x = torch.randn(6, 8)
    context = context_of([2, 4], progress=1.0)
    plain = repeat_faults(build_kmip(8, 2, k=1), pad_keys)
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, context), plain(x, context))


@pytest.mark.parametrize(("training", "k"), [(True, 12), (False, 3)])
def test_where_nobody_sets_the_progress_a_trained_module_has_its_final_k_and_one_in_training_its_first(
    training: bool, k: int
) -> None:
    attention, x = KMIPAttention(8, 2, k=3, selection=AnnealedKeys(12)).train(training), torch.randn(20, 8)
    plain = KMIPAttention(8, 2, k=k)
    plain.load_state_dict(attention.state_dict())
    for context in (None, torch.arange(20) // 15, GraphContext.from_data(Data(x=x))):
        assert torch.equal(attention(x, context), plain(x, context))
        assert attention.attention_graph(x, context).index.size(-1) == k
