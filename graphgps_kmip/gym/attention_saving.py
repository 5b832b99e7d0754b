"""Attention of a trained model in its run folder: arrays of the attention picture, all weights, scores of edges."""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import AttentionGraph, collect_attention
from graphgps_kmip.attention.exphormer import KINDS
from graphgps_kmip.common.atomic_write import replace_file, replacing
from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.data.score_file import AttentionScores, LayerScores, write_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.sparse_loading import check_keeps_best, the_graph
from graphgps_kmip.results.run_folder import best_checkpoint_file, scores_file, writing
from graphgps_kmip.results.run_record import read_record, write_record
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint

MAX_NODES = 500  # more cannot be distinguished in a picture
GRAPHS = 128  # as many as GraphGPS's mode log-attn-weights saves


def save_attention(model: nn.Module, dataset: GraphDataset, path: Path) -> bool:
    """Write the learned attention graphs of the first test graph; return whether there are any."""
    graph = dataset.part("test")[0]
    pos = graph.pos
    if pos is None or pos.size(1) != 2 or graph.num_nodes > MAX_NODES:
        logging.info("no attention picture: it needs graphs of at most %d nodes with 2-D positions", MAX_NODES)
        return False
    batch, model = _batch(model, graph), model.eval()
    layers = collect_attention(model, batch)
    if not layers:
        logging.info("no attention picture: no layer of this model has a method attention_graph (docs/extending.md)")
        return False
    if any(layer.index.size(1) != graph.num_nodes for layer in layers):
        logging.info("no attention picture: the model attends to graph tokens, which have no position")
        return False
    with torch.no_grad():
        pred, _ = model(batch)
    # one number for each node: the mean of its features without its position
    columns = [c for c in graph.x.float().T if not any(torch.equal(c, place) for place in pos.float().T)]
    value = torch.stack(columns).mean(0) if columns else torch.zeros(len(pos))
    arrays = {"pos": pos, "value": value, "edge_index": graph.edge_index, "label": graph.y}
    arrays |= {"prediction": pred.argmax(-1), **_layer_arrays(layers)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: value.detach().cpu().numpy() for name, value in arrays.items()})
    with writing(path, "The results of the run are complete."):
        replace_file(path, buffer.getvalue())
    return True


def _batch(model: nn.Module, graph: Data, split: str = "test") -> Batch:
    parameter = next(model.parameters())
    batch = Batch.from_data_list([graph]).to(parameter.device)
    batch = batch.apply(lambda tensor: tensor.to(parameter.dtype) if tensor.is_floating_point() else tensor)
    batch.split, batch.progress = split, 1.0  # schedules are at their end
    return batch


def _layer_arrays(layers: Sequence[AttentionGraph]) -> dict[str, Tensor]:
    return {f"{name}_{i}": getattr(layer, name) for i, layer in enumerate(layers) for name in ("index", "weight")}


def save_weights(model: nn.Module, graphs: Sequence[Data], path: Path, limit: int = GRAPHS) -> int:
    """Write the attention weights of the first ``limit`` graphs into one .npz, and return how many graphs.

    Of graph g it holds ``graph_g/x``, ``graph_g/edge_index``, and of each layer l that has weights
    ``graph_g/index_l`` (H, N, K), the keys of each node, -1 in a missing slot, and ``graph_g/weight_l`` (H, N, K);
    full attention has K = N.
    """
    count = min(limit, len(graphs))
    with writing(path), replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for g in range(count):
            layers = collect_attention(model, _batch(model, graphs[g]))
            if not layers:
                raise ConfigError(
                    "train.mode log-attn-weights: no layer of this model has attention weights: take kMIP, "
                    "Transformer or BiasedTransformer in gt.layer_type"
                )
            arrays = {"x": graphs[g].x, "edge_index": graphs[g].edge_index, **_layer_arrays(layers)}
            for name, value in arrays.items():
                with archive.open(f"graph_{g}/{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, value.detach().cpu().numpy())
    return count


def save_scores(model: nn.Module, dataset: GraphDataset, level: str, run_dir: Path) -> None:
    """Write the scores of a finished run's best epoch, whose parameters the model has then; its record names the file.

    Refused are data other than one graph whose nodes are classified, and runs without a checkpoint of their best epoch.
    """
    graph = the_graph(dataset, level)
    path = best_checkpoint_file(run_dir)
    check_keeps_best(cfg)
    if not path.is_file():
        raise ConfigError(
            f"{run_dir}: its scores are those of the best epoch, and {path} is missing: train it again (main.py "
            "--overwrite)"
        )
    content = read_checkpoint(path, config_hash(cfg))
    load_model_state(model, content["model_state"], path)
    layers, kinds = collect_scores(model, graph, content["epoch"])
    facts = {
        **graph_facts(graph),
        "settings": config_hash(cfg, per_run=False),
        "seed": cfg.seed,
        "epoch": content["epoch"],
        "kinds": ", ".join(kinds),
    }
    with writing(scores_file(run_dir), "The results of the run are complete."):
        write_scores(scores_file(run_dir), AttentionScores(layers, facts))
    record = read_record(run_dir) or {}
    write_record(run_dir, {**record, "scores": scores_file(run_dir).name})
    edges = ", ".join(f"{len(layer.source):,}" for layer in layers)
    logging.info("scores of epoch %d, layers of %s edges: %s", content["epoch"], edges, scores_file(run_dir))


def collect_scores(model: nn.Module, graph: Data, epoch: int) -> tuple[list[LayerScores], tuple[str, ...]]:
    """Return the scores of each layer, in order of use, and the names of the kinds of their edges.

    They are of the edges of ``edge_scores``, or else of the keys of ``attention_graph``, averaged over the heads.
    """
    layers: list[LayerScores] = []
    kinds = ("selected",)

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal kinds
        if hasattr(module, "edge_scores"):
            kinds, before = KINDS, layers[-1] if layers else None
            layers.append(score_edges(*module.edge_scores(*args, **kwargs), graph.num_nodes, before))
        else:
            layers.append(score_selection(module.attention_graph(*args, **kwargs), graph.num_nodes))

    batch = _batch(model, graph, "val")
    batch.epoch = epoch
    batch.progress = epoch / max(1, cfg.optim.max_epoch - 1)  # as when this epoch was found to be the best
    hooks = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for module in model.modules()
        if hasattr(module, "edge_scores") or hasattr(module, "attention_graph")
    ]
    try:
        with torch.no_grad():
            model.eval()(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not layers:
        raise ConfigError(
            f"gt.layer_type {cfg.gt.layer_type}: no layer of this network has attention weights to write as scores: "
            "take ScoreEstimator or kMIP"
        )
    return layers, kinds


def score_edges(edges: Tensor, weight: Tensor, num_nodes: int, before: LayerScores | None = None) -> LayerScores:
    """Return the scores of a layer from its edges (source, target, kind: (3, E)) and the weights of all heads (E, H).

    Weights of one target and head sum to 1. Tensors of the layer before are shared where its edges are the same.
    """
    source, target, kind = edges
    score = weight.float().mean(dim=1)
    if bool((target[1:] < target[:-1]).any()):
        order = target.argsort(stable=True)
        source, target, kind, score = source[order], target[order], kind[order], score[order]
    ptr = torch.cat([target.new_zeros(1), target.bincount(minlength=num_nodes).cumsum(0)]).cpu()
    source, kind, score = source.to("cpu", torch.int32), kind.to("cpu", torch.uint8), score.cpu()
    if before is not None and torch.equal(before.ptr, ptr) and torch.equal(before.source, source):
        return LayerScores(before.ptr, before.source, kind if (before.kind != kind).any() else before.kind, score)
    return LayerScores(ptr, source, kind, score)


def score_selection(selected: AttentionGraph, num_nodes: int) -> LayerScores:
    """Return the scores of a layer whose nodes select keys: of each that any head selects, the mean over all heads."""
    heads, queries, _ = selected.index.shape
    if queries != num_nodes or (selected.index >= num_nodes).any():
        raise ConfigError(
            f"gt.layer_type {cfg.gt.layer_type}: this network attends to tokens besides the {num_nodes} nodes, whose "
            "scores no sparse network could use: take an attention among nodes, such as kMIP"
        )
    there = selected.index >= 0
    query = torch.arange(num_nodes, device=there.device)[:, None].expand_as(there[0])  # (N, K)
    pair = (query * num_nodes + selected.index)[there]  # target first: the result is sorted by it
    pair, place = pair.unique(return_inverse=True)
    weight = selected.weight[there].float() / heads
    score = weight.new_zeros(len(pair)).index_add(0, place, weight)
    edges = torch.stack([pair % num_nodes, pair // num_nodes, torch.zeros_like(pair)])
    return score_edges(edges, score[:, None], num_nodes)
