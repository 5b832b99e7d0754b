"""Whole GPS layers of GraphGPS, the k-MIP code and LRGB: outputs, gradients, running statistics."""

from __future__ import annotations

import re

import pytest
from torch import nn

from graphgps_kmip.attention import FullAttention
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.public_faults import repeat_faults
from tests.attention.recorded_gps import DIM, HEADS, check_layer
from tests.record_files import kind_of_records

RECORDS = [
    "gps_CustomGatedGCN_None_batch_norm_gelu_b3",
    "gps_CustomGatedGCN_None_batch_norm_relu_b1",
    "gps_CustomGatedGCN_None_layer_norm_relu_b3",
    "gps_CustomGatedGCN_None_no_norm_relu_b3",
    "gps_CustomGatedGCN_Transformer_batch_norm_gelu_b3",
    "gps_CustomGatedGCN_Transformer_batch_norm_relu_b3",
    "gps_CustomGatedGCN_Transformer_batch_norm_relu_b3_eslappe",
    "gps_CustomGatedGCN_Transformer_layer_norm_gelu_b3",
    "gps_CustomGatedGCN_Transformer_layer_norm_relu_b1",
    "gps_CustomGatedGCN_Transformer_no_norm_relu_b3",
    "gps_GAT_Transformer_batch_norm_relu_b3",
    "gps_GCN_Transformer_batch_norm_relu_b3",
    "gps_GENConv_Transformer_batch_norm_relu_b3",
    "gps_GINE_None_batch_norm_relu_b3",
    "gps_GINE_Transformer_batch_norm_gelu_b3",
    "gps_GINE_Transformer_batch_norm_relu_b1",
    "gps_GINE_Transformer_batch_norm_relu_b3_eslappe",
    "gps_GINE_Transformer_layer_norm_relu_b3",
    "gps_GINE_Transformer_no_norm_relu_b3",
    "gps_GIN_Transformer_batch_norm_gelu_b3",
    "gps_None_Transformer_batch_norm_gelu_b3",
    "gps_None_Transformer_batch_norm_relu_b3",
    "gps_None_Transformer_no_norm_relu_b3",
    "gps_PNA_Transformer_batch_norm_relu_b3",
    "kmip_CustomGatedGCN_None_batch_norm_b3",
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggLinear_kq4_v4_k3_b3",
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggLinear_kq8_v8_k3_b1",
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggLinear_kq8_v8_k3_b3",
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggnone_kq8_v4_k3_b1",
    "kmip_CustomGatedGCN_SparseAttention_batch_norm_aggnone_kq8_v4_k3_b3",
    "kmip_CustomGatedGCN_Transformer_batch_norm_b3",
    "kmip_CustomGatedGCN_Transformer_layer_norm_b3",
    "kmip_GINE_SparseAttention_batch_norm_aggLinear_kq8_v8_k3_b3",
    "kmip_GINE_Transformer_batch_norm_b3",
    "lrgb_CustomGatedGCN_Transformer_batch_norm_gelu_b3",
    "lrgb_CustomGatedGCN_Transformer_batch_norm_relu_b3",
    "lrgb_CustomGatedGCN_Transformer_layer_norm_relu_b3",
    "lrgb_GINE_None_batch_norm_relu_b3",
    "lrgb_GINE_Transformer_batch_norm_relu_b3",
]
ELSEWHERE = ("exph_", "kmip_sparse_attention_", "performer_projection")  # and Performer and BigBird: tests/attention


def attention_of(name: str, pad_keys: bool = True) -> nn.Module | None:
    """Make the attention of a record; k-MIP with the public code's fault, which has an effect on unequal graphs."""
    if "_SparseAttention_" not in name:
        return FullAttention(DIM, HEADS) if "_Transformer_" in name else None
    head_agg, dim_kq, dim_val, k = re.search(r"_agg([A-Za-z]+)_kq(\d+)_v(\d+)_k(\d+)_", name).groups()
    options = {"k": int(k), "dim_kq": int(dim_kq), "dim_val": int(dim_val)}
    return repeat_faults(build_kmip(DIM, HEADS, head_agg=head_agg, **options), {"gt.kmip.pad_keys": pad_keys})


@pytest.mark.parametrize("name", RECORDS)
def test_a_layer_matches_the_recorded_original(name: str) -> None:
    check_layer(name, attention_of(name))


@pytest.mark.parametrize("name", [name for name in RECORDS if "_SparseAttention_" in name])
def test_the_fault_of_recorded_kmip_shows_only_where_graphs_are_padded(name: str) -> None:
    attention = attention_of(name, pad_keys=False)
    if name.endswith("_b1"):
        check_layer(name, attention)
        return
    with pytest.raises(AssertionError, match="eval/out/x"):
        check_layer(name, attention)


def test_every_record_of_a_whole_layer_is_compared() -> None:
    here = {name for name in kind_of_records("B_layers") if not name.startswith(ELSEWHERE)}
    assert {name for name in here if not re.search("_(Performer|BigBird)_", name)} == set(RECORDS)
    assert len(RECORDS) == 39
