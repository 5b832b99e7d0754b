"""Rows of encoders and heads: each public name builds a module from the config that does its work."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.coco_voc_superpixels import SuperpixelEdgeEncoder
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND, LinearEdgeEncoder
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.network_building import make_plan
from graphgps_kmip.networks.network_stack import build_head
from graphgps_kmip.registry import components, lookup

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
DIM = 6
# Raw features that an encoder is made for: floats of a width, or a vocabulary for each column.
NODES = {"LinearNode": 3, "TypeDictNode": (28,), "Atom": ATOM, "ASTNode": (98, 10030), "CityNetworkNode": 67}
NODES |= {"COCONode": 14, "PPANode": (1,), "VOCNode": 14}
BONDS = {"LinearEdge": 3, "TypeDictEdge": (4,), "DummyEdge": 0, "ASTEdge": (2, 2), "Bond": BOND}
BONDS |= {"COCOEdge": 2, "PPAEdge": 7, "VOCEdge": 2}


@pytest.fixture(autouse=True)
def _config() -> None:
    load_config(cfg, None, ["dataset.node_encoder_num_types", "28", "dataset.edge_encoder_num_types", "4"])


def features(rows: int, schema: int | tuple[int, ...]) -> torch.Tensor:
    if isinstance(schema, int):
        return torch.randn(rows, schema)
    return torch.stack([torch.randint(size, (rows,)) for size in schema], dim=1)


@pytest.mark.parametrize("name", components("node_encoder"))
def test_a_node_encoder_reads_its_data_set(name: str) -> None:
    graph = Data(x=features(3, NODES[name]), edge_index=EDGES, node_depth=torch.arange(3))
    cfg.share.dim_in = graph.x.size(1)
    assert graphgym.node_encoder_dict[name](DIM)(Batch.from_data_list([graph])).x.shape == (3, DIM)


@pytest.mark.parametrize("name", components("edge_encoder"))
def test_an_edge_encoder_reads_its_data_set(name: str) -> None:
    graph = Data(x=torch.ones(3, 1), edge_index=EDGES, edge_attr=features(4, BONDS[name]))
    cfg.dataset.edge_dim = graph.edge_attr.size(1)
    assert graphgym.edge_encoder_dict[name](DIM)(Batch.from_data_list([graph])).edge_attr.shape == (4, DIM)


@pytest.mark.parametrize("name", ["VOCEdge", "COCOEdge"])
def test_superpixel_edges_with_one_feature_are_mapped_as_they_are(name: str) -> None:
    cfg.dataset.edge_dim = 1
    assert isinstance(graphgym.edge_encoder_dict[name](DIM), LinearEdgeEncoder)
    cfg.dataset.edge_dim = 2
    assert isinstance(graphgym.edge_encoder_dict[name](DIM), SuperpixelEdgeEncoder)


def test_each_superpixel_name_has_the_constants_of_its_own_data_set() -> None:
    cfg.dataset.edge_dim = 2
    encoders = [graphgym.node_encoder_dict[f"{name}Node"](DIM) for name in ("VOC", "COCO")]
    encoders += [graphgym.edge_encoder_dict[f"{name}Edge"](DIM) for name in ("VOC", "COCO")]
    centres = [float(encoder.mean[-1]) for encoder in encoders]
    assert centres == pytest.approx([234.72206, 289.85367, 33.73478, 43.68736])


@pytest.mark.parametrize(("name", "columns"), [("inductive_edge", 5), ("link_pred", 1)])
@pytest.mark.parametrize("decoding", ["dot", "cosine_similarity", "concat"])
def test_a_head_for_pairs_follows_the_config(name: str, columns: int, decoding: str) -> None:
    cfg.model.edge_decoding, cfg.gnn.layers_post_mp, cfg.gnn.act = decoding, 2, "relu"
    head = build_head(make_plan(), lookup("head", name), DIM, 1)
    graph = Data(x=torch.randn(3, DIM), edge_label_index=EDGES, edge_label=torch.tensor([1, 0, 1, 0]))
    pred, true = head(Batch.from_data_list([graph]))
    assert pred.shape == (4, columns)
    assert true.tolist() == [1, 0, 1, 0]
    assert sum(module.weight.dim() == 2 for module in head.modules() if hasattr(module, "weight")) == 2
    assert head.mlp[0].in_features == (2 * DIM if decoding == "concat" else DIM)
