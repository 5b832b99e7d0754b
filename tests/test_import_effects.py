"""What each import and command loads and changes: an attention alone, the package, the registration, the help."""

from __future__ import annotations

import json

import pytest

from tests.processes import preloaded, python

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
BOTTOM = {"attention", "search", "ops", "common", "errors", "ranges", "registry", "signatures"}


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


def test_the_package_alone_loads_only_what_loads_the_rest_at_need() -> None:
    assert look("import graphgps_kmip; graphgps_kmip.__version__") == (set(), 0, False)


@pytest.mark.parametrize("place", ["graphgps_kmip", "graphgps_kmip.gym", "graphgps_kmip.registry"])
def test_registering_needs_nothing_else_from_any_place(place: str) -> None:
    statement = f"""
import gc
from {place} import register, register_attention
class Mine:
    "Mine."
register_attention("Mine", Mine)
register("loss", "mine", Mine, tasks=("regression",))
import graphgps_kmip.gym
from graphgps_kmip.registry import entries
from graphgps_kmip.gym import cfg
assert "Mine" in entries("attention") and "mine" in entries("loss")
assert gc.isenabled()
"""
    packages, _, replaced = look(statement)
    assert "networks" in packages
    assert replaced


# Prints the libraries that a script has loaded when it ends; "scipy" alone is next to nothing, its parts are not.
LOADED = """
import json, runpy, sys
try:
    sys.argv[:] = {argv}
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as exit:
    code = exit.code
print(json.dumps([code, sorted(sys.modules)]))
"""
# Libraries that take a tenth of a second or more of processor time, and that torch alone does not load.
HEAVY = {
    "IPython", "PIL", "h5py", "lightning_fabric", "matplotlib", "networkx", "ogb", "optuna", "pandas", "pykeops",
    "pytorch_lightning", "rdkit", "scipy.linalg", "scipy.sparse", "scipy.spatial", "scipy.special", "scipy.stats",
    "sklearn", "submitit", "tensorboard", "torch._dynamo", "torch._inductor", "torch_geometric", "torchmetrics",
    "triton", "wandb", "yacs",
}  # fmt: skip


def loaded_by(statement: str, after: str = "") -> set[str]:
    """Return the modules that a statement loads in a new process, after another one."""
    show = "print(json.dumps([*{*sys.modules} - before]))"
    lines = ("import json, sys", after, "before = {*sys.modules}", statement, show)
    done = python("-W", "ignore", "-c", "\n".join(lines))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_an_attention_loads_no_library_but_torch() -> None:
    modules = loaded_by("from graphgps_kmip.attention import KMIPAttention")
    assert "torch" in modules
    assert modules & HEAVY == set()


def test_the_registration_and_the_command_line_load_no_library_but_torch_geometric() -> None:
    modules = loaded_by("import graphgps_kmip.gym.experiment", after="import torch_geometric.graphgym")
    assert "graphgps_kmip.networks" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["main.py", "--help"], 0),
        (["main.py"], 2),
        (["main.py", "--cgf", "configs/quickstart/digits-kmip.yaml"], 2),
        (["main.py", "--cfg", "configs/quickstart/digits-kmpi.yaml"], 2),
        (["main.py", "--cfg", "configs/quickstart/digits-kmip.yaml", "gt.kmip.k"], 2),
        (["main.py", "--data", "Digits", "seed", "[1"], 2),
        (["run/reproduce.py", "--help"], 0),
        (["run/reproduce.py", "list", "--out", "results/none"], 0),
        (["run/reproduce.py", "plan", "quickstart/digitz"], 2),
        (["run/compare.py", "--help"], 0),
        (["run/compare.py"], 2),
        (["graphgps_kmip/check.py", "--help"], 0),
        (["graphgps_kmip/check.py", "--only", "kernel"], 2),
    ],
)
def test_help_and_mistakes_in_words_and_files_come_before_torch(argv: list[str], code: int) -> None:
    done = python("-c", LOADED.format(argv=argv))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0] == code, done.stderr
    modules = set(json.loads(done.stdout.splitlines()[-1])[1])
    assert "graphgps_kmip" in modules
    assert modules & (HEAVY | {"numpy", "torch"}) == set()


def test_lazy_names_are_listed_and_found() -> None:
    import graphgps_kmip

    assert set(graphgps_kmip.__all__) <= set(dir(graphgps_kmip))
    assert all(hasattr(graphgps_kmip, name) for name in graphgps_kmip.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'create_modle'"):
        _ = graphgps_kmip.create_modle
