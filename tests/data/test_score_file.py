"""Score files: what is written is read, mapped from disk; damage, and scores of something else, are one line each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.data.score_file import check_scores, read_scores, write_scores
from graphgps_kmip.errors import ResultsError
from tests.data.scored import FACTS, graph_of, layer_of, scores_of

DEGREES = [3, 0, 2, 4, 1]
NAMES = ("ptr", "source", "kind", "score")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    scores = scores_of(DEGREES, 3, epoch=11)
    write_scores(tmp_path / "scores.pt", scores)
    again = read_scores(tmp_path / "scores.pt")
    assert again.facts == FACTS | {"epoch": 11, "num_nodes": 5}
    assert len(again.layers) == 3
    for layer, expected in zip(again.layers, scores.layers, strict=True):
        for name in NAMES:
            torch.testing.assert_close(getattr(layer, name), getattr(expected, name), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.pt"]


def test_tensors_that_layers_share_are_stored_once_and_mapped_from_disk(tmp_path: Path) -> None:
    degrees = torch.full((2000,), 10)
    write_scores(tmp_path / "shared.pt", scores_of(degrees, 4))
    edges, layer = 20_000, 4 * 20_000
    assert (tmp_path / "shared.pt").stat().st_size < 8 * 2001 + 5 * edges + 4 * layer + 8000
    layers = read_scores(tmp_path / "shared.pt").layers
    assert layers[0].source.data_ptr() == layers[3].source.data_ptr()
    path = str(tmp_path / "shared.pt")
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if path in line]
    for name in NAMES:
        address = getattr(layers[2], name).data_ptr()
        assert any(int(first, 16) <= address < int(end, 16) for first, end in mapped)


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores.pt"
    write_scores(path, scores_of(DEGREES))
    content, tensors = path.read_bytes(), torch.load(path, weights_only=True)
    refusals = []
    for place in range(0, len(content), 23):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            scores = read_scores(path)
        except ResultsError as error:
            refusals.append(str(error))
            continue
        assert scores.facts == tensors["facts"]
        for layer, before in zip(scores.layers, tensors["layers"], strict=True):
            assert all(torch.equal(getattr(layer, name), before[name]) for name in NAMES)
    assert len(refusals) > 50
    assert not any("\n" in line for line in refusals)


@pytest.mark.parametrize(
    ("write", "pattern"),
    [
        (lambda _: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_text("scores: 1\n"), "cannot be read"),
        (lambda path: path.write_bytes(pickle.dumps({"layers": []})), "cannot be read"),
        (lambda path: torch.save({"model_state": {}}, path), "is not a score file"),
        (lambda path: torch.save([1, 2], path), "is not a score file"),
        (lambda path: torch.save({"layers": layer_of([1])}, path), "asks for"),
        (
            lambda path: torch.save({"version": 2, "facts": {}, "layers": []}, path),
            "is a score file of version 2, not 1",
        ),
    ],
)
def test_another_file_is_one_line(write: Callable[[Path], object], pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.pt"
    write(path)
    with pytest.raises(ResultsError, match=f"^{path}.*{pattern}") as caught:
        read_scores(path)
    assert "\n" not in str(caught.value)


RIGHT = {"data": "d1", "split": "s1", "settings": "c1", "num_nodes": 5, "layers": 2}


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"num_nodes": 6}, "scores of 5 nodes for a graph of 6"),
        ({"data": "d2"}, "the estimator saw other edges, features or labels"),
        ({"split": "s2"}, "labels of this run's validation or test nodes may be in its scores"),
        ({"settings": "c2"}, "scores of settings c1, the estimator's config now has c2"),
        ({"layers": 3}, "scores of 2 layers for a network of 3"),
    ],
)
def test_a_fact_that_differs_is_one_line(changes: dict, pattern: str) -> None:
    scores = scores_of(DEGREES)
    check_scores(scores, "a/scores.pt", **RIGHT)
    check_scores(scores, "a/scores.pt", **(RIGHT | {"settings": None, "layers": 1}))
    with pytest.raises(ValueError, match=pattern) as caught:
        check_scores(scores, "a/scores.pt", **(RIGHT | changes))
    assert str(caught.value).startswith("a/scores.pt: ")
    assert "\n" not in str(caught.value)


def test_the_facts_of_a_graph_follow_its_edges_features_labels_and_masks_alone() -> None:
    facts = graph_facts(graph_of(30))
    assert facts["num_nodes"] == 30
    same = graph_of(30)
    same.expander_edge_index = torch.zeros(2, 4).long()
    assert graph_facts(same) == facts
    for name in ("x", "y", "edge_index"):
        other = graph_of(30)
        other[name][-1] += 1
        assert graph_facts(other)["data"] != facts["data"]
        assert graph_facts(other)["split"] == facts["split"]
    for name in ("train_mask", "val_mask", "test_mask"):
        other = graph_of(30)
        other[name][4] ^= True
        assert graph_facts(other)["split"] != facts["split"]
        assert graph_facts(other)["data"] == facts["data"]
    other = graph_of(30)
    other.x = other.x.view(60, 3)
    assert graph_facts(other)["data"] != facts["data"]
    del other.y
    with pytest.raises(ValueError, match="has no dense tensor y"):
        graph_facts(other)


def test_a_hash_does_not_depend_on_the_chunks_it_is_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(1000)
    facts = graph_facts(graph)
    monkeypatch.setattr("graphgps_kmip.data.dataset.BYTES", 100)
    assert graph_facts(graph) == facts
