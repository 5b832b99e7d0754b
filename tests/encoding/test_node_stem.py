"""Structural features of nodes, target nodes and class tokens: recorded values and gradients, formulas, mistakes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.node_stem import ClassToken, NodeMask, NodeStem, TargetNode
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.errors import ConfigError, InputError
from tests.recorded import check, load

EXACT = RRWP(ksteps=4, channels="K+1", precision="float64", where="batch")
LINE = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def batch_of_two() -> Batch:
    first = Data(x=torch.ones(4, 6), edge_index=LINE, pos=torch.rand(4, 2))
    return Batch.from_data_list([first, Data(x=torch.ones(1, 6), edge_index=LINE[:, :0], pos=torch.rand(1, 2))])


@pytest.mark.parametrize(("name", "feature"), [("mlpnode_rrwp", "rrwp"), ("mlpnode_log_order", "log_order")])
def test_values_and_gradients_are_those_of_the_public_code(name: str, feature: str) -> None:
    module = NodeStem(EXACT, 8, features=(feature,)).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ptr = inputs["ptr"]
        batch = Batch(x=inputs["x"], batch=inputs["batch"], ptr=ptr, rrwp_degree=inputs["batch"])
        rows = [row for size in ptr.diff().tolist() for i in range(size) for row in [i * (size + 1)]]
        starts = (ptr.diff().square().cumsum(0) - ptr.diff().square()).repeat_interleave(ptr.diff())
        batch.rrwp = torch.zeros(int(ptr.diff().square().sum()), 5, dtype=torch.float64)
        if feature == "rrwp":  # of each node: the value of its pair with itself
            batch.rrwp = batch.rrwp.index_add(0, starts + torch.tensor(rows), inputs["rrwp"])
        return {"x": module(batch).x}

    check(module, forward, load(f"F_encodings/{name}"), lambda key: key.replace("out_fc", f"linears.{feature}"))


def test_features_are_return_probabilities_degree_order_and_location() -> None:
    module = NodeStem(EXACT, 6, features=("rrwp", "log_degree", "log_order", "location"))
    batch = module(batch_of_two())
    # walks on a line of three nodes return to an end with probability 1/2 after 2 and 4 steps, to the middle always
    rrwp = [[1, 0, 0.5, 0, 0.5], [1, 0, 1, 0, 1], [1, 0, 0.5, 0, 0.5], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    values = {
        "rrwp": torch.tensor(rrwp),
        "log_degree": torch.tensor([[math.log(1 + degree)] for degree in (1, 2, 1, 0, 0)]),
        "log_order": torch.tensor([[math.log(1 + order)] for order in (5 - 1, 4, 4, 4, 1)]),
        "location": batch.pos,
    }
    expected = 1 + sum(module.linears[name](value.float()) for name, value in values.items())
    torch.testing.assert_close(batch.x, expected)
    module = NodeStem(EXACT, 6, features=("log_order",))
    alone = Batch(batch=batch.batch, ptr=batch.ptr, edge_index=batch.edge_index)
    torch.testing.assert_close(module(alone).x, module.linears["log_order"](values["log_order"].float()))


def test_one_vector_is_added_to_target_nodes_alone() -> None:
    module, batch = TargetNode(6), batch_of_two()
    batch.target_mask = torch.tensor([False, True, False, False, True])
    x = batch.x
    found = module(batch).x
    assert torch.equal(found[~batch.target_mask], x[~batch.target_mask])
    torch.testing.assert_close(found[batch.target_mask], 1 + module.token.expand(2, -1))
    assert torch.equal(x, torch.ones(5, 6))


def test_class_tokens_know_the_number_of_nodes() -> None:
    batch = batch_of_two()
    for order, values in (("order", [4.0, 1.0]), ("log_order", [math.log(5), math.log(2)])):
        module = ClassToken(6, order=order)
        expected = module.token + module.mlp(torch.tensor(values)[:, None])
        torch.testing.assert_close(module(batch).class_token, expected)
    module = ClassToken(6)
    assert torch.equal(module(batch).class_token, module.token.expand(2, -1))


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"ppgt\.node_features: expected one of rrwp, log_degree, .*got 'log_deg'"):
        NodeStem(EXACT, 6, features=("log_deg",))
    with pytest.raises(ConfigError, match=r"ppgt\.class_token: expected one of none, order, log_order, got 'size'"):
        ClassToken(6, order="size")
    batch = batch_of_two()
    with pytest.raises(InputError, match=r"location has 2 columns, ppgt\.dim_location says 3: set it to the former"):
        NodeStem(EXACT, 6, features=("location",), dim_location=3)(batch)
    batch.pos = None
    with pytest.raises(InputError, match="location needs batch.pos"):
        NodeStem(EXACT, 6, features=("location",))(batch)
    with pytest.raises(InputError, match="target needs batch.target_mask"):
        TargetNode(6)(batch)


def test_masked_nodes_have_zeros_in_training_and_the_others_what_they_had() -> None:
    mask, x = NodeMask(0.3), torch.rand(4000, 2) + 1
    batch = mask(Batch(x=x, batch=torch.zeros(4000).long()))
    masked = (batch.x == 0).all(dim=1)
    assert abs(float(masked.float().mean()) - 0.3) < 0.04  # 5 standard deviations
    assert torch.equal(batch.x[~masked], x[~masked])
    assert not x.eq(0).any()
    assert mask.eval()(Batch(x=x)).x is x
