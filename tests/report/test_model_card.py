"""``run/reproduce.py card RUN``: one page about a finished run, whose numbers and code hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scipy import stats

import main
from graphgps_kmip import reproduce
from graphgps_kmip.data.sets import point_cloud_sets

pytestmark = pytest.mark.usefixtures("few_digits")
DIGITS = str(Path(__file__).parents[2] / "configs/quickstart/digits-kmip.yaml")


def test_a_card_says_what_a_run_is_and_its_code_loads_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["optim.max_epoch", "3", "train.batch_size", "16", "gt.layers", "1", "gt.kmip.k", "7", "num_threads", "1"]
    assert main.run(["--cfg", DIGITS, "--repeat", "2", *short, "out_dir", str(tmp_path)]) == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    capsys.readouterr()
    assert reproduce.main(["card", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"{run_dir / 'model-card.md'}\n"
    text = (run_dir / "model-card.md").read_text()
    records = [json.loads((run_dir.parent / seed / "record.json").read_text()) for seed in "01"]
    for split in ("val", "test"):
        scores = [record["best"][split]["accuracy"] for record in records]
        low, high = stats.t.interval(0.95, 1, sum(scores) / 2, stats.sem(scores))
        assert f"{sum(scores) / 2:.4f} [{low:.4f}, {high:.4f}]" in text
    assert "- licence: CC BY 4.0" in text
    assert f"- parameters: {records[0]['params']:,}" in text
    assert re.search(r"^gt.kmip.k: 7$", text, re.M)
    assert "num_threads" not in text
    assert "SAMPLE" not in text
    code = re.search("```python\n(.*?)```", text, re.S)[1]
    names = {"graphs": point_cloud_sets._digit_graphs()[:2]}
    exec(code, names)
    assert names["prediction"].shape == (2, 10)

    record_file = run_dir / "record.json"
    record_file.write_text(json.dumps(records[0] | {"sample": True}))
    assert reproduce.main(["card", str(run_dir)]) == 0
    assert (run_dir / "model-card.md").read_text().splitlines()[2].startswith("> **SAMPLE, no result**")
    capsys.readouterr()
    assert reproduce.main(["card", str(run_dir.parent)]) == 2
    assert f"no finished training is there; give one of its runs, such as {run_dir}" in capsys.readouterr().err
