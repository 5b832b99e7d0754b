"""Stochastic depth drops whole graphs, each by its own draw, keeps the mean, and does nothing in eval mode."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.common.stochastic_depth import DropPath
from graphgps_kmip.errors import InputError

SIZES = torch.tensor([3, 0, 1, 5] * 500)
PTR = torch.cat([torch.zeros(1, dtype=torch.long), SIZES.cumsum(0)])
X = torch.ones(int(PTR[-1]), 2, dtype=torch.float64)


@pytest.mark.parametrize("scale", [True, False])
def test_all_rows_of_a_graph_share_one_draw_with_the_given_probability(scale: bool) -> None:
    torch.manual_seed(0)
    y = DropPath(0.3, scale).train()(X, PTR)
    value = 1 / 0.7 if scale else 1.0
    firsts = y[PTR[:-1][SIZES > 0], 0]
    assert set(firsts.tolist()) == {0.0, value}
    assert torch.equal(y, firsts.repeat_interleave(SIZES[SIZES > 0])[:, None].expand(-1, 2))
    share = float((firsts == 0).double().mean())
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 1500) ** 0.5  # four standard deviations of 1500 draws


def test_each_call_draws_anew_and_the_seed_repeats_it() -> None:
    drop = DropPath(0.5)
    torch.manual_seed(1)
    first, second = drop(X, PTR), drop(X, PTR)
    torch.manual_seed(1)
    assert torch.equal(first, drop(X, PTR))
    assert not torch.equal(first, second)


def test_without_boundaries_each_row_is_a_graph() -> None:
    torch.manual_seed(0)
    y = DropPath(0.5)(torch.ones(1000, 3))
    dropped = (y == 0).any(dim=1)
    assert 400 < int(dropped.sum()) < 600
    assert torch.equal(dropped, (y == 0).all(dim=1))


def test_eval_mode_and_rate_zero_are_the_identity() -> None:
    assert torch.equal(DropPath(0.9).eval()(X, PTR), X)
    assert torch.equal(DropPath(0.0).train()(X, PTR), X)


def test_gradients_flow_to_kept_graphs_only() -> None:
    x = X.clone().requires_grad_()
    y = DropPath(0.5)(x, PTR)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_drops_everything_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="drop_path"):
        DropPath(rate)
