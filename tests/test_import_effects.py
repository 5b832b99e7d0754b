"""What each import loads and changes: an attention alone, the package, and the registration with GraphGym."""

from __future__ import annotations

import json

import pytest

from tests.processes import preloaded

# Prints the modules of ours, how many audit hooks were installed, and whether GraphGym's function was replaced.
LOOK = """
import json, sys
hooks = []
sys.addaudithook = hooks.append
{statement}
ours = sorted(name for name in sys.modules if name.startswith("graphgps_kmip."))
replaced = False
if "torch_geometric.graphgym.register" in sys.modules:
    replaced = hasattr(sys.modules["torch_geometric.graphgym.register"].register_base, "shared_by")
print(json.dumps([ours, len(hooks), replaced]))
"""
BOTTOM = {"attention", "search", "native", "common", "errors", "ranges", "registry", "signatures"}


def look(statement: str) -> tuple[set[str], int, bool]:
    """Return packages of ours that a statement loads, audit hooks, and whether a function of GraphGym is replaced."""
    done = preloaded("-c", LOOK.format(statement=statement))
    assert done.returncode == 0, done.stderr
    modules, hooks, replaced = json.loads(done.stdout.splitlines()[-1])
    return {name.split(".")[1] for name in modules}, hooks, replaced


def test_an_attention_loads_attention_and_search_and_changes_nothing() -> None:
    packages, hooks, replaced = look("from graphgps_kmip.attention import KMIPAttention")
    assert {"attention", "search"} <= packages <= BOTTOM
    assert (hooks, replaced) == (0, False)


def test_the_package_alone_loads_nothing() -> None:
    assert look("import graphgps_kmip; graphgps_kmip.__version__") == (set(), 0, False)


def test_the_gym_registers_with_graphgym() -> None:
    statement = (
        "import graphgps_kmip.gym; from torch_geometric.graphgym import register; "
        "assert {'GPSModel', 'Graphormer'} <= register.network_dict.keys()"
    )
    packages, _, replaced = look(statement)
    assert {"gym", "networks", "data", "train"} <= packages
    assert replaced


@pytest.mark.parametrize("place", ["graphgps_kmip", "graphgps_kmip.gym", "graphgps_kmip.registry"])
def test_registering_needs_nothing_else_from_any_place(place: str) -> None:
    statement = f"""
from {place} import register, register_attention
class Mine:
    "Mine."
register_attention("Mine", Mine)
register("loss", "mine", Mine, tasks=("regression",))
import graphgps_kmip.gym
from graphgps_kmip.registry import entries
from graphgps_kmip.gym import cfg
assert "Mine" in entries("attention") and "mine" in entries("loss")
"""
    look(statement)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import graphgps_kmip

    with pytest.raises(AttributeError, match="has no attribute 'create_modle'"):
        _ = graphgps_kmip.create_modle
