"""PPGT in plain form: all pairs of a padded batch as dense tensors, each step kept. Baseline of `pair_models`.

It computes what our network does, with the same parameters: random walk probabilities, sinusoidal encoding, MLP and
residual blocks of (B, n, n) pairs with n nodes of the largest graph, then attention with masked softmax. Never to be
improved. Undirected graphs without class tokens, windows, dropout and stochastic depth; norms are AdaRMSNorm.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.model import GPSModel


class DensePPGT(nn.Module):
    """A network PPGT of ours, computed on padded dense tensors.

    Args:
        model (GPSModel): as ``create_model(network="PPGT")`` returns it; its parameters are used, not copied.

    Shapes: batch of B graphs -> prediction (B, dim_out), labels.
    """

    def __init__(self, model: GPSModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        batch = self.model.encoder.features(copy.copy(batch))
        place = torch.arange(len(batch.batch), device=batch.ptr.device) - batch.ptr[batch.batch]
        most = int(batch.ptr.diff().max())
        mask = torch.arange(most, device=place.device) < batch.ptr.diff()[:, None]  # (B, n)
        nodes = batch.batch, place
        adjacency = batch.x.new_zeros(*mask.shape, most)
        source, target = batch.edge_index
        edges = batch.batch[source], place[source], place[target]
        adjacency.index_put_(edges, adjacency.new_ones(()), accumulate=True)
        degree = adjacency.sum(2)
        walks = self._walks(adjacency, degree)  # (B, n, n, K + 1)
        x = batch.x.new_zeros(*mask.shape, batch.x.size(1)).index_put(nodes, batch.x)
        x = x + self._node_features(walks, degree, mask)
        pairs = self._pairs(walks, degree, mask)
        if batch.get("edge_attr") is not None:  # of an edge from u to v, at query v and key u
            dense = torch.zeros_like(pairs)
            query_key = edges[0], edges[2], edges[1]
            pairs = pairs + dense.index_put(query_key, batch.edge_attr, accumulate=True)
        pairs = self._blocks(pairs)
        for layer in self.model.layers:
            x = x + _attention(layer.attention[0], _norm(layer.attention_norm, x), pairs, mask)
            x = x + layer.ffn(_norm(layer.ffn_norm, x))
        batch.x = x[mask]
        return self.model.head(batch)

    def _walks(self, adjacency: Tensor, degree: Tensor) -> Tensor:
        walks = self.model.encoder.pair_stems[0].encoding.walks
        step = torch.where(degree > 0, 1 / degree, 0)[:, :, None] * adjacency
        powers = [torch.eye(step.size(1), dtype=step.dtype, device=step.device).expand_as(step), step]
        while len(powers) < walks.num_channels:
            powers.append(powers[-1] @ step)
        return torch.stack(powers, dim=-1)

    def _node_features(self, walks: Tensor, degree: Tensor, mask: Tensor) -> Tensor:
        linears = self.model.encoder.node_stems[0].linears
        order = mask.sum(1, keepdim=True).to(degree).log1p().expand_as(degree)
        features = {
            "rrwp": walks.diagonal(dim1=1, dim2=2).mT,
            "log_degree": degree.log1p()[..., None],
            "log_order": order[..., None],
        }
        return sum(linear(features[name]) for name, linear in linears.items())

    def _pairs(self, walks: Tensor, degree: Tensor, mask: Tensor) -> Tensor:
        """Return the features of pairs before the blocks: (B, n, n, C)."""
        stem, inverse = self.model.encoder.pair_stems[0], torch.where(degree > 0, 1 / degree, 0)
        shape = walks.shape[:3]
        order = (1 / mask.sum(1).to(walks))[:, None, None].expand(shape)
        key, query = inverse[:, None].expand(shape), inverse[:, :, None].expand(shape)
        columns = {"inverse_order": [order], "inverse_degree": [key, query]}
        added = [column[..., None] for name in stem.features for column in columns[name]]
        values = torch.cat([walks, *added], dim=-1)
        angles = values[..., None] * (torch.pi * 2.0 ** torch.arange(stem.num_bases).to(values))
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(3)
        return stem.mlp(torch.cat([values, waves], dim=-1) if stem.raw_channels else waves)

    def _blocks(self, pairs: Tensor) -> Tensor:
        blocks = self.model.encoder.pair_stems[1]
        for norm, mlp in zip(blocks.norms, blocks.mlps, strict=True):
            pairs = pairs + mlp(_norm(norm, pairs))
        return _norm(blocks.last_norm, pairs)


def _norm(norm: Any, x: Tensor) -> Tensor:
    """AdaRMSNorm, (..., C) -> (..., C)."""
    scale = (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return x * scale * ((norm.alpha * x + norm.beta).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def _attention(attention: Any, x: Tensor, pairs: Tensor, mask: Tensor) -> Tensor:
    """Return simplified L2 attention of padded nodes: x (B, n, C), pairs (B, n, n, C'), mask (B, n) -> (B, n, C)."""
    heads = attention.heads
    q = heads.query(x).unflatten(2, (heads.num_heads, -1)).transpose(1, 2)  # (B, H, n, D)
    k, v = heads.key_value(x).unflatten(2, (2, heads.num_heads, -1)).permute(2, 0, 3, 1, 4)
    theta, phi = attention.pair(pairs).permute(0, 3, 1, 2).chunk(2, dim=1)  # (B, H, n, n)
    key_bias = k.square().sum(-1)[:, :, None] * (-0.5 / k.size(-1) ** 0.5)
    score = (heads.scale * q @ k.mT + key_bias + theta).masked_fill(~mask[:, None, None], -torch.inf)
    weight = score.softmax(-1) * (1 + phi)
    return heads.out((weight @ v).transpose(1, 2).flatten(2))
