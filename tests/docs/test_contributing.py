"""CONTRIBUTING.md: its picture of the packages has the arrows of test_imports.py, its table every kind of component."""

from __future__ import annotations

import re
from pathlib import Path

from graphgps_kmip.registry import KINDS
from tests import test_imports

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(ALLOWED,) = (rule for rule in vars(test_imports).values() if isinstance(rule, dict) and "gym" in rule)


def test_the_arrows_are_those_that_the_import_test_enforces() -> None:
    picture = re.sub(r",\n +", ", ", re.search(r"```text\n(.*?)```", PAGE, re.S)[1])  # long rows go on below
    rows = re.findall(r"^(\w+) +[^>\n]*?(?:-> ([\w, ]+))?$", picture, re.M)
    drawn = {name: set(targets.split(", ")) - {""} for name, targets in rows}
    assert drawn == {name: {target.split(".")[0] for target in targets} for name, targets in ALLOWED.items()}


def test_every_kind_of_component_has_its_line() -> None:
    table = PAGE.split("## Add a component")[1].split("\n## ")[0]
    assert [kind for kind in KINDS if f"`{kind}`" not in table] == []
