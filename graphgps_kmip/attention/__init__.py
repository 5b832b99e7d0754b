"""Global attention among the nodes of each graph, ``attention(x, context) -> (N, C)``: see ``context``."""

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.exphormer import ExphormerAttention
from graphgps_kmip.attention.full import FullAttention
from graphgps_kmip.attention.graph import AttentionGraph, collect_attention
from graphgps_kmip.attention.kmip import KMIPAttention

__all__ = ["AttentionGraph", "ExphormerAttention", "FullAttention", "GraphContext", "KMIPAttention", "collect_attention"]
