"""run/differences.py: every difference and quirk has a case, and each case makes a difference."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run.differences import Case, cases, effect, main, trained

import main as program
from graphgps_kmip.compat.dialects import DIALECTS, MEANINGS, PPGT_DEFAULTS, QUIRKS, SPECIAL
from run import differences

pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[2]
CASES = {case.name: case for case in cases()}
# Settings of dialects that are no difference in mathematics: which component a silent file means, and how it starts.
STARTS = {"gt.layer_type", "prep.exp", "pretrained.reset_prediction_head", "pretrained.seed", "train.ckpt_best"}
STARTS |= {key for key in PPGT_DEFAULTS if key.startswith("ppgt.")}  # a silent file has no stems and norms
ON_DIGITS = [name for name, case in CASES.items() if case.cfg.startswith("quickstart")]
SHORT = {"gt.layers": 1, "optim.max_epoch": 1, "optim.num_warmup_epochs": 0, "train.batch_size": 256}


# Of the sparse network, which needs the scores of a trained estimator: whole models of its code (tests/whole) are equal
# with the quirk alone, and tests/data/test_edge_sampling.py shows what repeated edges change.
WITHOUT_CASE = {"spexphormer_mixed_heads"}
STARTS |= {"spexphormer.repeat_missing", "dataset.split_seed"}
STARTS |= {"train.mode", "model.type", "gnn.head"}  # names


def test_every_quirk_and_every_setting_of_a_dialect_has_a_case() -> None:
    assert set(QUIRKS) <= set(CASES) | WITHOUT_CASE
    covered = {key for case in CASES.values() for key in (*case.published, *case.ours)}
    of_dialects = {key for values in (*DIALECTS.values(), *SPECIAL.values()) for key in values}
    meant = {key for meanings in MEANINGS.values() for old_new in meanings.items() for key, _ in old_new}
    assert of_dialects | meant <= covered | STARTS


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", [*ON_DIGITS, "voc_edge"])
def test_a_case_changes_outputs_gradients_or_parameters(name: str, data_dir: str) -> None:
    outputs, gradients, more = effect(CASES[name], data_dir)
    assert outputs > 1e-6 or gradients > 1e-6 or math.isnan(outputs) or more


def here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Train in this process: a new one takes longer to import than to train."""
    assert command[:2] == [sys.executable, str(ROOT / "main.py")]
    handlers = logging.root.handlers[:]
    code = program.run(command[2:])
    logging.root.handlers = handlers
    return subprocess.CompletedProcess(command, code)


def test_both_sides_are_trained_once_and_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case("residual", "no residual", "quickstart/digits-kmip.yaml", {"gt.gatedgcn.residual": False}, train=SHORT)
    monkeypatch.setattr(differences, "cases", lambda: [case])
    monkeypatch.setattr(differences, "subprocess", SimpleNamespace(run=here))
    assert main(["--seeds", "1", "--out_dir", str(tmp_path / "out"), "--dataset_dir", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| `residual` | no residual |")
    records = sorted((tmp_path / "out").glob("*/0/record.json"))
    assert [path.parts[-3] for path in records] == ["digits-kmip-residual-ours", "digits-kmip-residual-published"]
    scores = [json.loads(path.read_text())["best"]["test"]["accuracy"] for path in records]
    assert [f"{score:.3f} (1)" for score in reversed(scores)] == [cell.strip() for cell in line.split("|")[-3:-1]]
    written = records[0].stat().st_mtime_ns
    assert trained(case, "ours", 1, tmp_path / "out", str(tmp_path)) == scores[:1]
    assert records[0].stat().st_mtime_ns == written
