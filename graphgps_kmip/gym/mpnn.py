"""Table of message passing layers: classes ``(dim, dropout, act, *, options)``."""

from __future__ import annotations

from graphgps_kmip.gym.table import Row, add_row
from graphgps_kmip.mpnn import GatedGCN

MPNN: dict[str, Row] = {}

add_row(MPNN, "GatedGCN", GatedGCN, aliases=("CustomGatedGCN",))
