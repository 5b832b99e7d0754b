"""k-MIP attention against the formula, full attention, and the recorded original."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import FullAttention, GraphContext, KMIPAttention
from graphgps_kmip.errors import TrainingDiverged
from graphgps_kmip.testing.references import kmip_attention
from graphgps_kmip.train.epoch import explain_not_finite
from tests.recorded import check, load

PTR = torch.tensor([0, 5, 5, 6, 13])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)

RECORDS: dict[str, dict[str, Any]] = {
    "aggLinear_kq4_v4_k3_2x9x8": {"dim_kq": 4, "dim_val": 4, "head_agg": "Linear"},
    "aggLinear_kq8_v8_k3_2x9x8": {"dim_kq": 8, "dim_val": 8, "head_agg": "Linear"},
    "aggLinear_kq8_v8_k3_9x8": {"dim_kq": 8, "dim_val": 8, "head_agg": "Linear"},
    "aggnone_kq8_v4_k3_2x9x8": {"dim_kq": 8, "dim_val": 4},
}


@pytest.mark.parametrize("name", RECORDS)
def test_output_and_gradients_match_the_recorded_original(name: str) -> None:
    attention = KMIPAttention(8, 2, k=3, **RECORDS[name]).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = inputs["x"]  # (9, 8) or (2, 9, 8): graphs of nine nodes
        flat = x.reshape(-1, 8)
        return {"x": attention(flat, torch.arange(len(flat)) // 9).view_as(x)}

    names = {"MQs": "query", "MKs": "key", "MVs": "value", "MO": "out"}

    def rename(name: str) -> str:
        layer, parameter = name.split(".")
        return f"{names[layer]}.{parameter}"

    check(attention, forward, load(f"B_layers/kmip_sparse_attention_{name}"), rename)


@pytest.mark.parametrize("search", ["auto", "exact", "chunked"])
@pytest.mark.parametrize("options", [{}, {"dim_kq": 3, "dim_val": 5, "head_agg": "Linear"}])
def test_it_equals_the_formula_in_each_graph(search: str, options: dict[str, Any]) -> None:
    attention = KMIPAttention(8, 2, k=4, search=search, **options).double()
    x = torch.randn(13, 8, dtype=torch.float64)
    q, k, v = (linear(x).unflatten(1, (2, -1)) for linear in (attention.query, attention.key, attention.value))
    expected = attention.out(kmip_attention(q, k, v, PTR.tolist(), 4).flatten(1))
    torch.testing.assert_close(attention(x, CONTEXT), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("k", [7, 8, 1000])
def test_with_k_at_least_n_it_is_full_attention(k: int) -> None:
    full, kmip = FullAttention(8, 2).double(), KMIPAttention(8, 2, k=k, head_agg="Linear").double()
    nn.init.normal_(full.qkv.bias)
    for part, linear in enumerate((kmip.query, kmip.key, kmip.value)):
        linear.load_state_dict({name: value.chunk(3)[part] for name, value in full.qkv.state_dict().items()})
    kmip.out.load_state_dict(full.out.state_dict())
    x = torch.randn(13, 8, dtype=torch.float64)
    torch.testing.assert_close(kmip(x, CONTEXT), full(x, CONTEXT), rtol=1e-12, atol=1e-12)


def test_equal_nodes_share_their_weight_whichever_of_them_are_selected() -> None:
    attention = KMIPAttention(8, 2, k=3).double()
    x = torch.randn(1, 8, dtype=torch.float64).expand(6, 8)
    torch.testing.assert_close(attention(x), attention.value(x), rtol=1e-12, atol=1e-12)


def test_fewer_keys_change_the_output() -> None:
    few, many = KMIPAttention(8, 2, k=1), KMIPAttention(8, 2, k=5)
    few.load_state_dict(many.state_dict())
    x = torch.randn(6, 8)
    assert (few(x) - many(x)).abs().max() > 1e-3


def test_an_infinite_value_stays_in_its_graph() -> None:
    attention = KMIPAttention(8, 2, k=4)
    with torch.no_grad():
        attention.query.weight[:, 0] = attention.key.weight[:, 0] = 0
    x = torch.randn(5, 8)
    x[0, 0] = 1e38
    attention.value.weight.data[:, 0] = 1e3  # overflows in the values of the first graph alone
    out = attention(x, torch.tensor([0, 1, 2, 2, 2]))
    assert not out[0].isfinite().all()
    assert out[1:].isfinite().all()


def test_dropout_acts_in_training_only() -> None:
    attention = KMIPAttention(8, 2, dropout=0.5)
    x = torch.randn(6, 8)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"dim_kq": 0}, "dim_kq must be >= 1, got 0"),
        ({"dim_val": -1}, "dim_val must be >= 1, got -1"),
        ({"dim_val": 3}, r"got 2 \* 3 and dim 8: set head_agg 'Linear', or leave dim_val at None"),
        ({"head_agg": "linear"}, "head_agg must be one of none, Linear, got 'linear'"),
        ({"search": "exakt"}, "unknown search backend 'exakt'.*did you mean 'exact'"),
        ({"num_heads": 3}, "got dim 8 and 3 heads: use dim 6 or 9"),
        ({"num_heads": 0, "dim_kq": 4, "dim_val": 4}, "num_heads must be >= 1, got 0"),
        ({"dropout": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KMIPAttention(**{"dim": 8, "num_heads": 2, **arguments})


def test_dim_need_not_be_divisible_when_both_head_dims_are_given() -> None:
    attention = KMIPAttention(8, 3, dim_kq=2, dim_val=5, head_agg="Linear")
    assert attention(torch.randn(6, 8)).shape == (6, 8)


@pytest.mark.parametrize("attention", [KMIPAttention, FullAttention])
def test_inner_products_that_overflow_end_a_training_with_their_cause(attention: type[torch.nn.Module]) -> None:
    layer, x = attention(16, 2), 1e20 * torch.randn(20, 16)
    cause = r"met NaN or infinite values in epoch 3: inner products of queries up to .* overflow float32.*learning rate"
    with pytest.raises(TrainingDiverged, match=cause), explain_not_finite("epoch 3"):
        layer(x, None)
    with pytest.raises(ValueError, match="overflow float32"):
        layer(x, None)
    assert layer.double()(x.double(), None).isfinite().all()


def test_a_nan_in_full_attention_stays_in_its_graph() -> None:
    x = torch.randn(9, 16)
    x[6, 0] = torch.nan
    out = FullAttention(16, 2)(x, torch.tensor([0] * 5 + [1] * 4))
    assert out[:5].isfinite().all()
    assert out[5:].isnan().all()


def test_boundaries_that_are_not_those_of_the_nodes_are_refused_before_compiled_code_reads_them() -> None:
    for ptr in ([0, 9, 500], [0, 9], [0, 12, 7, 20], [1, 20]):
        context = GraphContext(torch.zeros(20, dtype=torch.long), torch.tensor(ptr, dtype=torch.long))
        with pytest.raises(ValueError, match="ptr must|ptr_q must"):
            KMIPAttention(16, 2)(torch.randn(20, 16), context)
        with pytest.raises(ValueError, match="ptr must increase from 0 to 20"):
            FullAttention(16, 2)(torch.randn(20, 16), context)
