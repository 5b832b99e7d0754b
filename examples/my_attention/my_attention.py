"""An attention of one's own: linear attention (Katharopoulos et al. 2020), whose cost grows linearly with the nodes."""

import torch
from torch import nn
from torch_geometric.utils import scatter

from graphgps_kmip import AttentionGraph, GraphContext, register


@register("attention", "Linear")
class LinearAttention(nn.Module):
    """Softmax attention with elu(x / temperature) + 1 in place of the exponential."""

    def __init__(self, dim, num_heads, dropout=0.0, *, temperature=1.0):
        super().__init__()
        self.num_heads, self.temperature = num_heads, temperature
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def project(self, x):
        q, k, v = self.qkv(x).unflatten(1, (3, self.num_heads, -1)).unbind(1)  # each (N, H, D)
        return *(nn.functional.elu(u / self.temperature) + 1 for u in (q, k)), v

    def forward(self, x, context):
        context = GraphContext.of(context, x)
        q, k, v = self.project(x)
        kv = scatter(k[..., None] * v[..., None, :], context.batch, 0, context.num_graphs)  # (B, H, D, D)
        norm = scatter(k, context.batch, 0, context.num_graphs)  # (B, H, D)
        out = torch.einsum("nhd,nhde->nhe", q, kv[context.batch])
        out = out / (q * norm[context.batch]).sum(-1, keepdim=True)
        return self.dropout(self.out(out.flatten(1)))

    def attention_graph(self, x, context):  # for its picture: what forward never computes, the weight of every key
        context = GraphContext.of(context, x)
        q, k, _ = self.project(x)
        same = context.batch[:, None] == context.batch  # (N, N): a key in another graph has no weight
        score = torch.einsum("nhd,mhd->hnm", q, k) * same  # (H, N, N)
        index = torch.arange(len(x), device=x.device).where(same, -1).expand_as(score)
        return AttentionGraph(index, score / score.sum(-1, keepdim=True))
