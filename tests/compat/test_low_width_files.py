"""Public files of the low-width method run unchanged: both stages, the estimator beside, settings, sizes, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.dialects import quirks_met
from graphgps_kmip.compat.key_translation import SPEXPHORMER, refuse
from graphgps_kmip.data.dataset_record import find
from graphgps_kmip.data.score_file import read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import flatten, load_config
from tests.compat.pair_files import as_tree
from tests.two_stages import record, sample, train

Logs = pytest.LogCaptureFixture
DATA: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "low_width_files.yaml").read_text())
FILES: dict[str, dict[str, Any]] = {row["name"]: row | {"letter": letter} for letter, row in DATA["files"].items()}
ESTIMATORS = [name for name in FILES if name.endswith("_ASE")]
SPARSE = [name for name in FILES if name.endswith("_spexphormer")]
COUNTED = [name for name, row in FILES.items() if "parameters" in row]


def settings_of(name: str) -> dict[str, Any]:
    letter, values = FILES[name]["letter"], DATA["values"].items()
    return {key: yaml.safe_load(text) for key, texts in values for text, files in texts.items() if letter in files}


def write_example(name: str, folder: Path, **changes: Any) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(as_tree(settings_of(name) | changes)))
    return file


def load(name: str, folder: Path, *argv: str, **changes: Any) -> None:
    """Load a public file into GraphGym's config; ``changes`` are made to its text, ``argv`` are the command line's."""
    load_config(cfg, write_example(name, folder, **changes), list(argv))


def test_the_list_of_public_settings_is_whole() -> None:
    assert (len(FILES), len(ESTIMATORS), len(SPARSE)) == (21, 10, 10)
    assert len(DATA["values"]) == 58
    assert sum(len(settings_of(name)) for name in FILES) == 984


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_in_its_dialect_refused_by_nothing_and_has_a_data_set(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    refuse(dict(flatten(cfg)))
    assert (cfg.dialect, cfg.model.type, cfg.train.mode) == ("spexphormer", "Spexphormer", "custom")
    assert find(cfg.dataset.format, cfg.dataset.name).level == "node"
    several_heads = name in SPARSE and settings_of(name)["gt.n_heads"] > 1
    assert ("spexphormer_mixed_heads" in quirks_met(cfg)) == several_heads


@pytest.mark.parametrize("name", FILES)
def test_the_network_of_a_file_is_built_and_has_the_public_number_of_parameters(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    cfg.share.dim_in, cfg.share.dim_out = FILES[name].get("dims", (9, 4))
    with torch.device("meta"):
        model = create_model(to_device=False)
    assert model.model.sampled == (name in SPARSE)
    if name in COUNTED:
        assert sum(parameter.numel() for parameter in model.parameters()) == FILES[name]["parameters"]


CHOSEN: dict[str, dict[str, Any]] = {
    "actor_ASE": {
        "gt.layer_type": "ASE",
        "gt.score_estimator.temp_ratio": 0.99,
        "gt.score_estimator.temp_min": 0.05,
        "gt.score_estimator.temp_wait": 20,
        "gt.score_estimator.use_edge_types": True,
        "gt.graph_norm": True,
        "gt.layer_norm": False,
        "gt.batch_norm": False,
        "gnn.dim_inner": 4,
        "prep.exp_algorithm": "Hamiltonian",
        "prep.exp_deg": 15,
        "prep.add_reverse_edges": False,
        "dataset.normalize_features": True,
        "train.ckpt_best": True,
    },
    "actor_exphormer": {"gt.layer_type": "Exphormer", "gnn.dim_inner": 64, "prep.exp": True},
    "actor_spexphormer": {
        "gt.layer_type": "Spexphormer",
        "spexphormer.degree": [2, 2, 2],
        "spexphormer.sampler": "graph_reservoir",
        "spexphormer.resampling_epochs": 1,
        "spexphormer.repeat_missing": True,
        "spexphormer.estimator_seed": 0,
        "prep.exp": False,
        "train.batch_size": 10000,
        "gnn.head": "inductive_node",
    },
    "CS_spexphormer": {"dataset.split_mode": "random", "dataset.split_seed": 0, "dataset.split": [0.6, 0.2, 0.2]},
    "tolokers_ASE": {"gt.score_estimator.temp_ratio": 1.0, "prep.add_reverse_edges": True},
    "pokec_spexphormer": {"prep.add_reverse_edges": False, "spexphormer.degree": [20, 20]},
}


@pytest.mark.parametrize("name", CHOSEN)
def test_keys_of_a_file_mean_ours(name: str, tmp_path: Path) -> None:
    load(name, tmp_path)
    values = dict(flatten(cfg))
    assert {key: values[key] for key in CHOSEN[name]} == CHOSEN[name]


@pytest.mark.parametrize("name", SPARSE)
def test_the_estimator_of_a_sparse_network_is_the_file_beside_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name.replace("_spexphormer", "_ASE.yaml")).touch()
    load(name, tmp_path)
    estimator = Path(cfg.spexphormer.estimator)
    assert estimator.name == name.replace("_spexphormer", "_ASE.yaml")
    assert estimator.parent.resolve() == tmp_path.resolve()
    load(name, tmp_path, "spexphormer.estimator", "other.yaml")
    assert Path(cfg.spexphormer.estimator).name == "other.yaml"
    load(name, tmp_path, "spexphormer.scores", "scores.pt")
    assert cfg.spexphormer.estimator == ""


def test_numbers_of_edges_are_those_of_the_first_layers(tmp_path: Path) -> None:
    degree = "train.edge_sample_num_neighbors"
    load("actor_spexphormer", tmp_path, **{degree: [6, 5, 4, 3]})
    assert cfg.spexphormer.degree == [6, 5, 4]
    settings = settings_of("actor_spexphormer")
    settings.pop(degree)
    assert SPEXPHORMER.derive(settings)["spexphormer.degree"] == [6, 4, 4]  # the default of the public code
    assert SPEXPHORMER.derive(settings | {"gt.layers": 5})["spexphormer.degree"] == [6, 4, 4, 4, 4]


def test_the_command_line_wins_by_their_keys_and_by_ours(tmp_path: Path) -> None:
    load("minesweeper_ASE", tmp_path, "train.temp_wait", "7", "gt.score_estimator.temp_min", "0.2")
    options = cfg.gt.score_estimator
    assert (options.temp_wait, options.temp_min, options.temp_ratio) == (7, 0.2, 0.99)
    load("minesweeper_spexphormer", tmp_path, "spexphormer.degree", "[4]", "gt.dim_hidden", "8")
    assert (cfg.spexphormer.degree, cfg.gnn.dim_inner) == ([4], 8)
    load("actor_ASE", tmp_path, "prep.add_reverse_edges", "True")
    assert cfg.prep.add_reverse_edges


@pytest.mark.parametrize("name", ["minesweeper_ASE", "actor_spexphormer"])
def test_the_written_config_of_a_file_loads_as_itself(name: str, tmp_path: Path) -> None:
    load(name, tmp_path, "gt.score_estimator.temp_wait", "7", "spexphormer.degree", "[3]")
    before, written = dict(flatten(cfg)), tmp_path / "written.yaml"
    written.write_text(cfg.dump().replace(f"run_dir: {cfg.run_dir}\n", ""))
    load_config(cfg, written, [])
    assert dict(flatten(cfg)) == before


@pytest.mark.parametrize(
    ("key", "value", "warned"),
    [
        ("prep.replace_combined_exp_edges", True, False),
        ("train.sample_new_edges", True, False),
        ("train.save_attention_scores", False, False),
        ("prep.num_edge_sets", 3, True),
        ("gt.activation", "gelu", True),
    ],
)
def test_keys_without_effect_are_named(key: str, value: object, warned: bool, tmp_path: Path, caplog: Logs) -> None:
    with caplog.at_level("INFO"):
        load("minesweeper_ASE", tmp_path, **{key: value})
    [line] = [record for record in caplog.records if f"{key} {value}" in record.getMessage()]
    assert "no part of this package reads" in line.getMessage()
    assert (line.levelname == "WARNING") == warned


@pytest.mark.parametrize("key", ["gt.JK", "prep.load_edges", "prep.save_edges"])
def test_what_this_package_has_not_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        load("minesweeper_ASE", tmp_path, **{key: True})


@pytest.mark.thorough
@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("name", ["minesweeper", "actor"])
def test_the_public_file_of_a_sparse_network_trains_that_of_its_estimator_first(name: str, tmp_path: Path) -> None:
    """Both files unchanged, on sample data: 4 layers of scores for 3 in Actor's."""
    write_example(f"{name}_ASE", tmp_path)
    file, out = write_example(f"{name}_spexphormer", tmp_path), tmp_path / "out"
    assert train(file, out, "dataset.sample", "True", "optim.max_epoch", "2", "num_threads", "1") == 0
    narrow, wide = (record(out, f"{name}_{stage}") for stage in ("ASE", "spexphormer"))
    assert (narrow["finished"], wide["finished"]) == (True, True)
    layers = read_scores(sample(out) / f"{name}_ASE" / "0" / narrow["scores"]).layers
    assert len(layers) == settings_of(f"{name}_ASE")["gt.layers"]
    assert all(0 < float(layer.score.max()) <= 1 for layer in layers)
    config = (sample(out) / f"{name}_spexphormer" / "0" / "config.yaml").read_text()
    assert f"estimator_hash: {narrow['experiment']}" in config
