"""Train modes (train.mode), with the task, optimizer, schedule, settings and writers of the config."""

from __future__ import annotations

import inspect
import io
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.logger import create_logger
from torch_geometric.graphgym.optim import create_optimizer, create_scheduler
from yacs.config import CfgNode

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.data.sets.brec import CATEGORIES, pair_graphs
from graphgps_kmip.errors import ConfigError, TrainingDiverged
from graphgps_kmip.expressivity.brec_protocol import TOTAL, PairTest, Result, category_rows, run_to_file, table_text
from graphgps_kmip.gym.attention_saving import save_weights
from graphgps_kmip.gym.config_defaults import TRAINING_KEYS
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.graphgym_registries import has_network, list_others
from graphgps_kmip.gym.network_building import build_model, served
from graphgps_kmip.registry import Spec, components, entries, named, register
from graphgps_kmip.results.run_folder import CONFIG, SPLITS, writing
from graphgps_kmip.results.run_record import write_record, write_stats
from graphgps_kmip.task import Task, make_task
from graphgps_kmip.task.losses import identity
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.evaluation import evaluate, predict_batches
from graphgps_kmip.train.loop import Session, train
from graphgps_kmip.train.reporter import MissingWriter, TensorBoardWriter, WandbWriter, Writer
from graphgps_kmip.train.run_recording import closed_record, open_record
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loaders, Record = Sequence[Any], dict[str, Any]
# Public YAML files call these a classification; what is scored, the head decides.
OF_HEADS = {
    "inductive_edge": "link_ranking",
    "link_pred": "link_prediction",
}


def current_task(dim_out: int) -> Task:
    """Return the task that the config describes."""
    head = cfg.dataset.task if cfg.gnn.head == "default" else cfg.gnn.head
    if head == "edge" and cfg.dataset.task == "link_pred":  # of GraphGym's one head for both the task decides
        head = "link_pred"
    return make_task(
        OF_HEADS.get(head, cfg.dataset.task_type),
        dim_out,
        cfg.model.loss_fun,
        cfg.metric_best,
        cfg.metric_agg,
        cfg.model.size_average,
        cfg.model.thresh,
        lambda spec: cfg[spec.kind][spec.name.lower()],
    )


def from_graphgym(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a loss of GraphGym's ``register_loss``, ``(pred, true) -> (loss, score)``, as a loss of the registry."""

    def loss(pred: Tensor, true: Tensor, all_reduce: Callable[[Tensor], Tensor] = identity) -> tuple[Tensor, Tensor]:
        del all_reduce  # a mean over the batch knows no other process
        value, _ = function(pred, true)
        weight = torch.tensor(float(len(pred)), device=pred.device)
        return value * weight, weight

    return loss


def loss_and_score(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (loss, score) as GraphGym's ``compute_loss`` wants them; None leaves it to the package of the network."""
    if not has_network(cfg.model.type) or cfg.model.loss_fun not in named("loss"):
        return None
    task = current_task(cfg.share.dim_out)  # GraphGym's own main entered it
    total, weight = task.loss(pred, true)
    return total / weight, task.score(pred)


def current_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimizer ``optim.optimizer`` of the model's parameters.

    With ``optim.weight_decay_layers first``, all but the first layer's are without weight decay.
    """
    optimizer = create_optimizer((parameter for parameter in model.parameters() if parameter.requires_grad), cfg.optim)
    if cfg.optim.weight_decay_layers == "all":
        return optimizer
    network = getattr(model, "model", model)  # GraphGym wraps its networks once
    before = [part for name, part in network.named_children() if name in ("encoder", "pre_mp")]
    if not hasattr(network, "layers") or any(True for part in before for _ in part.parameters()):
        raise ConfigError(
            f"optim.weight_decay_layers first: of model.type {cfg.model.type} it is not clear which layer is first: "
            "take GCN or GAT, or all"
        )
    decayed, (group,) = set(network.layers[0].parameters()), optimizer.param_groups
    others = [parameter for parameter in group["params"] if parameter not in decayed]
    group["params"] = [parameter for parameter in group["params"] if parameter in decayed]
    optimizer.add_param_group({**group, "params": others, "weight_decay": 0.0})
    return optimizer


def current_scheduler(optimizer: Optimizer) -> Any:
    """Return the learning rate schedule ``optim.scheduler``."""
    return create_scheduler(optimizer, cfg.optim)


def with_options(spec: Spec) -> Callable[..., Any]:
    """Return an optimizer or a schedule in GraphGym's form, whose own options come from its config group."""

    @wraps(spec.component)  # GraphGym reads its arguments
    def create(*arguments: Any, **keywords: Any) -> Any:
        group = cfg[spec.kind][spec.name.lower()]
        return spec.component(*arguments, **keywords | {option: group[option] for option in spec.options})

    return create


def train_mode(config: CfgNode) -> Callable[..., Any]:
    """Return ``train.mode`` as ``(loaders, model, optimizer, scheduler, fabric) -> record``."""
    modes, name = components("train_mode"), config.train.mode
    if name in modes:
        return with_config(modes[name], config)

    def run(loaders: Any, model: nn.Module, optimizer: Any, scheduler: Any, fabric: Fabric) -> Any:
        with served(config):
            mode = list_others()["train_mode"][name]
            return mode(create_logger(), loaders, model.to(fabric.device), optimizer, scheduler)

    return run


def with_config(mode: Callable[..., Any], config: CfgNode) -> Callable[..., Any]:
    """Return a mode with its argument ``config``, the one with the facts of the data, if it has one."""
    return partial(mode, config=config) if "config" in inspect.signature(mode).parameters else mode


def run_mode_of_graphgym(mode: Callable[..., Any], loaders: Sequence[Any], *arguments: Any) -> Any:
    """Call a train mode from the main program of another package: in one process, on the device that it has chosen."""
    accelerator, _, index = cfg.accelerator.partition(":")
    fabric = make_fabric(accelerator, [int(index)] if index else 1, cfg.train.precision)
    return with_config(mode, cfg)(loaders[: len(SPLITS)], *arguments, fabric)  # Exphormer's main repeats the loaders


@register("train_mode", "custom", aliases=("standard",))
def custom(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Train as the config says, on the data that the loaders give, and return the final record."""
    if config.train.mode == "standard":
        logging.info("train.mode standard: GraphGym's loop on Lightning is not used, but ours, as for custom")
    return train(
        model,
        list(loaders),
        optimizer,
        scheduler,
        current_task(config.share.dim_out),
        current_settings(),
        Path(cfg.run_dir),
        fabric=fabric,
        writers=current_writers(config) if fabric.is_global_zero else (),
    )


def current_settings() -> TrainSettings:
    """Return the training settings of the config."""
    notes = {"experiment": config_hash(cfg, per_run=False), "sample": cfg.dataset.sample}
    return TrainSettings(
        **{name: cfg[group][name] for group, names in TRAINING_KEYS.items() for name in names},
        clip_grad_norm=cfg.optim.clip_grad_norm_value if cfg.optim.clip_grad_norm else None,
        seed=cfg.seed,
        config_hash=config_hash(cfg),
        notes=notes | ({"config_file": cfg.cfg_dest} if cfg.cfg_dest != CONFIG else {}),
        name=f"{Path(cfg.out_dir).name}/{Path(cfg.run_dir).name}",
    )


def current_writers(config: CfgNode) -> list[Writer]:
    """Return TensorBoard and Weights & Biases, as far as they are switched on and installed."""
    run_dir, run = Path(cfg.run_dir), f"{Path(cfg.out_dir).name}-{Path(cfg.run_dir).name}"
    key = f"{run}-{config_hash(cfg)}"  # the same for a run and its resumption
    wandb = (cfg.wandb.entity, cfg.wandb.project, cfg.wandb.name or run, dict(flatten(config)), key)
    makers = [partial(TensorBoardWriter, run_dir / "tensorboard")] if cfg.tensorboard_each_run else []
    makers += [partial(WandbWriter, *wandb)] if cfg.wandb.use else []
    writers: list[Writer] = []
    for make in makers:
        try:
            writers.append(make())
        except MissingWriter as error:
            logging.warning("%s; the run goes on without it, its statistics are in stats.json", error)
    return writers


LEADERBOARD = ("test-dev", "test-challenge")  # what val and test of PCQM4Mv2-inference are


@register("train_mode", "inference-only")
def inference_only(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Evaluate the model of pretrained.dir on all three splits, without training."""
    del optimizer, scheduler
    return _evaluate_splits(dict(zip(SPLITS, loaders, strict=True)), model, fabric, config)


@register("train_mode", "log-attn-weights")
def log_attn_weights(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Evaluate as inference-only, and save what each layer and head attends to in the first test graphs."""
    path = Path(cfg.run_dir) / "attention_weights.npz"
    if fabric.is_global_zero:  # first: that a model has none should not cost an evaluation
        count = save_weights(fabric.to_device(model), loaders[-1].dataset, path)
        logging.info("attention weights of %d test graphs: %s", count, path)
    return inference_only(loaders, model, optimizer, scheduler, fabric, config=config)


@register("train_mode", "PCQM4Mv2-inference")
def pcqm4mv2_inference(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Evaluate on the official validation molecules, and save the predictions for both tests of the leaderboard."""
    del optimizer, scheduler
    for loader, name in zip(loaders[1:], LEADERBOARD, strict=True):
        batches = predict_batches(fabric.setup_module(model).eval(), loader, current_settings(), fabric, name)
        outputs = torch.cat([pred.float().cpu() for _, pred, _ in batches])
        path = Path(cfg.run_dir) / f"y_pred_pcqm4m-v2_{name}.npz"
        buffer = io.BytesIO()
        np.savez_compressed(buffer, y_pred=outputs.squeeze(-1).numpy().astype(np.float32))  # ogb's form, (graphs,)
        with writing(path):
            replace_file(path, buffer.getvalue())
        logging.info("predictions for %d molecules of %s: %s", len(outputs), name, path)
    return _evaluate_splits({"train": loaders[0]}, model, fabric, config)


BREC_RESULTS = "brec.jsonl"
DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


@register("train_mode", "brec")
def brec(
    loaders: Loaders, model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric, *, config: CfgNode
) -> Record:
    """Train and test a new model on each pair of BREC, and count the pairs that it distinguishes."""
    del optimizer, scheduler  # each pair has its own
    graphs, run_dir = loaders[0].dataset.dataset, Path(cfg.run_dir)
    pairs = getattr(graphs, "graphs", graphs).pairs  # those without encodings know their numbers
    settings = replace(current_settings(), max_epoch=1)
    with writing(run_dir):
        record = open_record(run_dir, settings)
        results = _run_pairs(config, graphs, pairs, fabric.device, run_dir / BREC_RESULTS)
    if all(result["failed"] for result in results.values()):
        raise TrainingDiverged("No pair gave finite outputs; lower optim.base_lr, or set train.precision 64-true.")
    categories = {name: sorted(set(members) & set(pairs)) for name, members in CATEGORIES.items()}
    rows = category_rows(results, {name: members for name, members in categories.items() if members})
    logging.info("BREC, %s\n%s", "a made-up SAMPLE" if cfg.dataset.sample else cfg.brec.protocol, table_text(rows))
    stats = _pair_statistics(results, {row.category: row.distinguished for row in rows})
    for split, line in stats.items():
        write_stats(run_dir, split, line)
    seconds = sum(result["seconds"] for result in results.values())
    count = sum(parameter.numel() for parameter in model.parameters())
    state = RunState(epoch=0, best={"epoch": 0, "value": None, **stats}, seconds=seconds)
    session = Session(fabric, model, None, current_task(config.share.dim_out), settings, StopSignals(), count)
    record = closed_record(record, session, state, seconds)
    write_record(run_dir, record)
    return record


def _run_pairs(
    config: CfgNode, graphs: Sequence[Data], pairs: Sequence[int], device: torch.device, path: Path
) -> dict[int, Result]:
    test = PairTest(
        lambda: build_model(config),
        lambda model: (optimizer := current_optimizer(model), current_scheduler(optimizer)),
        cfg.optim.max_epoch,
        cfg.brec.protocol,
        cfg.seed,
        DTYPES[cfg.train.precision],
        device,
        cfg.brec.loss_threshold,
    )
    place = {pair: number for number, pair in enumerate(pairs)}
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    began, done = time.perf_counter(), 0

    def log(result: Result) -> None:
        nonlocal done
        done += 1
        verdict = result["failed"] or ("distinguished" if result["distinguished"] else "not distinguished")
        verdict += "" if result["reliable"] or result["failed"] else ", not reliable"
        logging.info("pair %d: %s (%d pairs in %.0f s)", result["pair"], verdict, done, time.perf_counter() - began)

    try:
        return run_to_file(test, pairs, lambda pair: pair_graphs(graphs, place[pair]), path, workers, tell=log)
    except KeyboardInterrupt:
        logging.warning("stopped after %d pairs; the same command goes on from %s", done, path)
        raise SystemExit(130) from None


def _pair_statistics(results: Mapping[int, Result], counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    tested = [result["loss"] for result in results.values() if result["loss"] is not None]
    trained = [result["last_loss"] for result in results.values() if result["last_loss"] is not None]
    train, _, test = SPLITS
    verdicts = {
        "accuracy": counts[TOTAL] / len(results),
        "distinguished": counts[TOTAL],
        **{name: count for name, count in counts.items() if name != TOTAL},
        "tested": len(results),
        "unreliable": sum(not result["reliable"] and not result["failed"] for result in results.values()),
        "failed": sum(bool(result["failed"]) for result in results.values()),
    }
    losses = {train: trained or tested, test: tested}  # untrained: the loss of the initial weights
    lines = {
        split: {"epoch": 0} | ({"loss": sum(values) / len(values)} if values else {})
        for split, values in losses.items()
    }
    return {train: lines[train], test: lines[test] | verdicts}


TRAINING = ("custom", "standard")
RESUMED = ("brec",)  # an unfinished run goes on whatever train.auto_resume says


def check_mode(processes: int = 1) -> None:
    """Refuse a mode that cannot do its work with the settings at hand."""
    mode = cfg.train.mode
    if mode == "brec" and processes > 1:
        raise ConfigError("train.mode brec works on pairs in num_threads processes of its own: set devices 1")
    if mode == "brec" and cfg.train.precision == "bf16-mixed":
        raise ConfigError("train.precision bf16-mixed: BREC's statistic needs exact outputs: set 32-true or 64-true")
    if mode not in entries("train_mode") or mode in (*TRAINING, "brec"):
        return
    if not cfg.pretrained.dir:
        raise ConfigError(f"train.mode {mode} does not train: name the run whose parameters it takes, pretrained.dir")
    if cfg.pretrained.reset_prediction_head:
        hint = "its outputs mean nothing; set pretrained.reset_prediction_head False"
        logging.warning("train.mode %s with a new prediction head: %s", mode, hint)
    if mode == "PCQM4Mv2-inference" and cfg.dataset.name != mode:
        raise ConfigError(f"train.mode {mode} predicts the data set dataset.name {mode}, not {cfg.dataset.name}")
    if mode == "PCQM4Mv2-inference" and processes > 1:
        raise ConfigError(f"train.mode {mode} writes its predictions in order, in one process: set devices 1")


def _evaluate_splits(loaders: Mapping[str, Any], model: nn.Module, fabric: Fabric, config: CfgNode) -> dict[str, Any]:
    task, writers = current_task(config.share.dim_out), current_writers(config) if fabric.is_global_zero else ()
    return evaluate(model, loaders, task, current_settings(), Path(cfg.run_dir), fabric, writers)
