"""Documentation site: settings of Sphinx. `bash run/docs.sh` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # document the tree beside this file, whatever is installed

import reference_pages  # noqa: E402

from graphgps_kmip import __version__  # noqa: E402

project = "graphgps_kmip"
author = "graphgps_kmip contributors"
project_copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "README.md"]  # front_page includes the second

# Markdown and notebooks. The pages are read on GitHub, too: only what GitHub also renders, and its anchors of headings.
myst_heading_anchors = 4
nb_execution_mode = "off"  # the outputs stored in a notebook are shown; tests/docs executes it

# Docstrings: plain text in Google style.
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "literal"
napoleon_custom_sections = ["Shapes", "Shape", "Cost"]
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # an exception's bare name in "Raises" may fit two classes

html_theme = "furo"
html_title = f"graphgps_kmip {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_use_index = html_domain_indices = False  # the search replaces lists of a thousand names
toc_object_entries_show_parents = "hide"
copybutton_prompt_text = "$ "


def escape_docstring(app, what, name, obj, options, lines) -> None:  # noqa: ANN001, ARG001
    """Read docstrings as the plain text that they are."""
    lines[:] = [reference_pages.escaped(line) for line in lines]


def front_page(app, docname, content) -> None:  # noqa: ANN001, ARG001
    """Show README.md, which GitHub shows for this folder, as the front page, with links inside the site."""
    if docname == "index":
        readme = (HERE / "README.md").read_text(encoding="utf-8")
        for name in ("contributing", "changelog"):
            readme = readme.replace(f"(../{name.upper()}.md", f"({name}.md")
        content[0] = readme + content[0]


def setup(app) -> None:  # noqa: ANN001
    """Write the reference pages, and connect the hooks; 400: before napoleon reads the sections."""
    app.connect("builder-inited", lambda app: reference_pages.write_pages())  # noqa: ARG005
    app.connect("source-read", front_page)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)
