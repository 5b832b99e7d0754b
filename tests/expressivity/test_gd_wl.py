"""GD-WL with random walks: between 1-WL and 3-WL, as strong as PPGT on known pairs; norms under scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphgps_kmip.encoding.rrwp import Walks, rrwp
from graphgps_kmip.errors import InputError
from graphgps_kmip.expressivity.magnitude_cases import scale_changes
from graphgps_kmip.expressivity.seg_wl import cycle, gd_wl, separated_by, union
from graphgps_kmip.expressivity.theorem import Pair, random_pair
from run import propositions

WALKS = propositions.WALKS
PAIRS = propositions.plain_pairs()
RANDOM = [pair for pair in map(random_pair, range(60)) if propositions._plain(pair.first)][:12]


@pytest.mark.parametrize("pair", [*PAIRS, *RANDOM], ids=lambda pair: pair.name)
def test_gd_wl_is_between_1_wl_and_3_wl(pair: Pair) -> None:
    found = gd_wl((pair.first, pair.second), WALKS).separated_after() is not None
    if separated_by("1-WL", pair.first, pair.second) is not None:
        assert found
    if separated_by("3-WL", pair.first, pair.second) is None:
        assert not found


def test_gd_wl_is_the_multiset_of_colours_and_distances() -> None:
    graphs = (cycle(6), union(cycle(3), cycle(3)))
    first, second = (rrwp(one.edge_index, 6, WALKS).view(6, 6, -1) for one in graphs)
    rows = [sorted(map(tuple, one[0].round(decimals=9).tolist())) for one in (first, second)]
    assert rows[0] != rows[1]  # all nodes of a graph are alike: one row says it
    colouring = gd_wl(graphs, WALKS)
    assert colouring.separated_after() == 1
    assert [len(colouring.multiset(graph)) for graph in (0, 1)] == [1, 1]
    assert gd_wl(graphs, Walks(ksteps=1, channels="K+1", precision="float64")).separated_after() is None  # is 1-WL


def test_a_network_with_random_weights_is_as_strong_as_gd_wl() -> None:
    model = propositions.network(seed=3)
    strength = {
        pair.name: (
            propositions.difference(model, pair.first, pair.second) > propositions.TOLERANCE,
            gd_wl((pair.first, pair.second), WALKS).separated_after() is not None,
        )
        for pair in (*PAIRS, *RANDOM)
    }
    assert [name for name, (ours, wl) in strength.items() if ours != wl] == []
    assert {wl for _, wl in strength.values()} == {True, False}


def test_only_ada_rms_norm_sees_the_scale_of_its_input() -> None:
    changes = scale_changes(seed=1)
    assert max(changes["LN"], changes["RMSN"]) < 1e-3  # the eps of both; LN's is 1e-5
    assert changes["AdaRMSN"] > 0.5


def test_edge_features_and_single_precision_are_refused() -> None:
    with pytest.raises(InputError, match="leave edge_attr out"):
        gd_wl([cycle(3).with_features(edge_attr=torch.zeros(6, 1))], WALKS)
    with pytest.raises(InputError, match="set precision float64, got float32"):
        gd_wl([cycle(3)], Walks())


def test_the_command_writes_cells_and_fails_where_a_proposition_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert propositions.main(["--out", str(tmp_path)]) == 0
    cells = json.loads((tmp_path / "E.1.json").read_text())["cells"]
    assert cells["4x4 rook, Shrikhande"]["GD-WL"] == "equal"
    hexagon = cells["hexagon, two triangles"]
    assert (hexagon["1-WL"], hexagon["GD-WL"], hexagon["3-WL"]) == ("equal", [1], [1])
    assert "was seen" in capsys.readouterr().out
    monkeypatch.setattr(propositions, "difference", lambda *_: 0.0)
    assert propositions.main(["--out", str(tmp_path)]) == 1
    assert "Proposition E.1: what it says WAS NOT SEEN" in capsys.readouterr().out
