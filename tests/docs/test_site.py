"""The documentation site is built without a warning; its pages have the pictures and the search index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).parents[2]


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
