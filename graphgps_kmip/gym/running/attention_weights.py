"""The arrays of train mode ``log-attn-weights``: what every layer and head attends to, in graphs of any kind."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import collect_attention
from graphgps_kmip.common.atomic_write import replacing
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.results.run_folder import writing

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
    device = next(model.parameters()).device
    count = min(limit, len(graphs))
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
