"""GraphGym integration: importing this package enters every registered component into GraphGym's registries."""

from __future__ import annotations

import warnings

from graphgps_kmip.common.environment import collector_paused

with collector_paused(), warnings.catch_warnings():
    # GraphGym asks for Lightning, which only its own train mode needs
    warnings.filterwarnings("ignore", message="To use GraphGym, install")
    warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=DeprecationWarning)
    from torch_geometric.graphgym.config import cfg

    from graphgps_kmip import networks  # noqa: F401 (imported for its registry entries)
    from graphgps_kmip.data import register_dataset
    from graphgps_kmip.gym import train_modes  # noqa: F401 (imported for its registry entries)
    from graphgps_kmip.gym.graphgym_registration import register_all
    from graphgps_kmip.registry import register, register_attention
    from graphgps_kmip.train import optimizers, schedulers  # noqa: F401 (imported for their registry entries)

__all__ = ["cfg", "register", "register_all", "register_attention", "register_dataset"]

register_all()
