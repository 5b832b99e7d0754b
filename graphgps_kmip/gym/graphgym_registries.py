"""GraphGym's registries: our entries in them, next to those of other packages such as ``graphgps``.

All parts of a run are of one package, that of its network (`choose_package`); a network of a name that we have is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_geometric.graphgym import register as graphgym

from graphgps_kmip.gym.config_defaults import NAME
from graphgps_kmip.registry import named

WATCHERS: list[Callable[[dict[Any, Any], Any, Any], None]] = []  # called with what others register
OURS: dict[int, dict[Any, Any]] = {}  # id of a registry -> our entries in it
SHARED: dict[int, dict[Any, Any]] = {}  # id of a registry -> entries of others under names that we have, too
GRAPHGYM_REGISTRIES = {
    "network": graphgym.network_dict,
    "activation": graphgym.act_dict,
    "train_mode": graphgym.train_dict,
    "head": graphgym.head_dict,
    "pooling": graphgym.pooling_dict,
    "node_encoder": graphgym.node_encoder_dict,
    "edge_encoder": graphgym.edge_encoder_dict,
    "optimizer": graphgym.optimizer_dict,
    "scheduler": graphgym.scheduler_dict,
}


def has_network(name: str) -> bool:
    """Return whether this package has a network of this name, so that a run of ``model.type`` name is ours."""
    return name in named("network")


def choose_package(network: str) -> bool:
    """Give all names that we share with other packages to the package of a network; return whether that is ours."""
    is_ours = has_network(network)
    for registry in (*GRAPHGYM_REGISTRIES.values(), graphgym.layer_dict):
        if registry is not graphgym.network_dict:
            shared = SHARED.get(id(registry), {})
            registry.update({key: OURS[id(registry)][key] for key in shared} if is_ours else shared)
    return is_ours


def list_others() -> dict[str, dict[str, Any]]:
    """Return kind -> name -> what GraphGym itself or another package registered: its entries that are not ours."""
    return {
        kind: {name: entry for name, entry in registry.items() if OURS.get(id(registry), {}).get(name) is not entry}
        for kind, registry in {**GRAPHGYM_REGISTRIES, "layer": graphgym.layer_dict}.items()
    }


def offer(registry: dict[Any, Any], key: Any, entry: Callable[..., Any]) -> None:
    """Enter one part under a name; harmless when done twice; of two networks of one name ours is entered."""
    entries = OURS.setdefault(id(registry), {})
    before, entries[key] = entries.get(key), entry
    other = registry.get(key)
    if other is None or other is before:
        registry[key] = entry
    else:
        _share(registry, key, other)


def _share(registry: dict[Any, Any], key: Any, other: Any) -> None:
    SHARED.setdefault(id(registry), {})[key] = other
    is_network = registry is graphgym.network_dict
    registry[key] = OURS[id(registry)][key] if is_network else other


def put_first(registry: dict[Any, Any]) -> None:
    """Put our entry first where GraphGym asks all entries in turn (loaders, losses) and others raise when unsure."""
    others = {key: registry.pop(key) for key in list(registry) if key != NAME}
    registry.update(others)


def put_last(registry: dict[Any, Any]) -> None:
    """Put our entry last: config functions of other packages replace whole groups, ours adds to them."""
    registry[NAME] = registry.pop(NAME)


def tolerate_later_packages() -> None:
    """Let a package that is imported after us register names that we have: ``register_base`` raises ``KeyError``."""
    original = graphgym.register_base
    if getattr(original, "shared_by", None) == NAME:
        return

    def register_base(mapping: dict[Any, Any], key: Any, module: Any = None) -> Any:
        if module is None:
            return lambda decorated: (register_base(mapping, key, decorated), decorated)[1]
        if key in OURS.get(id(mapping), {}) and key not in SHARED.get(id(mapping), {}):
            _share(mapping, key, module)
        else:
            original(mapping, key, module)
            for watcher in WATCHERS:
                watcher(mapping, key, module)
        if mapping is graphgym.config_dict and NAME in mapping:
            put_last(mapping)
        return None

    register_base.shared_by = NAME
    graphgym.register_base = register_base
