"""The laws of layers in a network of them: batch independence, order, tiny graphs, dtype, recomputation."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import (
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    KMIPAttention,
    PerformerAttention,
    SANAttention,
    ScoreEstimatorAttention,
)
from graphgps_kmip.model import (
    AttentionLayer,
    FeatureEncoder,
    GNNLayer,
    GPSLayer,
    GPSModel,
    GraphHead,
    GraphormerLayer,
    LayerRecipe,
    NodeHead,
    TransformerLayer,
)
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer
from graphgps_kmip.model.transformer_layers import PostNormLayer, san_norms
from graphgps_kmip.mpnn import GCN, GINE, GatedGCN
from graphgps_kmip.search import dispatch

DIM, HEADS = 8, 2


def gps(**options: str) -> GPSLayer:
    return GPSLayer(DIM, GatedGCN(DIM), KMIPAttention(DIM, HEADS, k=3), **options)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GPS with batch norm": lambda: gps(norm="batch"),
    "GPS with layer norm": lambda: gps(norm="layer"),
    "GPS with graph norm": lambda: gps(norm="graph"),
    "GPS without norm": lambda: gps(norm="none"),
    "GPS, one after the other": lambda: gps(recipe=LayerRecipe(order="local_first")),
    "full attention alone": lambda: GPSLayer(DIM, None, FullAttention(DIM, HEADS), recipe=LayerRecipe(ffn=False)),
    "GCN": lambda: GNNLayer(GCN(DIM), nn.GELU, 0.1, residual=True),
    "GINE": lambda: GNNLayer(GINE(DIM), nn.Tanh),
    "GatedGCN": lambda: GNNLayer(GatedGCN(DIM)),
    "Performer": lambda: TransformerLayer(DIM, PerformerAttention(DIM, HEADS, dim_head=4, use_bias=True), 0.1),
    "Exphormer": lambda: TransformerLayer(DIM, ExphormerAttention(DIM, HEADS, num_virt_node=2)),
    "BigBird": lambda: AttentionLayer(BigBirdAttention(DIM, HEADS, 0.1, num_random_blocks=1)),
    "Graphormer": lambda: GraphormerLayer(DIM, FullAttention(DIM, HEADS)),
    "SAN": lambda: PostNormLayer(DIM, SANAttention(DIM, HEADS, gamma=0.3), san_norms),
    "SAN2": lambda: PostNormLayer(DIM, SANAttention(DIM, HEADS, separate=True), san_norms),
    "score estimator": lambda: SpexphormerLayer(DIM, ScoreEstimatorAttention(DIM, HEADS)),
}
BY_ORDER = ("BigBird",)  # its blocks are those of the order


@pytest.fixture(params=LAYERS)
def network(request: pytest.FixtureRequest) -> GPSModel:
    torch.manual_seed(2)
    layers = [LAYERS[request.param]() for _ in range(2)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, NodeHead(DIM, 3)).double().eval()


def graph(nodes: int, edges: int = 0) -> Data:
    return Data(
        x=torch.randn(nodes, DIM, dtype=torch.float64),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, DIM, dtype=torch.float64),
        y=torch.tensor([0]),
    )


def test_a_graph_alone_equals_the_graph_in_a_batch(network: GPSModel) -> None:
    graphs = [graph(14, 9), graph(1), graph(3), graph(40, 7)]
    alone = [network(Batch.from_data_list([data]))[0] for data in graphs]
    torch.testing.assert_close(torch.cat(alone), network(Batch.from_data_list(graphs))[0])


def test_permuted_nodes_and_edges_permute_the_output(network: GPSModel, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["network"] in BY_ORDER:
        pytest.skip("it depends on the order")
    data, order, edges = graph(6, 12), torch.randperm(6), torch.randperm(12)
    place = order.argsort()
    moved = Data(x=data.x[order], edge_index=place[data.edge_index][:, edges], edge_attr=data.edge_attr[edges])
    after, before = (network(Batch.from_data_list([graph]))[0] for graph in (moved, data))
    torch.testing.assert_close(after, before[order])


def test_training_reaches_every_parameter_also_on_one_node(network: GPSModel) -> None:
    network.train()(Batch.from_data_list([graph(1)]))[0].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)
    network.zero_grad()
    network(Batch.from_data_list([graph(30, 40), graph(2, 1)]))[0].square().sum().backward()
    silent = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert {name for name in silent if not name.endswith(("edge_norm.module.weight", "edge_norm.module.bias"))} == set()


def model(attention: type[nn.Module], dropout: float = 0.3) -> GPSModel:
    torch.manual_seed(0)
    layers = [GPSLayer(DIM, GatedGCN(DIM, dropout), attention(DIM, 2, dropout), dropout) for _ in range(3)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, GraphHead(DIM, 2)).double()


def graphs() -> Batch:
    torch.manual_seed(1)
    return Batch.from_data_list([graph(12, 30), graph(1, 0), graph(7, 9)])


def step(net: GPSModel) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    pred, _ = net(graphs())  # which sets the seed of dropout, too
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
