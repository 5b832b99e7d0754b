"""Our configs compute what the public files that they cite compute with their own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

import graphgps_kmip.gym  # noqa: F401 (registers the networks)
from tests.whole.whole_models import compare_with_quirks
from tests.whole.whole_records import all_names, fixture_names, load_record

CONFIGS = Path(__file__).parents[2] / "configs"
RECORDED = {*fixture_names(), *all_names()}
# Heads of configs name files of the thesis by their paths; those of the other codes are these.
CITED = {
    "LRGB/coco-gine": "L__configs__LRGB-tuned__coco-GINE",
    "LRGB/coco-transformer": "L__configs__LRGB-tuned__coco-GPS",
    **{
        f"LRGB/pascalvoc-{ours}": f"L__configs__LRGB-tuned__vocsuperpixels-{theirs}"
        for ours, theirs in (("gcn", "GCN"), ("gatedgcn", "GatedGCN"), ("transformer", "GPS"))
    },
    **{
        f"LRGB/peptides-{kind}-{ours}": f"L__configs__LRGB-tuned__peptides-{kind}-{theirs}"
        for kind in ("func", "struct")
        for ours, theirs in (("gine", "GINE"), ("gcn", "GCN"), ("transformer", "GPS"))
    },
    "LRGB/coco-exphormer": "E__configs__Exphormer__coco",
    "LRGB/pascalvoc-exphormer": "E__configs__Exphormer__voc",
    "LRGB/peptides-func-exphormer": "E__configs__Exphormer_LRGB__Peptides_Func",
    "LRGB/peptides-struct-exphormer": "E__configs__Exphormer_LRGB__Peptides_Struct",
}  # fmt: skip
# What a config has otherwise than its file, and its head says: the file's value is set for the comparison.
OTHERWISE = {
    **dict.fromkeys([f"Node/computers-{name}" for name in ("transformer", "exphormer", "bigbird")], {"gt.n_heads": 4}),
    # The files predict one label for a graph, the data has one for a point.
    **dict.fromkeys(
        [f"LargeGraphs/{data}-{name}" for data in ("s3dis", "shapenet") for name in ("gat", "gatedgcn", "gcn", "gine")],
        {"gnn.head": "graph"},
    ),
}


def cited() -> dict[str, str]:
    """Return config -> record, of those whose record is at hand."""
    names = dict(CITED)
    for file in CONFIGS.rglob("*.yaml"):
        head = " ".join(line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#"))
        match = re.search(r"(configs/\S+)\.yaml of JonasDeSchouwer/MSc-thesis", head)
        if match:
            name = file.relative_to(CONFIGS).with_suffix("").as_posix()
            names[name] = f"K__{match[1].replace('/', '__')}"
    return {config: name for config, name in sorted(names.items()) if name in RECORDED}


@pytest.fixture(autouse=True)
def _open_again() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize("config", cited())
def test_a_config_computes_what_the_file_that_it_cites_computes(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, record = load_record(cited()[config])
    result, _ = compare_with_quirks(CONFIGS / f"{config}.yaml", record, monkeypatch, **OTHERWISE.get(config, {}))
    assert result.problems() == []
