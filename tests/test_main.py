"""The command line: what it prints, which code it exits with, and that a mistake costs nothing."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip.report.comparison import comparison
from tests.processes import python

pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[1]
DIGITS = str(ROOT / "configs/quickstart/digits-kmip.yaml")
SHORT = ["optim.max_epoch", "1", "gt.layers", "1", "gt.dim_hidden", "8", "gnn.dim_inner", "8", "gt.n_heads", "2",
         "train.batch_size", "256", "num_threads", "1"]  # fmt: skip


def run(tmp_path: Path, *argv: str, flags: tuple[str, ...] = ()) -> int:
    return main.run(["--cfg", DIGITS, *flags, "out_dir", str(tmp_path / "results"), *SHORT, *argv])


def test_list_names_every_kind_of_component_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--list"]) == 0
    text = capsys.readouterr().out
    for name in ("kMIP", "Transformer", "GatedGCN", "LinearNode", "DummyEdge", "sklearn / digits", "inductive_node",
                 "weighted_cross_entropy", "adamW", "cosine_with_warmup", "chunked"):  # fmt: skip
        line = next((line for line in text.splitlines() if line.strip().startswith(f"{name} ")), "")
        assert len(line.split(name, 1)[-1].strip()) > 10, f"{name} has no line that says what it is"


@pytest.mark.parametrize(
    ("argv", "shown", "hidden"),
    [
        (["KMIP"], ["attention (part", "  kMIP "], ["GatedGCN", "message passing"]),
        (["*gated*"], ["  GatedGCN "], ["attention (part"]),
        (["kmip", "gi?"], ["  kMIP ", "  GIN "], ["GINE", "GCN"]),
        (["pascalvoc-sp"], ["PyG-VOCSuperpixels / edge_wt_region_boundary"], ["COCO"]),
        (["none"], ["Keep the learning rate."], ["data set"]),
    ],
)
def test_list_shows_only_the_components_of_a_name(
    argv: list[str], shown: list[str], hidden: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["--list", *argv]) == 0
    text = capsys.readouterr().out
    assert [part for part in shown if part not in text] == []
    assert [part for part in hidden if part in text] == []


@pytest.mark.usefixtures("own_registry")
def test_list_with_a_config_shows_the_parts_of_its_custom_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "listed_part.py").write_text(
        "from graphgps_kmip import register\n@register('pooling', 'listed_part')\ndef pool(x, batch):\n"
        "    'Return what is listed.'\n"
    )
    (tmp_path / "parts.yaml").write_text("custom_modules: [listed_part]\n")
    assert main.run(["--list", "listed_part", "--cfg", str(tmp_path / "parts.yaml")]) == 0
    assert "listed_part  Return what is listed.\n" in capsys.readouterr().out


def test_flags_may_be_before_between_and_after_keys() -> None:
    argv = ["--repeat", "2", "gt.kmip.k", "20", "-v", "--dry-run", "seed", "-1", "--cfg", "x.yaml", "gt.layers", "3"]
    args = main.parse(argv)
    assert args.opts == ["gt.kmip.k", "20", "seed", "-1", "gt.layers", "3"]
    assert (args.repeat, args.dry_run, args.cfg_file, args.data) == (2, True, Path("x.yaml"), None)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--list", "kmip", "gatedgnc"], "--list: no component has the name 'gatedgnc'. Did you mean GatedGCN"),
        (["--list", "kmib*"], "--list: no component has the name 'kmib*'. Did you mean kMIP? '*kmib*' finds parts"),
        (["--cfg", DIGITS, "gt.kmip.k", "--dry-run"], "the command line: keys and values come in pairs, 'gt.kmip.k'"),
        (["--cfg", "nowhere.yaml"], "--cfg: nowhere.yaml: there is no such config file"),
        ([], "--cfg is missing"),
        (["--data", "PascalVOC"], "Did you mean PascalVOC-SP?"),
    ],
)
def test_a_mistake_in_the_words_is_one_line(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert line in err


def test_a_dry_run_prints_model_counts_data_and_cost_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, flags=("--dry-run",)) == 0
    text = capsys.readouterr().out
    layers = "of GatedGCN+kMIP: branches side by side, residuals around all branches, norms after the residuals"
    attention, steps = r"^  attention +[\d,]+  KMIPAttention\(.*k=", r"^optimizer steps of a run +\d+$"
    for part in (attention, re.escape(layers), "^layers.0", "^total", "180 / 60 / 60", steps):
        assert re.search(part, text, re.M), part
    assert text.count("\n") <= 60
    assert "layer_type: GatedGCN+kMIP" not in text
    assert run(tmp_path, flags=("--dry-run", "--verbose")) == 0
    assert "layer_type: GatedGCN+kMIP" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_a_finished_run_is_not_repeated_and_overwrite_keeps_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, flags=("--repeat", "2")) == 0
    folder = tmp_path / "results" / "digits-kmip"
    first = json.loads((folder / "0" / "record.json").read_text())
    assert first["finished"]
    assert first["seed"] == 0
    assert json.loads((folder / "1" / "record.json").read_text())["seed"] == 1
    for name in ("curves.png", "attention.png", "config.yaml", "test/stats.json"):
        assert (folder / "0" / name).stat().st_size > 0
    best = json.loads((folder / "agg" / "test" / "best.json").read_text())
    assert {"accuracy", "accuracy_std"} <= set(best)
    capsys.readouterr()
    assert run(tmp_path) == 0
    assert "--overwrite" in capsys.readouterr().out
    assert json.loads((folder / "0" / "record.json").read_text()) == first
    assert run(tmp_path, flags=("--overwrite",)) == 0
    assert json.loads((folder / "0.old-1" / "record.json").read_text()) == first
    assert run(tmp_path, "gt.kmip.k", "3") == 0  # another configuration, which is not averaged with seed 1
    assert (folder / "0.old-2").exists()
    assert [best["runs"], json.loads((folder / "agg/test/best.json").read_text())["runs"]] == [2, 1]


def test_keys_switch_on_tensorboard_bf16_and_an_early_end_and_a_tracker_that_is_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    argv = ["optim.max_epoch", "4", "optim.base_lr", "1e-12", "train.early_stop_patience", "2", "wandb.use", "True"]
    assert run(tmp_path, "tensorboard_each_run", "True", "train.precision", "bf16-mixed", *argv) == 0
    assert "wandb is not installed: pip install wandb; the run goes on" in capsys.readouterr().out
    folder = tmp_path / "results/digits-kmip/0"
    record = json.loads((folder / "record.json").read_text())
    assert (record["finished"], record["epochs"], record["max_epoch"]) == (True, 3, 4)
    assert record["precision"] == "bf16-mixed"
    assert list((folder / "tensorboard").glob("events.*"))
    assert (folder / "attention.png").is_file()


def test_name_tag_and_splits_name_the_folders_as_graphgps_does(tmp_path: Path) -> None:
    folds = ["dataset.split_mode", "cv-stratifiedkfold-5", "dataset.dir", str(tmp_path)]
    assert run(tmp_path, "name_tag", "split", "run_multiple_splits", "[0, 3]", "seed", "7", *folds) == 0
    folder = tmp_path / "results" / "digits-kmip-split"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"0", "3", "agg"}
    assert json.loads((folder / "3" / "record.json").read_text())["seed"] == 7


def test_a_run_with_graph_tokens_ends_without_an_attention_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bias = [word for key in ("num_spatial_types", "num_in_degrees", "num_out_degrees")
            for word in (f"posenc_GraphormerBias.{key}", "40")]  # fmt: skip
    argv = ["gt.layer_type", "GINE+BiasedTransformer", "dataset.node_encoder_name", "LinearNode+GraphormerBias"]
    assert run(tmp_path, *argv, "posenc_GraphormerBias.enable", "True", *bias) == 0
    assert "graph tokens, which have no position" in capsys.readouterr().out


def test_mark_done_renames_the_yaml(tmp_path: Path) -> None:
    copy = tmp_path / "once.yaml"
    copy.write_text(f"base: {DIGITS}\n")
    assert main.run(["--cfg", str(copy), "--mark_done", "out_dir", str(tmp_path), *SHORT]) == 0
    assert not copy.exists()
    assert (tmp_path / "once.yaml_done").exists()


ERRORS = {
    "unknown attention": (["gt.layer_type", "GatedGCN+kMIB"], "kMIP"),
    "unknown message passing": (["gt.layer_type", "GatedGNC+kMIP"], "GatedGCN"),
    "both branches none": (["gt.layer_type", "None+None"], "gt.layer_type"),
    "unknown data set": (["dataset.name", "digit"], "digits"),
    "unknown format": (["dataset.format", "skleran"], "sklearn"),
    "no data set": (["dataset.format", "PyG", "dataset.name", "none"], "dataset.name"),
    "loaded by GraphGym": (["dataset.format", "PyG", "dataset.name", "Karate"], "register_dataset"),
    "unfit head": (["gnn.head", "inductive_node"], "set gnn.head graph"),
    "head of words": (["gnn.head", "ogb_code_graph"], "gnn.head"),
    "optimiser without a first layer": (["optim.weight_decay_layers", "first"], "optim.weight_decay_layers"),
    "rate below the end": (["optim.scheduler", "polynomial_with_warmup", "optim.base_lr", "1e-9"], "optim.base_lr"),
    "no public code runs it": (["model.type", "GPSwLPEModel"], "GPSModel"),
    "unknown head": (["gnn.head", "grahp"], "graph"),
    "unknown loss": (["model.loss_fun", "cross_entorpy"], "cross_entropy"),
    "unknown metric": (["metric_best", "acuracy"], "accuracy"),
    "unknown optimiser": (["optim.optimizer", "adamw"], "adamW"),
    "unknown scheduler": (["optim.scheduler", "cosine_warmup"], "cosine_with_warmup"),
    "unknown search": (["gt.kmip.search", "chunky"], "chunked"),
    "unknown activation": (["gnn.act", "rely"], "relu"),
    "unknown model": (["model.type", "GPSModle"], "GPSModel"),
    "unknown train mode": (["train.mode", "costum"], "custom"),
    "dim not divisible by heads": (["gt.n_heads", "3"], "3"),
    "widths differ": (["gt.dim_hidden", "16"], "gnn.dim_inner"),
    "two norms": (["gt.layer_norm", "True"], "gt.batch_norm"),
    "repeat and splits": (["run_multiple_splits", "[0, 1]"], "--repeat"),
    "folds of a split without folds": (["run_multiple_splits", "all"], "cv-kfold-N"),
    "bad split": (["dataset.split_mode", "random", "dataset.split", "[0.9, 0.2, 0.1]"], "dataset.split"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_gets_one_line_and_code_2_and_leaves_earlier_results(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "results" / "digits-kmip" / "0"
    earlier.mkdir(parents=True)
    (earlier / "record.json").write_text("earlier results")
    argv, hint = ERRORS[case]
    assert run(tmp_path, *argv, flags=("--repeat", "2") if case == "repeat and splits" else ()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert hint in error
    assert (earlier / "record.json").read_text() == "earlier results"
    assert not cfg.is_frozen()
    assert cfg.share.dim_in == 1


def test_debug_shows_where_a_mistake_was_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kMIP"):
        run(tmp_path, "gt.layer_type", "GatedGCN+kMIB", flags=("--debug",))


def test_an_empty_data_set_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nothing_inside.py").write_text(
        "from graphgps_kmip.data import DatasetRecord\n"
        "from graphgps_kmip.gym import register_dataset\n"
        "register_dataset(DatasetRecord(format='Empty', name='x', load=lambda root: [], task_type='classification'))\n"
    )
    argv = ["dataset.format", "Empty", "dataset.name", "x", "custom_modules", str(tmp_path / "nothing_inside")]
    assert run(tmp_path, *argv) == 2
    assert "Empty/x" in capsys.readouterr().err


def test_a_run_that_diverges_names_epoch_batch_and_checkpoint_and_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["optim.base_lr", "1e30", "optim.scheduler", "none", "optim.optimizer", "sgd"]
    assert run(tmp_path, "train.batch_size", "64", *argv) == 3
    error = capsys.readouterr().err
    assert "train epoch 0, batch" in error
    assert "checkpoint" in error


def test_a_dataset_card_shows_what_is_published_and_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--data", "Digits"]) == 0
    text = capsys.readouterr().out
    assert "Alpaydin" in text
    assert ["mean", "nodes", "32.69", "32.62"] in [line.split() for line in text.splitlines()]


def test_a_dataset_card_of_data_that_is_not_at_hand_says_where_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["--data", "pascalvoc-sp", "dataset.dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"in {tmp_path}/LRGBDataset/pascalvoc-sp" in text
    assert "pascalvocsp.zip there, as downloaded" in text
    assert "not loaded" in text


def test_missing_data_without_a_network_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_args: object, **_kwargs: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("graphgps_kmip.data.raw_files.urlopen", offline)
    voc = str(ROOT / "configs/LRGB/pascalvoc-kmip.yaml")
    assert main.run(["--cfg", voc, "dataset.dir", str(tmp_path), "out_dir", str(tmp_path / "results")]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    for part in ("error: PascalVOC-SP: raw files are missing", "Name or service not known", "place raw/train.pickle"):
        assert part in line
    for part in ("github.com/vijaydwivedi75/lrgb", f"{tmp_path}/LRGBDataset/pascalvoc-sp", "dataset.sample True"):
        assert part in line
    assert not (tmp_path / "results").exists()


def test_a_sample_run_has_a_root_of_its_own_and_no_table_takes_it(tmp_path: Path) -> None:
    argv = ["dataset.sample", "True", "optim.max_epoch", "2", "gt.layers", "1", "num_threads", "1"]
    cora = str(ROOT / "configs/Node/cora-kmip.yaml")
    assert main.run(["--cfg", cora, "out_dir", str(tmp_path / "results"), *argv]) == 0
    assert not (tmp_path / "results").exists()
    folder = tmp_path / "results-sample" / "cora-kmip"
    assert json.loads((folder / "0" / "record.json").read_text())["sample"] is True
    with pytest.raises(ValueError, match="runs on sample data .* which no table shows"):
        comparison([folder], 1)


# A layer that only the second of two processes minds.
LATE = """
import os
from graphgps_kmip.attention import FullAttention
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register_attention

class Late(FullAttention):
    def forward(self, x, context):
        if os.environ.get("LOCAL_RANK") == "1":
            raise InputError("gt.late: only one minds")
        return super().forward(x, context)

register_attention("Late", Late)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["gt.n_heads", "3"], ["gt.kmip: dim must be divisible"]),
        (["custom_modules", "[late.py]", "gt.layer_type", "GCN+Late"], ["gt.late: only one minds", "another process"]),
    ],
)
def test_a_mistake_in_two_processes_ends_both_and_each_reason_is_printed(
    argv: list[str], lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "two.yaml").write_text(f"base: {DIGITS}\n")
    devices = ["accelerator", "cpu", "devices", "2", "out_dir", str(tmp_path / "results")]
    command = [ROOT / "main.py", "--cfg", "two.yaml", *devices, *SHORT, *argv]
    done = python(*command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert all(any(want in got for got in errors) for want in lines), done.stderr
    assert "Traceback" not in done.stderr
