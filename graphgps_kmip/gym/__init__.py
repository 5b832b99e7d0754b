"""Where GraphGym and our parts meet: the only room that reads ``cfg``. Importing it registers everything."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():  # GraphGym asks for Lightning, which only its own train mode needs
    warnings.filterwarnings("ignore", message="To use GraphGym, install")
    warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=DeprecationWarning)
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import register as register_dataset
from graphgps_kmip.gym.act import ACTIVATIONS
from graphgps_kmip.gym.attention import register_attention
from graphgps_kmip.gym.config import set_defaults
from graphgps_kmip.gym.data import load_dataset
from graphgps_kmip.gym.encoder import EDGE_ENCODERS, NODE_ENCODERS
from graphgps_kmip.gym.graphgym_registration import NAME, offer, stand_first, stand_last, tolerate_later_packages
from graphgps_kmip.gym.head import HEADS
from graphgps_kmip.gym.modes import MODES
from graphgps_kmip.gym.network import NETWORKS
from graphgps_kmip.gym.original import ORIGINAL
from graphgps_kmip.gym.stock import LAYERS
from graphgps_kmip.gym.task import loss_and_score
from graphgps_kmip.train.optimizers import OPTIMIZERS
from graphgps_kmip.train.schedulers import SCHEDULERS

__all__ = ["cfg", "register_all", "register_attention", "register_dataset"]


def register_all() -> None:
    """Enter every part into GraphGym's registries; harmless when called again."""
    named = [
        (register.network_dict, NETWORKS | ORIGINAL),
        (register.layer_dict, LAYERS),
        (register.act_dict, ACTIVATIONS),
        (register.train_dict, MODES),
        (register.head_dict, HEADS),
        (register.node_encoder_dict, NODE_ENCODERS),
        (register.edge_encoder_dict, EDGE_ENCODERS),
        (register.optimizer_dict, {row.name: row.build for row in OPTIMIZERS.values()}),
        (register.scheduler_dict, {row.name: row.build for row in SCHEDULERS.values()}),
        (register.config_dict, {NAME: set_defaults}),
        (register.loader_dict, {NAME: load_dataset}),
        (register.loss_dict, {NAME: loss_and_score}),
    ]
    for registry, entries in named:
        for key, entry in entries.items():
            offer(registry, key, entry)
    stand_last(register.config_dict)
    stand_first(register.loader_dict)
    tolerate_later_packages()


register_all()
