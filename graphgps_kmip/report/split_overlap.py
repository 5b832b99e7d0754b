"""Overlap of the splits of a data set: n_test / n_train, by the sizes on its dataset card."""

from __future__ import annotations

from pathlib import Path

from graphgps_kmip.common.environment import find_config
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Training


def split_overlap(format: str, name: str) -> float | None:  # noqa: A002 (the config key's name)
    """Return n_test / n_train of the official splits of ``dataset.format`` and ``dataset.name``; None: not known."""
    from graphgps_kmip.data import find  # loads torch_geometric: seconds

    try:
        published = find(format, name).statistics
    except InputError:  # of custom modules that are not imported here
        return None
    return published.sizes[2] / published.sizes[0] if published and published.sizes else None


def training_overlap(training: Training) -> float | None:
    """Return the `split_overlap` of a training whose seed is the index of the split, else 0: runs have one split."""
    if not training.splits:
        return 0.0
    dataset = read_yaml(find_config(Path("configs", training.cfg)))["dataset"]
    return split_overlap(dataset["format"], dataset.get("name", ""))
