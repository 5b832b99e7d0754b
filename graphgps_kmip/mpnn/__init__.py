"""Message passing layers (APPNP, GatedGCN, GCN, GINE, GIN, GAT, GATv2, GraphSAGE, GENConv, PNA) and their contract.

Contract: ``layer(x, edge_index, edge_attr, encoding=None) -> (x, edge_attr)``.

* ``x`` is (N, C), ``edge_index`` (2, E) as (source j, target i). ``edge_attr`` (E, C) is None where there are no edge
  features; a layer that needs them raises ValueError. A layer that does not change them returns its argument.
* ``encoding`` (N, C) are the columns of EquivStableLapPE, only for layers built with ``equivstable_pe=True``.

``internal_residual`` of a class is True if it adds its input to its output and applies its own dropout, which the GPS
layer then leaves out. The others apply neither activation, dropout nor residual: these belong to the network.
"""

from __future__ import annotations

from graphgps_kmip.mpnn.gat import GAT, GATv2
from graphgps_kmip.mpnn.gatedgcn import GatedGCN
from graphgps_kmip.mpnn.gcn import APPNP, GCN, GraphSAGE
from graphgps_kmip.mpnn.genconv import GENConv
from graphgps_kmip.mpnn.gin import GIN, GINE
from graphgps_kmip.mpnn.pna import PNA

__all__ = ["APPNP", "GAT", "GCN", "GIN", "GINE", "PNA", "GATv2", "GENConv", "GatedGCN", "GraphSAGE"]
