"""Simplified L2 attention of PPGT and its class attention: recorded original, and the formula in Python loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from graphgps_kmip.attention import ClassAttention, GraphContext, SimplifiedL2Attention
from graphgps_kmip.attention.context import complete_pairs
from tests.record_files import kind_of_records
from tests.recorded import check, load

DIM, HEADS = 8, 2
EXACT = {"rtol": 1e-11, "atol": 1e-11}
SIZES = [5, 0, 1, 7]  # the second graph has no node
RECORDED: dict[str, dict[str, Any]] = {
    "class_l2_b3": {},
    "dot_nourpe_b3": {"key_norm": "none", "urpe": False},
    "dot_urpe_b3": {"key_norm": "none"},
    "l2_nourpe_b3": {"urpe": False},
    "l2_urpe_b1": {},
    "l2_urpe_b3": {},
    "l2_urpe_dimedge5_h4_b3": {"dim_pair": 5},
    "l2_urpe_gated_b3": {"gated": True},
    "l2_urpe_nobias_b3": {"bias": False},
    "l2_urpe_qknorm_b3": {"qk_norm": "rms_norm"},
    "l2_urpe_window1_b3": {"window": 1},
}
NAMES = {"Q": "heads.query", "KV": "heads.key_value", "O": "heads.out", "G": "heads.gate", "P": "pair"}
NAMES |= {"q_norm": "heads.q_norm", "k_norm": "heads.k_norm"}


def rename(name: str) -> str:
    part, parameter = name.removeprefix("a.").split(".")
    return f"{NAMES[part]}.{parameter}"


@pytest.mark.parametrize("name", RECORDED)
def test_outputs_and_gradients_match_the_recorded_original(name: str) -> None:
    kind = ClassAttention if name.startswith("class") else SimplifiedL2Attention
    attention = kind(DIM, 4 if "_h4_" in name else HEADS, **RECORDED[name]).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        context = GraphContext(inputs["batch"], inputs["ptr"])
        if isinstance(attention, ClassAttention):
            return {"h": attention(inputs["cls"], inputs["x"], context)}
        # an edge (source, target) of the original is the pair of query target and key source
        context = replace(context, pair_index=inputs["edge_index"].flip(0), pair_attr=inputs["edge_attr"])
        if "rrwp_attr" in inputs:
            given = replace(context, pair_index=inputs["rrwp_index"].flip(0), pair_attr=inputs["rrwp_attr"])
            context = replace(context, rrwp=complete_pairs(given))
        return {"h": attention(inputs["x"], context)}

    check(attention, forward, load(f"F_attention/{name}"), rename)


def test_every_record_is_compared() -> None:
    assert set(kind_of_records("F_attention")) == set(RECORDED)
