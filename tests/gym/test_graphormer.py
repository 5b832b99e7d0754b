"""Graphormer from the keys of public files: parameters of each part by formula, steps of training, mistakes."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.optim import create_optimizer

from graphgps_kmip.compat.checkpoint_names import PUBLIC
from graphgps_kmip.compat.parameter_renaming import rename_parameters
from graphgps_kmip.compat.public_faults import PaddedPathsEncoder, UnmovedEdgesToken
from graphgps_kmip.data import make_loaders
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import Parts, assemble
from graphgps_kmip.gym.network_building import with_width
from graphgps_kmip.gym.parameter_count import count_layers
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_task
from tests.gym.graphormer_files import BESIDE, BOTH, CORNELL, FILES, ZINC, Tree, public_shapes

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")


def load(tmp_path: Path, tree: Tree, *words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree))
    load_config(cfg, file, ["dataset.sample", "True", "num_threads", "1", *words])


def built(tmp_path: Path, tree: Tree, *words: str) -> Parts:
    load(tmp_path, tree, *words)
    with configured(planned_runs(1)[0]):
        return assemble()


@pytest.mark.parametrize("name", FILES)
def test_a_public_file_builds_the_public_parts_and_takes_two_steps(name: str, tmp_path: Path) -> None:
    tree, once, per_layer = FILES[name]
    load(tmp_path, tree)
    assert cfg.dialect == "graphgps"
    with configured(planned_runs(1)[0]):
        parts = assemble()
        counts, layers = count_layers(parts.model)
        assert (sum(counts.values()), {sum(layer.values()) for layer in layers}) == (once, {per_layer})
        task = current_task(parts.info.dim_out)
        optimizer = create_optimizer(parts.model.parameters(), cfg.optim)
        loader = make_loaders(parts.dataset, parts.info.level, 8, seed=0)[0]
        before = {name: parameter.detach().clone() for name, parameter in parts.model.named_parameters()}
        for batch in itertools.islice(itertools.cycle(loader), 2):
            batch = batch.clone()
            batch.split = "train"
            total, weight = task.loss(*parts.model(batch))
            assert torch.isfinite(total)
            optimizer.zero_grad()
            (total / weight).backward()
            optimizer.step()
        still = [name for name, p in parts.model.named_parameters() if torch.equal(before[name], p)]
    unread = ["place_encoder", "edge_encoder.weight"] if name == "webkb-cor-Graphormer" else []
    assert [name.rpartition("node.1.")[2] for name in still] == unread


def test_our_own_files_have_no_tables_that_nothing_reads(tmp_path: Path) -> None:
    once, _ = count_layers(built(tmp_path, CORNELL, "dialect", "''").model)
    assert once["encoder.node GraphormerEncoder"] == 21 * 4 + (9 + 94) * 64
    explicit = ("dialect", "''", "posenc_GraphormerBias.edge_types", "False")
    once, _ = count_layers(built(tmp_path, ZINC, *explicit).model)
    assert sum(once.values()) == 28 * 80 + 21 * 8 + 8 + (64 + 64) * 80 + 80 + 2 * 80 + 81


@pytest.mark.parametrize("tree", [ZINC, BOTH], ids=["Graphormer", "GPSModel"])
def test_a_graph_is_predicted_as_if_it_were_alone(tree: Tree, tmp_path: Path) -> None:
    parts = built(tmp_path, tree, "graphormer.num_layers", "2", "gt.layers", "2")
    model, graphs = parts.model.model.double().eval(), [parts.dataset.graphs[number] for number in range(4)]
    together = model(Batch.from_data_list(graphs))[0]
    for number, graph in enumerate(graphs):
        torch.testing.assert_close(model(Batch.from_data_list([graph]))[0][0], together[number])
    assert torch.unique(together).numel() == 4


def test_the_keys_reach_their_places(tmp_path: Path) -> None:
    words = ("dropout", "0.2", "attention_dropout", "0.3", "mlp_dropout", "0.4", "input_dropout", "0.5")
    words = [word if i % 2 else f"graphormer.{word}" for i, word in enumerate(words)]
    model = built(tmp_path, ZINC, *words, "graphormer.num_layers", "3").model.model
    layer = model.layers[2]
    assert len(model.layers) == 3
    assert [one.p for one in layer.modules() if isinstance(one, nn.Dropout)] == [0.2, 0.4, 0.2]
    assert layer.attention[0].attention.dropout == 0.3
    encoder, token = model.encoder.node[1]
    assert encoder.input_dropout.p == token.dropout.p == 0.5
    assert encoder.spatial_encoder.embedding_dim == layer.attention[0].attention.num_heads == 8


def test_the_faults_of_the_public_code_are_quirks(tmp_path: Path) -> None:
    outputs = []
    for quirks in ("[]", "[graphormer_padded_paths]", "[graphormer_token_shifts_edges]"):
        parts = built(tmp_path, BOTH, "gt.layers", "2", "quirks", quirks)
        encoder, token = parts.model.model.encoder.node[1]
        assert isinstance(encoder, PaddedPathsEncoder) == ("paths" in quirks)
        assert isinstance(token, UnmovedEdgesToken) == ("edges" in quirks)
        batch = Batch.from_data_list([parts.dataset.graphs[number] for number in range(3)])
        outputs.append(parts.model.model.eval()(batch)[0])
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_a_public_checkpoint_loads_into_it(tmp_path: Path) -> None:
    model = built(tmp_path, ZINC, "graphormer.num_layers", "2").model
    theirs = {name: torch.randn(shape) for name, shape in public_shapes(2).items()}
    model.load_state_dict(rename_parameters(theirs, model.state_dict(), PUBLIC, tmp_path))
    (encoder, token), layer, table = model.model.encoder.node[1], model.model.layers[1], "model.encoder.node_encoder."
    for ours, name in (
        (encoder.place_encoder, f"{table}encoder2.0.edge_dis_encoder.weight"),
        (encoder.out_degree_encoder.weight, f"{table}encoder2.1.out_degree_encoder.weight"),
        (token.token, f"{table}encoder2.1.graph_token"),
        (token.bias, f"{table}encoder2.0.graph_token"),
        (layer.attention_norm.weight, "model.layers.1.input_norm.weight"),
        (layer.attention[0].attention.qkv.bias, "model.layers.1.attention.in_proj_bias"),
        (layer.mlp[4].weight, "model.layers.1.mlp.4.weight"),
        (model.model.head.norm.bias, "model.post_mp.ln.bias"),
        (model.model.head.mlp[0].weight, "model.post_mp.layers.0.weight"),
    ):
        assert torch.equal(ours, theirs[name]), name


def test_a_budget_finds_the_width_of_graphormer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    load(tmp_path, ZINC, "model.auto_satisfy_param_budget", "True", "model.param_budget", "200000")
    found = with_width(cfg)
    assert found.graphormer.embed_dim == found.gnn.dim_inner
    assert found.gnn.dim_inner % 8 == 0
    assert 40 <= found.gnn.dim_inner < 80
    assert cfg.gnn.dim_inner == 80


@pytest.mark.parametrize(
    ("tree", "words", "line"),
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
def test_a_mistake_is_one_line(tree: Tree, words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        built(tmp_path, tree, *words)
    assert isinstance(caught.value, ConfigError) or line == "7"
