"""Where a GPS layer drops entries: after each branch, twice in the FFN, never in the residual, and only in training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.model import GPSLayer, LayerRecipe

N, DIM, P = 400, 8, 0.3
CONTEXT = GraphContext(torch.zeros(N, dtype=torch.long), torch.tensor([0, N]), torch.zeros(2, 0, dtype=torch.long))


class Message(nn.Module):
    """Message passing that sends the same to every node."""

    def __init__(self, value: float, internal_residual: bool = False) -> None:
        super().__init__()
        self.value, self.internal_residual = value, internal_residual

    def forward(self, x: Tensor, _: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return torch.full_like(x, self.value), edge_attr


class Attention(nn.Module):
    def forward(self, x: Tensor, _: GraphContext) -> Tensor:
        return torch.full_like(x, 5.0)


def layer_of(*local: nn.Module, attention: bool = False, rate: float = P, **options: object) -> GPSLayer:
    options = {"norm": "none", "act": nn.Identity} | options
    return GPSLayer(DIM, local, Attention() if attention else None, dropout=rate, **options).double()


def call(layer: GPSLayer, x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return layer(x, CONTEXT)[0]


@pytest.mark.parametrize("attention", [False, True], ids=["message passing", "attention"])
def test_what_a_branch_adds_is_dropped_at_the_rate_and_scaled_and_its_residual_is_whole(attention: bool) -> None:
    layer = layer_of(*([] if attention else [Message(5.0)]), attention=attention, recipe=LayerRecipe(ffn=False)).train()
    added = call(layer, torch.full((N, DIM), 100.0).double()) - 100
    assert sorted(added.unique().tolist()) == pytest.approx([0, 5 / (1 - P)])
    assert (added == 0).double().mean().item() == pytest.approx(P, abs=0.03)  # 3,200 draws: 3.7 standard deviations


def test_every_branch_draws_for_itself() -> None:
    layer = layer_of(Message(1.0), Message(2.0), attention=True, recipe=LayerRecipe(ffn=False)).train()
    added = (call(layer, torch.zeros(N, DIM).double()) * (1 - P)).round().unique().tolist()
    assert added == [0, 1, 2, 3, 5, 6, 7, 8]  # every sum of some of 1, 2 and 5


def test_a_branch_with_its_own_residual_gets_no_dropout_here() -> None:
    layer = layer_of(Message(5.0, internal_residual=True), recipe=LayerRecipe(ffn=False)).train()
    assert call(layer, torch.zeros(N, DIM).double()).unique().tolist() == [5]


def test_the_ffn_drops_after_its_activation_and_at_its_end_and_the_residual_around_it_is_whole() -> None:
    layer = layer_of(Message(3.0, internal_residual=True), act=nn.GELU).train()
    x = torch.randn(N, DIM).double()
    got = call(layer, x)
    first, last = [one for one in layer.ffn if isinstance(one, nn.Linear)]
    torch.manual_seed(7)
    h = torch.full_like(x, 3.0)
    inner = dropout(nn.functional.gelu(first(h)), P)
    torch.testing.assert_close(got, h + dropout(last(inner), P), rtol=0, atol=0)


@pytest.mark.parametrize("set_up", [lambda layer: layer.eval(), lambda layer: layer.train()], ids=["eval", "rate 0"])
def test_in_eval_mode_and_at_rate_0_nothing_is_dropped(set_up: Callable[[GPSLayer], nn.Module]) -> None:
    layer = layer_of(Message(1.0), attention=True, rate=P).eval()
    plain = layer_of(Message(1.0), attention=True, rate=0.0)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(N, DIM).double()
    torch.testing.assert_close(call(set_up(plain), x), call(layer, x), rtol=0, atol=0)
    assert not torch.equal(call(layer.train(), x), call(plain, x))
