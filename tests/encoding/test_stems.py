"""Structural features of nodes and pairs and their sines: recorded values and gradients, loops, mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.ppgt_stems import (
    ClassToken,
    NodeStem,
    PairFFN,
    PairStem,
    TargetNode,
    sinusoidal,
    sinusoidal_linear_of_chunk,
)
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import pair_rows
from tests.recorded import TOLERANCE, check, load

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
    actual = module(batch).x
    assert torch.equal(actual[~batch.target_mask], x[~batch.target_mask])
    torch.testing.assert_close(actual[batch.target_mask], 1 + module.token.expand(2, -1))
    assert torch.equal(x, torch.ones(5, 6))


def test_class_tokens_know_the_number_of_nodes() -> None:
    batch = batch_of_two()
    module = ClassToken(6, order="order")
    expected = module.token + module.mlp(torch.tensor([[4.0], [1.0]]))
    torch.testing.assert_close(module(batch).class_token, expected)
    module = ClassToken(6)
    assert torch.equal(module(batch).class_token, module.token.expand(2, -1))


def test_mistakes_are_named() -> None:
    batch = batch_of_two()
    with pytest.raises(InputError, match=r"location has 2 columns, ppgt\.dim_location says 3: set it to the former"):
        NodeStem(EXACT, 6, features=("location",), dim_location=3)(batch)
    batch.pos = None
    with pytest.raises(InputError, match="location needs batch.pos"):
        NodeStem(EXACT, 6, features=("location",))(batch)
    with pytest.raises(InputError, match="target needs batch.target_mask"):
        TargetNode(6)(batch)


PAIRS_EXACT: dict[str, Any] = {"ksteps": 4, "channels": "K+1", "precision": "float64", "where": "batch"}
EDGES = torch.tensor([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 0, 1]])  # a loop and a repeated edge are among them
SIZES = (4, 1, 3)


def graphs() -> list[Data]:
    """Undirected but for a repeated edge; one isolated node, a graph of one node, one without edges."""
    generator = torch.Generator().manual_seed(0)
    edges = [EDGES, EDGES[:, :0], EDGES[:, :0]]
    return [
        Data(
            x=torch.zeros(size, 2, dtype=torch.float64),
            edge_index=part,
            edge_attr=torch.randn(part.size(1), 6, generator=generator, dtype=torch.float64),
            pos=torch.randn(size, 2, generator=generator, dtype=torch.float64),
        )
        for size, part in zip(SIZES, edges, strict=True)
    ]


def stem(**options: Any) -> PairStem:
    torch.manual_seed(0)
    return PairStem(RRWP(**PAIRS_EXACT), 6, **{"hidden": (7,), "num_bases": 2} | options).double()


def recorded_names(hidden: int) -> dict[str, str]:
    layers = [*(f"mlp.{2 * number}" for number in range(hidden)), "out_fc"]
    return {f"{layer}.{part}": f"mlp.{2 * n}.{part}" for n, layer in enumerate(layers) for part in ("weight", "bias")}


def recorded_batch(inputs: dict[str, Tensor]) -> Batch:
    """Return a batch with all pairs; those that the record leaves out are zeros."""
    ptr, (key, query) = inputs["ptr"], inputs["rrwp_index"]
    attr = inputs["rrwp_attr"]
    pairs = attr.new_zeros(int(ptr.diff().square().sum()), attr.size(1))
    pairs = pairs.index_add(0, pair_rows(ptr, query, key), attr)
    batch = Batch(batch=inputs["batch"], ptr=ptr, edge_index=inputs["edge_index"], pos=inputs["pos"])
    batch.rrwp, batch.rrwp_degree = pairs, inputs["deg"]
    if "edge_attr" in inputs:
        batch.edge_attr = inputs["edge_attr"]
    return batch


@pytest.mark.parametrize(
    ("name", "hidden"), [("L3_N_D_hid16", (16,)), ("L3_isolated", (16, 12)), ("L3_noedges", (16,))]
)
def test_values_and_gradients_of_pairs_are_those_of_the_public_code(name: str, hidden: tuple[int, ...]) -> None:
    record = load(f"F_encodings/sinedge_{name}")
    del record["state/eps"]  # 2^s pi
    module = PairStem(RRWP(**PAIRS_EXACT), 8, hidden=hidden).double()
    names = recorded_names(len(hidden))

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        pairs = module(recorded_batch(inputs)).pair_attr
        key, query = record["eval/extra/edge_index"]
        return {"edge_attr": pairs[pair_rows(inputs["ptr"], query, key)]}

    check(module, forward, record, names.__getitem__)


@pytest.mark.parametrize("name", ["ada_2", "ada_2_pre_ffn4_ls"])
def test_blocks_on_pairs_are_those_of_the_public_code(name: str) -> None:
    record = load(f"F_encodings/edgeffn_{name}")
    scaled = name.endswith("ls")
    options = {"ffn_ratio": 4.0, "first_norm": "ada_rms_norm", "layer_scale": 0.1} if scaled else {}
    module = PairFFN(8, 2, **options).double()
    if not scaled:
        for key in [key for key in record if key.endswith("alpha") and "res_layer" in key]:
            assert record[key].eq(1).all()
            del record[key]

    def rename(name: str) -> str:
        name = name.replace("norm_layer.", "").replace("post_backbone_norm", "last_norm")
        name = name.replace("pre_backbone_norm", "first_norm")
        for number in range(2):
            start = f"mlp.module_{number + 1}."
            name = name.replace(f"{start}pre_mlp_norm", f"norms.{number}").replace(f"{start}mlp.3", f"mlps.{number}.2")
            name = name.replace(f"{start}mlp.0", f"mlps.{number}.0").replace(
                f"{start}res_layer.alpha", f"scales.{number}"
            )
        return name

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(batch=inputs["batch"], ptr=inputs["ptr"], pair_attr=inputs["edge_attr"])
        return {"edge_attr": module(batch).pair_attr}

    check(module, forward, record, rename)


def looped(batch: Batch, module: PairStem) -> Tensor:
    rows, row = [], 0
    for number, size in enumerate(SIZES):
        start = int(batch.ptr[number])
        degrees = batch.rrwp_degree[start : start + size].tolist()
        for query in range(size):
            for key in range(size):
                values = batch.rrwp[row].tolist()
                if "location" in module.features:
                    values += (batch.pos[start + query] - batch.pos[start + key]).tolist()
                if "inverse_order" in module.features:
                    values.append(1 / size)
                if "inverse_degree" in module.features:
                    values += [1 / degrees[node] if degrees[node] else 0.0 for node in (key, query)]
                wide = list(values)
                for value in values:
                    for s in range(module.num_bases):
                        wide += [math.sin(2**s * math.pi * value), math.cos(2**s * math.pi * value)]
                actual = module.mlp(torch.tensor([wide], dtype=torch.float64))[0]
                for (source, target), attr in zip(batch.edge_index.T.tolist(), batch.edge_attr, strict=True):
                    if (source, target) == (start + key, start + query):
                        actual = actual + attr
                rows.append(actual)
                row += 1
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"features": ("location", "inverse_degree")},
        {"features": ("inverse_degree", "inverse_order", "location"), "hidden": (5, 4)},
        {"features": (), "hidden": ()},
        {"features": ("inverse_order",), "num_bases": 0},
    ],
)
def test_features_are_those_of_loops_over_all_pairs(options: dict[str, Any]) -> None:
    module = stem(**options)
    batch = module(Batch.from_data_list(graphs()))
    torch.testing.assert_close(batch.pair_attr, looped(batch, module), rtol=1e-10, atol=1e-10)
    assert batch.pair_attr.shape == (26, 6)


def test_stochastic_depth_leaves_all_pairs_of_a_graph_as_they_are() -> None:
    torch.manual_seed(1)
    module = PairFFN(6, 1, last_norm="none", drop_path=0.5).double()
    batch = Batch.from_data_list(graphs() * 10)
    x = torch.randn(260, 6, dtype=torch.float64)
    batch.pair_attr = x
    changed = (module(batch).pair_attr != x).any(dim=1)
    sizes = [size**2 for size in SIZES] * 10
    parts = changed.split(sizes)
    assert all(part.all() or not part.any() for part in parts)
    assert 5 < sum(int(part.any()) for part in parts) < 25
    batch.pair_attr = x
    assert bool((module.eval()(batch).pair_attr != x).any(dim=1).all())


def test_mistakes_about_pairs_are_named() -> None:
    batch = Batch.from_data_list(graphs())
    with pytest.raises(InputError, match=r"pair_features: location has 2 columns, ppgt\.dim_location says 1"):
        stem(features=("location",), dim_location=1)(batch)
    batch.pos = None
    with pytest.raises(InputError, match="location needs batch.pos"):
        stem(features=("location",))(batch)
    batch.edge_attr = batch.edge_attr[:, :5]
    with pytest.raises(InputError, match=r"edge features are \(6, 5\), the features of pairs 6 wide: set"):
        stem()(batch)
    with pytest.raises(InputError, match="RRWP needs rrwp and rrwp_degree"):
        PairStem(RRWP(), 6)(Batch.from_data_list(graphs()))


def inputs(rows: int, num_bases: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, 4), (5, 4 * (2 * num_bases + 1)), (5,)
    x, weight, bias = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def plain(x: Tensor, weight: Tensor, bias: Tensor, num_bases: int) -> Tensor:
    return torch.nn.functional.linear(sinusoidal(x, num_bases).to(weight.dtype), weight, bias)


def test_values_are_those_of_the_public_code_in_float64_and_within_its_rounding_in_float32() -> None:
    record = load("F_encodings/spe_S15")
    actual = sinusoidal(record["in/x"], 15)
    torch.testing.assert_close(actual, record["eval/out/y"], rtol=TOLERANCE, atol=TOLERANCE)
    single = sinusoidal(record["in/x"].float(), 15)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, record["f32/eval/out/y"], rtol=0, atol=2e-3)
    assert float((single - actual).abs().max()) > 1e-4  # what float64 is for


@pytest.mark.parametrize("rows", [0, 1, 25])
@pytest.mark.parametrize("num_bases", [3, 1, 0])
def test_the_operator_equals_encoding_and_linear_layer_with_all_gradients(rows: int, num_bases: int) -> None:
    x, weight, bias = inputs(rows, num_bases)
    cotangent = torch.randn(rows, 5, dtype=torch.float64)
    results = []
    for function in (sinusoidal_linear_of_chunk, plain):
        tensors = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        y = function(*tensors, num_bases)
        (y * cotangent).sum().backward()
        results.append([y.detach(), *(tensor.grad for tensor in tensors)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_autocast_multiplies_in_its_own_type_and_gradients_have_that_of_the_parameters() -> None:
    x, weight, bias = inputs(9, 3, torch.float32)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = sinusoidal_linear_of_chunk(x, weight, bias, 3)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert weight.grad.dtype == bias.grad.dtype == torch.float32
    exact = torch.autograd.grad(plain(x, weight, bias, 3).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, exact, rtol=0.05, atol=0.05)
    torch.testing.assert_close(y.float(), plain(x, weight, bias, 3), rtol=0.05, atol=0.1)
