"""Pages of the documentation: commands, links, pictures and quoted messages are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from graphgps_kmip import __version__, command_line, reproduce
from graphgps_kmip.registry import KINDS
from tests import test_imports
from tests.processes import python

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_version_is_that_of_the_package() -> None:
    assert CITATION["version"] == __version__


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^python (main|run/reproduce)\.py (.*)$", re.MULTILINE)


def commands() -> list[tuple[str, str, str]]:
    """Return (page, script, its arguments) of the code blocks."""
    return [
        (page.name, script, line)
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        for script, line in COMMAND.findall(block.replace("\\\n", " "))
    ]


@pytest.mark.parametrize("script", ["main", "run/reproduce"])
def test_the_flags_of_every_command_exist(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    lines = [(page, line) for page, name, line in commands() if name == script]
    for page, line in lines:
        words = shlex.split(line, comments=True)
        try:
            if script == "main":
                command_line.parse(words)
            else:
                reproduce.parse(words)
        except SystemExit:
            refused.append(f"{page}: {line}: {capsys.readouterr().err[-200:]}")
    assert refused == []
    assert len(lines) > 20


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(ALLOWED,) = (rule for rule in vars(test_imports).values() if isinstance(rule, dict) and "gym" in rule)


def test_the_arrows_are_those_that_the_import_test_enforces() -> None:
    picture = re.sub(r",\n +", ", ", re.search(r"```text\n(.*?)```", CONTRIBUTING, re.S)[1])  # long rows go on below
    rows = re.findall(r"^  (\w+) +[^>\n]*?(?:-> ([\w, ]+))?$", picture, re.M)
    drawn = {name: set(targets.split(", ")) - {""} for name, targets in rows}
    assert drawn == {name: {target.split(".")[0] for target in targets} for name, targets in ALLOWED.items()}


def test_every_kind_of_component_has_its_line() -> None:
    table = CONTRIBUTING.split("## Add a component")[1].split("\n## ")[0]
    assert [kind for kind in KINDS if f"`{kind}`" not in table] == []


LINKED = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(
        file
        for kind in ("md", "ipynb")
        for file in sorted((ROOT / "docs").rglob(f"*.{kind}"))
        if "_build" not in file.parts
    ),
]


def text_of(page: Path) -> str:
    """Return a page's Markdown without its code, in which brackets are not links."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures that are in this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text_of(page)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ +(.+?) *$", text_of(page), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def broken(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return not file.exists() or (bool(anchor) and anchor not in anchors(file))


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert [target for target in links(page) if broken(page, target)] == []


def test_links_are_found() -> None:
    assert sum(len(links(page)) for page in LINKED) > 50


def test_every_page_is_in_the_contents_of_the_site() -> None:
    docs = ROOT / "docs"
    listed = {line for line in (docs / "index.md").read_text().splitlines() if re.fullmatch(r"[a-z_/-]+", line)}
    written = {str(page.relative_to(docs).with_suffix("")) for page in LINKED if docs in page.parents}
    assert len(listed) == 21  # 18 pages, and three that are made from the code
    # README.md is the text of the front page, which links the last two
    assert written - listed == {"index", "README", "contributing", "changelog"}


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_nb", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason="bash run/docs.sh installs what builds the site")
    result = python("-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path), cwd=ROOT)
    assert result.returncode == 0, result.stderr
    api = (tmp_path / "reference/api/graphgps_kmip.attention.html").read_text(encoding="utf-8")
    assert 'id="graphgps_kmip.attention.kmip.KMIPAttention"' in api
    assert (tmp_path / "searchindex.js").stat().st_size > 100_000
    assert len(list((tmp_path / "_images").glob("*.png"))) >= 5


TROUBLESHOOTING = (ROOT / "docs" / "quickstart.md").read_text().partition("## Troubleshooting")[2]
SOURCES = " ".join(
    re.sub(r'"\s*f?"|\\\n', "", file.read_text())
    for file in (ROOT / "main.py", *(ROOT / "graphgps_kmip").rglob("*.py"), *(ROOT / "run").glob("*.*"))
)
QUOTED = re.findall(r"^\| (?:a log line |the log says )?`(.+?)` \|", TROUBLESHOOTING, re.M)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) >= 10


@pytest.mark.parametrize("text", QUOTED)
def test_a_quoted_message_is_printed_somewhere(text: str) -> None:
    parts = [part.strip(" .:") for part in text.split("...")]
    assert any(len(part) >= 4 for part in parts)
    assert all(part in SOURCES for part in parts), text
