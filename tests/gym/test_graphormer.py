"""Graphormer from the keys of public files: parameters of each part by formula, steps of training, mistakes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.compat.public_faults import PaddedPathsEncoder, UnmovedEdgesToken
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import with_width
from graphgps_kmip.gym.parameter_count import count_layers
from tests.gym.public_files import BESIDE, BOTH, CORNELL, Tree, assemble_run, silent_after_two_steps
from tests.gym.public_files import GRAPHORMER_FILES as FILES
from tests.gym.public_files import GRAPHORMER_ZINC as ZINC

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")


@pytest.mark.parametrize("name", FILES)
def test_all_that_a_public_file_builds_learns_in_two_steps(name: str, tmp_path: Path) -> None:
    silent = silent_after_two_steps(tmp_path, FILES[name])
    assert cfg.dialect == "graphgps"
    unread = ["place_encoder", "edge_encoder.weight"] if name == "webkb-cor-Graphormer" else []
    assert [name.rpartition("node.1.")[2] for name in silent] == unread


def test_our_own_files_have_no_tables_that_nothing_reads(tmp_path: Path) -> None:
    once, _ = count_layers(assemble_run(tmp_path, CORNELL, "dialect", "''").model)
    assert once["encoder.node GraphormerEncoder"] == 21 * 4 + (9 + 94) * 64
    explicit = ("dialect", "''", "posenc_GraphormerBias.edge_types", "False")
    once, _ = count_layers(assemble_run(tmp_path, ZINC, *explicit).model)
    assert sum(once.values()) == 28 * 80 + 21 * 8 + 8 + (64 + 64) * 80 + 80 + 2 * 80 + 81


@pytest.mark.parametrize("tree", [ZINC, BOTH], ids=["Graphormer", "GPSModel"])
def test_a_graph_is_predicted_as_if_it_were_alone(tree: Tree, tmp_path: Path) -> None:
    parts = assemble_run(tmp_path, tree, "graphormer.num_layers", "2", "gt.layers", "2")
    model, graphs = parts.model.model.double().eval(), [parts.dataset.graphs[number] for number in range(4)]
    together = model(Batch.from_data_list(graphs))[0]
    for number, graph in enumerate(graphs):
        torch.testing.assert_close(model(Batch.from_data_list([graph]))[0][0], together[number])
    assert torch.unique(together).numel() == 4


def test_the_keys_reach_their_places(tmp_path: Path) -> None:
    keys = {"dropout": 0.2, "attention_dropout": 0.3, "mlp_dropout": 0.4, "input_dropout": 0.5, "num_layers": 3}
    model = assemble_run(tmp_path, ZINC | {"graphormer": ZINC["graphormer"] | keys}).model.model
    layer = model.layers[2]
    assert len(model.layers) == 3
    assert [module.p for module in layer.modules() if isinstance(module, nn.Dropout)] == [0.2, 0.4, 0.2]
    assert layer.attention[0].attention.dropout == 0.3
    encoder, token = model.encoder.node[1]
    assert encoder.input_dropout.p == token.dropout.p == 0.5
    assert encoder.spatial_encoder.embedding_dim == layer.attention[0].attention.num_heads == 8


def test_the_faults_of_the_public_code_are_quirks(tmp_path: Path) -> None:
    outputs = []
    for quirks in ("[]", "[graphormer_padded_paths]", "[graphormer_token_shifts_edges]"):
        parts = assemble_run(tmp_path, BOTH, "gt.layers", "2", "quirks", quirks)
        encoder, token = parts.model.model.encoder.node[1]
        assert isinstance(encoder, PaddedPathsEncoder) == ("paths" in quirks)
        assert isinstance(token, UnmovedEdgesToken) == ("edges" in quirks)
        batch = Batch.from_data_list([parts.dataset.graphs[number] for number in range(3)])
        outputs.append(parts.model.model.eval()(batch)[0])
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_a_budget_finds_the_width_of_graphormer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assemble_run(tmp_path, ZINC, "model.auto_satisfy_param_budget", "True", "model.param_budget", "200000")
    result = with_width(cfg)
    assert result.graphormer.embed_dim == result.gnn.dim_inner
    assert result.gnn.dim_inner % 8 == 0
    assert 40 <= result.gnn.dim_inner < 80
    assert cfg.gnn.dim_inner == 80


@pytest.mark.parametrize(
    ("tree", "argv", "line"),
    [
        (ZINC, ("graphormer.embed_dim", "64"), r"graphormer.embed_dim \(64\) and gnn.dim_inner \(80\) must be equal"),
        (ZINC, ("graphormer.num_layers", "0"), "graphormer.num_layers: expected 1 or more, got 0"),
        (ZINC, ("graphormer.num_heads", "7"), "7"),
        (ZINC, ("graphormer.use_graph_token", "False"), "graph_pooling graph_token: the graphs have no token"),
        (ZINC, ("dataset.node_encoder_name", "TypeDictNode"), "graph_pooling graph_token: the graphs have no token"),
        (BESIDE, ("graphormer.use_graph_token", "True"), r"GraphormerBias\+RWSE, parts after GraphormerBias"),
        (CORNELL, ("graphormer.use_graph_token", "True"), "gnn.head node would predict the tokens of graphs, too"),
    ],
)
def test_a_mistake_is_one_line(tree: Tree, argv: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        assemble_run(tmp_path, tree, *argv)
    assert isinstance(caught.value, ConfigError) or line == "7"
