"""Analysis of trained models: distance to full attention, learned attention graphs, energy distances of weights."""

from graphgps_kmip.analysis.attention_analysis import (
    ORDERS,
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
from graphgps_kmip.analysis.energy_distance import (
    energy_distances,
    energy_distances_of_point,
    mean_distance,
    mean_spread,
    random_weights,
    uniform_weights,
)

__all__ = [
    "ORDERS",
    "Heads",
    "by_layer",
    "collect_heads",
    "crossing",
    "cumulative_weight",
    "degree_counts",
    "distance_of_samples",
    "distance_to_full",
    "energy_distances",
    "energy_distances_of_point",
    "gaussian_heads",
    "key_counts",
    "kmip_layers",
    "kmip_outputs",
    "mean_distance",
    "mean_spread",
    "random_weights",
    "spread",
    "uniform_weights",
]
