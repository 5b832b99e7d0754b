"""Config keys of the low-width method: which runs they count for, where the estimator's YAML is, what reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.estimator_settings import adopt_estimator, estimator_config, shared_words
from graphgps_kmip.gym.sparse_settings import is_estimator, is_sparse, layer_degrees
from tests.two_stages import ESTIMATOR, KMIP, SPARSE, write, write_both

ROOT = Path(__file__).parents[2]
COUNTED = {
    "spexphormer.degree": "[7]",
    "spexphormer.sampler": "graph_uniform",
    "spexphormer.resampling_epochs": "2",
    "spexphormer.repeat_missing": "True",
    "spexphormer.eval_draws": "3",
    "spexphormer.estimator_seed": "1",
}


@pytest.mark.parametrize("key", COUNTED)
def test_each_setting_of_the_samples_counts_for_a_sparse_network_and_for_no_other(key: str, tmp_path: Path) -> None:
    for settings, counts in ((SPARSE, True), (ESTIMATOR, False), (KMIP, False)):
        file = write(tmp_path / "one.yaml", settings)
        load_config(cfg, file, [])
        before = config_hash(cfg)
        load_config(cfg, file, [key, COUNTED[key]])
        assert (config_hash(cfg) != before) == counts, settings["gt.layer_type"]


def test_where_the_scores_are_does_not_count(tmp_path: Path) -> None:
    hashes = set()
    for folder in ("a", "b"):
        load_config(cfg, write_both(tmp_path / folder), ["spexphormer.scores", folder])
        hashes.add(config_hash(cfg))
    assert len(hashes) == 1


def test_sparse_networks_and_estimators_are_told_apart(tmp_path: Path) -> None:
    for settings, expected in ((SPARSE, (True, False)), (ESTIMATOR, (False, True)), (KMIP, (False, False))):
        load_config(cfg, write(tmp_path / "one.yaml", settings), [])
        assert (is_sparse(cfg), is_estimator(cfg)) == expected
    load_config(cfg, write(tmp_path / "one.yaml", ESTIMATOR | {"gt.layer_type": "ASE"}), [])
    assert is_estimator(cfg)


def test_one_degree_is_that_of_all_layers(tmp_path: Path) -> None:
    file = write(tmp_path / "one.yaml", SPARSE)
    for words, expected in (([], [3, 2]), (["spexphormer.degree", "[4]"], [4, 4])):
        load_config(cfg, file, words)
        assert layer_degrees(cfg) == expected
    load_config(cfg, file, ["gt.layers", "3"])
    with pytest.raises(ConfigError, match=r"\[3, 2\] has 2 entries for gt\.layers 3: give one for all layers"):
        layer_degrees(cfg)


def test_the_estimators_yaml_is_beside_the_file_that_names_it_or_a_base_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = write_both(tmp_path / "both")
    (tmp_path / "elsewhere").mkdir()
    derived = tmp_path / "elsewhere" / "derived.yaml"
    derived.write_text("base: ../both/wide.yaml\ngt:\n  dropout: 0.5\n")
    for file in (wide, derived):
        load_config(cfg, file, [])
        assert Path(cfg.spexphormer.estimator).resolve() == (tmp_path / "both" / "narrow.yaml").resolve()
    monkeypatch.chdir(tmp_path)
    load_config(cfg, wide, ["spexphormer.estimator", "both/narrow.yaml"])  # of the command line: from here
    assert cfg.spexphormer.estimator == "both/narrow.yaml"
    load_config(cfg, wide, ["spexphormer.estimator", "narrow.yaml"])  # or from the folder of the file
    assert Path(cfg.spexphormer.estimator) == wide.with_name("narrow.yaml")


def test_the_estimator_gets_data_place_and_machine_of_the_command_line_and_nothing_else(tmp_path: Path) -> None:
    words = ["dataset.dir", "/data", "out_dir", "here", "train.precision", "64-true", "num_threads", "3"]
    others = ["gt.dropout", "0.3", "seed", "5", "optim.max_epoch", "7", "name_tag", "x"]
    assert shared_words([*words, *others]) == ["dataset.dir", '"/data"', "out_dir", '"here"', "train.precision",
                                               '"64-true"', "num_threads", "3"]  # fmt: skip
    load_config(cfg, write_both(tmp_path, {"accelerator": "auto"}), [*words, *others])
    with estimator_config([*words, *others]):
        assert (cfg.dataset.dir, cfg.out_dir, cfg.train.precision, cfg.num_threads) == ("/data", "here", "64-true", 3)
        assert (cfg.seed, cfg.optim.max_epoch, cfg.name_tag, cfg.gt.layer_type) == (0, 3, "", "ScoreEstimator")
        assert cfg.accelerator == "cpu"  # one process trains both
    assert (cfg.seed, cfg.gt.layer_type, cfg.gt.dropout) == (5, "Spexphormer", 0.3)


def test_the_config_is_as_before_after_an_estimator_that_is_refused(tmp_path: Path) -> None:
    load_config(cfg, write_both(tmp_path, {"gt.layers": 1}), [])
    with pytest.raises(ConfigError, match="gt.layers 1, the sparse network 2"):
        adopt_estimator([])
    assert (cfg.gt.layer_type, cfg.gt.layers, cfg.spexphormer.estimator_hash) == ("Spexphormer", 2, "")


@pytest.mark.parametrize("name", ["minesweeper", "minesweeper-kmip", "tolokers", "cora"])
def test_our_files_name_an_estimator_that_can_serve_them(name: str) -> None:
    load_config(cfg, ROOT / f"configs/LowWidth/{name}.yaml", [])
    adopt_estimator([])
    assert len(cfg.spexphormer.estimator_hash) == 12
    with estimator_config([]) as file:
        assert file.name == f"{name}-estimator.yaml"
