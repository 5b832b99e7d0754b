"""Graph transformers with k-MIP attention. Importing this package alone loads no component and registers nothing.

``import graphgps_kmip.gym`` registers every component with torch_geometric.graphgym. `batch_of`, `create_model`,
`load_model`, `register` and `register_attention` are loaded when they are first used.
"""

from __future__ import annotations

from graphgps_kmip.common.lazy_names import lazy_names

__version__ = "0.1.0"

# Name -> module that has it.
_LAZY = {
    "batch_of": "graphgps_kmip.networks.create_model",
    "create_model": "graphgps_kmip.networks.create_model",
    "load_model": "graphgps_kmip.gym.trained",
    "register": "graphgps_kmip.registry",
    "register_attention": "graphgps_kmip.registry",
}
__all__ = ["__version__", *_LAZY]
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
