"""BREC: graph6 strings, the order of pairs, damaged files, pairs by name, and the sample in its form."""

from __future__ import annotations

import lzma
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.data import DataError, DatasetInfo, at_hand, find, mismatches, open_dataset, sampled
from graphgps_kmip.data.sets.brec import (
    BLOCK,
    CATEGORIES,
    NUM_PAIRS,
    ORDERS,
    PARTS,
    decode_graph6,
    encode_graph6,
    pair_graphs,
    parse_pairs,
    select_pairs,
)
from graphgps_kmip.errors import InputError
from tests.data.sets.brec_pairs import CFI, STRONGLY_REGULAR, brec_pairs
from tests.data.sets.raw_files import opened

BREC = find("BREC", "brec")
TEXTS = 2 * BLOCK * NUM_PAIRS


def edge_set(edges: np.ndarray) -> set[tuple[int, int]]:
    return set(map(tuple, np.asarray(edges).T.tolist()))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 80), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_strings_are_read_and_written_as_networkx_does(size: int, density: float, seed: int) -> None:
    graph = networkx.gnp_random_graph(size, density, seed=seed)
    text = networkx.to_graph6_bytes(graph, header=False).strip()
    edges, num_nodes = decode_graph6(text)
    assert num_nodes == size
    assert edge_set(edges) == {ends for a, b in graph.edges for ends in ((a, b), (b, a))}
    assert edges.shape[1] == 2 * graph.number_of_edges()
    assert encode_graph6(networkx.to_numpy_array(graph, nodelist=range(size))) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no graph6 string"),
        (b"I~o__[M@", "a graph of 10 nodes needs 8 bytes, got 7"),
        (b"I~o__[M@wA", "needs 8 bytes, got 9"),
        (b"I~o__ M@w", "bytes must be from 63"),
        (b"I~o__\x7fM@w", "bytes must be from 63"),
        (b"~?@", "at most 258,047 nodes"),
        (b"~~????@C", "at most 258,047 nodes"),
    ],
)
def test_what_is_no_graph6_string_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        decode_graph6(text)


def test_the_published_pairs_are_orders_of_two_graphs_that_are_not_isomorphic() -> None:
    graphs = brec_pairs()
    for place, pair in enumerate(graphs.pairs):
        graphs_of_pair, reliability = pair_graphs(graphs, place)
        assert len(graphs_of_pair) == len(reliability) == 2 * ORDERS
        drawn = [networkx.Graph(list(edge_set(graph.edge_index.numpy()))) for graph in (*graphs_of_pair, *reliability)]
        if pair == CFI:  # its sizes and degrees alone would not show a mistake, but isomorphism takes long
            assert {graph.num_nodes for graph in graphs_of_pair} == {18}
            continue
        first, second = drawn[0], drawn[1]
        assert not networkx.is_isomorphic(first, second)
        for number, graph in enumerate(drawn[: 2 * ORDERS : 7]):
            assert networkx.is_isomorphic(graph, drawn[7 * number % 2])
        same = first if networkx.is_isomorphic(drawn[2 * ORDERS], first) else second
        assert all(networkx.is_isomorphic(graph, same) for graph in drawn[2 * ORDERS :: 5])


def test_graphs_have_zeros_as_features_and_chosen_pairs_keep_theirs() -> None:
    graphs = brec_pairs()
    graph = graphs[-1]
    assert torch.equal(graph.x, torch.zeros(18, 1, dtype=torch.long))
    selected = graphs.select([CFI, STRONGLY_REGULAR])
    assert selected.pairs == (CFI, STRONGLY_REGULAR)
    for place, there in ((0, 4), (1, 2)):
        both = zip(pair_graphs(selected, place), pair_graphs(graphs, there), strict=True)
        assert all(torch.equal(a.edge_index, b.edge_index) for x, y in both for a, b in zip(x, y, strict=True))


def test_categories_are_the_benchmarks_and_cover_every_pair_once() -> None:
    sizes = {name: len(pairs) for name, pairs in CATEGORIES.items()}
    assert sizes == {"basic": 60, "regular": 140, "extension": 100, "cfi": 100}
    assert sorted(pair for pairs in CATEGORIES.values() for pair in pairs) == list(range(NUM_PAIRS))
    assert [pair for part in PARTS.values() for pair in part] == list(range(NUM_PAIRS))
    assert {110, 159, 360, 399} <= set(CATEGORIES["regular"])


def test_pairs_are_named_by_category_part_number_and_range() -> None:
    every = range(NUM_PAIRS)
    assert parse_pairs("", every) == parse_pairs("all", every) == tuple(every)
    assert parse_pairs("cfi+basic", every) == (*range(60), *range(260, 360))
    assert parse_pairs("110+7-9+4_vertex", every) == (7, 8, 9, 110, *range(360, 380))
    assert parse_pairs("regular", brec_pairs().pairs) == (60, 110)
    for message, reason in (
        ("cfy", "got 'cfy'. Did you mean cfi"),
        ("398-401", "no pair 400: the data has 400 pairs from 0 to 399"),
        ("-3", "got '-3'"),
        ("5-", "got '5-'"),
        ("5-3", "5-3 ends before it begins: write 3-5"),
        ("0-99999999999999", "no pair 400"),
        ("basic+", "got ''"),
    ):
        with pytest.raises(InputError, match=reason):
            parse_pairs(message, every)
    with pytest.raises(InputError, match="there is no pair 1: the data has 5 pairs from 0 to 265"):
        parse_pairs("1", brec_pairs().pairs)
    with pytest.raises(InputError, match="cfi names no pair of this data"):
        parse_pairs("cfi", (0, 1))


def placed(root: Path, texts: list[bytes], packed: bool = False) -> Path:
    raw = root / "BREC" / "raw"
    raw.mkdir(parents=True)
    np.save(raw / "brec_v3.npy", np.array(texts))
    if packed:
        content = lzma.compress((raw / "brec_v3.npy").read_bytes(), preset=0)
        (raw / "brec_v3.npy").unlink()
        (raw / "brec_v3.npy.xz").write_bytes(content)
    return raw


def many() -> list[bytes]:
    """Return as many strings as the benchmark has: our five pairs again and again, in place of the others."""
    five = brec_pairs().texts
    half = len(five) // 2
    return [*five[:half] * (NUM_PAIRS // 5), *five[half:] * (NUM_PAIRS // 5)]


def test_the_published_file_is_read_packed_or_not(tmp_path: Path) -> None:
    placed(tmp_path / "plain", many())
    placed(tmp_path / "packed", many(), packed=True)
    for root in (tmp_path / "plain", tmp_path / "packed"):
        assert at_hand(BREC, root)
        dataset = opened(BREC, root)
        assert len(dataset) == TEXTS
        info = DatasetInfo.of(dataset, BREC)
        assert (info.dim_in, info.dim_edge, info.dim_out, info.max_nodes) == (1, 0, 16, 18)
        assert info.mean_nodes == pytest.approx((10 + 10 + 16 + 10 + 18) / 5)
        assert len(mismatches(BREC, info)) == 2  # mean nodes and edges are not those of all pairs
        assert len(select_pairs(dataset, "3+399").graphs) == 4 * BLOCK


def test_a_file_of_other_pairs_is_named_in_one_line_and_set_aside(tmp_path: Path) -> None:
    placed(tmp_path, many()[:-1])
    reason = "51,200 graph6 strings are expected, it holds 51,199"
    with pytest.raises(DataError, match=rf"brec_v3\.npy cannot be used \({reason}.*renamed to brec_v3.npy.damaged-1"):
        opened(BREC, tmp_path)


def test_a_packed_file_that_ends_too_early_is_named_in_one_line(tmp_path: Path) -> None:
    raw = placed(tmp_path, many(), packed=True)
    content = (raw / "brec_v3.npy.xz").read_bytes()
    (raw / "brec_v3.npy.xz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"brec_v3\.npy\.xz cannot be used \(EOFError: .*damaged-1: put a good copy"):
        opened(BREC, tmp_path)
    assert not (raw / "brec_v3.npy").exists()


def test_a_file_of_pickles_or_numbers_is_refused(tmp_path: Path) -> None:
    raw = placed(tmp_path, [b"x"])
    np.save(raw / "brec_v3.npy", np.zeros(TEXTS))
    with pytest.raises(DataError, match="expected an array of strings, got float64"):
        opened(BREC, tmp_path)
    np.save(raw / "brec_v3.npy", np.array([{}] * 3), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be used"):
        opened(BREC, tmp_path)


def test_the_sample_has_the_form_of_the_benchmark() -> None:
    dataset = open_dataset(sampled(BREC))
    assert len(dataset) == 2 * 2 * BLOCK
    for place in (0, 1):
        graphs_of_pair, reliability = pair_graphs(dataset.graphs, place)
        first, second, same = (
            networkx.Graph(list(edge_set(g.edge_index.numpy()))) for g in (*graphs_of_pair[:2], reliability[0])
        )
        assert sorted(d for _, d in first.degree) == sorted(d for _, d in second.degree)  # 1-WL leaves them equal
        assert not networkx.is_isomorphic(first, second)
        assert networkx.is_isomorphic(first, same)
