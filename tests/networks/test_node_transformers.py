"""SGFormer and Polynormer of torch_geometric: phases, heads, logits of two classes, masks, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.errors import ConfigError

BOTH = ("SGFormer", "Polynormer")
PHASES = {"pred_local": False, "pred_global": True, "global_attn": True, "ln": True}  # module -> only in the global one


def model_of(network: str, out_dim: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return create_model("", 5, out_dim, network=network, **({"dim": 8, "num_heads": 2, "num_layers": 2} | options))


def graph(nodes: int = 12) -> Data:
    torch.manual_seed(nodes)
    edges = torch.randint(nodes, (2, 3 * nodes))
    mask = torch.arange(nodes) % 3 == 0
    y = torch.arange(nodes) % 3
    return Data(x=torch.randn(nodes, 5), edge_index=edges, y=y, train_mask=mask, val_mask=~mask)


def reached(model: nn.Module) -> set[str]:
    parts = model.layers[0].network.named_children()
    return {name for name, part in parts if all(p.grad is not None and p.grad.any() for p in part.parameters())}


@pytest.mark.parametrize("options", [{}, {"attention_layers": 2}])
def test_a_loss_reaches_all_parameters_of_sgformer(options: dict[str, Any]) -> None:
    model = model_of("SGFormer", **options)
    cross_entropy(*model(graph())).backward()
    assert reached(model) == {"trans_conv", "graph_conv", "fc"}


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, None])
def test_the_global_layers_of_polynormer_learn_from_local_epochs_on(epoch: int | None) -> None:
    model, data = model_of("Polynormer", local_epochs=2), graph()
    data.epoch = epoch
    cross_entropy(*model(data)).backward()
    is_global = epoch is None or epoch >= 2  # None: a training that counts no epochs
    local = {"local_convs", "lins", "lns", "h_lins", "post_bns"}
    assert reached(model) == local | {name for name, late in PHASES.items() if late == is_global}
    assert {name for name, _ in model.layers[0].network.named_children()} == local | set(PHASES)  # none is idle


def test_an_evaluation_and_a_checkpoint_have_the_phase_of_the_last_training_epoch() -> None:
    model, data = model_of("Polynormer", local_epochs=5).train(), graph()
    data.epoch = 4
    model(data)
    data.epoch = 9
    local = model.eval()(data)[0]
    again = model_of("Polynormer", local_epochs=5).eval()
    whole = again(data)[0]
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(data)[0], local, rtol=0, atol=0)
    assert not torch.equal(whole, local)


@pytest.mark.parametrize("network", BOTH)
def test_the_prediction_of_two_classes_is_the_log_odds_of_the_second(network: str) -> None:
    model, data = model_of(network, 1).eval(), graph()
    logit, _ = model(data)
    inner = model.layers[0].network
    x = model.encoder(Batch.from_data_list([data])).x
    probability = inner(x, data.edge_index, torch.zeros(12, dtype=torch.long)).exp()
    assert probability.shape == (12, 2)
    torch.testing.assert_close(logit, torch.logit(probability[:, 1:]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", BOTH)
def test_predictions_are_log_probabilities_of_the_nodes_of_the_split(network: str) -> None:
    model, data = model_of(network, head="node").eval(), graph()
    pred, label = model(data)
    torch.testing.assert_close(log_softmax(pred, 1), pred)
    rows = data.val_mask
    masked, masked_label = model(data, split="val")
    torch.testing.assert_close(masked, pred[rows], rtol=0, atol=0)
    assert torch.equal(masked_label, label[rows])


@pytest.mark.parametrize("network", BOTH)
def test_what_it_cannot_predict_is_refused(network: str) -> None:
    with pytest.raises(ConfigError, match=f"model.type {network} takes one graph, got a batch of 2"):
        model_of(network)(Batch.from_data_list([graph(), graph(7)]))
    with pytest.raises(ConfigError, match=f"gnn.head: model.type {network} has none but node and inductive_node"):
        model_of(network, head="graph")
    with pytest.raises(ConfigError, match="gives log-probabilities of classes, not classification_multilabel"):
        model_of(network, settings={"dataset.task_type": "classification_multilabel"})
