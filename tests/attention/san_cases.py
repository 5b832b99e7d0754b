"""The forms of SAN's attention, and graphs to try them on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.testing.laws import make_batch

DIM, HEADS, SIZES = 6, 2, [5, 1, 7, 3]
ROUNDING = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums of tens of terms in another order
FORMS = {
    "SAN": {"gamma": 0.3},
    "SAN with little weight": {"gamma": 1e-5},
    "SAN on edges": {"secondary_edges": "none"},
    "SAN on two edge sets": {"secondary_edges": "expander", "gamma": 0.3},
    "SAN2": {"separate": True},
    "SAN2 on edges": {"separate": True, "secondary_edges": "none"},
    "SAN2 on two edge sets": {"separate": True, "secondary_edges": "expander"},
}
every_form = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)


def make(options: dict[str, Any], scale: float = 1.0) -> SANAttention:
    torch.manual_seed(1)
    attention = SANAttention(DIM, HEADS, **options).double().eval()
    with torch.no_grad():
        for linear in (attention.query, attention.fake_query):
            if linear is not None:
                linear.weight *= scale
        if options.get("separate"):
            attention.gamma.fill_(0.7)
    return attention


def batch(sizes: list[int] = SIZES, num_edges: int = 2) -> tuple[Tensor, GraphContext]:
    """Return nodes and graphs with random edges, some twice and some loops, and a set of further edges."""
    torch.manual_seed(2)
    x, context = make_batch(sizes, DIM, num_edges)
    return x, replace(context, edge_sets={"expander": (context.edge_index.flip(0)[:, ::2], None)})
