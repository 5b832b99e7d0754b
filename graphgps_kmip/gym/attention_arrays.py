"""Attention arrays: what each layer and head attends to, for a run's picture and train mode log-attn-weights."""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import collect_attention
from graphgps_kmip.common.atomic_write import replacing
from graphgps_kmip.data import GraphDataset
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.train import replace_file

MAX_NODES = 500  # more cannot be distinguished in a picture


def save_attention(model: nn.Module, dataset: GraphDataset, path: Path) -> bool:
    """Write the learned attention graphs of the first test graph; return whether there was something to write.

    There is nothing for graphs without a position in the plane, graphs of more than `MAX_NODES` nodes, models without
    attention and models with graph tokens; the log says which.
    """
    graph = dataset.part("test")[0]
    pos = graph.pos
    if pos is None or pos.size(1) != 2 or graph.num_nodes > MAX_NODES:
        logging.info("no attention picture: it needs graphs of at most %d nodes with 2-D positions", MAX_NODES)
        return False
    device = next(model.parameters()).device
    batch = Batch.from_data_list([graph]).to(device)
    batch.split, batch.progress, model = "test", 1.0, model.eval()  # of the trained model: schedules at their end
    layers = collect_attention(model, batch)
    if not layers:
        logging.info("no attention picture: no layer of this model has a method attention_graph (docs/extending.md)")
        return False
    if any(layer.index.size(1) != graph.num_nodes for layer in layers):
        logging.info("no attention picture: the model attends to graph tokens, which have no position")
        return False
    with torch.no_grad():
        pred, _ = model(batch)
    arrays = {"pos": pos, "value": _shade(graph.x, pos), "edge_index": graph.edge_index, "label": graph.y}
    arrays["prediction"] = pred.argmax(-1)
    for i, layer in enumerate(layers):
        arrays |= {f"index_{i}": layer.index, f"weight_{i}": layer.weight}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: value.detach().cpu().numpy() for name, value in arrays.items()})
    with writing(path, "The results of the run are complete."):
        replace_file(path, buffer.getvalue())
    return True


def _shade(x: Tensor, pos: Tensor) -> Tensor:
    """Return one number for each node, (N,): the mean of its features, positions among them left out."""
    features = [column for column in x.float().T if not any(torch.equal(column, place) for place in pos.float().T)]
    return torch.stack(features).mean(0) if features else torch.zeros(len(x))


GRAPHS = 128  # as many as GraphGPS's mode saves


def save_weights(model: nn.Module, graphs: Sequence[Data], path: Path, limit: int = GRAPHS) -> int:
    """Write the attention weights of the first graphs into one .npz, and return how many graphs.

    Of graph g it holds ``graph_g/x``, ``graph_g/edge_index``, and of each layer l that has weights
    ``graph_g/index_l`` (H, N, K), the keys of each node, -1 in a missing slot, and ``graph_g/weight_l`` (H, N, K).
    Full attention has K = N. Memory is that of one graph; the file takes H * N * K numbers a layer, compressed.

    Args:
        model: trained; as its schedules are at their end.
        graphs: of the test split.
        path: where the file goes; it is there whole or not at all.
        limit: how many at most.

    Raises:
        ConfigError: no layer of the model has attention weights.
        RunFolderError: the file cannot be written.
    """
    device, count = next(model.parameters()).device, min(limit, len(graphs))
    with writing(path), replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for g in range(count):
            for name, value in _arrays(model, graphs[g], device).items():
                with archive.open(f"graph_{g}/{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, value.detach().cpu().numpy())
    return count


def _arrays(model: nn.Module, graph: Data, device: torch.device) -> dict[str, Tensor]:
    batch = Batch.from_data_list([graph]).to(device)
    dtype = next(model.parameters()).dtype
    batch = batch.apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    batch.split, batch.progress = "test", 1.0
    layers = collect_attention(model, batch)
    if not layers:
        raise ConfigError(
            "train.mode log-attn-weights: no layer of this model has attention weights: take kMIP, Transformer or "
            "BiasedTransformer in gt.layer_type"
        )
    arrays = {"x": graph.x, "edge_index": graph.edge_index}
    for i, layer in enumerate(layers):
        arrays |= {f"index_{i}": layer.index, f"weight_{i}": layer.weight}
    return arrays
