"""The embedding of degrees."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.degree import DegreeEncoder


def batch() -> Batch:
    degrees = torch.tensor([0, 3, 4, 90])
    return Batch.from_data_list([Data(x=torch.randn(4, 2), pestat_Degree=degrees)])


def test_each_degree_has_its_vector_beside_the_features_and_large_ones_share_the_last() -> None:
    module, given = DegreeEncoder(8, None, dim_pe=6, max_degree=4), batch()
    expected = torch.cat([given.x, module.encoder.weight[[0, 3, 4, 4]]], dim=1)
    assert torch.equal(module(given).x, expected)


def test_raw_features_are_mapped_and_take_the_dtype_of_the_weights() -> None:
    module = DegreeEncoder(9, 2, dim_pe=4).double()
    out = module(batch()).x
    assert out.shape == (4, 9)
    assert out.dtype == torch.float64
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("options", [{"dim_pe": 8}, {"dim_pe": 0}, {"dim_pe": 4, "max_degree": -1}])
def test_an_impossible_option_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"posenc_Degree needs 1 <= dim_pe < width 8"):
        DegreeEncoder(8, 2, **options)


def test_missing_degrees_are_refused() -> None:
    with pytest.raises(ValueError, match="set posenc_Degree.enable True"):
        DegreeEncoder(8, 2, dim_pe=4)(Batch.from_data_list([Data(x=torch.randn(3, 2))]))
