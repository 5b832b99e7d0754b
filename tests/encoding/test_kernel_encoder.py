"""The encoder of RWSE, HKdiagSE and ElstaticSE: the public code's records, options, errors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.kernel_encoder import KernelEncoder
from tests.recorded import check, load

RECORDS = {
    "rwse_linear": ("RWSE", {"model": "Linear"}),
    "rwse_mlp1": ("RWSE", {"model": "mlp", "layers": 1}),
    "rwse_mlp2": ("RWSE", {"model": "mlp", "layers": 2}),
    "rwse_mlp3_bn": ("RWSE", {"model": "mlp", "raw_norm_type": "BatchNorm"}),
    "hkdiagse_linear_bn": ("HKdiagSE", {"model": "Linear", "raw_norm_type": "BatchNorm"}),
    "elstaticse_linear_bn": ("ElstaticSE", {"model": "Linear", "raw_norm_type": "BatchNorm"}),
}


def batch_of(stats: Tensor | None = None, columns: int = 3) -> Batch:
    data = Data(x=torch.randn(5, columns), edge_index=torch.tensor([[0, 1], [1, 0]]))
    if stats is not None:
        data.pestat_RWSE = stats
    return Batch.from_data_list([data])


def run(encoder: KernelEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": encoder(Batch(**inputs)).x}


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_and_gradients_match_the_public_code(name: str) -> None:
    kind, options = RECORDS[name]
    record = load(f"D_encoders/{name}")
    stats = record[f"in/pestat_{kind}"].size(1)
    encoder = KernelEncoder(kind, stats, 8, 8, dim_pe=4, **options).double()
    check(encoder, partial(run, encoder), record, lambda key: key)


def test_features_of_another_encoder_pass_as_they_are_and_the_encoding_can_be_kept() -> None:
    encoder, batch = KernelEncoder("RWSE", 6, 7, model="linear", dim_pe=4, pass_as_var=True), batch_of(torch.rand(5, 6))
    before = batch.x
    out = encoder(batch)
    torch.testing.assert_close(out.x, torch.cat([before, out.pe_RWSE], dim=1), rtol=0, atol=0)
    torch.testing.assert_close(out.pe_RWSE, encoder.pe_encoder(out.pestat_RWSE))


def test_statistics_and_integer_features_take_the_dtype_of_the_weights() -> None:
    batch = batch_of(torch.rand(5, 6))
    batch.x = torch.ones(5, 2, dtype=torch.long)
    out = KernelEncoder("RWSE", 6, 9, 2, model="mlp", dim_pe=4).double()(batch)
    assert out.x.dtype == torch.float64
    assert out.x.shape == (5, 9)
    assert "pe_RWSE" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "posenc_RWSE.model must be Linear or mlp, got 'none'"),
        ({"model": "DeepSet"}, "posenc_RWSE.model"),
        ({"model": "Linear", "dim_pe": 4, "raw_norm_type": "LayerNorm"}, "posenc_RWSE.raw_norm_type"),
        ({"model": "Linear", "dim_pe": 8}, "dim_pe=8"),
        ({"model": "Linear", "dim_pe": 0}, "dim_pe=0"),
        ({"model": "mlp", "dim_pe": 4, "layers": 0}, "layers=0"),
    ],
)
def test_an_impossible_option_is_refused_by_its_key(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelEncoder("RWSE", 6, 8, 3, **options)


@pytest.mark.parametrize(
    ("stats", "message"),
    [(None, "posenc_RWSE.enable"), (torch.rand(5, 4), r"\(nodes, 6\)"), (torch.rand(5), r"\(nodes, 6\)")],
)
def test_missing_or_other_statistics_are_refused(stats: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelEncoder("RWSE", 6, 8, 3, model="Linear", dim_pe=4)(batch_of(stats))
