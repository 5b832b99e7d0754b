"""Global attention among the nodes of each graph: ``attention(x, context) -> (N, C)``, see ``context.py``."""

from graphgps_kmip.attention.bigbird import BigBirdAttention
from graphgps_kmip.attention.difformer import DIFFormerAttention
from graphgps_kmip.attention.exphormer import ExphormerAttention, SampledEdgeAttention
from graphgps_kmip.attention.full import BiasedFullAttention, FullAttention
from graphgps_kmip.attention.geco import GECOAttention, HyenaAttention
from graphgps_kmip.attention.grit import GRITAttention
from graphgps_kmip.attention.kmip import AnnealedKeys, BestKeys, DiverseKeys, KMIPAttention, RandomKeys
from graphgps_kmip.attention.nodeformer import NodeFormerAttention
from graphgps_kmip.attention.performer import PerformerAttention
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.attention.score_estimator import ScoreEstimatorAttention
from graphgps_kmip.attention.simplified_l2 import ClassAttention, SimplifiedL2Attention
from graphgps_kmip.ops.context import AttentionGraph, GraphContext, collect_attention

__all__ = [
    "AnnealedKeys",
    "AttentionGraph",
    "BestKeys",
    "BiasedFullAttention",
    "BigBirdAttention",
    "ClassAttention",
    "DIFFormerAttention",
    "DiverseKeys",
    "ExphormerAttention",
    "FullAttention",
    "GECOAttention",
    "GRITAttention",
    "GraphContext",
    "HyenaAttention",
    "KMIPAttention",
    "NodeFormerAttention",
    "PerformerAttention",
    "RandomKeys",
    "SANAttention",
    "SampledEdgeAttention",
    "ScoreEstimatorAttention",
    "SimplifiedL2Attention",
    "collect_attention",
]
