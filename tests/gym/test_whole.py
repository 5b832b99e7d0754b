"""Performer and BigBird as whole networks: the public files that name them, options."""

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
from tests.gym.networks import DATA, configure, graphs
from tests.gym.public_files import BIG_BIRD, NCI1, UNKNOWN_ENCODER, ZINC, assemble_run, silent_after_two_steps

PUBLIC = {"zinc-Performer": ZINC, "nci1-Performer": NCI1, "zinc-BigBird": BIG_BIRD}


def test_big_bird_has_the_size_of_the_public_modules(tmp_path: Path) -> None:
    model, d = assemble_run(tmp_path, BIG_BIRD).model.model, 56
    once, layers = count_layers(model)
    attention = 3 * d * d + (d * d + d)
    assert [sum(layer.values()) for layer in layers] == [attention + 2 * (d * d + d) + 4 * d] * 10
    assert once["head.mlp"] == d * d // 2 + d // 2 + d * d // 8 + d // 4 + d // 4 + 1


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_file_takes_two_steps(name: str, tmp_path: Path) -> None:
    assert silent_after_two_steps(tmp_path, PUBLIC[name]) == []


def test_the_published_big_bird_file_names_an_encoder_that_its_code_does_not_have(tmp_path: Path) -> None:
    published = BIG_BIRD | {"dataset": BIG_BIRD["dataset"] | UNKNOWN_ENCODER}
    with pytest.raises(ConfigError, match=r"dataset\.node_encoder_name ZINCNode.*: no public code has it"):
        assemble_run(tmp_path, published)


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
        ({"model.type": "BigBird", "gt.bigbird.form": "original_full"}, "form must be one of"),
        ({"model.type": "Performer", "gt.n_heads": 3}, "dim must be divisible by num_heads"),
    ):
        configure(DATA | settings)
        with pytest.raises(ValueError, match=line):
            build_network(cfg.model.type, 5, 3)
