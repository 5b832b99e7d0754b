"""Features of pairs of nodes: recorded values and gradients, loops over pairs, dropped pairs and graphs, mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.common.node_pairs import pair_rows
from graphgps_kmip.encoding.pair_stem import PairFFN, PairStem
from graphgps_kmip.encoding.positional_encoding import AddEncoding
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.errors import ConfigError, InputError
from tests.recorded import check, load

EXACT: dict[str, Any] = {"ksteps": 4, "channels": "K+1", "precision": "float64", "where": "batch"}
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
    return PairStem(RRWP(**EXACT), 6, **{"hidden": (7,), "num_bases": 2} | options).double()


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
def test_values_and_gradients_are_those_of_the_public_code(name: str, hidden: tuple[int, ...]) -> None:
    record = load(f"F_encodings/sinedge_{name}")
    del record["state/eps"]  # 2^s pi
    module = PairStem(RRWP(**EXACT), 8, hidden=hidden).double()
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
    """Return the features of pairs by loops over graphs, queries, keys, channels and bases."""
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
                wide = list(values) if module.raw_channels else []
                for value in values:
                    for s in range(module.num_bases):
                        wide += [math.sin(2**s * math.pi * value), math.cos(2**s * math.pi * value)]
                found = module.mlp(torch.tensor([wide], dtype=torch.float64))[0]
                for (source, target), attr in zip(batch.edge_index.T.tolist(), batch.edge_attr, strict=True):
                    if (source, target) == (start + key, start + query):
                        found = found + attr
                rows.append(found)
                row += 1
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"features": ("location", "inverse_degree"), "raw_channels": False},
        {"features": ("inverse_degree", "inverse_order", "location"), "hidden": (5, 4)},
        {"features": (), "hidden": ()},
    ],
)
def test_features_are_those_of_loops_over_all_pairs(options: dict[str, Any]) -> None:
    module = stem(**options)
    batch = module(Batch.from_data_list(graphs()))
    torch.testing.assert_close(batch.pair_attr, looped(batch, module), rtol=1e-10, atol=1e-10)
    assert batch.pair_attr.shape == (26, 6)


def test_what_the_pairs_have_already_is_added() -> None:
    module, batch = stem(), Batch.from_data_list(graphs())
    before = module(batch.clone()).pair_attr
    batch.pair_attr = torch.randn(26, 6, dtype=torch.float64)
    given = batch.pair_attr.clone()
    torch.testing.assert_close(module(batch).pair_attr, before + given, rtol=1e-12, atol=1e-12)


def test_a_graph_has_the_features_that_it_has_alone_and_stored_values_those_of_computed_ones() -> None:
    module, parts = stem(features=("location", "inverse_order", "inverse_degree")), graphs()
    found = module(Batch.from_data_list(parts)).pair_attr
    alone = [module(Batch.from_data_list([graph])).pair_attr for graph in parts]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-12, atol=1e-12)
    stored = Batch.from_data_list([AddEncoding("RRWP", **EXACT)(graph) for graph in parts])
    torch.testing.assert_close(module(stored).pair_attr, found, rtol=1e-5, atol=1e-5)


def test_dropped_pairs_have_the_features_of_zeros_in_training_alone() -> None:
    module = stem(drop_pairs=0.5, hidden=())
    batch = Batch.from_data_list([*graphs(), *graphs()])
    batch.edge_attr = None
    kept = module.eval()(batch.clone()).pair_attr
    torch.testing.assert_close(module(batch.clone()).pair_attr, kept)
    found = module.train()(batch.clone()).pair_attr
    # sines of 0 are 0, cosines 1
    wide = torch.zeros(module.mlp[0].in_features, dtype=torch.float64)
    wide[8:][1::2] = 1
    dropped = (found - module.mlp[0](wide)).abs().amax(dim=1) < 1e-12
    whole = (found - kept).abs().amax(dim=1) < 1e-12
    assert bool((dropped | whole).all())
    assert 10 <= int(dropped.sum()) <= 42


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


def test_gradients_reach_all_parameters_and_edge_features() -> None:
    module, blocks = stem(), PairFFN(6, 2, layer_scale=0.1).double()
    batch = Batch.from_data_list(graphs())
    attr = batch.edge_attr.requires_grad_()
    blocks(module(batch)).pair_attr.square().sum().backward()
    for name, parameter in [*module.named_parameters(), *blocks.named_parameters()]:
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name  # noqa: PT018
        assert bool(parameter.grad.any()), name
    assert bool(attr.grad.any())


def test_a_batch_without_graphs_has_no_pairs() -> None:
    batch = Batch(x=torch.zeros(0, 2), edge_index=EDGES[:, :0], batch=EDGES[0, :0], ptr=torch.tensor([0]))
    assert PairFFN(6, 1).double()(stem()(batch)).pair_attr.shape == (0, 6)


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ConfigError,
        match="ppgt.pair_features: expected one of location, inverse_order, inverse_degree, got 'inverse_degre'.*mean",
    ):
        stem(features=("inverse_degre",))
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
    with pytest.raises(ConfigError, match="ppgt.stem_norm: expected one of ada_rms_norm, .*got 'ada'"):
        PairFFN(6, 1, norm="ada")
