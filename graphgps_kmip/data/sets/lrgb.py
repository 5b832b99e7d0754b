"""Long Range Graph Benchmark: images as graphs of superpixels, peptides, and contacts between atoms of molecules."""

from __future__ import annotations

from functools import partial
from typing import Any

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, join_parts
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND

REGION_BOUNDARY = "edge_wt_region_boundary"
SUPERPIXELS: dict[str, Any] = {
    "task_type": "classification",
    "level": "inductive_node",
    "metric": "f1",
    "loss": "weighted_cross_entropy",
}
PEPTIDES: dict[str, Any] = {
    "level": "graph",
    "split": "official: 70 / 15 / 15 % at random, stratified by the peptides' functions",
    "statistics": Statistics(15535, 150.94, 307.30, directed=False, sizes=(10873, 2331, 2331)),
}

CITATION = (
    "Dwivedi, Rampášek, Galkin, Parviz, Wolf, Luu and Beaini, Long Range Graph Benchmark, NeurIPS Datasets and "
    "Benchmarks 2022"
)
KEYS = {  # of the archives in Dropbox
    "PascalVOC-SP": "8x722ai272wqwl4",
    "COCO-SP": "r6ihg1f4pmyjjy0",
    "PCQM-Contact": "qdag867u6h6i60y",
    "Peptides-func": "ycsq37q8sxs1ou8",
    "Peptides-struct": "zgv4z8fcpmknhs8",
}


def load(home: str, name: str) -> GraphDataset:
    """Return the three official parts; "PCQM-Contact" has no ``y``, but ``edge_label`` (L,) of ``edge_label_index``."""
    from torch_geometric.datasets import LRGBDataset

    return join_parts([LRGBDataset(home, name, split) for split in SPLITS])


def _record(dataset: tuple[str, str], title: str, licence: str, ending: str = "pt", **facts: Any) -> DatasetRecord:
    low = title.lower()
    archive = f"{low.replace('-', '')}.zip"
    return DatasetRecord(
        format=dataset[0],
        name=dataset[1],
        title=title,
        load=partial(load, name=title),
        source=Source(CITATION, licence, "github.com/vijaydwivedi75/lrgb"),
        raw=RawFiles(
            "LRGBDataset",
            tuple(f"raw/{split}.{ending}" for split in SPLITS),
            base=low,
            urls={archive: f"https://www.dropbox.com/s/{KEYS[title]}/{archive}?dl=1"},
        ),
        **facts,
    )


RECORDS = (
    _record(
        ("PyG-VOCSuperpixels", REGION_BOUNDARY),
        "PascalVOC-SP",
        "that of Pascal VOC 2011, which respects the terms of Flickr",
        "pickle",
        split="official: training images of Pascal VOC 2011; its validation images halved into validation and test, "
        "stratified by the class, background aside, of most superpixels",
        summary="11,355 photographs as graphs of superpixels, each of one of 20 kinds of objects or background",
        features=Features(node=14, edge=2, classes=21),
        statistics=Statistics(11355, 479.40, 2710.48, directed=False, sizes=(8498, 1428, 1429)),
        **SUPERPIXELS,
    ),
    _record(
        ("PyG-COCOSuperpixels", REGION_BOUNDARY),
        "COCO-SP",
        "CC BY 4.0",
        "pickle",
        split="official: validation images of MS COCO 2017 test; 5,000 of its training images validate",
        summary="123,286 photographs as graphs of superpixels, each of one of 80 kinds of objects or background",
        features=Features(node=14, edge=2, classes=81),
        statistics=Statistics(123286, 476.88, 2693.67, directed=False, sizes=(113286, 5000, 5000)),
        **SUPERPIXELS,
    ),
    _record(
        ("OGB", "peptides-functional"),
        "Peptides-func",
        "CC BY-NC 4.0",
        task_type="classification_multilabel",
        metric="ap",
        loss="cross_entropy",
        summary="15,535 peptides, each with any of 10 functions",
        features=Features(node=ATOM, edge=BOND, classes=10),
        **PEPTIDES,
    ),
    _record(
        ("OGB", "peptides-structural"),
        "Peptides-struct",
        "CC BY-NC 4.0",
        task_type="regression",
        metric="mae",
        loss="l1",
        summary="15,535 peptides, each with 11 properties of its shape",
        features=Features(node=ATOM, edge=BOND, classes=11),
        **PEPTIDES,
    ),
    _record(
        ("OGB", "PCQM4Mv2Contact-shuffle"),
        "PCQM-Contact",
        "CC BY 4.0",
        task_type="link_ranking",
        level="link",
        metric="mrr",
        loss="cross_entropy",
        split="official: 90 / 5 / 5 % at random",
        summary="529,434 molecules, with the pairs of distant atoms that touch in space",
        features=Features(node=ATOM, edge=BOND),
        # The sizes follow from the publisher's rule and the number of graphs.
        statistics=Statistics(529434, 30.14, 61.09, directed=False, sizes=(476490, 26472, 26472)),
    ),
)
