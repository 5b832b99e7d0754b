"""Component registry: one convention for every kind, clear refusals, near misses, and laws that read it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from graphgps_kmip.encoding import PositionalEncoding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.registry import (
    KINDS,
    AttentionTraits,
    build,
    entries,
    lookup,
    named,
    register,
    register_attention,
    watch,
)

pytestmark = pytest.mark.usefixtures("own_registry")


class Mine(nn.Module):
    """A component of a user's.

    With a second paragraph.
    """

    def __init__(self, dim: int, *, strength: float = 0.5) -> None:
        super().__init__()
        self.dim, self.strength = dim, strength


class MyEncoding(PositionalEncoding):
    """A component of a user's."""

    strength: float = 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_registers_in_the_same_way_as_a_call_and_as_a_decorator(kind: str) -> None:
    mine = MyEncoding if kind == "encoding" else Mine
    assert register(kind, "Mine", mine, aliases=("Ours",)) is mine
    decorated = register(kind, "Decorated")(type("Decorated", (mine,), {"__module__": __name__}))
    spec = lookup(kind, "Ours")
    assert (spec.kind, spec.name, spec.component, spec.aliases) == (kind, "Mine", mine, ("Ours",))
    assert spec.summary == "A component of a user's."
    assert list(spec.options) == (["strength"] if KINDS[kind].group else [])
    assert lookup(kind, "Decorated").component is decorated
    assert {"Mine", "Ours", "Decorated"} <= named(kind).keys()
    assert "Ours" not in entries(kind)


def test_the_same_component_again_is_harmless_and_another_one_under_its_name_is_refused() -> None:
    register("head", "mine", Mine, aliases=("ours",))
    register("head", "mine", Mine, aliases=("ours",))
    for name in ("mine", "ours"):
        with pytest.raises(ConfigError, match=f"register head: the name '{name}' is taken by the head Mine: choose"):
            register("head", name, nn.Linear)
    register("loss", "mine", nn.Linear)  # of another kind


def test_names_of_one_key_and_config_groups_are_of_one_component() -> None:
    register("attention", "Mine", Mine)
    with pytest.raises(ConfigError, match="'Mine' is taken by the attention Mine"):
        register("message_passing", "Mine", nn.Linear)
    with pytest.raises(ConfigError, match=r"'MINE' and 'Mine' would share gt\.mine: choose another"):
        register("attention", "MINE", type("Other", (Mine,), {}))


@pytest.mark.parametrize("name", ["", "A+B", "None", "a.b", 3])
def test_a_name_that_no_yaml_file_can_use_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="invalid name .*gt.layer_type joins names by a plus"):
        register("attention", name, Mine)


def test_unknown_kinds_arguments_and_names_meet_their_near_misses() -> None:
    with pytest.raises(ConfigError, match=r"unknown kind 'atention'\. Did you mean attention"):
        register("atention", "Mine", Mine)
    with pytest.raises(ConfigError, match=r"register metric 'mine': no argument 'maximise'\. Did you mean maximize"):
        register("metric", "mine", Mine, maximise=False)
    register("head", "mine", Mine)
    with pytest.raises(ConfigError, match=r"gnn\.head: unknown name 'mime'\. Did you mean mine"):
        lookup("head", "mime")


def test_what_only_a_kind_has_is_in_its_traits() -> None:
    register_attention("Mine", Mine, breaks=("permutation",))
    assert lookup("attention", "Mine").traits == AttentionTraits(breaks=("permutation",))
    register("metric", "mine", Mine, tasks=("regression",), maximize=False)
    assert (lookup("metric", "mine").traits.tasks, lookup("metric", "mine").traits.maximize) == (("regression",), False)


def test_a_watcher_sees_the_entries_of_before_and_of_later() -> None:
    seen = []
    register("head", "before", Mine)
    watch(lambda spec: seen.append(spec.name))
    register("loss", "later", nn.Linear)
    assert "before" in seen
    assert seen[-1] == "later"


def test_a_component_is_built_from_its_settings_and_from_what_is_supplied() -> None:
    register("attention", "Mine", Mine)
    module = build(lookup("attention", "Mine"), 8, settings={"strength": 2.0})
    assert (module.dim, module.strength) == (8, 2.0)
    assert build(lookup("attention", "Mine"), 8, settings={}, supplied={"strength": 3.0, "heads": 1}).strength == 3.0
