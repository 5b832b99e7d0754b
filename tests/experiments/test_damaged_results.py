"""Experiments over results that are damaged: nothing counts that cannot be read, and nothing of it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Training
from graphgps_kmip.experiments.job_process import finish, start, take
from graphgps_kmip.experiments.jobs import Place, command_job
from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.experiments.run_status import State, failure_file, read_failure, run_status
from tests.processes import HANGS
from tests.results.damages import DAMAGES

TRAINING = Training({"model": "a"}, "toys/a.yaml", (0,))
COMMAND = Command("tool", "tool.py {out}", "tool.py {out}", ("cells.json",))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_with_a_damaged_record_is_missing_and_the_plan_says_why(damage: str, tmp_path: Path) -> None:
    run_dir = TRAINING.run_dir(0, tmp_path)
    run_dir.mkdir(parents=True)
    (run_dir / "record.json").write_text(json.dumps({"finished": True, "config_hash": "h", "best": {}}))
    assert run_status(TRAINING, 0, tmp_path, lambda _: "h").state is State.DONE
    DAMAGES[damage](run_dir / "record.json")
    status = run_status(TRAINING, 0, tmp_path, lambda _: "h")
    assert status.state is State.MISSING
    assert status.error.startswith("its record.json is damaged (")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_note_of_a_failure_is_no_failure(damage: str, tmp_path: Path) -> None:
    file = failure_file(tmp_path / "0")
    file.write_text(json.dumps({"error": "e", "config_hash": "h"}))
    DAMAGES[damage](file)
    assert read_failure(tmp_path / "0") == {}


def test_results_of_a_command_whose_record_is_damaged_are_moved_aside_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(
        "import sys; from pathlib import Path; (Path(sys.argv[1]) / 'cells.json').write_text('new')\n"
    )
    job = command_job(COMMAND, Experiment("E", "t"), Place(tmp_path, Path("results"), lambda _: "h"))
    job.path.mkdir(parents=True)
    (job.path / "cells.json").write_text("hours of work")
    (job.path / "record.json").write_text('{"finished": tr')
    running = start(job, take(job), tmp_path, 1)
    running.process.wait(HANGS)
    assert finish(running, {}, sample=False, stopped=False) == ""
    assert (job.path / "cells.json").read_text() == "new"
    assert (job.path.with_name("tool.old-1") / "cells.json").read_text() == "hours of work"


@pytest.mark.parametrize("tag", ["../x", "a/b", "x\\n", "x" * 300])
def test_a_tag_that_leads_out_of_the_results_is_refused_in_the_manifest(tag: str, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        json.dumps(
            {"experiments": {"E": {"title": "t", "trainings": [{"cfg": "toys/a.yaml", "seeds": 1, "tag": tag}]}}}
        )
    )
    with pytest.raises(ConfigError, match="^E: tag: "):
        load_manifest(tmp_path)
