"""Faults of the public codes: switched on by keys, unknown to the operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import GraphContext, PerformerAttention
from graphgps_kmip.compat.dialects import QUIRKS
from graphgps_kmip.compat.public_faults import (
    FAULTS,
    RAW,
    VARIANTS,
    FirstRowGINE,
    PaddedPerformerAttention,
    PublicExpander,
    UnmovedEdgesToken,
    raw_spectral_value,
    repeat_faults,
    with_every_edge_reversed,
    with_padding,
)
from graphgps_kmip.data.graph_changes import with_reverse_edges
from graphgps_kmip.encoding.expander_graph import Expansion, expander_edges, expander_generator, spectral_value
from graphgps_kmip.encoding.graphormer_bias import GraphToken
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import load_configured
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.networks.network_settings import network_keys
from graphgps_kmip.ranges import read_default
from tests.gym.networks import DATA, configure
from tests.processes import python

ROOT = Path(__file__).parents[2]
EDGES = [(0, 1), (1, 0), (1, 2), (3, 3)]  # node 4 has none
# Networks in which each fault has a module.
BRANCHES = ({"gt.layer_type": name} for name in ("kMIP", "Performer", "Performer", "BigBird", "BigBird", "GINE"))
GRAPHORMER = {
    "dataset.node_encoder_name": "LinearNode+GraphormerBias",
    "dataset.edge_encoder_num_types": 2,
    "graphormer.use_graph_token": True,
    **{f"posenc_GraphormerBias.num_{name}": 4 for name in ("spatial_types", "in_degrees", "out_degrees")},
    "gt.layer_type": "BiasedTransformer",
}
NETWORKS = [*BRANCHES, GRAPHORMER, GRAPHORMER, {}, {"model.type": "Spexphormer", "gt.layer_type": "Spexphormer"}]


def test_every_quirk_is_a_value_of_the_keys_of_faults_that_is_not_their_default() -> None:
    quirks = [setting for settings in QUIRKS.values() for setting in settings.items()]
    assert {key for key, _ in quirks} == FAULTS.keys()
    assert all(read_default(FAULTS[key]) != value for key, value in quirks)


def test_no_component_has_a_key_of_a_fault() -> None:
    assert not FAULTS.keys() & network_keys().keys()


@pytest.mark.parametrize(("setting", "settings"), zip(VARIANTS, NETWORKS, strict=True))
def test_a_network_has_the_classes_of_the_faults_that_are_switched_on(
    setting: tuple[str, Any],
    settings: dict[str, Any],
) -> None:
    clean, faulty = next(iter(VARIANTS[setting].items()))
    states = []
    for faults, kind in (({}, clean), (dict([setting]), faulty)):
        configure(DATA | {"model.type": "GPSModel", "gt.layers": 1} | settings | faults)
        torch.manual_seed(0)
        network = build_network(cfg.model.type, 5, 3)
        assert kind in {type(module) for module in network.modules()}
        states.append(network.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_both_faults_of_performer_may_be_on() -> None:
    faults = {"gt.performer.mask_keys": False, "gt.performer.detach_stabiliser": True}
    attention = repeat_faults(PerformerAttention(8, 2), faults)
    assert type(attention).__name__ == "PaddedDetachedPerformerAttention"


def test_in_a_network_that_pads_its_graphs_values_of_padding_are_0_and_its_keys_count() -> None:
    attention = PaddedPerformerAttention(8, 2, use_bias=True).double()
    x, batch = torch.randn(5, 8).double(), torch.tensor([0, 0, 0, 1, 1])
    padded_x, context = with_padding(x, GraphContext.of(batch, x))
    assert context.real.tolist() == [True] * 5 + [False]
    single = PerformerAttention(8, 2, use_bias=True).double()
    single.load_state_dict(attention.state_dict())
    out = attention.attend(padded_x, context)[context.real]
    torch.testing.assert_close(out[:3], single.attend(x[:3], GraphContext.of(None, x[:3])))
    attention.value.bias.data += 7.0
    shift = attention.attend(padded_x, context)[context.real] - out
    torch.testing.assert_close(shift[:3], torch.full_like(shift[:3], 7.0))
    assert 0.0 < shift[3:].min() < shift[3:].max() < 6.5  # a mean of values, with a 0 among them


def test_gine_adds_row_1_to_the_sum_of_every_node() -> None:
    layer = FirstRowGINE(4)
    layer.inner = nn.Identity()
    x, nothing = torch.randn(3, 4), torch.zeros(2, 0, dtype=torch.long)
    assert torch.equal(layer(x, nothing, torch.zeros(0, 4))[0], x[1].expand(3, 4))


def test_the_transform_finds_graphormers_encoding_without_the_public_codes() -> None:
    code = "from graphgps_kmip.encoding import AddEncoding\nprint(AddEncoding('GraphormerBias').encoding)"
    done = python("-c", code)
    assert done.stdout.startswith("GraphormerBias("), done.stderr


def test_a_token_that_moves_no_edges_moves_all_else() -> None:
    graphs = [Data(x=torch.randn(n, 5), edge_index=torch.tensor(EDGES[:3]).T, num_nodes=n) for n in (5, 3)]
    right, wrong = GraphToken(5, None), UnmovedEdgesToken(5, None)
    wrong.load_state_dict(right.state_dict())
    before = Batch.from_data_list(graphs)
    moved, unmoved = (token(before.clone()) for token in (right, wrong))
    assert torch.equal(unmoved.edge_index, before.edge_index)
    assert torch.equal(moved.edge_index, before.edge_index + torch.tensor([1, 1, 1, 2, 2, 2]))
    for name in ("x", "batch", "ptr"):
        assert torch.equal(moved[name], unmoved[name])


@pytest.mark.parametrize("raw", [False, True])
def test_the_expander_encoding_draws_by_seed_and_graph_as_its_function(raw: bool) -> None:
    graph = Data(num_nodes=30, graph_id=4)
    encoding = PublicExpander(name="Expander", deg=3, seed=2, raw=raw)
    (attributes,) = encoding.attributes([graph], encoding.settings())
    expected = expander_edges(30, 3, rng=expander_generator(2, 4), expansion=RAW if raw else Expansion())
    assert torch.equal(attributes["expander_edge_index"], expected)
    assert encoding.settings() == {"deg": 3, "algorithm": "Random-d", "max_num_iters": 100, "raw": raw, "seed": 2}


def test_loops_let_a_graph_in_pieces_pass_the_raw_test() -> None:
    node = torch.arange(12)
    loops = torch.stack([node, node]).repeat(1, 2)
    pair = torch.tensor([[0, 1], [1, 0]])
    edges = torch.cat([loops, *(pair + 2 * i for i in range(6))], 1).numpy()
    assert spectral_value(edges, 12) == 0.0
    assert raw_spectral_value(edges, 12) > 1


@pytest.mark.parametrize("edge_attr", [None, torch.tensor([[1.0], [3.0], [5.0], [7.0]])], ids=["without", "with"])
def test_every_edge_is_reversed_even_where_it_is_there_both_ways(edge_attr: Tensor | None) -> None:
    before = Data(x=torch.zeros(5, 1), edge_index=torch.tensor(EDGES).T, edge_attr=edge_attr)
    after = with_every_edge_reversed(before)
    assert after.edge_index.T.tolist() == [list(pair) for pair in (*EDGES, *(pair[::-1] for pair in EDGES))]
    assert after.edge_attr is None or after.edge_attr.flatten().tolist() == [1, 3, 5, 7] * 2
    assert before.edge_index.T.tolist() == [list(pair) for pair in EDGES], "the graph itself has changed"


def load_graph(file: str, *argv: str) -> Data:
    load_config(cfg, ROOT / "configs" / file, ["dataset.sample", "True", *argv])
    return load_configured().dataset.graphs[0]


@pytest.mark.usefixtures("small_samples")
def test_the_keys_of_prep_choose_the_faults() -> None:
    argv = ("prep.exp", "True", "prep.exp_deg", "3", "seed", "5")
    for raw, expansion in ((True, RAW), (False, Expansion())):
        graph = load_graph("quickstart/digits-kmip.yaml", *argv, "prep.exp_raw", str(raw))
        expected = expander_edges(graph.num_nodes, 3, rng=expander_generator(5, 0), expansion=expansion)
        assert torch.equal(graph.expander_edge_index, expected)
    cora = "Citation/cora-gcn.yaml"
    clean = load_graph(cora, "prep.add_reverse_edges", "False")
    twice = load_graph(cora, "prep.raw_reverse_edges", "True")
    assert torch.equal(twice.edge_index, with_every_edge_reversed(clean).edge_index)
    once = load_graph(cora, "prep.add_reverse_edges", "True")
    assert torch.equal(once.edge_index, with_reverse_edges(clean).edge_index)
    assert once.num_edges < twice.num_edges
