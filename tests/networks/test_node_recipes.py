"""GCN, GAT and APPNP in their papers' recipes: formula, dropout, weight decay and features; and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from torch_geometric.utils import add_self_loops

from graphgps_kmip.data.graph_changes import with_normalized_features
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import load_configured, load_dataset
from graphgps_kmip.gym.experiment import run_experiment
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.train_modes import current_optimizer
from graphgps_kmip.model.feature_encoding import SparseDropout
from graphgps_kmip.networks.node_networks import LinearSteps
from graphgps_kmip.results.run_record import read_record

ROOT = Path(__file__).parents[2]
EDGES = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (0, 2), (2, 0)]  # node 4 has none


@pytest.fixture(autouse=True)
def _open_config() -> Iterator[None]:
    yield
    cfg.defrost()


def configure(model: str, *overrides: str) -> None:
    load_config(cfg, ROOT / "configs" / "Citation" / f"cora-{model}.yaml", list(overrides))


def graph() -> Data:
    train = torch.tensor([True, False, True, False, True])
    x = torch.rand(5, 6, dtype=torch.float64)
    return Data(x=x, edge_index=torch.tensor(EDGES).T, y=torch.arange(5) % 3, train_mask=train, split="train")


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("layers.").replace("conv.conv.", ""): value for name, value in model.named_parameters()}


def matrix_of_gcn() -> Tensor:
    adjacency = torch.eye(5, dtype=torch.float64)
    adjacency[tuple(torch.tensor(EDGES).T)] = 1
    scale = adjacency.sum(1).rsqrt()
    return scale[:, None] * adjacency * scale


def random_network(name: str) -> nn.Module:
    model = build_network(name, 6, 3).double().eval()
    for value in model.parameters():  # biases, too, which start at zero
        nn.init.normal_(value)
    return model


def test_gcn_is_the_formula_of_its_paper() -> None:
    configure("gcn")
    data, model, matrix = graph(), random_network("GCN"), matrix_of_gcn()
    p = parameters(model)
    assert set(p) == {f"{layer}.{name}" for layer in (0, 1) for name in ("bias", "lin.weight")}
    hidden = (matrix @ data.x @ p["0.lin.weight"].T + p["0.bias"]).relu()
    assert hidden.shape == (5, 16)
    want = matrix @ hidden @ p["1.lin.weight"].T + p["1.bias"]
    pred, true = model(data.clone())
    torch.testing.assert_close(pred, want[data.train_mask])
    assert true.tolist() == [0, 2, 1]


@pytest.mark.parametrize(("config", "steps", "alpha"), [("appnp", 10, 0.1), ("sgc", 2, 0.0), ("linear", 0, 0.0)])
def test_linear_maps_and_steps_of_pagerank_are_appnp_sgc_and_logistic_regression(
    config: str, steps: int, alpha: float
) -> None:
    configure(config)
    data, model, matrix = graph(), random_network("APPNP"), matrix_of_gcn()
    p = {name.replace("linear.", ""): value for name, value in parameters(model).items()}
    hidden = data.x
    if config == "appnp":
        hidden = (hidden @ p["0.weight"].T + p["0.bias"]).relu()
        assert hidden.shape == (5, 64)
    last = len(p) // 2 - 1
    bias_after = p[f"{last}.bias"] if config == "sgc" else 0
    scores = want = hidden @ p[f"{last}.weight"].T + p[f"{last}.bias"] - bias_after
    for _ in range(steps):
        want = (1 - alpha) * matrix @ want + alpha * scores
    want = want + bias_after
    torch.testing.assert_close(model(data)[0], want[data.train_mask])


def test_each_step_of_appnp_drops_from_all_edges() -> None:
    steps = LinearSteps(2, 2, steps=4, alpha=0.1, edge_dropout=0.5).double()
    edge_index = add_self_loops(torch.tensor(EDGES).T, num_nodes=5)[0]
    x = torch.rand(5, 2, dtype=torch.float64)
    with torch.no_grad():
        draws = torch.stack([steps(x, edge_index) for _ in range(2000)])
        want = steps.eval()(x, edge_index)
    assert draws.std(0).min() > 0
    # Draws from what earlier steps have left would be of another mean, and of more spread.
    assert bool(((draws.mean(0) - want).abs() < 5 * draws.std(0) / len(draws) ** 0.5).all())


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_features_and_hidden_features_are_dropped_and_outputs_are_not(name: str) -> None:
    configure(name, "gnn.dropout", "0.5")
    model = build_network(name.upper(), 6, 3)
    dropouts = [model.pre_mp.p, *(layer.dropout.p for layer in model.layers)]
    assert dropouts == [0.5, 0.5, 0.0]
    assert isinstance(model.layers[0].act, nn.ReLU if name == "gcn" else nn.ELU)
    assert isinstance(model.layers[1].act, nn.Identity)


def test_gat_has_heads_side_by_side_and_one_for_the_classes() -> None:
    configure("gat")
    first, last = (layer.conv.conv for layer in build_network("GAT", 6, 3).layers)
    assert (first.in_channels, first.heads, first.out_channels, first.concat, first.dropout) == (6, 8, 8, True, 0.6)
    assert (last.in_channels, last.heads, last.out_channels, last.dropout) == (64, 1, 3, 0.6)
    cfg.gnn.dim_inner = 60
    with pytest.raises(ConfigError, match=r"gnn.dim_inner \(60\) must be a multiple of gt.n_heads, got 8"):
        build_network("GAT", 6, 3)


def test_all_nodes_are_predicted_where_graphs_are_divided() -> None:
    configure("gcn", "gnn.head", "inductive_node")
    assert build_network("GCN", 6, 3).double()(graph())[0].shape == (5, 3)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("dataset.node_encoder", "True"), "model.type GCN takes the features of nodes as they are"),
        (("dataset.edge_encoder", "True"), "model.type GCN takes the features of nodes as they are"),
        (("gnn.head", "graph"), "gnn.head: model.type GCN has none but node and inductive_node, got graph"),
        (("gnn.layers_mp", "0"), "gnn.layers_mp: expected 1 or more, got 0"),
    ],
)
def test_what_the_recipe_does_not_have_is_refused(overrides: tuple[str, ...], line: str) -> None:
    configure("gcn", *overrides)
    with pytest.raises(ConfigError, match=line):
        build_network("GCN", 6, 3)


@pytest.mark.parametrize(("layers", "decayed"), [("first", [0]), ("all", [0, 1])])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_weight_decay_is_for_the_layers_that_the_config_names(optimizer: str, layers: str, decayed: list[int]) -> None:
    configure("gcn", "optim.weight_decay_layers", layers, "optim.optimizer", optimizer)
    model = build_network("GCN", 6, 3)
    before = {name: value.detach().clone() for name, value in parameters(model).items() if "weight" in name}
    built = current_optimizer(model)
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    built.step()
    moved = [int(name[0]) for name, value in before.items() if not torch.equal(parameters(model)[name], value)]
    assert moved == decayed
    assert sorted(map(id, model.parameters())) == sorted(id(p) for g in built.param_groups for p in g["params"])
    assert {group["lr"] for group in built.param_groups} == {0.01}


def test_no_first_layer_is_guessed_behind_an_encoder() -> None:
    configure("kmip", "optim.weight_decay_layers", "first", "share.dim_in", "6")
    with pytest.raises(ConfigError, match="of model.type GPSModel it is not clear"):
        current_optimizer(build_network("GPSModel", 6, 3))
    with pytest.raises(ConfigError, match="it is not clear which layer is first"):
        current_optimizer(nn.Linear(6, 3))  # a network of another package
    with pytest.raises(ConfigError, match="optim.weight_decay_layers: expected one of all, first, got 'frist'"):
        configure("gcn", "optim.weight_decay_layers", "frist")


def test_normalised_features_of_a_node_sum_to_one() -> None:
    data = Data(x=torch.tensor([[1, 3, 0], [0, 0, 0], [0, 1, 1]]))
    x = with_normalized_features(data).x
    assert x.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    assert data.x.tolist() == [[1, 3, 0], [0, 0, 0], [0, 1, 1]], "the graph itself has changed"


@pytest.mark.parametrize("normalised", [True, False])
def test_the_data_of_a_run_is_normalised_where_the_config_says_so(normalised: bool) -> None:
    configure("gcn", "dataset.sample", "True", "dataset.normalize_features", str(normalised))
    total = load_configured().dataset.graphs[0].x.abs().sum(dim=1)
    ones = torch.isclose(total, torch.ones_like(total))
    assert bool(ones.all() if normalised else not ones.any())


def test_sparse_dropout_draws_for_each_number_and_keeps_the_mean() -> None:
    drop, x = SparseDropout(0.25), torch.tensor([[0.0, 3.0]]).repeat(4000, 1).requires_grad_()
    out = drop(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0][:, 1], out[:, 1].detach() / 3)
    out = out.detach()
    assert set(out[:, 0].tolist()) == {0.0}
    assert set(out[:, 1].tolist()) == {0.0, 4.0}
    assert abs(float(out[:, 1].mean()) - 3) < 0.15  # five standard errors are 0.14
    assert x[:, 1].eq(3).all(), "the input has changed"
    assert drop.eval()(x) is x
    assert SparseDropout(0.0)(x) is x


def test_a_run_in_the_recipe_trains_and_stops_and_goes_on_with_both_groups(tmp_path: Path) -> None:
    overrides = "dataset.sample True optim.max_epoch 2 gnn.dim_inner 4 out_dir".split()
    run_experiment(ROOT / "configs/Citation/cora-gcn.yaml", [*overrides, str(tmp_path / "out")])
    record = read_record(next(tmp_path.rglob("record.json")).parent)
    assert record["best"]["test"]["accuracy"] >= 0
    saved = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    decays = [group["weight_decay"] for group in saved["optimizer_state"]["param_groups"]]
    assert decays == [0.0005, 0.0]


def test_features_are_normalised_where_the_nodes_of_one_graph_are_classified_and_nowhere_else() -> None:
    load_config(cfg, ROOT / "configs/quickstart/digits-gcn.yaml", ["dataset.normalize_features", "True"])
    cfg.dataset.sample = True
    with pytest.raises(ConfigError, match="dataset.normalize_features: digits is not one graph"):
        load_dataset(cfg.dataset.format, cfg.dataset.name, "")


@pytest.mark.parametrize("setting", [("train.max_nodes", "9"), ("optim.weight_decay_layers", "first")])
def test_graphgyms_own_main_refuses_settings_that_it_would_not_obey(setting: tuple[str, str]) -> None:
    load_config(cfg, ROOT / "configs/quickstart/digits-gcn.yaml", setting)
    with pytest.raises(ConfigError, match=f"{setting[0]}: GraphGym's own loaders and optimizers do not obey it"):
        load_dataset(cfg.dataset.format, cfg.dataset.name, "")
