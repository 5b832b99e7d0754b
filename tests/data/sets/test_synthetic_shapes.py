"""Synthetic shapes: surfaces, parts that are told apart by a head far away, and that they never change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph
from torch_geometric.utils import to_scipy_sparse_matrix

from graphgps_kmip.data import DatasetInfo, find, mismatches, open_dataset, sampled
from graphgps_kmip.data.sets.synthetic_shapes import HEADS, NEIGHBORS, POINTS, SURFACES, draw_shape


def test_a_stem_is_named_after_the_head_above_it() -> None:
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(20):
        graph = draw_shape(rng, points=256)
        is_stem, is_head = (graph.y > 0) & (graph.y <= HEADS), graph.y > HEADS
        across = torch.cdist(graph.pos[is_stem, :2], graph.pos[is_head, :2])
        assert torch.equal(graph.y[is_head][across.argmin(1)] - HEADS, graph.y[is_stem])
        assert graph.pos[is_head, 2].min() > graph.pos[is_stem, 2].max() - 0.1
        kinds |= {len(graph.y[is_stem].unique())}
    assert kinds == {1, 2, 3}  # clouds of one kind of stem, and of several


@pytest.mark.parametrize("surface", SURFACES)
def test_normals_have_length_one_and_points_lie_on_the_surface(surface) -> None:  # noqa: ANN001
    normal, position = surface(np.random.default_rng(0), 200)
    assert np.linalg.norm(normal, axis=1) == pytest.approx(1)
    # The tangent planes of a box, cylinder or sphere of half size 0.25 are 0.25 from its middle.
    assert (normal * position).sum(1) == pytest.approx(0.25)
    assert np.abs(position).max() <= 0.25 + 1e-12


def test_most_points_of_stems_are_more_hops_from_a_head_than_the_models_have_layers() -> None:
    graph = open_dataset(find("LongRange", "shapes"), root="")[0]
    hops = csgraph.shortest_path(to_scipy_sparse_matrix(graph.edge_index.flip(0)), unweighted=True)
    is_stem, is_head = (graph.y > 0) & (graph.y <= HEADS), graph.y > HEADS
    nearest = hops[is_stem.numpy()][:, is_head.numpy()].min(axis=1)
    assert np.mean(nearest > 4) > 0.7


def test_the_card_says_what_is_loaded_and_every_run_has_the_same_clouds() -> None:
    record = find("LongRange", "shapes")
    dataset = open_dataset(record, root="a folder that is never made")
    assert mismatches(record, DatasetInfo.of(dataset, record)) == []
    assert dataset[0].x.shape == (POINTS, 6)
    assert torch.equal(dataset[0].edge_index[1].bincount(), torch.full((POINTS,), NEIGHBORS))
    assert torch.equal(dataset[0].x[:, 3:], dataset[0].pos)
    # recorded, on numpy 2: a change of the generator would make published scores those of other clouds
    assert dataset[-1].y[:8].tolist() == [2, 5, 0, 2, 6, 0, 6, 0]


def test_a_sample_has_the_schema_of_the_data_set() -> None:
    sample = open_dataset(sampled(find("LongRange", "shapes")), root="")
    assert len(sample) == 30
    assert sample[0].x.shape == (128, 6)
