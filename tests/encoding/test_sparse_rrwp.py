"""Sparse RRWP: near pairs have the values of the dense form, the others none; networks over near pairs alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.simplified_l2 import SimplifiedL2Attention
from graphgps_kmip.common.node_pairs import all_pairs, rows_in_list
from graphgps_kmip.encoding import AddEncoding, rrwp, sparse_rrwp
from graphgps_kmip.encoding.rrwp import RRWP, Walks, batched_rrwp, diagonal, with_rrwp
from graphgps_kmip.errors import ConfigError, InputError
from tests.encoding.test_rrwp import GRAPHS, both_ways

EXACT = Walks(ksteps=5, precision="float64", k_hop=2)
SETTINGS = {
    "GRIT": EXACT,
    "PPGT": replace(EXACT, channels="K+1"),
    "PPGT, itself alone": replace(EXACT, channels="K+1", k_hop=0),
    "more hops than channels": replace(EXACT, k_hop=9),
    "symmetric": replace(EXACT, sym_norm=True, k_hop=1),
    "both directions": replace(EXACT, channels="K+1", dual_direction=True),
    "both directions, seen from behind": replace(EXACT, dual_direction=True, k_hop=6),
    "without identity": replace(EXACT, add_identity=False, k_hop=1),
}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def batch_of_all() -> tuple[Tensor, Tensor]:
    """Edges and ptr of all graphs of the dense form's tests, one after the other."""
    ptr = torch.tensor([0, *(size for _, size in GRAPHS.values())]).cumsum(0)
    return torch.cat([edges + start for (edges, _), start in zip(GRAPHS.values(), ptr, strict=False)], dim=1), ptr


@pytest.mark.parametrize("settings", SETTINGS)
def test_near_pairs_have_the_values_of_the_dense_form_and_all_others_are_zero_there(settings: str) -> None:
    walks, (edges, ptr) = SETTINGS[settings], batch_of_all()
    dense, degrees = batched_rrwp(edges, ptr, walks)
    values, index, found = rrwp.sparse_rrwp(edges, ptr, replace(walks, sparse=True))
    near = dense[:, : walks.k_hop + 1].sum(1) > 0
    assert torch.equal(index, all_pairs(ptr)[:, near])
    torch.testing.assert_close(values, dense[near], rtol=1e-12, atol=1e-12)
    assert torch.equal(found, degrees)
    assert not dense[~near].any()
    torch.testing.assert_close(diagonal(values, ptr, index), diagonal(dense, ptr), rtol=1e-12, atol=1e-12)


def test_queries_are_computed_some_at_a_time_with_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    walks, (edges, ptr) = replace(EXACT, sparse=True), batch_of_all()
    whole = rrwp.sparse_rrwp(edges, ptr, walks)
    monkeypatch.setattr(sparse_rrwp, "BLOCK_NUMBERS", 30)
    for found, expected in zip(rrwp.sparse_rrwp(edges, ptr, walks), whole, strict=True):
        assert torch.equal(found, expected)


def test_a_graph_too_large_for_all_pairs_is_computed_and_a_list_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, ptr = both_ways(torch.stack([torch.arange(199), torch.arange(1, 200)])), torch.tensor([0, 200])
    walks = replace(EXACT, sparse=True)
    monkeypatch.setattr(rrwp, "GRAPH_BYTES", 200 * 5 * walks.pair_bytes)
    with pytest.raises(InputError, match="a graph of 200 nodes take"):
        batched_rrwp(path, ptr, replace(walks, sparse=False))
    assert rrwp.sparse_rrwp(path, ptr, walks)[1].size(1) == 200 * 5 - 6
    with pytest.raises(InputError, match=r"within 3 hops of a graph of 200 nodes .* lower posenc_RRWP\.k_hop"):
        rrwp.sparse_rrwp(path, ptr, replace(walks, k_hop=3))


def test_rows_of_pairs_in_a_list_are_found_and_those_of_others_are_minus_one() -> None:
    index = torch.tensor([[0, 0, 2, 4], [1, 3, 2, 0]])
    found = rows_in_list(index, torch.tensor([4, 0, 0, 3, 4]), torch.tensor([0, 1, 2, 3, 4]), 5)
    assert found.tolist() == [3, 0, -1, -1, -1]
    assert rows_in_list(index[:, :0], torch.tensor([1]), torch.tensor([1]), 5).tolist() == [-1]


def graph(nodes: int) -> Data:
    torch.manual_seed(nodes)
    edges = both_ways(torch.randint(nodes, (2, nodes)))
    attr = torch.randn(edges.size(1), 4, dtype=torch.float64)
    x = torch.randn(nodes, 3, dtype=torch.float64)
    return Data(x=x, pos=x[:, :2].clone(), edge_index=edges, edge_attr=attr, y=torch.zeros(nodes, dtype=torch.long))


def model_of(network: str, sparse: bool, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    channels, k_hop = settings.pop("channels", "K+1"), settings.pop("k_hop", 2)
    steps = {"where": "batch", "ksteps": 4, "precision": "float64", "channels": channels, "k_hop": k_hop}
    given = {f"posenc_RRWP.{key}": value for key, value in (steps | {"sparse": sparse}).items()}
    given |= {"gnn.head": "linear_node"} | {key.replace("__", "."): value for key, value in settings.items()}
    return create_model(
        "", 3, 2, network=network, edge_dim=4, num_layers=2, dim=8, num_heads=2, settings=given
    ).double()


def outcome(model: nn.Module, batch: Batch) -> list[Tensor]:
    prediction = model(batch)[0]
    return [prediction, *torch.autograd.grad(prediction.square().sum(), list(model.parameters()), allow_unused=True)]


PPGT = {
    "gt__sl2__window": 1,
    "ppgt__stem_hidden": [8],
    "ppgt__pair_features": "location+inverse_order+inverse_degree",
    "ppgt__node_features": "rrwp+log_degree+log_order+location",
}


@pytest.mark.parametrize("options", [{}, {"k_hop": 3}, {"k_hop": 3, "gt__sl2__window": 2}, {"gt__sl2__urpe": False}])
def test_ppgt_over_near_pairs_equals_ppgt_with_a_window_over_all(options: dict[str, Any]) -> None:
    dense, sparse = (model_of("PPGT", one, **PPGT | options) for one in (False, True))
    batch = Batch.from_data_list([graph(9), graph(1), graph(14)])
    keys = batch.keys()
    expected = outcome(dense, batch.clone())
    for found, wanted in zip(outcome(sparse, batch), expected, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None:
            torch.testing.assert_close(found, wanted, **CLOSE)
    assert set(batch.keys()) <= {*keys, "rrwp", "rrwp_index", "rrwp_degree"}
    wider = model_of("PPGT", False, **PPGT | options | {"gt__sl2__window": -1})
    everything = wider(Batch.from_data_list([graph(9), graph(1), graph(14)]))[0]
    assert (everything - expected[0]).abs().max() > 1e-6, "the window leaves pairs out"


def test_stochastic_depth_of_pair_blocks_drops_whole_graphs_of_a_list() -> None:
    model = model_of("PPGT", True, **PPGT, ppgt__stem_drop_path=0.5, ppgt__stem_blocks=3)
    batch = with_rrwp(Batch.from_data_list([graph(9), graph(1), graph(14)]), model.encoder.pair_stems[0].encoding)
    kept = model.encoder.pair_stems[-1].train()._kept(batch)
    graphs = batch.batch[batch.rrwp_index[0]]
    assert kept.shape == (len(graphs), 3)
    for number in range(3):
        assert (kept[graphs == number] == kept[graphs == number][0]).all()
    assert kept.unique().numel() == 2


def grit_by_loops(attention: nn.Module, x: Tensor, pairs: dict[tuple[int, int], Tensor], degree: Tensor) -> Tensor:
    """GRIT's equations 2 to 4 for a list of pairs with features, number by number."""
    heads, width = attention.num_heads, x.size(1) // attention.num_heads
    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    out = torch.zeros_like(x)
    for i in range(len(x)):
        scores = {}
        for query, j in pairs:
            if query == i:
                factor, summand = attention.edge(pairs[i, j]).view(heads, 2, width).unbind(1)
                product = (q[i] + k[j]).view(heads, width) * factor
                scores[j] = (product.sign() * product.abs().sqrt() + summand).relu()
        logits = {j: torch.einsum("hd,dh->h", s, attention.logit[..., 0]).clamp(-5, 5) for j, s in scores.items()}
        total = sum(logit.exp() for logit in logits.values())
        for j, s in scores.items():
            message = v[j].view(heads, width) + torch.einsum("hd,dhc->hc", s, attention.pair_value)
            out[i] = out[i] + (message * (logits[j].exp() / total)[:, None]).flatten()
    factors, scale = attention.degree_factors[0], degree.to(x.dtype).log1p()[:, None]
    return attention.out(out * factors[:, 0] + out * scale * factors[:, 1])


def test_grit_attends_to_near_pairs_alone_with_the_features_of_the_dense_form() -> None:
    dense, sparse = (
        model_of("GritTransformer", one, channels="K", dataset__node_encoder_name="LinearNode+RRWP").eval()
        for one in (False, True)
    )
    batch = Batch.from_data_list([graph(9), graph(1), graph(14)])
    encoded = [model.encoder(batch.clone()) for model in (dense, sparse)]
    near = encoded[1].pair_index
    row = rows_in_list(all_pairs(batch.ptr), *near, batch.num_nodes)
    torch.testing.assert_close(encoded[1].pair_attr, encoded[0].pair_attr[row], **CLOSE)
    torch.testing.assert_close(encoded[1].x, encoded[0].x, **CLOSE)
    pairs = {pair: value for pair, value in zip(map(tuple, near.T.tolist()), encoded[1].pair_attr, strict=True)}
    for (source, target), edge in zip(batch.edge_index.T.tolist(), encoded[1].edge_attr, strict=True):
        pairs[target, source] = pairs[target, source] + edge
    attention = sparse.layers[0].attention[0]
    expected = grit_by_loops(attention, encoded[1].x, pairs, encoded[1].rrwp_degree)
    torch.testing.assert_close(attention(encoded[1].x, GraphContext.from_data(encoded[1])), expected, **CLOSE)
    assert len(pairs) < len(encoded[0].pair_attr) / 2


@pytest.mark.parametrize("network", ["PPGT", "GritTransformer"])
def test_graphs_of_a_batch_have_the_outputs_of_each_alone(network: str) -> None:
    options = PPGT if network == "PPGT" else {"dataset__node_encoder_name": "LinearNode+RRWP"}
    model, parts = model_of(network, True, **options).eval(), [graph(9), graph(1), graph(14)]
    alone = torch.cat([model(Batch.from_data_list([part]))[0] for part in parts])
    torch.testing.assert_close(model(Batch.from_data_list(parts))[0], alone, **CLOSE)


def test_lists_are_precomputed_joined_in_batches_and_not_taken_for_dense_ones() -> None:
    options = {"ksteps": 4, "k_hop": 1, "precision": "float64", "channels": "K+1"}
    graphs = [AddEncoding("RRWP", sparse=True, **options)(graph(size)) for size in (9, 14)]
    batch, encoding = Batch.from_data_list(graphs), RRWP(sparse=True, **options)
    assert torch.equal(batch.rrwp_index, torch.cat([graphs[0].rrwp_index, graphs[1].rrwp_index + 9], dim=1))
    assert with_rrwp(batch, encoding) is batch
    assert "sparse" not in RRWP(**options).settings(), "values on disk keep their key"
    assert encoding.settings()["sparse"]
    with pytest.raises(InputError, match=r"check posenc_RRWP\.ksteps, channels and sparse"):
        with_rrwp(batch, RRWP(**options))
    with pytest.raises(InputError, match="rrwp_degree and rrwp_index, but"):
        with_rrwp(Batch.from_data_list([AddEncoding("RRWP", **options)(graph(9))]), encoding)


def test_settings_that_need_other_pairs_are_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="set k_hop to 0 or more"):
        Walks(sparse=True)
    for window in (-1, 2):
        with pytest.raises(ConfigError, match="set the window between 1 and k_hop - 1"):
            model_of("PPGT", True, **PPGT | {"gt__sl2__window": window})
    with pytest.raises(ConfigError, match="subgraph_encoder makes features of all pairs"):
        model_of("PPGT", True, **PPGT, ppgt__subgraph_encoder="I2GIN")
    encoding = RRWP(ksteps=4, k_hop=2, sparse=True, where="batch", precision="float64")
    batch = with_rrwp(Batch.from_data_list([graph(9)]), encoding)
    batch.pair_attr = torch.randn(3, 8).double()
    attention = SimplifiedL2Attention(8, 2, window=1).double()
    with pytest.raises(InputError, match="pair_index has others"):
        attention(torch.randn(9, 8).double(), GraphContext.from_data(batch))
    directed = graph(9)
    directed.edge_index, directed.edge_attr = torch.tensor([[0], [1]]), directed.edge_attr[:1]
    model = model_of("PPGT", True, **PPGT, channels="K")
    with pytest.raises(InputError, match=r"not among the pairs of rrwp_index"):
        model(Batch.from_data_list([directed]))
