"""What an attention prints of itself: dim, heads, k, and the options that were set."""

from __future__ import annotations

import pytest
from torch import nn

from graphgps_kmip.attention import (
    BiasedFullAttention,
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    KMIPAttention,
    PerformerAttention,
    SANAttention,
)
from graphgps_kmip.attention.kmip import build_kmip


def first_line(attention: nn.Module) -> str:
    return attention.extra_repr()


def test_the_defaults_are_dim_heads_and_what_tells_sizes() -> None:
    assert first_line(KMIPAttention(64, 4)) == "dim=64, num_heads=4, k=10"
    assert first_line(FullAttention(64, 4)) == "dim=64, num_heads=4"
    assert first_line(ExphormerAttention(64, 4)) == "dim=64, num_heads=4"
    assert first_line(SANAttention(64, 4)) == "dim=64, num_heads=4"
    assert first_line(PerformerAttention(64, 4)) == "dim=64, num_heads=4, dim_head=64, num_features=266"
    assert first_line(BigBirdAttention(64, 4)) == "dim=64, num_heads=4, block_size=3, num_random_blocks=3"


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (KMIPAttention(64, 4, 0.5, k=3, dim_kq=8, search="chunked"), "k=3, dropout=0.5, dim_kq=8, search='chunked'"),
        (KMIPAttention(64, 4, head_agg="Linear", dim_val=3), "k=10, dim_val=3, head_agg='Linear'"),
        (FullAttention(64, 4, 0.2), "dropout=0.2"),
        (ExphormerAttention(8, 2, num_virt_node=3, use_exp_edges=False), "num_virt_node=3, use_exp_edges=False"),
        (SANAttention(8, 2, gamma=0.1), "gamma=0.1"),
        (SANAttention(8, 2, separate=True, secondary_edges="none"), "secondary_edges='none', separate=True"),
        (PerformerAttention(8, 2, use_bias=True), "use_bias=True"),
        (BigBirdAttention(8, 2, form="edges"), "form='edges'"),
    ],
)
def test_options_that_were_set_are_said(attention: nn.Module, said: str) -> None:
    assert first_line(attention).endswith(said)
    assert "None" not in first_line(attention)


def test_a_printed_model_shows_them() -> None:
    assert "(0): KMIPAttention(\n    dim=64, num_heads=4, k=7\n" in str(nn.Sequential(KMIPAttention(64, 4, k=7)))
    assert "dim=64, num_heads=4" in str(BiasedFullAttention(64, 4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k_start": 20, "anneal_until": 0.2}, ["KMIPAttention(", "AnnealedKeys(\n    k_start=20, anneal_until=0.2\n"]),
        ({"diversity": 0.3}, ["KMIPAttention(", "DiverseKeys(\n    diversity=0.3\n    (among): BestKeys()\n"]),
        ({"random_attention": True, "random_fraction": 0.2}, ["RandomKeys(random_fraction=0.2)"]),
    ],
)
def test_a_printed_kmip_attention_shows_its_choice_of_keys(options: dict[str, float], said: list[str]) -> None:
    shown = str(build_kmip(8, 2, **options))
    assert [words for words in said if words not in shown] == []
