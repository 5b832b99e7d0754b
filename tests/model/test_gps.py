"""The laws of a whole GPS model; test_recorded_layers compares its layers with the originals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.compat.public_faults import EdgeNormOnNodesEncoder
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead, LayerRecipe
from graphgps_kmip.mpnn import GatedGCN


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 8)

    def forward(self, batch: Any) -> Any:
        batch.x = self.linear(batch.x)
        return batch


def model(attention: nn.Module | None = None, norm: str = "layer") -> GPSModel:
    torch.manual_seed(0)
    layers = [GPSLayer(8, GatedGCN(8), attention or KMIPAttention(8, 2, k=3), norm=norm) for _ in range(2)]
    return GPSModel(FeatureEncoder(8, Embed(), None), layers, GraphHead(8, 4)).double().eval()


def graphs(sizes: tuple[int, ...] = (5, 1, 9)) -> list[Data]:
    torch.manual_seed(1)
    made = []
    for n in sizes:
        edges = torch.randint(0, n, (2, 3 * n if n > 1 else 0))
        attr = torch.randn(edges.size(1), 8).double()
        made.append(Data(x=torch.randn(n, 3).double(), edge_index=edges, edge_attr=attr, y=torch.tensor([n])))
    return made


@pytest.mark.parametrize("norm", ["batch", "layer", "graph", "none"])
def test_a_graph_alone_gives_the_same_prediction_as_in_a_batch(norm: str) -> None:
    network, data = model(norm=norm), graphs()
    together = network(Batch.from_data_list(data))[0]
    for i, graph in enumerate(data):
        alone = network(Batch.from_data_list([graph]))[0][0]
        torch.testing.assert_close(alone, together[i], rtol=1e-9, atol=1e-9)  # float64, sums in another order


class AddsOne(nn.Module):
    """Message passing that adds 1 to the edge features and sends them to the targets."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x).index_add(0, edge_index[1], edge_attr), edge_attr + 1


@pytest.mark.parametrize(("chain", "difference"), [(False, 0.0), (True, 1.0)])
def test_chained_branches_read_the_edge_features_of_the_branch_before(chain: bool, difference: float) -> None:
    layer = GPSLayer(
        8, [AddsOne(), AddsOne()], None, norm="none", act=nn.ReLU, recipe=LayerRecipe(ffn=False), chain_edges=chain
    )
    context = GraphContext.from_data(Batch.from_data_list(graphs((4,))))
    x = torch.full((4, 8), 100.0).double()  # above 0, for the activation
    out, edge_attr, _ = layer(x, context)
    degree = context.edge_index[1].bincount(minlength=4)[:, None]
    sums = torch.zeros_like(x).index_add(0, context.edge_index[1], context.edge_attr)
    torch.testing.assert_close(out, 2 * x + 2 * sums + difference * degree)
    torch.testing.assert_close(edge_attr, context.edge_attr + 1 + difference)


def test_the_norm_of_edges_acts_on_nodes_where_the_fault_of_graphgym_is_repeated() -> None:
    batches = [Batch.from_data_list(graphs()) for _ in range(2)]
    kinds = FeatureEncoder, EdgeNormOnNodesEncoder
    encoders = [kind(8, Embed(), nn.Identity(), edge_norm=True) for kind in kinds]
    encoders[1].load_state_dict(encoders[0].state_dict())
    right, faulty = (encoder.double().train()(batch) for encoder, batch in zip(encoders, batches, strict=True))
    given = Batch.from_data_list(graphs())
    torch.testing.assert_close(right.edge_attr.mean(0), torch.zeros(8).double())
    torch.testing.assert_close(faulty.edge_attr, given.edge_attr, rtol=0, atol=0)
    torch.testing.assert_close(faulty.x.mean(0), torch.zeros(8).double())
    torch.testing.assert_close(right.x, encoders[0].node.linear(given.x))


def test_the_model_keeps_the_keys_of_the_batch_and_its_inputs() -> None:
    batch = Batch.from_data_list(graphs())
    keys, x, edge_attr = set(batch.keys()), batch.x, batch.edge_attr
    before = x.clone(), edge_attr.clone()
    model()(batch)
    assert set(batch.keys()) == keys
    torch.testing.assert_close((x, edge_attr), before, rtol=0, atol=0)


class Counting(nn.Module):
    """Carries a state: how many layers it has seen."""

    def initial_state(self, context: GraphContext) -> Tensor:
        return torch.zeros(context.num_graphs)

    def forward(self, x: Tensor, _context: GraphContext, state: Tensor) -> tuple[Tensor, Tensor]:
        assert (state == self.expected).all()
        return x, state + 1


def test_the_stack_threads_an_attentions_state_through_its_layers() -> None:
    network = model()
    for expected, layer in enumerate(network.layers):
        layer.attention[0] = Counting()
        layer.attention[0].expected = expected
    network(Batch.from_data_list(graphs()))


def test_a_layer_without_branches_and_an_unknown_norm_are_refused() -> None:
    with pytest.raises(ValueError, match="None\\+None"):
        GPSLayer(8, None, None)
    with pytest.raises(ValueError, match="unknown norm"):
        GPSLayer(8, GatedGCN(8), None, norm="instance")
