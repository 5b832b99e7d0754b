"""The config hash: equal for two runs whose numbers should be equal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from yacs.config import CfgNode

from graphgps_kmip.gym.compat_keys import UNREAD
from graphgps_kmip.gym.load import flatten

# Where and how comfortably a run happens, or what is derived from the data: without influence on its numbers.
NOT_HASHED = frozenset(
    """out_dir run_dir cfg_dest name_tag print num_workers num_threads accelerator devices gpu_mem benchmark view_emb
    params run_multiple_splits custom_modules tensorboard_each_run tensorboard_agg dataset.dir dataset.edge_dim
    dataset.cache_edges train.auto_resume train.epoch_resume train.enable_ckpt train.ckpt_period train.ckpt_clean
    train.ckpt_best""".split()
)

# Where model.auto_satisfy_param_budget searches for them, they follow from the other settings.
SEARCHED = frozenset({"gnn.dim_inner", "gt.dim_hidden", "graphormer.embed_dim", "gt.kmip.dim_val"})


def config_hash(cfg: CfgNode, of_run: bool = True) -> str:
    """Return 12 hex digits over all settings that matter, and over the text of the user's own modules.

    Args:
        cfg: the config.
        of_run: seed and split count too; False: one hash for all runs of an experiment, which may be averaged.
    """
    left_out = NOT_HASHED if of_run else NOT_HASHED | {"seed", "dataset.split_index"}
    if cfg.model.auto_satisfy_param_budget:
        left_out |= SEARCHED
    kept = {
        key: value
        for key, value in flatten(cfg)
        if key not in left_out and key not in UNREAD and not key.startswith(("wandb.", "share."))
    }
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for name in cfg.custom_modules:
        path = Path(name)
        digest.update(path.read_bytes() if path.is_file() else name.encode())
    return digest.hexdigest()[:12]
