"""docs/tutorials/own_attention.ipynb: stored outputs, and the whole notebook executed from an empty folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).parents[2]
CELLS = json.loads((ROOT / "docs/tutorials/own_attention.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
OUTPUTS = [output for cell in CELLS for output in cell.get("outputs", ())]


def script() -> str:
    """Return the notebook as one script: `%%writefile` writes the rest of its cell, other cells run as they are."""
    lines = ["import matplotlib", "from pathlib import Path", "matplotlib.use('Agg')"]
    for cell in CODE:
        first, _, rest = cell.partition("\n")
        name = re.fullmatch(r"%%writefile (\S+)", first)
        lines.append(f"Path({name[1]!r}).write_text({rest!r} + '\\n')" if name else cell)
    return "\n".join([*lines, "print(pd.DataFrame(rows).groupby('attention').accuracy.min())"])


def test_every_code_cell_was_executed_without_an_error_and_its_pictures_are_stored() -> None:
    counts = [cell["execution_count"] for cell in CELLS if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(CODE) + 1))
    assert {output["output_type"] for output in OUTPUTS} <= {"stream", "display_data", "execute_result"}
    assert sum("image/png" in output.get("data", {}) for output in OUTPUTS) == 3
    assert not any("Traceback" in "".join(output.get("text", "")) for output in OUTPUTS)


def test_the_cells_are_python() -> None:
    compile(script(), "own_attention", "exec")


def test_no_output_names_a_folder_of_the_machine_that_executed_it() -> None:
    assert not re.search(r"/(home|tmp|root|work|Users)/", json.dumps([output.get("text") for output in OUTPUTS]))


@pytest.mark.slow
def test_the_notebook_runs_in_an_empty_folder_and_its_attentions_learn(tmp_path: Path) -> None:
    result = python("-c", script(), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    lowest = re.findall(r"^(?:Distance|full|kMIP, k = 5) +([\d.]+)$", result.stdout, re.M)
    assert len(lowest) == 3
    assert min(map(float, lowest)) > 80
