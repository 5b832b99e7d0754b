"""Table of message passing layers: classes ``(dim, dropout, act, *, options)``."""

from __future__ import annotations

from graphgps_kmip.mpnn import GAT, GCN, GIN, GINE, PNA, GatedGCN, GATv2, GENConv
from graphgps_kmip.registry import Row, add_row

MPNN: dict[str, Row] = {}

add_row(MPNN, "GatedGCN", GatedGCN, aliases=("CustomGatedGCN",))
add_row(MPNN, "GCN", GCN)
add_row(MPNN, "GINE", GINE)
add_row(MPNN, "GIN", GIN)
add_row(MPNN, "GAT", GAT)
add_row(MPNN, "GATv2", GATv2)
add_row(MPNN, "GENConv", GENConv)
add_row(MPNN, "PNA", PNA)
