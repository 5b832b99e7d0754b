"""The arrays behind the attention picture: one test graph, and what every layer and head attends to in it."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.attention import collect_attention
from graphgps_kmip.data import GraphDataset
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.train import replace_file

MAX_NODES = 500  # more cannot be told apart in a picture


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
    layers = collect_attention(model, batch.clone())
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
