"""Padding and back: nothing lost, nothing mixed, gradients pass, graphs without nodes included."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded


def context_of(sizes: list[int]) -> GraphContext:
    sizes = torch.tensor(sizes, dtype=torch.long)
    return GraphContext(torch.repeat_interleave(sizes), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


@pytest.mark.parametrize("sizes", [[2, 0, 3, 1], [0, 2], [3, 3], [4], [0, 0], []])
def test_padding_and_back_is_the_identity_forward_and_backward(sizes: list[int]) -> None:
    context = context_of(sizes)
    x = torch.randn(sum(sizes), 2, requires_grad=True)
    padded, mask = to_padded(x, context)
    assert padded.shape == (len(sizes), max(sizes, default=0), 2)
    assert mask.sum(1).tolist() == sizes
    torch.testing.assert_close(from_padded(padded, context), x, rtol=0, atol=0)
    grad = torch.randn_like(x)
    from_padded(padded, context).backward(grad)
    torch.testing.assert_close(x.grad, grad, rtol=0, atol=0)


def test_each_graph_fills_its_own_row_and_zeros_the_rest() -> None:
    padded, mask = to_padded(torch.arange(1.0, 6.0)[:, None], context_of([2, 0, 3]))
    assert padded[..., 0].tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
