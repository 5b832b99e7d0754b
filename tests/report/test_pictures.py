"""Pictures are drawn without a screen and show what the files say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from sklearn.datasets import load_digits

from graphgps_kmip.report import draw_attention, draw_curves
from graphgps_kmip.report import learning_curves as style

SPLITS = ("train", "val", "test")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the figures as they are written."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
    )
    return figures


def write_run(run_dir: Path, splits: tuple[str, ...] = SPLITS, epochs: int = 12) -> Path:
    facts = {"time_epoch": 1.0, "lr": 0.1}
    for split in splits:
        path = run_dir / split / "stats.json"
        path.parent.mkdir(parents=True)
        lines = [
            {"epoch": e, "loss": 3 * 0.5 ** min(e, 8), "accuracy": 1 - 1 / (e + 2), "f1": -e} | facts
            for e in range(epochs)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


def test_curves_show_loss_and_first_metric_with_the_best_epoch(tmp_path: Path, drawn: list[Figure]) -> None:
    path = draw_curves(write_run(tmp_path / "digits" / "3"))
    assert path == tmp_path / "digits" / "3" / "curves.png"
    assert imread(path).std() > 0.01
    loss, metric = drawn[0].axes
    assert (loss.get_ylabel(), metric.get_ylabel(), loss.get_xlabel()) == ("loss", "accuracy", "epoch")
    assert (loss.get_yscale(), metric.get_yscale()) == ("log", "linear")
    assert [text.get_text() for text in metric.get_legend().get_texts()] == [f"{split}  0.9" for split in SPLITS]
    assert [line.get_markevery() for line in metric.get_lines()[1:]] == [[8]] * 3
    assert "digits, run 3 (numbers: at the best epoch, 8)" in drawn[0].get_suptitle()


def test_curves_follow_the_named_metric(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_curves(write_run(tmp_path / "0"), "f1", "argmin")
    assert drawn[0].axes[1].get_ylabel() == "f1"
    assert "at the best epoch, 11" in drawn[0].get_suptitle()


@pytest.mark.parametrize(("splits", "epochs"), [(("train",), 1), (("train", "test"), 5)])
def test_curves_of_short_runs_and_few_splits_are_drawn(tmp_path: Path, splits: tuple[str, ...], epochs: int) -> None:
    assert draw_curves(write_run(tmp_path / "0", splits, epochs)).exists()


def test_curves_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No results in .*expected train/stats\.json"):
        draw_curves(tmp_path)


def write_attention(path: Path, layers: int = 2, heads: int = 3, k: int = 4, which: int = 3) -> dict[str, np.ndarray]:
    image = load_digits().images[which]
    row, column = np.nonzero(image > 6)
    n, draw = len(row), np.random.default_rng(0)
    arrays = {
        "pos": np.stack([column, row], axis=1).astype(np.float32),
        "value": image[row, column] / 16,
        "edge_index": np.stack([np.arange(n), (np.arange(n) + 1) % n]),
        "label": np.array([3]),
        "prediction": np.array([5]),
    }
    for layer in range(layers):
        index = draw.integers(0, n, (heads, n, k))
        index[:, 0, -1] = -1
        weight = draw.random((heads, n, k)).astype(np.float32)
        arrays |= {f"index_{layer}": index, f"weight_{layer}": np.where(index < 0, 0, weight)}
    np.savez(path, **arrays)
    return arrays


def test_the_attention_picture_has_a_panel_per_layer_and_head(tmp_path: Path, drawn: list[Figure]) -> None:
    arrays = write_attention(tmp_path / "attention.npz", heads=2)
    path = draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    assert imread(path).std() > 0.01
    first, *panels, bar = drawn[0].axes
    assert first.get_title() == "input graph\nlabel 3, predicted 5"
    assert [axes.get_title() for axes in panels] == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    assert not any(axes.yaxis_inverted() for axes in [first, *panels])
    assert bar.get_ylabel() == "out-degree: times selected"
    degrees = [
        np.bincount(head[head >= 0], minlength=len(arrays["pos"])) for i in (0, 1) for head in arrays[f"index_{i}"]
    ]
    for axes, degree in zip(panels, degrees, strict=True):
        (nodes,) = (one for one in axes.collections if isinstance(one, PathCollection))
        np.testing.assert_array_equal(nodes.get_array(), degree)
        np.testing.assert_array_equal(nodes.get_clim(), (0, max(map(np.max, degrees))))


def test_an_edge_is_wide_at_the_key_pointed_at_the_query_and_as_opaque_as_its_weight(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    arrays = write_attention(tmp_path / "attention.npz", layers=1, heads=1, k=3)
    draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    (blades,) = (one for one in drawn[0].axes[1].collections if isinstance(one, PolyCollection))
    query, slot = np.nonzero(arrays["index_0"][0] >= 0)
    key = arrays["index_0"][0][query, slot]
    np.testing.assert_allclose(blades.get_facecolor()[:, 3], arrays["weight_0"][0][query, slot], rtol=1e-6)
    for path, start, end in zip(blades.get_paths(), arrays["pos"][key], arrays["pos"][query], strict=True):
        left, right = path.vertices[:8], path.vertices[8:16][::-1]
        np.testing.assert_allclose((left + right)[[0, -1]] / 2, [start, end], atol=1e-5)  # float32 positions
        width = np.linalg.norm(left - right, axis=1)
        assert width[-1] == pytest.approx(0, abs=1e-9)
        assert (start == end).all() or width[0] > 0.05


def test_crowded_panels_are_fainter_by_one_factor(tmp_path: Path, drawn: list[Figure]) -> None:
    arrays = write_attention(tmp_path / "attention.npz", layers=1, heads=1, k=60)
    draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")
    (blades,) = (one for one in drawn[0].axes[1].collections if isinstance(one, PolyCollection))
    query, slot = np.nonzero(arrays["index_0"][0] >= 0)
    share = blades.get_facecolor()[:, 3] / arrays["weight_0"][0][query, slot]
    assert share.max() < 0.9
    np.testing.assert_allclose(share, share[0], rtol=1e-5)


def test_a_graph_of_one_node_is_drawn(tmp_path: Path) -> None:
    arrays = {"pos": np.full((1, 2), 3.0, np.float32), "value": np.ones(1), "edge_index": np.zeros((2, 0), int)}
    arrays |= {"label": np.array(1), "prediction": np.array([1])}
    arrays |= {"index_0": np.array([[[0, -1]]]), "weight_0": np.array([[[1.0, 0.0]]])}
    np.savez(tmp_path / "one.npz", **arrays)
    assert draw_attention(tmp_path / "one.npz", tmp_path / "one.png").exists()


@pytest.mark.parametrize("name", ["pos", "index_0"])
def test_a_file_that_lacks_an_array_is_refused(tmp_path: Path, name: str) -> None:
    arrays = write_attention(tmp_path / "attention.npz", layers=1)
    np.savez(tmp_path / "attention.npz", **{key: value for key, value in arrays.items() if key != name})
    with pytest.raises(ValueError, match=f"attention.npz has no .*{name}"):
        draw_attention(tmp_path / "attention.npz", tmp_path / "attention.png")


def test_an_interrupted_picture_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw_curves(write_run(tmp_path / "0"))
    before = path.read_bytes()

    def fail(*_args: object, **_settings: object) -> None:
        _args[1].write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(style.Figure, "savefig", fail)
    with pytest.raises(KeyboardInterrupt):
        draw_curves(tmp_path / "0")
    assert path.read_bytes() == before
