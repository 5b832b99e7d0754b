"""A component's keyword-only arguments are its config group, and come back typed."""

from __future__ import annotations

import pytest

from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.registry import register
from graphgps_kmip.signatures import check_arguments, options
from graphgps_kmip.train.settings import TrainSettings


class Component:
    def __init__(
        self, dim, *, k: int = 10, rate: float = 0.5, width: int | None = None, name: str = "a", on: bool = True
    ):
        self.values = (dim, k, rate, width, name, on)


DEFAULTS = {name: parameter.default for name, parameter in options(Component).items()}


def test_a_group_holds_the_keyword_only_arguments_with_their_defaults() -> None:
    assert DEFAULTS == {"k": 10, "rate": 0.5, "width": None, "name": "a", "on": True}


def test_components_whose_options_cannot_be_listed_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\*\*kwargs"):
        register("attention", "Mine", lambda _dim, **_kwargs: None)
    with pytest.raises(ConfigError, match="needs a default"):
        options(lambda _dim, *, _k: None)


def test_a_constructor_checks_its_arguments_by_its_annotations() -> None:
    check_arguments(build_kmip, {"k": 1, "dim_kq": None, "search": "auto"})
    for name, value in (("k", 0), ("k", True), ("dim_val", 0), ("head_agg", "linear")):
        with pytest.raises(InputError, match=f"{name}: expected"):
            check_arguments(build_kmip, {name: value})
    with pytest.raises(InputError, match="max_epoch: expected a whole number from 1"):
        TrainSettings(max_epoch=0)
