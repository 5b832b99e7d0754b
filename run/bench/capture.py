"""Takes queries and keys from the first k-MIP layer of a trained model, as data for the benchmark.

python main.py --cfg configs/quickstart/digits-kmip.yaml
python run/bench/attention.py --setting search --capture results/digits-kmip/0
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import yaml
from torch import Tensor
from torch_geometric.data import Batch

from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.gym import cfg
from graphgps_kmip.gym.experiment import Run, assemble, configured
from graphgps_kmip.gym.load import load_config, read_yaml
from graphgps_kmip.train import read_record
from graphgps_kmip.train.checkpoint import checkpoint_file, load_model_state, numbered, read_checkpoint

GRAPHS = 64  # of the test part: one batch of the quickstart


def capture(run_dir: Path, folder: Path, graphs: int = GRAPHS) -> Path:
    """Write ``captured-<config>-<run>.pt`` with q and k (H, N, D) and ptr (B+1,) of one test batch; return its path.

    Raises:
        ValueError: the folder holds no finished run, or its model has no k-MIP attention.
    """
    record = read_record(run_dir)
    if not record or not record.get("finished"):
        raise ValueError(f"--capture {run_dir}: no finished run, give a folder such as results/digits-kmip/0")
    _load(run_dir / "config.yaml")
    with configured(Run(run_dir.name, cfg.seed, cfg.dataset.split_index)):
        parts = assemble()
        best = run_dir / "ckpt" / "best.ckpt"
        path = best if best.exists() else checkpoint_file(run_dir, max(numbered(run_dir)))
        load_model_state(parts.model, read_checkpoint(path, record["config_hash"])["model_state"], path)
        test = parts.dataset.part("test")
        batch = Batch.from_data_list([test[i] for i in range(min(graphs, len(test)))])
        batch.split = "test"
        saved = first_heads(parts.model, batch)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"captured-{run_dir.resolve().parent.name}-{run_dir.name}.pt"
    torch.save(saved, path)
    return path


def _load(file: Path) -> None:
    """Load the config that a run left, but for the folder of that run, which no YAML may name."""
    settings = read_yaml(file)
    settings.pop("run_dir", None)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        copy.write_text(yaml.safe_dump(settings), encoding="utf-8")
        load_config(cfg, copy, [])


@torch.no_grad()
def first_heads(model: torch.nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return q and k (H, N, D) and ptr of the first k-MIP attention that a batch reaches.

    Raises:
        ValueError: it reaches none.
    """
    saved: dict[str, Tensor] = {}

    def keep(module: KMIPAttention, args: tuple) -> None:
        if saved:
            return
        x, context = args[0], GraphContext.of(args[1], args[0])
        for name, linear in (("q", module.query), ("k", module.key)):
            saved[name] = linear(x).unflatten(1, (module.num_heads, -1)).transpose(0, 1).contiguous()
        saved["ptr"] = context.ptr.clone()

    layers = [module for module in model.modules() if isinstance(module, KMIPAttention)]
    hooks = [module.register_forward_pre_hook(keep) for module in layers]
    try:
        model.eval()(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not saved:
        raise ValueError("--capture: this model has no k-MIP attention, give a run of one that has")
    return saved
