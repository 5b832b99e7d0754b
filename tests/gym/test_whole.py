"""Performer and BigBird as whole networks: the public files that name them, sizes, options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import BigBirdAttention, PerformerAttention
from graphgps_kmip.attention.performer import PERIOD
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.parameter_count import count_layers
from graphgps_kmip.model import AttentionLayer, TransformerLayer
from graphgps_kmip.networks.gps_networks import width_step
from tests.gym.networks import DATA, configure, graphs
from tests.gym.public_files import BIG_BIRD, NCI1, UNKNOWN_ENCODER, ZINC, assembled, silent_after_two_steps

PUBLIC = {"zinc-Performer": ZINC, "nci1-Performer": NCI1, "zinc-BigBird": BIG_BIRD}


def san_head(dim: int) -> int:
    return dim * dim // 2 + dim // 2 + dim * dim // 8 + dim // 4 + dim // 4 + 1


# Sizes by the shapes of the public modules.
def performer_layer(d: int) -> int:
    attention = 4 * (d * d + d)  # the heads together are as wide as the network
    return attention + (8 * d * d + 5 * d) + 4 * d  # feed-forward network, two norms


def big_bird_layer(d: int) -> int:
    return 3 * d * d + (d * d + d) + 2 * (d * d + d) + 4 * d  # queries to values, out, feed-forward network, norms


# dim_pe 8 in 2 layers: 2 to 16 to 8; dim_pe 16 in 3: 2 to 32 to 32 to 16
ZINC_INPUT = 28 * 48 + 3 * 16 + 17 * 8
SIZES = {
    "zinc-Performer": (ZINC_INPUT, performer_layer(56), 10, san_head(56)),
    "nci1-Performer": (38 * 48 + 3 * 32 + 33 * 32 + 33 * 16, performer_layer(64), 2, 64 * 65 + 65),
    "zinc-BigBird": (ZINC_INPUT, big_bird_layer(56), 10, san_head(56)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_file_builds_the_sizes_of_its_code(name: str, tmp_path: Path) -> None:
    model = assembled(tmp_path, PUBLIC[name]).model.model
    once, layers = count_layers(model)
    encoders, of_layer, depth, head = SIZES[name]
    assert [sum(layer.values()) for layer in layers] == [of_layer] * depth
    assert (sum(once.values()) - once["head.mlp"], once["head.mlp"]) == (encoders, head)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_file_takes_two_steps(name: str, tmp_path: Path) -> None:
    assert silent_after_two_steps(tmp_path, PUBLIC[name]) == []


def test_the_published_big_bird_file_names_an_encoder_that_its_code_does_not_have(tmp_path: Path) -> None:
    published = BIG_BIRD | {"dataset": BIG_BIRD["dataset"] | UNKNOWN_ENCODER}
    with pytest.raises(ConfigError, match=r"dataset\.node_encoder_name ZINCNode.*: no public code has it"):
        assembled(tmp_path, published)


@pytest.mark.parametrize("network", ["Performer", "BigBird", "SingleModel"])
def test_a_network_predicts_each_graph_as_if_it_were_alone(network: str) -> None:
    configure(DATA | {"model.type": network, "gt.layer_type": "Transformer"})
    model, batch = build_network(network, 5, 3).double().eval(), graphs()
    batch.x, batch.edge_attr = batch.x.double(), batch.edge_attr.double()
    pred, _ = model(batch.clone())
    for i, graph in enumerate(batch.to_data_list()):
        torch.testing.assert_close(model(Batch.from_data_list([graph]))[0][0], pred[i])
    other = batch.clone()
    other.x[5:] += 1.0  # the other graphs
    torch.testing.assert_close(model(other)[0][0], pred[0])
    assert width_step(cfg) == 2


def test_edges_have_no_part_in_performer_and_big_bird() -> None:
    for network in ("Performer", "BigBird"):
        configure(DATA | {"model.type": network})
        model, batch = build_network(network, 5, 3).eval(), graphs()
        other = batch.clone()
        other.edge_index, other.edge_attr = other.edge_index[:, :2], other.edge_attr[:2] + 1
        torch.testing.assert_close(model(other)[0], model(batch)[0])


def test_performer_is_that_of_the_public_network() -> None:
    configure(DATA | {"model.type": "Performer", "gt.dropout": 0.25, "gt.attn_dropout": 0.5, "gt.layers": 2})
    model = build_network("Performer", 5, 3).train()
    for layer in model.layers:
        attention = layer.attention[0]
        assert isinstance(layer, TransformerLayer)
        assert isinstance(attention, PerformerAttention)
        assert attention.projection.shape == (5, 4)  # 8 columns, 2 heads: floor(4 ln 4) features of 4
        assert attention.query.bias is not None
        assert isinstance(layer.ffn[1], nn.GELU)
        assert (layer.ffn[2].p, attention.dropout.p) == (0.25, 0.5)
    first = model.layers[0].attention[0].projection.clone()
    model(graphs())
    assert torch.equal(model.layers[0].attention[0].projection, first)
    model.redraw_calls.fill_(PERIOD - 1)
    model(graphs())
    assert not torch.equal(model.layers[0].attention[0].projection, first)


def test_big_bird_reads_its_group() -> None:
    options = {"block_size": 2, "num_random_blocks": 1, "use_bias": True, "hidden_act": "sigmoid"}
    configure(
        DATA
        | {"model.type": "BigBird", "gt.dropout": 0.25, "gt.layers": 2, "gt.bigbird.layer_norm_eps": 1e-3}
        | {f"gt.bigbird.{key}": value for key, value in options.items()}
    )
    model = build_network("BigBird", 5, 3)
    assert all(isinstance(layer, AttentionLayer) for layer in model.layers)
    attention = model.layers[1].attention[0]
    assert isinstance(attention, BigBirdAttention)
    assert (attention.block_size, attention.num_random_blocks, attention.dropout.p) == (2, 1, 0.25)
    assert attention.query.bias is not None
    assert isinstance(attention.ffn[1], nn.Sigmoid)
    assert attention.out_norm.eps == 1e-3
    assert attention.seed != model.layers[0].attention[0].seed


def test_with_the_fault_of_padding_a_prediction_of_performer_depends_on_the_largest_graph_of_the_batch() -> None:
    configure(DATA | {"model.type": "Performer", "gt.performer.mask_keys": False})
    model, batch = build_network("Performer", 5, 3).double().eval(), graphs()
    batch.x, batch.edge_attr = batch.x.double(), batch.edge_attr.double()
    pred, _ = model(batch.clone())
    sizes = batch.ptr.diff()
    for i, graph in enumerate(batch.to_data_list()):
        alone = model(Batch.from_data_list([graph]))[0][0]
        assert torch.equal(sizes[i], sizes.max()) == bool(torch.isclose(alone, pred[i], rtol=1e-10).all())
    assert sizes.min() < sizes.max()


def test_settings_of_another_form_are_refused() -> None:
    for settings, line in (
        ({"model.type": "BigBird", "gt.bigbird.pattern": "public"}, r"gt\.bigbird\.pattern: public repeats a fault"),
        ({"model.type": "BigBird", "gt.bigbird.form": "original_full"}, "form must be one of"),
        ({"model.type": "Performer", "gt.n_heads": 3}, "dim must be divisible by num_heads"),
        ({"model.type": "Performer", "gt.dim_hidden": 16}, r"gt\.dim_hidden \(16\) and gnn\.dim_inner \(8\)"),
        ({"model.type": "BigBird", "gt.layers": 0}, r"gt\.layers: expected 1 or more"),
    ):
        configure(DATA | settings)
        with pytest.raises(ValueError, match=line):
            build_network(cfg.model.type, 5, 3)
