"""A model that computes its layers again in the backward pass is the model that keeps them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import FullAttention, KMIPAttention
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead
from graphgps_kmip.mpnn import GatedGCN
from graphgps_kmip.search import dispatch

DIM = 8


def model(attention: type[nn.Module], dropout: float = 0.3) -> GPSModel:
    torch.manual_seed(0)
    layers = [GPSLayer(DIM, GatedGCN(DIM, dropout), attention(DIM, 2, dropout), dropout) for _ in range(3)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, GraphHead(DIM, 2)).double()


def graphs() -> Batch:
    generator = torch.Generator().manual_seed(1)

    def graph(nodes: int, edges: int) -> Data:
        return Data(
            x=torch.randn(nodes, DIM, generator=generator, dtype=torch.float64),
            edge_index=torch.randint(nodes, (2, edges), generator=generator),
            edge_attr=torch.randn(edges, DIM, generator=generator, dtype=torch.float64),
            y=torch.zeros(1),
        )

    return Batch.from_data_list([graph(12, 30), graph(1, 0), graph(7, 9)])


def step(net: GPSModel) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(2)  # of dropout
    pred, _ = net(graphs())
    pred.square().sum().backward()
    return pred.detach(), {name: p.grad for name, p in net.named_parameters()}, dict(net.named_buffers())


@pytest.mark.parametrize("attention", [KMIPAttention, FullAttention])
def test_predictions_gradients_and_running_statistics_are_those_of_kept_layers(attention: type[nn.Module]) -> None:
    plain = model(attention)
    other = copy.deepcopy(plain)
    other.recompute = True
    for again, expected in zip(step(other), step(plain), strict=True):
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-14)


def test_no_search_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    searches, search = [], dispatch._topk_inner_product
    monkeypatch.setattr(dispatch, "_topk_inner_product", lambda *args: (searches.append(1), search(*args))[1])
    net = model(KMIPAttention)
    net.recompute = True
    step(net)
    assert len(searches) == 3  # one a layer
    value = net(graphs())[0].square().sum()
    grads = [torch.autograd.grad(value, net.parameters(), retain_graph=True, allow_unused=True) for _ in range(2)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)  # layers are computed again in both
    assert len(searches) == 6


def test_what_is_kept_for_the_backward_pass_does_not_hold_the_inside_of_layers() -> None:
    def count_bytes(recompute: bool) -> int:
        net, sizes = model(FullAttention), []
        net.recompute = recompute
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            net(graphs())
        return sum(sizes)

    assert count_bytes(True) < count_bytes(False) / 5
