"""Graph transformers with k-MIP attention. Importing this package alone loads no component and registers nothing.

``import graphgps_kmip.gym`` registers every component with torch_geometric.graphgym.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {  # name -> module that has it, loaded when it is first used
    "AddEncoding": "graphgps_kmip.encoding",
    "AttentionGraph": "graphgps_kmip.attention",
    "DatasetRecord": "graphgps_kmip.data",
    "EdgeEncoding": "graphgps_kmip.encoding",
    "GraphContext": "graphgps_kmip.attention",
    "InputError": "graphgps_kmip.errors",
    "NodeEncoding": "graphgps_kmip.encoding",
    "Range": "graphgps_kmip.ranges",
    "batch_of": "graphgps_kmip.networks.create_model",
    "create_model": "graphgps_kmip.networks.create_model",
    "load_model": "graphgps_kmip.gym.trained",
    "predict": "graphgps_kmip.gym.trained",
    "register": "graphgps_kmip.registry",
    "register_attention": "graphgps_kmip.registry",
    "register_dataset": "graphgps_kmip.data",
}
__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
