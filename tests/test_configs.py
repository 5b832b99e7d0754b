"""Every YAML of the project loads; it builds, says the truth at its head, and takes two steps."""

from __future__ import annotations

import itertools
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg, load_cfg, set_cfg
from torch_geometric.graphgym.optim import create_optimizer
from yacs.config import CfgNode

from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.data import make_loaders
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import AttentionScores
from graphgps_kmip.gym import network_building
from graphgps_kmip.gym.attention_saving import collect_scores
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import Parts, assemble
from graphgps_kmip.gym.network_building import NARROWEST
from graphgps_kmip.gym.planned_runs import configured, estimator_config, planned_runs
from graphgps_kmip.gym.sparse_loading import is_sparse, layer_degrees
from graphgps_kmip.gym.train_modes import current_task

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")
ROOT = Path(__file__).parents[1]
FILES = sorted(path.relative_to(ROOT) for folder in ("configs", "examples") for path in (ROOT / folder).rglob("*.yaml"))
# Cells of the papers' tables by benchmark, those of out-of-memory runs included, and runs of no table.
CELLS = {"City-Networks": 35, "LRGB": 36, "LargeGraphs": 16, "Node": 9, "PointClouds": 24, "SmallGraphs": 36}
OTHERS = {
    **{"LRGB": 5, "Molecules": 4, "Node": 2, "SmallGraphs": 14, "examples": 3},
    **{"quickstart": 7, "Citation": 16, "Heterophilous": 22, "BREC": 6},
    "LongRange": 23,
    "LowWidth": 66,
    "GECO": 16,
    "Fair": 2,
}
KEPT = ("configs/quickstart", "examples")  # their data needs no files
# k-MIP paper, table 2: whose code made the numbers of a row.
LRGB_DIALECTS = {"gcn": "lrgb", "gine": "lrgb", "gatedgcn": "lrgb", "transformer": "lrgb", "exphormer": "exphormer"}
LRGB_DIALECTS |= {"ppgt": "", "grit": ""}
# PPGT paper, tables 6 to 8: parameters of its models, in print rounded to thousands; GRIT's by its public code.
PAIR_MODELS = {
    "SmallGraphs/zinc-ppgt": 487_425,
    "SmallGraphs/mnist-ppgt": 102_138,
    "SmallGraphs/cifar10-ppgt": 108_218,
    "SmallGraphs/pattern-ppgt": 495_425,
    "SmallGraphs/cluster-ppgt": 495_678,
    "LRGB/peptides-func-ppgt": 509_442,
    "LRGB/peptides-struct-ppgt": 488_219,
    "BREC/ppgt": 874_032,
    "BREC/i2gin-ppgt": 1_002_774,
    "Molecules/pcqm4mv2-ppgt": 17_634_225,
    "SmallGraphs/zinc-grit": 473_473,
    "SmallGraphs/mnist-grit": 102_138,
    "SmallGraphs/cifar10-grit": 99_486,
    "SmallGraphs/pattern-grit": 477_953,
    "SmallGraphs/cluster-grit": 431_670,
    "LRGB/peptides-func-grit": 443_434,
    "LRGB/peptides-struct-grit": 449_579,
}

# Hybrids of the GECO paper that keep to a budget, or to a printed number, of parameters.
WIDTH = re.compile(r"[Ww]idth (\d+)[ ,(]+([\d,]+) parameters")
HYBRIDS = [file for file in FILES if "GECO" in file.parts and "parameters." in (ROOT / file).read_text()]


def overrides(file: Path) -> list[str]:
    sample = not str(file).startswith(KEPT)
    return ["train.batch_size", "4", "num_threads", "1", "dataset.sample", str(sample)]


def benchmark(file: Path) -> str:
    return file.parts[1] if file.parts[0] == "configs" else "examples"


def method(file: Path) -> str:
    return file.stem.rsplit("-", 1)[-1]


def head(file: Path) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("#"), (ROOT / file).read_text().splitlines())
    return " ".join(line.removeprefix("# ") for line in lines)


def built(file: Path) -> tuple[int, int]:
    load_config(cfg, ROOT / file, overrides(file))
    with configured(planned_runs(1)[0]):
        return size(assemble_parts(file))


def assemble_parts(file: Path) -> Parts:
    """Return the parts of a run; a width within a budget is searched among the one that the file says and the next."""
    said = WIDTH.search(head(file)) if cfg.model.auto_satisfy_param_budget else None
    if said is None:
        return assemble()
    width = int(said[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_building, "NARROWEST", width)
        patch.setattr(network_building, "WIDEST", width + cfg.gt.n_heads)
        parts = assemble()
    assert size(parts)[1] <= cfg.model.param_budget or width == NARROWEST
    return parts


def untrained_scores() -> AttentionScores:
    """Return the scores of the estimator that a sparse network's config names, as it is before its training."""
    with estimator_config(["dataset.sample", "True"]):
        parts = assemble()
        layers, kinds = collect_scores(parts.model, parts.dataset.graphs[0], 0)
    return AttentionScores(layers, {"kinds": ", ".join(kinds)})


def training_batches(parts: Parts, scores: AttentionScores | None) -> Iterable[Data]:
    if scores is None:
        return make_loaders(parts.dataset, parts.info.level, cfg.train.batch_size, seed=0)[0]
    sampling = LayerSampling(tuple(layer_degrees(cfg)), cfg.spexphormer.sampler, cfg.train.batch_size)
    return LayerLoader(parts.dataset.graphs[0], "train", scores, sampling)


def size(parts: Parts) -> tuple[int, int]:
    return parts.config.gnn.dim_inner, sum(parameter.numel() for parameter in parts.model.parameters())


def check_head(file: Path, numbers: tuple[int, int]) -> None:
    said = WIDTH.search(head(file))
    assert said is not None
    assert (int(said[1]), int(said[2].replace(",", ""))) == numbers


def cover(files: list[Path]) -> set[Path]:
    """Return few of the files, with every benchmark and every method among them."""
    missing = {entry for file in files for entry in (benchmark(file), method(file))}
    numbers = set()
    while missing:
        best = max(files, key=lambda file: len(missing & {benchmark(file), method(file)}))
        numbers.add(best)
        missing -= {benchmark(best), method(best)}
    return numbers


FIRST = set({(benchmark(file), method(file)): file for file in reversed(FILES)}.values())  # of a benchmark and method
PAPER = [file for file in FILES if benchmark(file) in ("LRGB", "City-Networks")]
FEW = cover(sorted(FIRST))


def tiered(files: list[Path]) -> list[Any]:
    """Return files as parameters: a few by default, the first of each benchmark and method in thorough runs."""
    marks = {True: [], False: [pytest.mark.thorough]}
    return [
        pytest.param(file, id=str(file), marks=marks[file in FEW] if file in FIRST else [pytest.mark.slow])
        for file in files
    ]


def test_no_yaml_is_lost() -> None:
    assert sum(CELLS.values()) == 156
    assert Counter(benchmark(file) for file in FILES) == Counter(CELLS) + Counter(OTHERS)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=str(file), marks=[] if file in FIRST else [pytest.mark.thorough])
        for file in FILES
        if file.parts[0] == "configs"
    ],
)
def test_a_yaml_is_whole_so_that_graphgyms_own_main_loads_it_and_in_the_dialect_of_its_numbers(file: Path) -> None:
    load_config(cfg, ROOT / file, [])
    if file in PAPER:
        assert cfg.dialect == (LRGB_DIALECTS if benchmark(file) == "LRGB" else {}).get(method(file), "kmip")
    stock = CfgNode()
    set_cfg(stock)
    load_cfg(stock, Namespace(cfg_file=str(ROOT / file), opts=[]))
    # A path from the folder of the file, which our main finds; GraphGym's takes it from the working folder.
    stock.spexphormer.estimator = cfg.spexphormer.estimator
    if not cfg.pretrained.dir:  # then nothing reads the rest of its group
        stock.pretrained = cfg.pretrained
    if "PNA" not in cfg.gt.layer_type:
        stock.gt.pna = cfg.gt.pna
    assert dict(flatten(stock)) == dict(flatten(cfg))


def test_heads_say_how_to_run_the_files() -> None:
    assert [file for file in PAPER if f"Command: python main.py --cfg {file}" not in head(file)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("file", [file for file in PAPER if file not in FIRST], ids=str)
def test_a_head_says_width_and_parameters_of_the_model(file: Path) -> None:
    check_head(file, built(file))  # of those in FIRST below, where they are built anyway


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.thorough] if "SmallGraphs/" in run else []) for run in PAIR_MODELS]
)
def test_a_model_over_pairs_has_the_number_of_parameters_of_its_public_code(run: str) -> None:
    file = Path("configs", f"{run}.yaml")
    _, parameters = built(file)
    assert parameters == PAIR_MODELS[run]
    assert f"{parameters:,} parameters" in head(file)


@pytest.mark.parametrize(
    "file",
    [pytest.param(path, id=path.stem, marks=[] if "mv2" in path.stem else [pytest.mark.thorough]) for path in HYBRIDS],
)
def test_a_head_of_a_hybrid_of_geco_says_width_and_parameters_of_the_model(file: Path) -> None:
    numbers = built(file)
    check_head(file, numbers)
    assert round(numbers[1] / 1e6, 1) == 6.2 if "mv2" in file.stem else numbers[1] <= 500_000


@pytest.mark.thorough
@pytest.mark.parametrize("file", [file for file in FILES if file not in FIRST.union(PAPER)], ids=str)
def test_a_yaml_builds(file: Path) -> None:
    assert min(built(file)) > 0


@pytest.mark.parametrize("file", tiered(FILES))
def test_a_yaml_takes_two_steps(file: Path) -> None:
    load_config(cfg, ROOT / file, overrides(file))
    scores = untrained_scores() if is_sparse(cfg) else None
    with configured(planned_runs(1)[0]):
        parts = assemble_parts(file)
        if file in PAPER:
            check_head(file, size(parts))
        assert cfg.is_frozen()
        task = current_task(parts.info.dim_out)
        optimizer = create_optimizer(parts.model.parameters(), cfg.optim)
        loader = training_batches(parts, scores)
        # GCN and GAT have no use for edge features.
        learning = [p for name, p in parts.model.named_parameters() if "encoder.edge." not in name]
        before = [parameter.detach().clone() for parameter in learning]
        for batch in itertools.islice(loader, 2):
            batch.split = "train"
            total, weight = task.loss(*parts.model(batch))
            loss = total / weight
            assert torch.isfinite(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        moved = sum(not torch.equal(old, new) for old, new in zip(before, learning, strict=True))
        # The last layer's edge update leads nowhere and has no gradient at all.
        assert moved > 0.9 * len(before)


def test_a_yaml_says_at_its_head_what_it_is() -> None:
    heads = {file: (ROOT / file).read_text().splitlines()[0] for file in FILES}
    assert {file: first for file, first in heads.items() if not first.startswith("# ") or len(first) <= 20} == {}
