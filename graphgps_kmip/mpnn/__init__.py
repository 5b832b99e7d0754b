"""Message passing layers: ``layer(x, edge_index, edge_attr) -> (x, edge_attr)``, one mechanism a file.

A class says in ``internal_residual`` whether it adds its own input to its output (and brings its own dropout),
so that the GPS layer around it does not do so a second time.
"""

from __future__ import annotations

from graphgps_kmip.mpnn.gatedgcn import GatedGCN

__all__ = ["GatedGCN"]
