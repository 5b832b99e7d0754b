"""GraphGym's registries: our entries in them, beside those of other packages.

GraphGym refuses a second entry under one name. The public ``graphgps`` package uses the names of its YAML files, as we
must; so that both can be imported, in either order, a name that another package holds stays theirs, except where the
config could then not reach our model: those few `ESSENTIAL` entries are ours, and each such case is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch_geometric.graphgym import register as graphgym

from graphgps_kmip.gym.config.config_defaults import NAME

WATCHERS: list[Callable[[dict[Any, Any], Any, Any], None]] = []  # called with what others register
OURS: dict[int, dict[Any, Any]] = {}  # id of a registry -> our entries in it
NETWORKS = "GPSModel MultiModel SingleModel SANTransformer GritTransformer PPGT Performer BigBird Graphormer".split()
NETWORKS += ["custom_gnn", "gnn"]
ESSENTIAL = {
    *((id(graphgym.network_dict), name) for name in NETWORKS),
    (id(graphgym.train_dict), "custom"),
}
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
# GraphGym's own that ours replace: Atom, Bond (the same modules, but made by ogb) and the network gnn.
GRAPHGYM = ("torch_geometric.graphgym.models.encoder", "torch_geometric.graphgym.models.gnn")


def of_others() -> dict[str, dict[str, Any]]:
    """Return kind -> name -> what GraphGym itself or another package registered: its entries that are not ours."""
    return {
        kind: {name: entry for name, entry in registry.items() if OURS.get(id(registry), {}).get(name) is not entry}
        for kind, registry in {**GRAPHGYM_REGISTRIES, "layer": graphgym.layer_dict}.items()
    }


def offer(registry: dict[Any, Any], key: Any, entry: Callable[..., Any]) -> None:
    """Enter one part under a name; harmless when done twice; another package's entry stays unless ours is essential."""
    theirs, ours = registry.get(key), OURS.setdefault(id(registry), {})
    before = ours.get(key)
    ours[key] = entry
    if theirs is None or theirs is before:
        registry[key] = entry
    elif _origin(theirs) in GRAPHGYM:
        registry[key] = entry
    elif (id(registry), key) in ESSENTIAL:
        registry[key] = entry
        logging.warning("%r of %s is replaced by that of graphgps_kmip", key, _origin(theirs))
    else:
        logging.info("%r stays that of %s", key, _origin(theirs))


def stand_first(registry: dict[Any, Any]) -> None:
    """Put our entry first where GraphGym asks all entries in turn (loaders, losses) and others raise when unsure."""
    others = {key: registry.pop(key) for key in list(registry) if key != NAME}
    registry.update(others)


def stand_last(registry: dict[Any, Any]) -> None:
    """Put our entry last: config functions of other packages replace whole groups, ours adds to them."""
    registry[NAME] = registry.pop(NAME)


def tolerate_later_packages() -> None:
    """Let a package that is imported after us register names that we hold, instead of failing on import.

    GraphGym's ``register_base`` raises ``KeyError`` for a taken name. Where the taken name is ours, this gives it to
    the newcomer, or keeps it if it is essential; for all other names nothing changes.
    """
    original = graphgym.register_base
    if getattr(original, "shared_by", None) == NAME:
        return

    def register_base(mapping: dict[Any, Any], key: Any, module: Any = None) -> Any:
        if module is None:
            return lambda decorated: (register_base(mapping, key, decorated), decorated)[1]
        held = OURS.get(id(mapping), {})
        if key in held and mapping.get(key) is held[key]:
            if (id(mapping), key) in ESSENTIAL:
                logging.warning("%r stays that of graphgps_kmip, not of %s", key, _origin(module))
                return None
            logging.info("%r is now that of %s", key, _origin(module))
            mapping[key] = module
        else:
            original(mapping, key, module)
            for tell in WATCHERS:
                tell(mapping, key, module)
        if mapping is graphgym.config_dict and NAME in mapping:
            stand_last(mapping)
        return None

    register_base.shared_by = NAME
    graphgym.register_base = register_base


def _origin(entry: Any) -> str:
    return getattr(entry, "__module__", repr(entry))
