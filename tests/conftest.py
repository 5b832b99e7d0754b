"""What all tests share: options, skips that name their reason, seeds, and few threads."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator

import pytest
import torch

from graphgps_kmip import registry
from graphgps_kmip.data import synthetic_sample as plan
from graphgps_kmip.data.sets import point_cloud_sets
from graphgps_kmip.ops.native import compile_kernels
from graphgps_kmip.ops.native.instruction_sets import AUTO, VARIABLE, runnable
from graphgps_kmip.search.keops import cxx_compiler
from tests.native.emulated_cpu import emulated
from tests.native.vector_units import EMULATED


def pytest_configure() -> None:
    # a script that runs the tests in its background has SIGINT ignored, and what the tests interrupt would go on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # for the processes that tests start; in a container that wants no compiled modules, each would compile this package
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    torch.set_num_threads(1)  # the tests are small: more threads only wait for each other, and for a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    compiler = cxx_compiler()
    missing = {
        "cuda": "" if torch.cuda.is_available() else "no CUDA device",
        "compiler": "" if shutil.which(compiler) else f"no C++ compiler ({compiler} is not on the PATH)",
        "dataset": ""
        if os.environ.get("GRAPHGPS_KMIP_DATA")
        else "GRAPHGPS_KMIP_DATA, the folder of real raw data, is not set",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def graphgym_registries() -> Iterator[None]:
    """Let what a test registers with GraphGym, and the handlers of its log, end with it; its config is open again."""
    import graphgps_kmip.gym.experiment  # noqa: F401

    graphgym = sys.modules["torch_geometric.graphgym.register"]
    registries = [value for name, value in vars(graphgym).items() if name.endswith("_dict")]
    before, handlers = [dict(registry_dict) for registry_dict in registries], logging.root.handlers[:]
    yield
    logging.root.handlers = handlers
    for registry_dict, entries in zip(registries, before, strict=True):
        registry_dict.clear()
        registry_dict.update(entries)
    sys.modules["graphgps_kmip.gym"].cfg.defrost()


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what a test registers end with it, its groups in GraphGym's config included."""
    import graphgps_kmip.gym.experiment  # noqa: F401 (or what it registers would end with the first test that loads it)

    monkeypatch.setattr(registry, "_SPECS", {kind: dict(specs) for kind, specs in registry._SPECS.items()})
    monkeypatch.setattr(registry, "_WATCHERS", list(registry._WATCHERS))
    config = getattr(sys.modules.get("graphgps_kmip.gym"), "cfg", {})
    before = [(node, set(node)) for node in (config, config.get("gt", {}))]
    yield
    for node, groups in before:
        for name in set(node) - groups:
            del node[name]


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """``dataset.sample True`` gives 30 graphs, or one of 300 nodes: for tests of anything but the samples."""
    monkeypatch.setattr(plan, "MAX_GRAPHS", 30)
    monkeypatch.setattr(plan, "MAX_NODES_OF_ONE", 300)


@pytest.fixture(scope="module")
def few_digits() -> Iterator[None]:
    """Every sixth of the 1,797 digits is all there are: for tests of anything but what a model learns from them."""
    graphs = point_cloud_sets._digit_graphs()[::6]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point_cloud_sets, "_digit_graphs", lambda: graphs)
        yield


@pytest.fixture(params=[AUTO, *runnable(), *EMULATED.values()])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let the kernels of a test be compiled for each instruction set, of this machine or emulated (``indirect``)."""
    if request.param in EMULATED:
        with emulated(request.param):
            yield request.param
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        compile_kernels.forget()
        yield request.param
    compile_kernels.forget()


@pytest.fixture(autouse=True)
def _seed() -> None:
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # half a millisecond less: without a GPU, torch stores the call stack for the time when there is one
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _log_handlers() -> Iterator[None]:
    """Let the log handlers of a run end with the test that started it: its captured streams are closed then."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
