"""Analysis of trained k-MIP models: distance to full attention, and learned attention graphs (thesis 6.7, 6.8)."""

from graphgps_kmip.analysis.attention_analysis import (
    Heads,
    by_layer,
    collect_heads,
    crossing,
    cumulative_weight,
    degree_counts,
    distance_of_samples,
    distance_to_full,
    gaussian_heads,
    key_counts,
    kmip_layers,
    kmip_outputs,
    spread,
)

__all__ = [
    "Heads",
    "by_layer",
    "collect_heads",
    "crossing",
    "cumulative_weight",
    "degree_counts",
    "distance_of_samples",
    "distance_to_full",
    "gaussian_heads",
    "key_counts",
    "kmip_layers",
    "kmip_outputs",
    "spread",
]
