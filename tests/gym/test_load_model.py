"""`load_model`: a finished run as a model, without its data, with GraphGym's config as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip import batch_of, load_model
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym import experiment
from graphgps_kmip.gym.trained import trained

ROOT = Path(__file__).parents[2]
SHORT = """optim.max_epoch 1 gt.layers 1 train.batch_size 256 num_threads 1 dataset.sample True
train.ckpt_best True""".split()


@pytest.fixture
def run_dir(tmp_path: Path, small_samples: None, graphgym_registries: None) -> Path:  # noqa: ARG001
    assert main.run(["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), *SHORT, "out_dir", str(tmp_path)]) == 0
    return next(path.parent for path in Path(f"{tmp_path}-sample").rglob("record.json"))


def test_a_finished_run_is_a_model_without_its_data(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trained(run_dir) as finished:
        batch = batch_of([finished.dataset.part("test")[i] for i in range(3)])
        expected = finished.model(batch)[0]
    before = cfg.dump()
    monkeypatch.setattr(experiment, "load_configured", None)
    model = load_model(run_dir)
    assert cfg.dump() == before
    assert not model.training
    torch.testing.assert_close(model(batch)[0], expected, rtol=0, atol=0)
    torch.testing.assert_close(model(batch.get_example(1), split="test")[0], expected[1:2])


def test_a_folder_without_a_finished_run_is_refused_and_the_config_stays(tmp_path: Path) -> None:
    before = cfg.dump()
    with pytest.raises(ConfigError, match="no finished run is there"):
        load_model(tmp_path)
    assert cfg.dump() == before
