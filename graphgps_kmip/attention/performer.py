"""Performer attention: linear attention by FAVOR+ random features (Choromanski et al. 2021, sections 2.3 and 2.4).

`redraw_regularly` draws the features anew during training, as the reference implementation does. Differs from GraphGPS:
padding is never a key, and gradients are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partialmethod
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from graphgps_kmip.attention.head_arguments import check_dropout, check_least, describe, split_heads
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.dense import Tiles, from_padded, to_padded
from graphgps_kmip.ops.host_copies import host_copy, remember
from graphgps_kmip.ranges import WIDTH
from graphgps_kmip.registry import register

EPS = 1e-4  # added to every feature by the reference implementation: no normaliser comes near 0


def orthogonal_projection(num_features: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw Gaussian vectors (num_features, dim) that are orthogonal in groups of ``dim`` (section 2.4).

    Each vector by itself is Gaussian. Drawn on the CPU: a seed gives the same vectors on every device.
    """
    num_groups = -(-num_features // dim)
    basis, upper = torch.linalg.qr(torch.randn(num_groups, dim, dim, generator=generator))
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without it the bases are not uniform
    length = torch.randn(num_features, dim, generator=generator).norm(dim=1, keepdim=True)
    return basis.flatten(0, 1)[:num_features] * length


CHUNK = 2048  # nodes whose features stay in a CPU's cache


@register("attention", "Performer")
class PerformerAttention(nn.Module):
    r"""Multi-head attention by positive random features: linear in the nodes, an estimate of full attention.

    .. math:: o_n = \mathrm{drop}\Big(W \big\Vert_h
        \frac{\phi(q_n)^\top \sum_m \phi(k_m) v_m^\top}{\phi(q_n)^\top \sum_m \phi(k_m)} + b\Big), \qquad
        \phi_i(x) = \exp(\langle w_i, x\rangle / D^{1/4} - |x|^2 / (2\sqrt{D}) - s) + 10^{-4}

    The sums run over the nodes m of the graph of n. The stabiliser s of a query is its largest ``<w_i, x> / D^(1/4)``,
    that of a key the largest of all keys of its graph and head; the small constant keeps it from cancelling. Memory is
    num_heads * num_features * (N + B * D) numbers for N nodes in B graphs, time num_heads * num_features * N * D.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads.
        dropout (float, optional): probability to drop an output channel, in training only. (default: 0.0)
        dim_head (int, optional): channels D per head, independent of dim. (default: 64)
        num_features (int, optional): random features per head; None: floor(D ln D), 266 for 64. (default: None)
        use_bias (bool, optional): give queries, keys and values a bias. (default: False)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    projection: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        dim_head: Annotated[int, WIDTH] = 64,
        num_features: Annotated[int | None, WIDTH] = None,
        use_bias: bool = False,
    ) -> None:
        super().__init__()
        check_least(1, num_heads=num_heads, dim_head=dim_head, num_features=num_features)
        if num_features is None:
            num_features = max(1, int(dim_head * math.log(dim_head)))
        self.dim, self.num_heads, self.dim_head = dim, num_heads, dim_head
        self.num_features, self.use_bias = num_features, use_bias
        self.query, self.key, self.value = (nn.Linear(dim, num_heads * dim_head, bias=use_bias) for _ in range(3))
        self.out = nn.Linear(num_heads * dim_head, dim)
        self.dropout = nn.Dropout(check_dropout(dropout))
        self.register_buffer("projection", orthogonal_projection(num_features, dim_head))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw the random vectors anew, from a CPU generator or torch's own; checkpoints keep those in use."""
        self.projection.copy_(orthogonal_projection(*self.projection.shape, generator))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        return self.dropout(self.out(self.attend(x, GraphContext.of(context, x))))

    def attend(self, x: Tensor, context: GraphContext) -> Tensor:
        """Return the heads' outputs side by side, before the last linear map: x (N, dim) -> (N, H * D)."""
        q, k, v = (split_heads(linear(x), self.num_heads) for linear in (self.query, self.key, self.value))
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):  # the sums may have very many terms
            out = self._attend_chunks(q.to(wide), k.to(wide), v.to(wide), context)  # (N, H, D)
        return out.flatten(1).to(q.dtype)

    extra_repr = partialmethod(describe, "dim_head", "num_features")

    def _attend_chunks(self, q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> Tensor:
        if q.device.type != "cpu" or not context.num_graphs:
            return self._attend(q, k, v, context)
        out, ptr, first = [], context.ptr.tolist(), 0
        for end in range(1, len(ptr)):
            if end + 1 == len(ptr) or ptr[end + 1] - ptr[first] > CHUNK:
                part = slice(ptr[first], ptr[end])
                graphs = GraphContext(context.batch[part] - first, context.ptr[first : end + 1] - ptr[first])
                out.append(self._attend(q[part], k[part], v[part], graphs))
                first = end
        return torch.cat(out)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> Tensor:
        q = self._features(q, lambda largest: largest)  # (N, H, F)
        k = self._features(k, lambda largest: max_per_graph(largest, context)[context.batch])
        total, weight = linear_attention(q, k, v, context)
        return total / weight

    def _features(self, x: Tensor, choose_stabiliser: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features of x (N, H, D), (N, H, F), without the factor 1 / sqrt(F), which the quotient cancels."""
        x = x / x.size(-1) ** 0.25
        projected, half_norm = x @ self.projection.to(x.dtype).mT, x.square().sum(-1, keepdim=True) / 2
        return torch.exp(projected - half_norm - choose_stabiliser(projected.amax(-1, keepdim=True))) + EPS


def max_per_graph(values: Tensor, context: GraphContext) -> Tensor:
    """Return the largest values (N, H, D) of each graph, (B, H, D)."""
    index = context.batch[:, None, None].expand_as(values)
    return values.new_full((context.num_graphs, *values.shape[1:]), -torch.inf).scatter_reduce(0, index, values, "amax")


PERIOD = 1001  # calls: the reference counts 1000 of them, and draws at the one after


def redraw_regularly(model: nn.Module) -> None:
    """Let a network, changed in place, draw all its `PerformerAttention` anew at every `PERIOD`-th call in training.

    They are a function of a seed, drawn from torch's generator here, and of the number of calls. Both are buffers of
    the network, so that processes agree, and a resumed run equals an uninterrupted one.
    """
    model.register_buffer("redraw_seed", torch.randint(2**31, ()))
    model.register_buffer("redraw_calls", torch.zeros((), dtype=torch.long))
    model.register_forward_pre_hook(_count)


def _count(model: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 (a hook's signature)
    if not model.training:
        return
    calls = host_copy(model.redraw_calls) + 1
    remember(model.redraw_calls.fill_(int(calls)), calls)
    if int(calls) % PERIOD:
        return
    generator = torch.Generator().manual_seed(int(host_copy(model.redraw_seed) + calls))
    for module in model.modules():
        if isinstance(module, PerformerAttention):
            module.redraw(generator)


TILE = 128  # nodes: for 64 values of a head, the sums of tiles then take half the memory of as many features


def linear_attention(q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\sum_m \langle q_n, k_m \rangle v_m` and :math:`\sum_m \langle q_n, k_m \rangle`.

    m runs over the nodes of the graph of n (Katharopoulos et al. 2020, section 3.2).

    Shapes: q and k (N, H, F), v (N, H, D); returns (N, H, D) and (N, H, 1). Gradients flow to all three.
    """
    tiles = Tiles.split_uneven(context, TILE)
    q, k = (to_padded(features.flatten(1), tiles.context)[0].unflatten(2, k.shape[1:]) for features in (q, k))
    v = pad(v, (0, 1), value=1.0)  # the last channel sums the products themselves; of padding it is 0
    v = to_padded(v.flatten(1), tiles.context)[0].unflatten(2, v.shape[1:])  # (T, W, H, D + 1); q, k (T, W, H, F)
    sums = torch.einsum("twhf,twhd->thfd", k, v)
    sums = sums.new_zeros(context.num_graphs, *sums.shape[1:]).index_add(0, tiles.graph, sums)  # (B, H, F, D + 1)
    out = from_padded(torch.einsum("twhf,thfd->twhd", q, sums[tiles.graph]).flatten(2), tiles.context)
    out = split_heads(out, k.size(2))  # (N, H, D + 1)
    return out[..., :-1], out[..., -1:]
