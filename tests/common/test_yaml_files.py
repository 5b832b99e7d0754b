"""YAML files: duplicate keys, errors that name file, line and column, dotted keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.common.yaml_files import flatten, parse_yaml, read_yaml
from graphgps_kmip.errors import ConfigError, ManifestError


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "{b: 1, a: 1, a: 2}", "x:\n  - {a: 1, a: 1}"])
def test_a_key_that_is_there_twice_is_refused_or_reported(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^\d: the key 'a' is there twice"):
        parse_yaml(text)
    duplicates: list[str] = []
    parse_yaml(text, lambda _, key: duplicates.append(key))
    assert duplicates == ["a"]


def test_merged_and_repeated_mappings_have_no_duplicates() -> None:
    content = parse_yaml("a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc: *b\nd: {<<: *b, y: 4}")
    assert content["b"] == content["c"] == {"x": 3, "y": 2}
    assert content["d"] == {"x": 3, "y": 4}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", r"file.yaml:\d:\d: not valid YAML"),
        (b"a: 1\na: 2", r"file.yaml:2: the key 'a' is there twice"),
        (b"a: \xff", r"file.yaml: not UTF-8 text"),
        (b"- a", r"file.yaml: expected `key: value` lines, found list"),
        (b"# nothing", r"file.yaml: says nothing"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_of_the_type_that_was_asked_for(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "file.yaml").write_bytes(content)
    with pytest.raises(ManifestError, match=message):
        read_yaml(tmp_path / "file.yaml", error_type=ManifestError)


def test_a_missing_file_names_what_named_it_and_a_near_miss(tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").touch()
    with pytest.raises(ConfigError, match=r"^--cfg: .*digit.yaml: there is no such config file. Did you mean digits"):
        read_yaml(tmp_path / "digit.yaml", "--cfg")
    assert read_yaml(tmp_path / "digits.yaml", empty=True) == {}


def test_nested_groups_become_dotted_keys() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == {"a.b": 1, "a.c.d": 2, "e": 3}
