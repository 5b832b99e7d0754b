"""Builders of networks: from settings under their YAML names to modules, without GraphGym."""

from __future__ import annotations

from graphgps_kmip.networks import (  # noqa: F401 (imported for their registry entries)
    gps_networks,
    node_networks,
    ppgt_network,
    transformer_networks,
)
from graphgps_kmip.networks.network_settings import NetworkPlan

__all__ = ["NetworkPlan"]
