"""Models of public files have as many parameters as the papers of GraphGPS, LRGB and Exphormer print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.feature_encoders import AtomEncoder
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")

PRINTED: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "public_counts.yaml").read_text())


@pytest.mark.parametrize("name", PRINTED)
def test_a_public_file_builds_a_model_of_the_printed_size(name: str, tmp_path: Path) -> None:
    row, file = PRINTED[name], tmp_path / "public.yaml"
    file.write_text(yaml.safe_dump(row["settings"]))
    load_config(cfg, file, ["dataset.sample", "True", "num_threads", "1"])
    assert cfg.dialect == ("exphormer" if name.startswith("Exphormer") else "graphgps")
    with configured(planned_runs(1)[0]):
        model = assemble().model
    count = sum(parameter.numel() for parameter in model.parameters())
    if row.get("atoms"):
        [atoms] = [module for module in model.modules() if isinstance(module, AtomEncoder)]
        count -= next(atoms.parameters()).size(1)
    if "thousands" in row:
        assert count // 1000 == row["thousands"]
    else:
        assert count == row["parameters"]
