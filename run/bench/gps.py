"""One whole GPS layer on random graphs, with each registered attention: forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import graphgps_kmip.networks  # noqa: F401 (registers attentions)
from graphgps_kmip.attention import GraphContext
from graphgps_kmip.model.gps import GPSLayer, initial_states
from graphgps_kmip.mpnn import GatedGCN
from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem
from graphgps_kmip.signatures import options
from run.bench import baselines, references
from run.bench.attention_inputs import make_inputs
from run.bench.passes import NotSupported, Pass, Stopwatch

FROZEN = "k-MIP (frozen)"
NO_ATTENTION = "no attention"
IN_DEGREE = 8  # edges a node, as in the k-nearest-neighbour graphs of the digits and of ShapeNet


def names() -> list[str]:
    """Return the layers: without attention, with the frozen k-MIP, each row of the package's table, reference forms."""
    return [NO_ATTENTION, FROZEN, *entries("attention"), *(references.PREFIX + name for name in references.REFERENCES)]


class FrozenKMIP(nn.Module):
    """k-MIP attention of the frozen search and the plain gather; never to be improved."""

    def __init__(self, dim: int, num_heads: int, k: int) -> None:
        super().__init__()
        self.num_heads, self.k = num_heads, k
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        q, k, v = self.qkv(x).unflatten(1, (3, self.num_heads, -1)).unbind(1)  # (N, H, D)
        with torch.no_grad():
            heads = (tensor.detach().transpose(0, 1) for tensor in (q, k))
            problem = SearchProblem.of(*heads, context.ptr, context.ptr, self.k)
            index, _ = baselines.chunked_frozen(problem)
        return baselines.gather_attention(q, k, v, index).flatten(1)


def layer_pass(
    name: str, data: str, n: int, dim: int, heads: int, k: int, device: str
) -> tuple[Pass, Callable[[], dict[str, Any]]]:
    """Return one pass, forward and backward, of a layer in training mode, and the facts about its graphs.

    Args:
        name: one of `names`.
        data: "single" (one graph) or "batch:32x480x4" (the last number is not used).
        n: nodes in all.
        dim: width of the layer.
        heads: attention heads.
        k: keys of a k-MIP attention; every other option of an attention is at its default.
        device: where.
    """
    ptr = make_inputs(data, n, 1, 1).ptr if data != "single" else torch.tensor([0, n])
    torch.manual_seed(0)
    layer = GPSLayer(dim, GatedGCN(dim), _attention(name, dim, heads, k)).to(device)
    edge_index, expander = (_random_edges(ptr).to(device) for _ in range(2))
    edge_attr = torch.randn(n * IN_DEGREE, dim).to(device)
    batch = torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff()).to(device)
    context = GraphContext(
        batch,
        ptr.to(device),
        edge_index,
        edge_attr,
        edge_sets={"expander": (expander, None)},
        pair_index=edge_index,
        pair_attr=torch.randn(n * IN_DEGREE, heads).to(device),
    )
    x = torch.randn(n, dim).to(device).requires_grad_()
    grad = torch.randn(n, dim).to(device)

    def run() -> dict[str, float]:
        layer.zero_grad()
        x.grad = None
        watch = Stopwatch(device)
        out, _, _ = layer(x, context, initial_states(layer.attention, context))
        forward = watch.lap()
        out.backward(grad)
        backward = watch.lap()
        return {"forward": forward, "backward": backward, "total": forward + backward}

    return run, lambda: {"graphs": len(ptr) - 1}


def _random_edges(ptr: torch.Tensor) -> torch.Tensor:
    """Draw the sources of `IN_DEGREE` edges that end in each node, in its graph: (2, E)."""
    sizes = ptr.diff().repeat_interleave(ptr.diff() * IN_DEGREE)
    first = ptr[:-1].repeat_interleave(ptr.diff() * IN_DEGREE)
    source = first + (torch.rand(len(sizes)) * sizes).long().clamp(max=sizes - 1)
    return torch.stack([source, torch.arange(int(ptr[-1])).repeat_interleave(IN_DEGREE)])


def _attention(name: str, dim: int, heads: int, k: int) -> nn.Module | None:
    if name == NO_ATTENTION:
        return None
    if name == FROZEN:
        return FrozenKMIP(dim, heads, k)
    if name.startswith(references.PREFIX):
        name = name.removeprefix(references.PREFIX)
        return references.REFERENCES[name](_attention(name, dim, heads, k))
    if name not in entries("attention"):
        raise NotSupported(f"no attention of the name {name!r} is registered")
    component = entries("attention")[name].component
    return component(dim, heads, 0.0, **({"k": k} if name == "kMIP" and "k" in options(component) else {}))
