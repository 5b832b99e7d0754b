"""What is particular to one set of graphs: formats of files, features that are made, negatives, vocabularies, folds."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ogb.io.read_graph_pyg import read_graph_pyg
from ogb.utils import features
from sklearn.datasets import load_digits
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, find, ogb_tables, open_dataset, sampled
from graphgps_kmip.data.ogb_tables import END, UNKNOWN, vocabulary
from graphgps_kmip.data.sets import ogb
from graphgps_kmip.data.sets.malnet import MAX_DEGREE, featurize
from graphgps_kmip.data.sets.malnet import RECORDS as MALNETS
from graphgps_kmip.data.sets.ogb import PCQM, random_negatives
from graphgps_kmip.data.sets.point_cloud_sets import vertices
from graphgps_kmip.encoding import KNNGraph
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND, SyntaxNodeEncoder
from tests.data.sets.raw_files import Code, opened, pack, write, write_tables
from tests.data.sets.raw_graphs import AREAS, OFFICIAL, circles, place
from tests.processes import preloaded

CSL, MALNET = find("PyG-GNNBenchmarkDataset", "CSL"), find("PyG-MalNetTiny", "LocalDegreeProfile")
SUBSET, FULL = find("PyG-ZINC", "subset"), find("PyG-ZINC", "full")
HIV, PPA, CODE, COLLAB = (find("OGB", name) for name in ("ogbg-molhiv", "ogbg-ppa", "ogbg-code2", "ogbl-collab"))
S3DIS, DISTANCES, MODELNET = find("PyG-S3DIS"), find("PyG-S3DISOnDisk"), find("PyG-ModelNet10")


def raw_of(record: DatasetRecord, root: Path) -> Path:
    return root / record.raw.folder / "raw"


# Benchmarking GNNs, TUDataset


def test_folds_of_circles_that_scipy_wrote_in_2019_have_a_graph_of_each_class(tmp_path: Path) -> None:
    circles(CSL, raw_of(CSL, tmp_path), count=50, as_in_2019=True)
    dataset = open_dataset(CSL, tmp_path, "cv-stratifiedkfold-5", split_index=1)
    assert sorted(int(dataset[int(i)].y) for i in dataset.splits.test) == list(range(10))


def test_hand_placed_files_are_not_replaced_by_those_of_an_archive(tmp_path: Path) -> None:
    place(SUBSET, tmp_path)
    raw = raw_of(SUBSET, tmp_path)
    mine = (raw / "test.pickle").read_bytes()
    pack(raw, tmp_path / "ZINC" / "molecules.zip", "molecules")
    write(raw / "val.pickle", mine)
    assert [float(graph.y) * 4 for graph in opened(SUBSET, tmp_path).graphs] == [3, 1, 7, 6]
    assert (raw / "val.pickle").read_bytes() == mine


# MalNet-Tiny


def test_the_names_of_malnet_share_what_was_prepared_and_differ_in_features(tmp_path: Path) -> None:
    place(MALNET, tmp_path)
    columns, made = [], set()
    for record in MALNETS:
        columns.append(open_dataset(record, tmp_path)[5].x.size(1))
        made.add((tmp_path / "MalNetTiny" / "processed" / "data.pt").stat().st_mtime_ns)
    assert columns == [record.features.node for record in MALNETS] == [5, MAX_DEGREE + 1, 1, 1]
    assert len(made) == 1
    assert find("PyG-MalNetTiny", "none").title == find("PyG-MalNetTiny", "Constant").title


@pytest.mark.parametrize(("degree", "column"), [(0, 0), (7, 7), (100, 100), (101, 100), (250, 100)])
def test_degrees_above_the_maximum_share_the_last_column(degree: int, column: int) -> None:
    edges = torch.stack([torch.zeros(degree, dtype=torch.long), torch.arange(1, degree + 1)])
    x = featurize(Data(x=torch.zeros(degree + 1, 3), edge_index=edges), "OneHotDegree").x
    assert x.shape == (degree + 1, MAX_DEGREE + 1)
    assert x[0].nonzero().flatten().tolist() == [column]
    assert x.sum(1).tolist() == [1] * (degree + 1)


# Point clouds


@pytest.mark.parametrize(
    "head",
    ["OFF\n{} 2 0\n", "OFF{} 2 0\n", "OFF {} 2 0\n", "# a\nOFF # b\n\n{} 2 0\n# vertices\n", "OFF\r\n{} 2 0\r\n"],
    ids=["plain", "glued", "one line", "comments", "windows"],
)
def test_every_form_of_the_header_of_a_mesh_is_read(tmp_path: Path, head: str) -> None:
    write(tmp_path / "a.off", head.format(3) + "0 0.5 1\n1 2 3\n4 5 6\n3 0 1 2\n")
    assert vertices(tmp_path / "a.off").tolist() == [[0, 0.5, 1], [1, 2, 3], [4, 5, 6]]


BAD_MESHES = {
    "ply\nformat ascii 1.0\n": "begins with OFF, this one with 'ply'",
    "OFF\n3 0 0\n0 0 0\n1 1 1\n": "it says 3 vertices and holds 2",
    "OFF\n3 0 0\n0 0 0\n0 0 nan\n1 1 1\n": "NaN",
    "OFF\n0 0 0\n": r"found shape \(0, 3\)",
    "OFF\nmany\n": "invalid literal",
    "OFF\n3 0 0\n0 0\n1 1\n2 2\n": "expected 3 columns, found 2",
}
BAD_POINTS = {
    "0 0 0 0 0 1 50\n": "labels must be whole numbers from 0 to 49",
    "0 0 0 0 0 1 0.5\n": "labels must be",
    "0 0 0 0 nan 1 3\n": "NaN or infinite",
    "0 0 0 0 0 1 1 1\n": "expected 7 columns, found 8",
    "": r"found shape \(0, 6\)",
}
BAD_CLOUDS = [(MODELNET, "bed/train/bed_0004.off", content, message) for content, message in BAD_MESHES.items()]
BAD_CLOUDS += [
    (find("PyG-ShapeNet"), "03001627/object4.txt", 3 * line, message) for line, message in BAD_POINTS.items()
]


@pytest.mark.parametrize(("record", "file", "content", "message"), BAD_CLOUDS)
def test_a_cloud_that_cannot_be_right_is_named(
    record: DatasetRecord, file: str, content: str, message: str, tmp_path: Path
) -> None:
    place(record, tmp_path)
    write(raw_of(record, tmp_path) / file, content)
    with pytest.raises(DataError, match=rf"{Path(file).name} cannot be used \(.*{message}.*\); it was renamed to"):
        opened(record, tmp_path)


def test_area_six_tests_and_random_blocks_validate_whatever_the_seed(tmp_path: Path) -> None:
    splits = []
    for seed in (0, 7):
        place(S3DIS, tmp_path / str(seed))
        splits.append([part.tolist() for part in opened(S3DIS, tmp_path / str(seed), seed=seed).splits])
    assert splits[0] == splits[1]
    train, val, test = splits[0]
    assert test == [number for number, area in enumerate(AREAS) if area == 6]
    assert (len(train), len(val)) == (32, 8)
    assert val == sorted(val) != sorted(train + val)[:8]  # drawn, not the first ones
    assert opened(S3DIS, tmp_path / "7", seed=7, split_mode="random").splits.test.tolist() != test


def test_distances_share_the_prepared_points_and_neighbours_are_kept_on_request(tmp_path: Path) -> None:
    place(S3DIS, tmp_path)
    plain, dataset = opened(S3DIS, tmp_path), opened(DISTANCES, tmp_path)
    assert sorted(path.name for path in (tmp_path / "S3DIS/processed").glob("*.db")) == ["points.db"]
    stored = opened(replace(DISTANCES, load=partial(DISTANCES.load, cache=True)), tmp_path)
    assert (tmp_path / "S3DIS/processed/neighbors-32.db").exists()
    for number in (0, 5, 47):
        graph, (source, target) = dataset.graphs[number], dataset.graphs[number].edge_index
        assert torch.equal(graph.edge_index, plain.graphs[number].edge_index)
        torch.testing.assert_close(graph.edge_attr, (graph.pos[source] - graph.pos[target]).norm(dim=1)[:, None])
        for key in ("edge_index", "edge_attr"):
            assert torch.equal(stored.graphs[number][key], graph[key])


def rooms(count: int, root: Path) -> None:
    write(root / "S3DIS/raw/room_filelist.txt", "Area_1_office_1\n" * count)


@pytest.mark.parametrize(
    ("record", "change", "message"),
    [
        (
            MODELNET,
            lambda root: next((root / "ModelNet10/raw/sofa/test").iterdir()).unlink(),
            "^ModelNet10: raw/sofa/test holds no .off files",
        ),
        (S3DIS, lambda _: sys.modules.update(h5py=None), "^S3DIS: .*pip install h5py"),
        (S3DIS, partial(rooms, 49), "49 rooms for 48 blocks"),
        (S3DIS, partial(rooms, 47), "1 rooms left"),
    ],
)
def test_files_of_clouds_that_do_not_fit_together_are_one_line(
    record: DatasetRecord, change: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(record, tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", sys.modules["h5py"])
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        opened(record, tmp_path)


# The embedded digits


def test_digits_are_images_whose_split_never_changes() -> None:
    record, source = find("sklearn", "digits"), load_digits()
    digits = open_dataset(record, root="a folder that is never made")
    info = DatasetInfo.of(digits, record)
    assert (info.dim_in, info.dim_edge, info.dim_out, info.sizes, info.directed) == (3, 0, 10, (1078, 359, 360), True)
    assert (round(info.mean_nodes, 2), round(info.mean_edges, 2)) == (32.69, 261.48)
    for number in (0, 7, 1796):
        graph = digits[number]
        column, row = ((graph.pos * torch.tensor([1, -1]) + 1) * 4 - 0.5).long().T
        image = torch.zeros(8, 8)
        image[row, column] = graph.x[:, 2] * 16
        torch.testing.assert_close(image, torch.from_numpy(source.images[number]).float(), rtol=0, atol=0)
        assert graph.y.tolist() == [source.target[number]]
        torch.testing.assert_close(KNNGraph(8)(graph).edge_index, graph.edge_index)
    firsts = [part[:5].tolist() for part in digits.splits]
    expected = [[2, 3, 5, 6, 7], [0, 1, 11, 21, 24], [4, 10, 17, 28, 32]]
    assert firsts == expected, "a new split would make old results incomparable"


# Open Graph Benchmark


def test_the_numbers_of_categories_of_atoms_and_bonds_are_those_of_ogb() -> None:
    assert list(ATOM) == features.get_atom_feature_dims()
    assert list(BOND) == features.get_bond_feature_dims()


def test_no_module_of_data_sets_imports_ogb_which_would_ask_the_network_for_newer_releases() -> None:
    code = "import sys, graphgps_kmip.data; sys.exit('ogb' in sys.modules or 'outdated' in sys.modules)"
    assert preloaded("-c", code).returncode == 0


@pytest.mark.parametrize("block", [1, 2, 1000])
@pytest.mark.parametrize("record", [HIV, PPA], ids=lambda record: record.name)
def test_tables_are_read_as_ogb_itself_reads_them(
    record: DatasetRecord, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogb_tables, "BLOCK", block)
    place(record, tmp_path)
    expected = read_graph_pyg(str(raw_of(record, tmp_path)), add_inverse_edge=True)
    for graph, of_ogb in zip(opened(record, tmp_path).graphs, expected, strict=True):
        assert graph.num_nodes == of_ogb.num_nodes
        for key in ("edge_index", "edge_attr", *(["x"] if "x" in of_ogb else [])):
            torch.testing.assert_close(graph[key], of_ogb[key])


def test_ppa_with_fewer_edges_than_its_graphs_have_is_refused(tmp_path: Path) -> None:
    place(PPA, tmp_path)
    write_tables(raw_of(PPA, tmp_path), {"edge-feat": [[1.0] * 7] * 2})
    with pytest.raises(DataError, match=r"edge-feat\.csv\.gz cannot be used \(it has fewer rows than num-edge-list"):
        opened(PPA, tmp_path)


def test_a_processed_file_of_another_origin_and_a_split_in_a_file_of_torch_are_not_read(tmp_path: Path) -> None:
    place(HIV, tmp_path)
    folder = tmp_path / HIV.raw.folder
    for name in ("processed/geometric_data_processed.pt", "split/scaffold/split_dict.pt"):
        write(folder / name, Code(tmp_path / "it-ran"))
    assert [part.tolist() for part in opened(HIV, tmp_path).splits] == [[2], [0], [1]]
    assert not (tmp_path / "it-ran").exists()


def test_the_vocabulary_of_code2_is_kept_and_ends_after_five_thousand_words(tmp_path: Path) -> None:
    place(CODE, tmp_path)
    opened(CODE, tmp_path)
    stored = tmp_path / CODE.raw.folder / "processed" / "vocabulary.json"
    assert json.loads(stored.read_text()) == ["get", "item"]  # of the training graphs
    stored.write_text(json.dumps(["item"]))
    assert opened(CODE, tmp_path).graphs[0].y.tolist() == [[UNKNOWN, 0, END, END, END]]
    message = vocabulary([[f"word{number}"] * (2 if number == 6000 else 1) for number in range(6001)])
    assert (len(message), message[:2], message[-1]) == (5000, ["word6000", "word0"], "word4998")
    assert (UNKNOWN, END, CODE.features.classes) == (5000, 5001, 5002)
    assert SyntaxNodeEncoder(8)(sampled(CODE).load("").graphs[0]).x.shape[1] == 8


def test_the_graphs_of_collab_share_features_and_the_negatives_of_training_are_the_same_in_every_run(
    tmp_path: Path,
) -> None:
    place(COLLAB, tmp_path)
    first = opened(COLLAB, tmp_path)
    assert len({graph.x.data_ptr() for graph in first.graphs}) == 1
    pairs = first.graphs[0].edge_label_index
    assert pairs[:, :4].T.tolist() == [[0, 1], [1, 2], [3, 1], [0, 1]]
    torch.rand(7)
    torch.testing.assert_close(opened(COLLAB, tmp_path).graphs[0].edge_label_index, pairs)
    with pytest.raises(ValueError, match="ogbl-collab divides the pairs of nodes of one graph: set standard"):
        open_dataset(COLLAB, tmp_path, "random")


def test_negatives_are_no_edges_in_either_direction_and_no_loops() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 0] * 40, [1, 2, 3, 0, 0] * 40])  # a ring of four: two pairs are free
    drawn = random_negatives(edges, 4, seed=0)
    assert drawn.shape == (2, 200)
    assert {frozenset(pair) for pair in drawn.T.tolist()} == {frozenset((0, 2)), frozenset((1, 3))}
    assert not torch.equal(drawn, random_negatives(edges, 4, seed=1))
    with pytest.raises(ValueError, match="there are no negatives to draw"):
        random_negatives(torch.tensor([[0, 0, 1, 2], [1, 2, 2, 2]]), 3, seed=0)


# PCQM4Mv2

FULL_PCQM, SUBSET_PCQM, INFERENCE = PCQM


@pytest.fixture
def chemistry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the raw files of 24 molecules, of which 6, not 150,000, validate; return the folder of all data sets."""
    monkeypatch.setattr(ogb, "VALIDATION", 6)
    monkeypatch.setattr(ogb, "SUBSET_VALIDATION", 2)
    place(FULL_PCQM, tmp_path)
    return tmp_path


def path_of_letters(smiles: str) -> dict[str, np.ndarray]:
    atoms = np.arange(len(smiles))
    bonds = np.stack([atoms[:-1], atoms[1:]])
    return {
        "x": (atoms % 2)[:, None].repeat(9, axis=1),
        "edge_index": np.concatenate([bonds, bonds[::-1]], axis=1),
        "edge_attr": np.ones((2 * bonds.shape[1], 3), dtype=np.int64),
    }


def labels(record: DatasetRecord, root: Path) -> list[list[float]]:
    dataset = opened(record, root)
    return [[float(dataset[index].y) for index in part.tolist()] for part in dataset.splits]


def test_parts_of_pcqm_are_drawn_from_training_and_unknown_gaps_are_nan(
    chemistry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogb, "molecule", path_of_letters)  # no RDKit is asked for
    train, val, test = labels(FULL_PCQM, chemistry)
    assert (len(train), len(val), test) == (12, 6, [9.0, 9.5])
    assert sorted(train + val) == [number / 2 for number in range(18)]
    assert sorted(val) == sorted(np.random.default_rng(42).permutation(18)[:6] / 2)  # as GraphGPS draws them
    subset = labels(SUBSET_PCQM, chemistry)
    assert [len(part) for part in subset] == [1, 2, 2]
    assert set(subset[0]) < set(train)
    assert set(subset[1]) < set(val)
    assert subset[2] == test
    valid, dev, challenge = labels(INFERENCE, chemistry)
    assert valid == test
    assert all(map(math.isnan, [*dev, *challenge]))


def test_atoms_and_bonds_have_the_categories_of_ogb(chemistry: Path) -> None:
    pytest.importorskip("rdkit", reason="RDKit, which makes graphs of molecules, is not installed")
    dataset = opened(INFERENCE, chemistry)
    graph = dataset[2]  # the first of test-dev: ethene
    carbon = [5, 0, 3, 5, 2, 0, 1, 0, 0]  # element 6, no chirality, 3 neighbours with hydrogens, no charge, 2 H, sp2
    assert graph.x.tolist() == [carbon, carbon]
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_attr.tolist() == [[1, 0, 0]] * 2  # a double bond
    assert opened(FULL_PCQM, chemistry)[0].edge_index.shape == (2, 0)  # methane
    write(raw_of(FULL_PCQM, chemistry) / "data.csv.gz", gzip.compress(b"idx,smiles,homolumogap\n0,C1C,1.0\n"))
    with pytest.raises(DataError, match=r"data\.csv\.gz cannot be used"):
        opened(FULL_PCQM, chemistry)


def test_without_rdkit_one_line_says_how_to_install_it(chemistry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rdkit", "rdkit.Chem", "ogb.utils.mol"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match="RDKit.*is not installed: pip install rdkit"):
        opened(FULL_PCQM, chemistry)


def test_the_parts_of_pcqm_have_the_published_sizes() -> None:
    ends = np.cumsum([3378606, 73545, 147037, 147432])
    official = dict(zip(OFFICIAL, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    for record in PCQM:
        parts = ogb._pcqm_splits(official, record.name.removeprefix("PCQM4Mv2-"))
        assert tuple(map(len, parts)) == record.statistics.sizes
