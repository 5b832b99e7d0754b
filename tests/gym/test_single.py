"""Exphormer's networks: SingleModel, the sizes of MultiModel, and branches along expander edges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from graphgps_kmip.attention import ExphormerAttention
from graphgps_kmip.attention.exphormer import ExpanderMessages
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.parameter_count import count_layers
from tests.gym.networks import DATA, configure, graphs
from tests.gym.public_files import EDGE_TYPES, ZINC, assemble_run, silent_after_two_steps

SINGLE = ZINC | {
    "dataset": ZINC["dataset"] | EDGE_TYPES,
    "model": ZINC["model"] | {"type": "SingleModel"},
    "gt": ZINC["gt"] | {"layer_type": "GINE__exp", "layers": 2},
    "prep": {"exp": True, "exp_deg": 3},
}


def test_a_single_model_takes_two_steps(tmp_path: Path) -> None:
    assert silent_after_two_steps(tmp_path, SINGLE) == []


def test_a_single_model_is_one_branch_and_an_activation() -> None:
    d, layer_type = 8, {"gt.layer_type": "CustomGatedGCN", "gt.layers": 2}
    configure(DATA | {"model.type": "SingleModel", "gt.layer_norm": True, "gt.batch_norm": False} | layer_type)
    model, batch = build_network("SingleModel", 5, 3).eval(), graphs()
    _, layers = count_layers(model)
    assert [sum(layer.values()) for layer in layers] == [5 * (d * d + d) + 4 * d + 2 * d] * 2
    encoded = model.encoder(batch.clone())
    x, edge_attr = encoded.x, encoded.edge_attr
    for stacked in model.layers:
        x, edge_attr = stacked.local[0](x, batch.edge_index, edge_attr)
        x = stacked.local_norm[0].norm(x, batch.batch, 3).relu()
    model.head = torch.nn.Identity()
    torch.testing.assert_close(model(batch).x, x)


@pytest.mark.parametrize("layer_type", ["GCN+Transformer", "None", "None+None"])
def test_a_single_model_has_one_branch(layer_type: str) -> None:
    configure(DATA | {"model.type": "SingleModel", "gt.layer_type": layer_type})
    with pytest.raises(ConfigError, match=r"gt\.layer_type: model.type SingleModel has one branch"):
        build_network("SingleModel", 5, 3)


@pytest.mark.parametrize("local", ["GCN", "CustomGatedGCN", "GINE", "GAT"])
def test_a_branch_may_read_expander_edges(local: str) -> None:
    configure(DATA | {"model.type": "MultiModel", "gt.layer_type": f"{local}__exp+Exphormer", "gt.layers": 2})
    model, batch = build_network("MultiModel", 5, 3).eval(), graphs()
    attention, messages = model.layers[0].attention
    assert isinstance(attention, ExphormerAttention)
    assert isinstance(messages, ExpanderMessages)
    assert not getattr(messages.conv, "residual", False)  # the layer adds it
    names = Counter(name.rpartition(".initial_state.")[2] for name, _ in model.named_parameters() if "initial" in name)
    assert names == {"expander.weight": 1}
    for layer in model.layers:
        layer.attention[0].value.weight.data.zero_()  # Exphormer itself is silent
    graph_only = model(batch.clone())[0]
    batch.expander_edge_index = torch.tensor([[0, 1, 6], [4, 3, 8]])
    differs = (model(batch.clone())[0] != graph_only).any(dim=1)
    assert differs.tolist() == [True, False, True]  # the second graph got none


def test_a_branch_without_its_expander_graphs_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assemble_run(tmp_path, SINGLE)
    assert "has no expander edges" not in caplog.text
    assemble_run(tmp_path, SINGLE | {"prep": {"exp": False}})
    assert caplog.text.count("GINE__exp has no expander edges, prep.exp is False") == 1


def test_an_ending_that_means_nothing_is_refused() -> None:
    for layer_type in ("GCN__expander", "GCN__exp__attr", "GCN__edge_index__edge_attr", "Transformer__exp", "GCN__"):
        configure(DATA | {"model.type": "MultiModel", "gt.layer_type": layer_type})
        with pytest.raises(ConfigError, match=rf"gt\.layer_type: {layer_type}: the only ending is __exp"):
            build_network("MultiModel", 5, 3)
    configure(DATA | {"model.type": "MultiModel", "gt.layer_type": "GNC__exp"})
    with pytest.raises(ConfigError, match=r"gt\.layer_type: unknown name 'GNC'"):
        build_network("MultiModel", 5, 3)
