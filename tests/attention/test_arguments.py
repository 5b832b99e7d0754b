"""Options that attentions print and wrong arguments that they refuse, with how to fix them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from graphgps_kmip.attention import (
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    KMIPAttention,
    PerformerAttention,
    SANAttention,
    ScoreEstimatorAttention,
)
from graphgps_kmip.attention.geco import GECOAttention
from graphgps_kmip.attention.grit import GRITAttention
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.errors import InputError

PRINTED: list[tuple[nn.Module, str]] = [
    (KMIPAttention(64, 4), "dim=64, num_heads=4, k=10"),
    (KMIPAttention(64, 4, 0.5, k=3, dim_kq=8, search="chunked"), "k=3, dropout=0.5, dim_kq=8, search='chunked'"),
    (ExphormerAttention(8, 2, num_virt_node=3, use_exp_edges=False), "num_virt_node=3, use_exp_edges=False"),
    (SANAttention(8, 2, separate=True, secondary_edges="none"), "secondary_edges='none', separate=True"),
    (PerformerAttention(64, 4), "dim=64, num_heads=4, dim_head=64, num_features=266"),
    (BigBirdAttention(64, 4), "dim=64, num_heads=4, block_size=3, num_random_blocks=3"),
    (ScoreEstimatorAttention(4, 1, temp_min=0.05, value_scale=0.0), "num_heads=1, temp_min=0.05, value_scale=0.0"),
    (build_kmip(8, 2, k_start=20, anneal_until=0.2), "AnnealedKeys(\n    k_start=20, anneal_until=0.2\n"),
    (build_kmip(8, 2, diversity=0.3), "DiverseKeys(\n    diversity=0.3\n    (among): BestKeys()\n"),
    (build_kmip(8, 2, random_attention=True, random_fraction=0.2), "RandomKeys(random_fraction=0.2)"),
]


@pytest.mark.parametrize(("attention", "part"), PRINTED, ids=lambda value: value if isinstance(value, str) else "")
def test_an_attention_prints_its_sizes_and_the_options_that_were_set(attention: nn.Module, part: str) -> None:
    assert part in str(attention)
    assert "None" not in attention.extra_repr()


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (BigBirdAttention, {"num_heads": 3}, "got dim 8 and 3 heads: use dim 6 or 9"),
    (BigBirdAttention, {"block_size": 0}, "block_size must be >= 1, got 0"),
    (BigBirdAttention, {"num_random_blocks": -1}, "num_random_blocks must be >= 0, got -1"),
    (BigBirdAttention, {"hidden_act": "swish"}, "hidden_act must be one of relu, sigmoid, got 'swish'"),
    (BigBirdAttention, {"form": "dense"}, "form must be one of block_sparse, got 'dense'"),
    (ExphormerAttention, {"num_virt_node": -1}, "prep.num_virt_node must be >= 0, got -1"),
    (ExphormerAttention, {"add_edge_index": False, "use_exp_edges": False}, "no edges .* set prep.add_edge_index"),
    (SANAttention, {"gamma": -0.1}, "gamma must be >= 0, got -0.1"),
    (FullAttention, {"num_heads": 0}, "num_heads must be >= 1, got 0"),
    (FullAttention, {"dim": 3, "num_heads": 4}, "got dim 3 and 4 heads: use dim 4"),
    (KMIPAttention, {"k": 0}, "k: expected a whole number from 1 to 1000000000, got 0"),
    (KMIPAttention, {"dim_kq": 0}, "dim_kq: expected a whole number from 1 to 65536"),
    (KMIPAttention, {"dim_val": 3}, r"got 2 \* 3 and dim 8: set head_agg 'Linear', or leave dim_val at None"),
    (KMIPAttention, {"head_agg": "linear"}, "head_agg: expected one of none, Linear, got 'linear'"),
    (KMIPAttention, {"search": "exakt"}, "unknown search backend 'exakt'.*did you mean 'exact'"),
    (KMIPAttention, {"dropout": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
    (build_kmip, {"diversity": -0.5}, "diversity must be 0 or more, and finite, got -0.5"),
    (build_kmip, {"random_attention": True, "random_fraction": 0.0}, r"random_fraction must be in \(0, 1\], got 0.0"),
    (build_kmip, {"k": 5, "k_start": 4}, r"k_start must be 0 \(constant k\) or at least k, got 4 and k 5"),
    (build_kmip, {"k_start": -1}, "k_start must be 0"),
    (build_kmip, {"k_start": 20, "anneal_until": 0.0}, r"anneal_until must be in \(0, 1\], got 0.0"),
    (PerformerAttention, {"dim_head": 0}, "dim_head must be >= 1, got 0"),
    (PerformerAttention, {"num_features": 0}, "num_features must be >= 1, got 0"),
    (ScoreEstimatorAttention, {"temp_ratio": 0.0}, "temp_ratio and temp_min must be above 0"),
    (GECOAttention, {"form": "both"}, "form must be one of gate_after, gate_first"),
    (GECOAttention, {"order": 1, "form": "gate_first"}, "order with the form gate_first must be >= 2, got 1"),
    (GECOAttention, {"filter_places": 4}, "filter_places must be odd"),
    (GECOAttention, {"filter_norm": "l3"}, "filter_norm"),
    (GECOAttention, {"local": "conv"}, "local must be one of"),
    (GRITAttention, {"clamp": -1.0}, "gt.grit.clamp"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
def test_wrong_arguments_are_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, InputError), match=message):
        kind(**{"dim": 8, "num_heads": 2} | options)
