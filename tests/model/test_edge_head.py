"""The head for pairs of nodes: logits, and ranks against a brute-force count."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.model import EdgeHead
from graphgps_kmip.model import prediction_heads as edge_head
from graphgps_kmip.task.metrics import OF_RANK, mean_over_graphs
from tests.recorded import load, part

DIM = 4
# Positive and negative pairs of each graph: several tails of one head, both directions, a self-loop, one positive
# only, none at all, none labelled, a graph of one node.
GRAPHS = (
    (6, [(0, 1), (0, 3), (2, 5), (5, 2)], [(1, 0), (4, 4)]),
    (5, [(3, 4)], [(0, 1), (1, 2), (2, 3)]),
    (4, [], [(0, 1)]),
    (3, [], []),
    (1, [(0, 0)], []),
    (7, [(6, 6), (6, 0), (1, 2)], []),
)


def graph(num_nodes: int, positive: list[tuple[int, int]], negative: list[tuple[int, int]], **given: Tensor) -> Data:
    pairs = torch.tensor(positive + negative, dtype=torch.long).reshape(-1, 2).T
    label = torch.tensor([1] * len(positive) + [0] * len(negative), dtype=torch.long)
    x = given.get("x", torch.randn(num_nodes, DIM, dtype=torch.float64))
    order = torch.randperm(len(label))  # positive and negative pairs come mixed
    return Data(x=x, num_nodes=num_nodes, edge_label_index=pairs[:, order], edge_label=label[order])


def batch() -> Batch:
    return Batch.from_data_list([graph(*sizes) for sizes in GRAPHS])


def by_hand(data: Data, scores: Tensor) -> Tensor:
    """Count the ranks of one graph, pair by pair; scores (N, N)."""
    pairs = list(zip(*data.edge_label_index.tolist(), data.edge_label.tolist(), strict=True))
    positive = {(i, j) for i, j, label in pairs if label}
    rows = []
    for i, j, label in pairs:
        everyone = [v for v in range(data.num_nodes) if v != j]
        filtered = [v for v in everyone if (i, v) not in positive]
        ranks = [
            1 + sum(1.0 * (scores[i, v] > scores[i, j]) + 0.5 * (scores[i, v] == scores[i, j]) for v in others)
            for others in (everyone, filtered, [v for v in filtered if v != i])
        ]
        rows.append([sum(label for *_, label in pairs), *ranks] if label else [0.0] * 4)
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


def all_scores(head: EdgeHead, x: Tensor, decoding: str) -> Tensor:
    first, second = (t.reshape(-1, DIM) for t in (x[:, None].expand(-1, len(x), -1), x.expand(len(x), -1, -1)))
    if decoding == "concat":
        return head.mlp(torch.cat([first, second], dim=1)).reshape(len(x), len(x))
    first, second = head.mlp(first), head.mlp(second)
    scores = F.cosine_similarity(first, second) if decoding == "cosine_similarity" else (first * second).sum(-1)
    return scores.reshape(len(x), len(x))


@pytest.mark.parametrize("decoding", ["dot", "cosine_similarity", "concat"])
@pytest.mark.parametrize("chunk", [2**20, 3])
def test_logits_and_ranks_are_those_counted_by_hand(decoding: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_head, "PAIRS", chunk)
    head, whole = EdgeHead(DIM, 2, decoding).double().eval(), batch()
    wanted = []
    for data in whole.to_data_list():
        scores = all_scores(head, data.x, decoding).detach()
        logits = scores[data.edge_label_index[0], data.edge_label_index[1]]
        wanted.append(torch.cat([logits[:, None], by_hand(data, scores)], dim=1))
    pred, true = head(whole)
    torch.testing.assert_close(pred, torch.cat(wanted))
    assert torch.equal(true, whole.edge_label)
    assert pred[true == 1, 2].unique().numel() > 2, "the ranks differ among themselves"


def test_equal_scores_share_the_mean_of_their_places() -> None:
    head = EdgeHead(1, 1)
    head.mlp = torch.nn.Identity()
    x = torch.tensor([[1.0], [2.0], [2.0], [2.0], [5.0]])
    pred, _ = head(Batch.from_data_list([graph(5, [(0, 1)], [], x=x)]))
    assert pred[0].tolist() == [2.0, 1.0, 3.0, 3.0, 3.0]  # after 5, in the middle of three


def test_a_graph_is_ranked_within_itself_only() -> None:
    head, whole = EdgeHead(DIM, 1).double().eval(), batch()
    alone = [head(Batch.from_data_list([data]))[0] for data in whole.to_data_list()]
    torch.testing.assert_close(head(whole)[0], torch.cat(alone))
    torch.testing.assert_close(head(whole.to_data_list()[0])[0], alone[0])  # a graph that no batch holds


def test_the_loss_reaches_the_nodes_through_the_logits_alone() -> None:
    head, whole = EdgeHead(DIM, 1).double(), batch()
    whole.x.requires_grad_()
    pred, _ = head(whole)
    pred[:, 1:].sum().backward(retain_graph=True)  # ranks are constants
    assert not whole.x.grad.any()
    pred[:, 0].sum().backward()
    assert bool(whole.x.grad.any())
    assert all(bool(parameter.grad.any()) for parameter in head.parameters())


def test_without_ranks_a_pair_has_its_logit_only() -> None:
    whole, ranked = batch(), EdgeHead(DIM, 1).double()
    plain = EdgeHead(DIM, 1, ranked=False).double()
    plain.load_state_dict(ranked.state_dict())
    torch.testing.assert_close(plain(whole)[0], ranked(whole)[0][:, :1])


def test_half_precision_nodes_are_scored_in_full_precision() -> None:
    head = EdgeHead(1, 1)
    head.mlp = torch.nn.Identity()
    x = torch.tensor([[1.0078125], [1.0078125], [1.015625]], dtype=torch.bfloat16)  # products differ beyond bfloat16
    pred, _ = head(Batch.from_data_list([graph(3, [(1, 2)], [], x=x)]))
    assert pred.dtype == torch.float32
    assert float(pred[0, 0]) == 1.0078125 * 1.015625
    assert float(pred[0, 2]) == 1


def test_an_unknown_decoding_and_graphs_without_labelled_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown model.edge_decoding 'euclid': choose one of dot"):
        EdgeHead(DIM, decoding="euclid")
    with pytest.raises(ValueError, match="edge_label_index"):
        EdgeHead(DIM)(Batch.from_data_list([Data(x=torch.ones(2, DIM))]))


def test_predictions_and_ranks_match_the_recorded_original() -> None:
    record = load("E_metrics/mrr_graphgps")
    inputs = part(record, "in")
    head = EdgeHead(8, 1, "dot", ranked=True).double().eval()
    old = "layer_post_mp.model.0.model."
    head.load_state_dict({key.replace(old, "mlp.0."): value for key, value in part(record, "state").items()})
    batch = Data(x=inputs["x"], edge_label_index=inputs["edge_index_labeled"], edge_label=inputs["edge_label"])
    batch.ptr = torch.cat([torch.zeros(1, dtype=torch.long), inputs["batch"].bincount().cumsum(0)])
    score, true = head(batch)
    score = score.detach()
    torch.testing.assert_close(score[:, 0], record["out/pred"])
    torch.testing.assert_close(true.long(), record["out/label"].long())
    for name, (value, _) in OF_RANK.items():
        # The original counts 0 for the third graph, which has no positive pair; ours leaves it out.
        mean = mean_over_graphs(2, value)(score, true, 0.5) * 2 / 3
        assert mean == pytest.approx(float(record[f"out/{name}"]))
