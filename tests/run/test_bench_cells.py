"""From records of the benchmark to the cells of the papers' tables, and the experiments that ask for them."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from run.bench import attention, bench_records, cells

from graphgps_kmip.experiments.manifest import load_manifest
from tests.processes import python

ROOT = Path(__file__).parents[2]
OPTIONS = {"data": "gaussian", "dims": 10, "k": 10, "heads": 1, "device": "cpu"}


def write(path: Path, setting: str, rows: list[dict[str, Any]], **changed: Any) -> Path:
    machine = {"cpu": "a CPU", "cores": 2, "threads": 1, "packages": {}}
    record = {"bench": "attention", "reference": "x", "created": "today", "code": "c0", "machine": machine}
    rows = [{"setting": setting, "status": "ok"} | row for row in rows]
    path.write_text(json.dumps(record | {"options": OPTIONS | changed, "rows": rows}))
    return path


def filled(table: str, folder: Path, *records: Path) -> dict[str, Any]:
    words = ["--tables", table, "--records", *map(str, records), "--out", str(folder / "out")]
    assert cells.main(words) == 0
    return json.loads((folder / "out" / f"{table}.json").read_text())


@pytest.fixture
def records(tmp_path: Path) -> tuple[Path, Path]:
    """An inference and a training of two sizes, the larger of which not everybody lived to see."""
    ours, full = {"method": cells.SYMBOLIC}, {"method": cells.FULL}
    inference = [
        ours | {"n": 100, "total_ms": 2.0, "total_passes_ms": [1.0, 2.0, 6.0], "memory_mib": 0.5},
        full | {"n": 100, "total_ms": 3.0},
        ours | {"n": 31623, "total_ms": 20.0, "memory_mib": 50.0},
        full | {"n": 31623, "status": "skipped (estimated 99 s)"},
    ]
    training = [
        ours | {"n": 100, "forward_ms": 1.0, "backward_ms": 2.0, "total_ms": 3.0, "memory_mib": 0.25},
        full | {"n": 100, "forward_ms": 4.0, "backward_ms": 5.0, "total_ms": 9.0, "memory_mib": None},
        ours | {"n": 31623, "status": "not supported: a reason"},
        full | {"n": 31623, "status": "skipped (out of memory at n = 10000)"},
    ]
    return write(tmp_path / "i.json", "inference", inference), write(tmp_path / "t.json", "training", training)


def test_a_cell_holds_the_turns_or_the_median(records: tuple[Path, Path], tmp_path: Path) -> None:
    made = filled("table10", tmp_path, *records)
    trained = {"train_forward": [1.0], "train_backward": [2.0], "train_total": [3.0], "train_memory": [0.25]}
    assert made["cells"] == {
        "N=10^2.0": {"inference_total": [1.0, 2.0, 6.0], **trained},
        "N=10^4.5": {"inference_total": [20.0]},
    }
    assert made["empty"] == [f"{cells.SYMBOLIC}: not supported: a reason"]
    assert made["hardware"] == {"cpu": "a CPU", "cores": 2, "threads": 1}


def test_memory_and_time_that_ran_out_stand_as_words(records: tuple[Path, Path], tmp_path: Path) -> None:
    made = filled("table12", tmp_path, *records)
    columns = ("train_forward", "train_backward", "train_total", "train_memory")
    assert made["cells"]["N=10^4.5"] == {"inference_total": "time limit", **dict.fromkeys(columns, "OOM")}
    assert "train_memory" not in made["cells"]["N=10^2.0"]
    assert made["empty"] == ["full eager: no memory was measured"]


def test_flash_attention_is_left_empty_where_it_was_not_measured(records: tuple[Path, Path], tmp_path: Path) -> None:
    made = filled("table15", tmp_path, *records)
    assert made["cells"]["N=10^2.0"] == {"kmip_fp32_runtime": [1.0, 2.0, 6.0], "kmip_fp32_memory": [0.5]}
    assert made["empty"] == ["sdpa flash float16 was not measured (it runs on cuda only)"]


def test_a_breakdown_has_the_stages_of_the_largest_size(tmp_path: Path) -> None:
    stages = {f"{stage}_ms": float(i) for i, stage in enumerate(cells.STAGES)}
    rows = [{"method": cells.NAIVE, "n": n} | stages for n in (316, 100)]
    rows[1] = rows[1] | dict.fromkeys(stages, 7.0)
    made = filled("breakdown", tmp_path, write(tmp_path / "b.json", "breakdown", rows))
    assert made["cells"] == {"k-MIP, naive": {stage: [float(i)] for i, stage in enumerate(cells.STAGES)}}


def test_searches_have_their_recall(tmp_path: Path) -> None:
    row = {"method": "faiss ivf", "n": 1000, "total_ms": 4.0, "recall": 0.75, "memory_mib": 3.0}
    search = write(tmp_path / "s.json", "search", [row])
    made = filled("searches", tmp_path, search, write(tmp_path / "i.json", "inference", [row | {"total_ms": 5.0}]))
    assert made["cells"] == {"faiss ivf, N=10^3.0": {"time": [4.0], "recall": [0.75], "memory": [3.0]}}


def test_what_does_not_fit_is_refused(records: tuple[Path, Path], tmp_path: Path) -> None:
    row = {"method": cells.FULL, "n": 100, "total_ms": 1.0}
    other = write(tmp_path / "d.json", "inference", [row], dims=64)
    lost = write(tmp_path / "l.json", "inference", [{"method": cells.FULL, "n": 100, "status": "skipped"}])
    odd = write(tmp_path / "n.json", "inference", [row | {"n": 5000}])
    for table, record, message in (
        ("table10", records[0], "no record of the setting training"),
        ("table9", records[0], "no table 'table9'. Did you mean table1"),
        ("figure6.1", other, "'dims': 64"),
        ("figure6.1", odd, "n = 5000 is no half power of ten"),
        ("breakdown", records[0], "no record of the setting breakdown"),
        ("searches", records[0], "no record of the setting search"),
        ("figure6.1", lost, "figure6.1: no cell has a number; full eager: skipped"),
    ):
        with pytest.raises(ValueError, match=message):
            filled(table, tmp_path, record)
    assert not list((tmp_path / "out").glob("*.json"))


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        args = bench_records.parse(["--device", "auto"], "", paired=True)
        assert args.device == device


def test_approximate_search_without_faiss_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="faiss.*is not installed: pip install faiss-cpu"):
        attention.parse(["--setting", "search", "--approximate"])


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The efficiency experiments alone."""
    folder = tmp_path_factory.mktemp("manifest")
    shutil.copy(ROOT / "run" / "experiments" / "efficiency.yaml", folder)
    return load_manifest(folder)


def test_every_table_and_figure_has_a_command_that_makes_its_file(experiments: dict) -> None:
    assert sorted(one.number for one in experiments.values()) == [2, 3, 4, 5, 17, 19, 20, 30, 31, 32]
    for experiment in experiments.values():
        sources = [one.source for one in experiment.tables.values()]
        sources += [source for figure in experiment.figures.values() for source in figure.sources]
        for source in sources:
            command, file = source.split("/")
            assert file in experiment.commands[command].produces
        assert all(table in experiment.tables for figure in experiment.figures.values() for table in figure.tables)
        assert all((experiment.title, experiment.claim))
        assert experiment.cost.keys() == {"hours", "card", "memory_gb", "source"}


def test_every_command_is_understood_by_its_script(experiments: dict) -> None:
    from run.bench import tree

    parsers = {
        "run/bench/attention.py": attention.parse,
        "run/bench/cells.py": cells.parse,
        "run/bench/tree.py": tree.parse,
    }
    for experiment in experiments.values():
        for command in experiment.commands.values():
            for text in (command.run, command.sample):
                script, *words = shlex.split(text)
                if "--approximate" not in words:  # needs faiss
                    parsers[script](words)


@pytest.mark.slow
@pytest.mark.compiler
def test_every_command_runs_as_a_sample(experiments: dict, tmp_path: Path) -> None:
    for experiment in experiments.values():
        for command in experiment.commands.values():
            needed = [(experiments[one.experiment], one.command) for one in command.needs]
            folders = [one.commands[name].out_dir(one.id, tmp_path, sample=True) for one, name in needed]
            out = command.out_dir(experiment.id, tmp_path, sample=True)
            out.mkdir(parents=True)
            named = {f"need{i}": folder for i, folder in enumerate(folders)}
            words = [word.format(out=out, **named) for word in shlex.split(command.sample)]
            script, *words = words
            done = python("-m", script.removesuffix(".py").replace("/", "."), *words)
            assert done.returncode == 0, f"{experiment.id} {command.name}: {done.stderr}"
            assert all((out / name).exists() for name in command.produces)
