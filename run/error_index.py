"""Write the list of all errors into docs/troubleshooting.md: what each says, and where it comes from.

python run/error_index.py            bring the list up to date
python run/error_index.py --check    exit code 1 if it is not
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from graphgps_kmip.files import replace_file  # noqa: E402

PAGE = ROOT / "docs" / "troubleshooting.md"
MARK = "<!-- below: python run/error_index.py -->\n"
GAP = "…"
SHORTEST = 8  # letters of an error's own words; less is passed on from elsewhere


def messages() -> Iterator[tuple[str, str]]:
    """Yield the text of each error that is raised, values as …, and the file that raises it.

    The text stands where it is raised, or is what a function returns there.
    """
    files = [ROOT / "main.py", *sorted((ROOT / "graphgps_kmip").rglob("*.py")), *sorted((ROOT / "run").glob("*.py"))]
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    functions = {
        node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                for text in _texts(node.exc.args[0], functions):
                    if len(re.sub(r"[^a-zA-Z]", "", text)) >= SHORTEST:
                        yield text, str(file.relative_to(ROOT))


def _texts(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> list[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
        returns = [one.value for one in ast.walk(functions[node.func.id]) if isinstance(one, ast.Return) and one.value]
        return [_text(value) for value in returns]
    return [_text(node)]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return " ".join(str(node.value).split())
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values]
    return re.sub(rf"{GAP}+", GAP, " ".join("".join(parts).split()))


def index() -> str:
    """Return the list in Markdown, by the first words that are no value."""
    found = sorted(set(messages()), key=lambda row: (re.sub(r"^[\W_]+", "", row[0]).lower(), row[1]))
    lines = [f"| `{text.replace('|', '/').replace('`', '')}` | {file} |" for text, file in found]
    return "\n".join(["| the error says | raised in |", "|---|---|", *lines, ""])


def main(words: list[str]) -> int:
    """Write or check the list; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(words)
    before = PAGE.read_text(encoding="utf-8")
    after = before.partition(MARK)[0] + MARK + index()
    if args.check:
        return int(before != after)
    replace_file(PAGE, after.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
