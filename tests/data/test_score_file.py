"""Score files: what is written is read, mapped from disk; damage, and scores of something else, are one line each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.data.graph_hash import graph_facts
from graphgps_kmip.data.score_file import AttentionScores, LayerScores, check_scores, read_scores, write_scores
from graphgps_kmip.errors import ResultsError
from tests.data.scored import FACTS, graph_of, layer_of, scores_of

DEGREES = [3, 0, 2, 4, 1]
NAMES = ("ptr", "source", "kind", "score")


def with_layer(number: int = 1, **changes: Any) -> AttentionScores:
    """Return scores one of whose layers is changed."""
    scores = scores_of(DEGREES)
    layers = list(scores.layers)
    layers[number] = replace(layers[number], **changes)
    return AttentionScores(layers, scores.facts)


def saved(path: Path, scores: AttentionScores) -> Path:
    """Write scores whatever is wrong with them."""
    layers = [{name: getattr(layer, name) for name in NAMES} for layer in scores.layers]
    torch.save({"version": 1, "facts": dict(scores.facts), "layers": layers}, path)
    return path


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(ResultsError) as caught:
        read_scores(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_what_is_written_is_read(tmp_path: Path) -> None:
    scores = scores_of(DEGREES, 3, epoch=11)
    write_scores(tmp_path / "scores.pt", scores)
    again = read_scores(tmp_path / "scores.pt")
    assert again.facts == FACTS | {"epoch": 11, "num_nodes": 5}
    assert len(again.layers) == 3
    for one, other in zip(again.layers, scores.layers, strict=True):
        for name in NAMES:
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.pt"]


def test_layers_with_edges_of_their_own_keep_them(tmp_path: Path) -> None:
    scores = AttentionScores([layer_of([2, 1]), layer_of([0, 4])], FACTS | {"num_nodes": 2})
    write_scores(tmp_path / "scores.pt", scores)
    assert [layer.ptr.tolist() for layer in read_scores(tmp_path / "scores.pt").layers] == [[0, 2, 3], [0, 0, 4]]


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


def test_writing_to_what_was_read_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    write_scores(tmp_path / "scores.pt", scores_of(DEGREES))
    before = (tmp_path / "scores.pt").read_bytes()
    read_scores(tmp_path / "scores.pt").layers[0].score.zero_()
    assert (tmp_path / "scores.pt").read_bytes() == before


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scores(tmp_path / "scores.pt", scores_of(DEGREES))
    before = (tmp_path / "scores.pt").read_bytes()

    def full(content: Any, path: Path) -> None:  # noqa: ARG001
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_scores(tmp_path / "scores.pt", scores_of(DEGREES, 3))
    assert (tmp_path / "scores.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["scores.pt"]


@pytest.mark.parametrize("part", [0.0, 0.02, 0.3, 0.7, 0.97, 0.999])
def test_a_truncated_file_is_one_line(part: float, tmp_path: Path) -> None:
    path = tmp_path / "scores.pt"
    write_scores(path, scores_of(DEGREES))
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert_refused(path, "the score file cannot be read", "remove it")


@pytest.mark.parametrize(
    ("write", "words"),
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
        (lambda path: torch.save({"version": 1, "facts": {}, "layers": {}}, path), "layers must be a list"),
        (lambda path: torch.save({"version": 1, "facts": {}, "layers": [{"ptr": 1}]}, path), "layer 0 must have"),
    ],
)
def test_another_file_is_one_line(write: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    write(tmp_path / "scores.pt")
    assert_refused(tmp_path / "scores.pt", words)


SCORE, PTR = scores_of(DEGREES).layers[1].score, scores_of(DEGREES).layers[1].ptr
CHANGES = {
    "ptr must be a row of torch.int64, got (6,) of torch.int32": {"ptr": PTR.int()},
    "score must be a row of torch.float32, got (10,) of torch.float64": {"score": SCORE.double()},
    "score must be a row of torch.float32, got (1, 10)": {"score": SCORE[None]},
    "source must be a row of torch.int32, got list": {"source": [0] * 10},
    "ptr has 5 entries for 5 nodes": {"ptr": PTR[:-1]},
    "ptr goes from 0 to 9, the 10 edges from 0 on": {"ptr": torch.tensor([0, 3, 3, 5, 9, 9])},
    "ptr goes from 1 to 10": {"ptr": torch.tensor([1, 3, 3, 5, 9, 10])},
    "ptr decreases": {"ptr": torch.tensor([0, 3, 2, 5, 9, 10])},
    "9 sources, 10 kinds, 10 scores": {"source": torch.zeros(9).int()},
    "a source is outside of 0..4": {"source": torch.tensor([0, 1, 2, 3, 4, 5, 0, 0, 0, 0]).int()},
    "a kind is 3, and there are 3": {"kind": torch.tensor([3] + [0] * 9).to(torch.uint8)},
    "the scores of the edges into node 3 sum to": {"score": SCORE * torch.tensor([1.0] * 5 + [1.01] * 4 + [1.0])},
    "a score is negative, infinite or NaN": {"score": SCORE * torch.tensor([float("nan")] + [1.0] * 9)},
}


@pytest.mark.parametrize("words", CHANGES)
def test_damaged_tensors_are_one_line_that_names_the_layer(words: str, tmp_path: Path) -> None:
    assert_refused(saved(tmp_path / "scores.pt", with_layer(**CHANGES[words])), "layer 1: ", words, "remove it")


@pytest.mark.parametrize("value", [-0.1, float("inf")])
def test_negative_and_infinite_scores_are_refused_when_they_are_written(value: float, tmp_path: Path) -> None:
    score = SCORE.clone()
    score[4] = value
    with pytest.raises(ValueError, match="layer 1: a score is negative, infinite or NaN"):
        write_scores(tmp_path / "scores.pt", with_layer(score=score))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["data", "split", "settings", "seed", "epoch", "num_nodes", "kinds"])
def test_a_fact_that_is_missing_or_of_another_type_is_named(name: str, tmp_path: Path) -> None:
    scores = scores_of(DEGREES)
    for value in (None, [1]):
        wrong = AttentionScores(scores.layers, scores.facts | {name: value})
        assert_refused(saved(tmp_path / "scores.pt", wrong), f"the fact {name} is {value!r}")


def test_scores_without_layers_are_refused(tmp_path: Path) -> None:
    assert_refused(saved(tmp_path / "s.pt", AttentionScores([], FACTS | {"num_nodes": 0})), "there are no layers")


def test_a_graph_without_edges_has_scores(tmp_path: Path) -> None:
    empty = torch.empty(0)
    layer = LayerScores(torch.zeros(4).long(), empty.int(), empty.to(torch.uint8), empty)
    write_scores(tmp_path / "scores.pt", AttentionScores([layer], FACTS | {"num_nodes": 3}))
    assert read_scores(tmp_path / "scores.pt").layers[0].num_nodes == 3


RIGHT = {"data": "d1", "split": "s1", "settings": "c1", "num_nodes": 5, "layers": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_nodes": 6}, "scores of 5 nodes for a graph of 6"),
        ({"data": "d2"}, "the estimator saw other edges, features or labels"),
        ({"split": "s2"}, "labels of this run's validation or test nodes may be in its scores"),
        ({"settings": "c2"}, "scores of settings c1, the estimator's config now has c2"),
        ({"layers": 3}, "scores of 2 layers for a network of 3"),
    ],
)
def test_a_fact_that_differs_is_one_line(changes: dict, words: str) -> None:
    scores = scores_of(DEGREES)
    check_scores(scores, "a/scores.pt", **RIGHT)
    check_scores(scores, "a/scores.pt", **(RIGHT | {"settings": None, "layers": 1}))
    with pytest.raises(ValueError, match=words) as caught:
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
    with pytest.raises(ValueError, match="without a dense tensor y"):
        graph_facts(other)


def test_a_hash_does_not_depend_on_the_chunks_it_is_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(1000)
    facts = graph_facts(graph)
    monkeypatch.setattr("graphgps_kmip.data.graph_hash.BYTES", 100)
    assert graph_facts(graph) == facts
