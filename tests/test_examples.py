"""The examples of docs/extending.md, run as the page says: an attention and a data set from outside the package."""

from __future__ import annotations

import importlib
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import main
from run import compare
from tests.processes import preloaded

pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
# Enough to run every line of code, not to learn anything.
SHORT = "optim.max_epoch 1 gt.layers 1 train.batch_size 256 num_threads 1".split()


@pytest.fixture(autouse=True)
def everything_as_before(own_registry: None) -> Iterator[None]:  # noqa: ARG001
    modules, handlers = set(sys.modules), logging.root.handlers[:]
    yield
    logging.root.handlers = handlers
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]  # or it would not be registered again


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    return [line for block in blocks for line in block.splitlines() if "python" in line]


def test_the_page_shows_the_commands_that_matter() -> None:
    for part in ("--dry-run", "compare.py", "--attention", "examples/my_dataset", "examples/my_encoding"):
        assert sum(part in command for command in commands()) == 1, part


@pytest.mark.parametrize("command", [command for command in commands() if "main.py" in command])
def test_a_training_command_of_the_page_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    folders = ["out_dir", str(tmp_path), "dataset.dir", str(tmp_path / "data")]
    assert main.run(shlex.split(command)[2:] + [*SHORT, *folders]) == 0
    assert ("temperature: 0.5" if "--dry-run" in command else "test at the best epoch") in capsys.readouterr().out


def test_the_comparison_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = (command for command in commands() if "compare.py" in command)
    command = command.replace("--repeat 3", f"--repeat 1 --out_dir {tmp_path} --set {' '.join(SHORT)}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(compare.subprocess, "call", lambda argv: main.run(argv[2:]))
    assert shlex.split(command)[:2] == ["python", "run/compare.py"]
    assert compare.main(shlex.split(command)[2:]) == 0
    text = capsys.readouterr().out
    assert "gt.layer_type: GatedGCN+kMIP | GatedGCN+Linear" in text
    assert re.search(r"^digits-linear +0\.\d+ +1 ", text, re.M)


def test_the_laws_of_the_page_work() -> None:
    (command,) = (command for command in commands() if "--attention" in command)
    assert re.search(r"ok +laws of Linear +\d\d of \d\d", call(command, ROOT / "examples" / "my_attention"))


def call(command: str, folder: Path) -> str:
    result = preloaded(*shlex.split(command)[1:], cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.py")), ids=lambda file: file.name)
def test_an_example_stays_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 45


def python_block(part: str) -> str:
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if part in block)
    return block


def test_the_lines_of_the_page_that_ask_for_the_learned_graph_work() -> None:
    text = call(f"python -c {shlex.quote(python_block('attention.attention_graph('))}", ROOT / "examples/my_attention")
    assert text == "(4, 20, 20) 1.0\n"


def test_the_learned_graph_of_the_example_is_what_its_forward_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/my_attention")
    attention = importlib.import_module("my_attention").LinearAttention(8, 2).double()
    x, batch = torch.randn(13, 8, dtype=torch.float64), torch.tensor([0] * 5 + [1] + [3] * 7)
    graph = attention.attention_graph(x, batch)
    heads = torch.einsum("hnm,mhd->nhd", graph.weight, attention.project(x)[2])
    torch.testing.assert_close(attention.out(heads.flatten(1)), attention(x, batch), rtol=1e-12, atol=1e-12)
    assert batch[graph.index].eq(batch[:, None])[graph.index >= 0].all()
    assert graph.weight[graph.index < 0].eq(0).all()


@pytest.mark.parametrize("pictured", [True, False])
def test_an_own_attention_has_a_picture_if_it_has_an_attention_graph(
    pictured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(ROOT / "examples/my_attention/digits-linear.yaml")
    main.run(["--cfg", file, "--dry-run"])  # imports it
    if not pictured:
        monkeypatch.delattr(sys.modules["my_attention"].LinearAttention, "attention_graph")
    assert main.run(["--cfg", file, *SHORT, "out_dir", str(tmp_path)]) == 0
    assert (tmp_path / "digits-linear/0/attention.png").exists() is pictured
    assert ("has a method attention_graph" in capsys.readouterr().out) is not pictured


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("my_attention/my_attention.py", "def attention_graph"),
        ("my_attention/digits-linear.yaml", "Linear"),
        ("my_encoding/my_encoding.py", "class Clustering"),
        ("my_encoding/digits-clustering.yaml", "posenc_Clustering"),
    ],
)
def test_the_page_shows_a_file_as_it_is(file: str, part: str) -> None:
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.S)
    text = (ROOT / "examples" / file).read_text()
    assert any(part in block and block in text for block in blocks)
