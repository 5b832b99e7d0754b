"""The laws run over every row of the table of attentions, or over the classes that --attention names."""

from __future__ import annotations

import importlib

import pytest

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.registry import AttentionTraits, Spec, entries


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attention_row" in metafunc.fixturenames:
        chosen = [_row_of(name) for name in metafunc.config.getoption("--attention")]
        rows = chosen or list(entries("attention").values())
        metafunc.parametrize("attention_row", rows, ids=[row.name for row in rows])


def _row_of(name: str) -> Spec:
    """Find the row that the named module registered for the class, or make one that promises everything."""
    module, separator, attribute = name.partition(":")
    try:
        component = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "" if separator else " (it must be MODULE:CLASS)"
        raise pytest.UsageError(f"--attention {name}: {error or 'cannot be imported'}{hint}") from error
    registered = (row for row in entries("attention").values() if row.component is component)
    return next(registered, Spec("attention", attribute, component, "given by --attention", traits=AttentionTraits()))
