"""Links of all Markdown files and notebooks: files exist, and anchors are headings of the page that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert [target for target in links(page) if broken(page, target)] == []


def test_links_are_found() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50


def test_every_page_is_in_the_contents_of_the_site() -> None:
    docs = ROOT / "docs"
    listed = {line for line in (docs / "index.md").read_text().splitlines() if re.fullmatch(r"[a-z_/-]+", line)}
    written = {str(page.relative_to(docs).with_suffix("")) for page in PAGES if docs in page.parents}
    assert len(listed) == 17  # 14 pages, and three that are made from the code
    # README.md is the text of the front page, which links the last two
    assert written - listed == {"index", "README", "contributing", "changelog"}
