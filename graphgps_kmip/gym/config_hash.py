"""The config hash: equal for two runs whose numbers should be equal. It covers the values that are no defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_geometric.graphgym.config import set_cfg
from yacs.config import CfgNode

from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.key_translation import UNREAD
from graphgps_kmip.gym.config_defaults import set_defaults

# Where and how comfortably a run happens, or what is derived from the data: without influence on its numbers.
NOT_HASHED = frozenset(
    """out_dir run_dir cfg_dest name_tag print num_workers num_threads accelerator devices gpu_mem benchmark view_emb
    params run_multiple_splits custom_modules tensorboard_each_run tensorboard_agg dataset.dir dataset.edge_dim
    dataset.cache_edges train.auto_resume train.epoch_resume train.enable_ckpt train.ckpt_period train.ckpt_clean
    train.ckpt_best spexphormer.scores spexphormer.estimator""".split()
)
# Where model.auto_satisfy_param_budget searches for them, they follow from the other settings.
SEARCHED = frozenset({"gnn.dim_inner", "gt.dim_hidden", "graphormer.embed_dim", "gt.kmip.dim_val"})
OF_A_RUN = frozenset({"seed", "dataset.split_index"})


def config_hash(cfg: CfgNode, per_run: bool = True) -> str:
    """Return 12 hex digits over all settings that are no defaults, and over the text of the user's own modules.

    With ``per_run`` False, seed and split do not count: one hash for all runs of an experiment, which may be averaged.
    """
    settings = hashed_settings(cfg)
    if not per_run:
        settings = {key: value for key, value in settings.items() if key not in OF_A_RUN}
    return hash_settings(settings, cfg.custom_modules)


def hashed_settings(cfg: CfgNode) -> dict[str, Any]:
    """Return key -> value of the settings that the hash of a run covers."""
    left_out = SEARCHED if cfg.model.auto_satisfy_param_budget else ()
    return {key: value for key, value in changed_settings(cfg).items() if key not in left_out}


def hash_settings(settings: Mapping[str, Any], modules: Sequence[str]) -> str:
    """Return 12 hex digits over changed settings, and over the text of the user's own modules."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name in modules:
        path = Path(name)
        digest.update(path.read_bytes() if path.is_file() else name.encode())
    return digest.hexdigest()[:12]


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return key -> value of the settings that are no defaults, but for those that do not decide a run's numbers."""
    node = CfgNode()
    set_cfg(node)
    set_defaults(node)
    defaults = dict(flatten(node))
    return {
        key: value
        for key, value in flatten(settings)
        if value != defaults.get(key, value)  # the rest is of components that are no longer registered
        and key not in NOT_HASHED
        and key not in UNREAD
        and not key.startswith(("wandb.", "share."))
    }
