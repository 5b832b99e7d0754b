"""Faults of the public codes, for runs that must repeat them: each a subclass or a function, chosen by a config key.

Only `gym` imports this module: `FAULTS` are further keys of the config, and `repeat_faults` changes the classes of a
network's modules. These add no parameters or state, so that checkpoints and random numbers stay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import AnnealedKeys, BigBirdAttention, KMIPAttention, PerformerAttention
from graphgps_kmip.attention.exphormer import LARGEST_SAMPLED_LOGIT, SampledEdgeAttention
from graphgps_kmip.attention.kmip import BestKeys, KeySelection
from graphgps_kmip.encoding.expander_graph import (
    Expander,
    Expansion,
    adjacency_without_loops,
    expander_edges,
    expander_generator,
    second_eigenvalue,
)
from graphgps_kmip.encoding.graphormer_bias import GraphormerEncoder, GraphToken
from graphgps_kmip.errors import InputError
from graphgps_kmip.model import FeatureEncoder, GPSModel
from graphgps_kmip.mpnn import GINE
from graphgps_kmip.ops.context import AttentionGraph, GraphContext
from graphgps_kmip.ops.dense import from_padded, to_padded
from graphgps_kmip.ranges import Choice, Default

# Key -> default, which is without the fault; the quirks of `compat.dialects` are values of these.
FAULTS: dict[str, Any] = {
    "gt.kmip.pad_keys": False,
    "gt.kmip.repeat_first_key": False,
    "gt.performer.mask_keys": True,
    "gt.performer.detach_stabiliser": False,
    "gt.bigbird.pattern": Default("graph", Choice(("graph", "public", "public_global_rng"))),
    "gt.gine.broadcast_row_1": False,
    "posenc_GraphormerBias.pad_paths": False,
    "posenc_GraphormerBias.move_edges": True,
    "prep.exp_raw": False,  # keep loops and repeated edges
    "prep.raw_reverse_edges": False,  # also where they are there already
    "dataset.edge_norm_on_nodes": False,  # dataset.edge_encoder_bn normalises the node features once more
    "network.spexphormer.mix_heads": False,
}


@dataclass(frozen=True, eq=False)
class PaddedContext(GraphContext):
    """A `GraphContext` with padding among the nodes: ``real`` (N,) is False there."""

    real: Tensor | None = None


def with_padding(x: Tensor, context: GraphContext) -> tuple[Tensor, PaddedContext]:
    """Pad each graph with rows of zeros to the size of the largest; ``x[context.real]`` undoes it.

    Edges and pairs keep their numbers, so layers that read them must not follow. x (N, C) -> (B * Nmax, C), context.
    """
    padded, mask = to_padded(x, context)
    ptr = torch.arange(context.num_graphs + 1, device=x.device) * context.max_nodes
    batch = torch.arange(context.num_graphs, device=x.device).repeat_interleave(context.max_nodes)
    fields = {name: getattr(context, name) for name in context.__dataclass_fields__}
    return padded.flatten(0, 1), replace(PaddedContext(**fields), batch=batch, ptr=ptr, real=mask.flatten())


class PaddedGPSModel(GPSModel):
    """A network whose layers see padding as nodes, as GraphGPS's whole Performer; for layers that read no edges."""

    def run_layers(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor | None]:
        """Run the layers on padded graphs, and drop the padding: x (N, C) -> (N, C), edge_attr as it is."""
        x, context = with_padding(x, context)
        x, edge_attr = super().run_layers(x, context)
        return x[context.real], edge_attr


class PaddedPerformerAttention(PerformerAttention):
    """Performer whose padding, of value 0, counts in the denominator: the quirk ``performer_unmasked_keys``."""

    def attend(self, x: Tensor, context: GraphContext) -> Tensor:
        """Attend inside each padded graph: x (N, dim) -> (N, num_heads * dim_head)."""
        if isinstance(context, PaddedContext):
            return super().attend(x, context)
        x, context = with_padding(x, context)
        return super().attend(x, context)[context.real]

    def _attend_chunks(self, q: Tensor, k: Tensor, v: Tensor, context: PaddedContext) -> Tensor:
        return super()._attend_chunks(q, k, v.masked_fill(~context.real[:, None, None], 0.0), context)


class DetachedPerformerAttention(PerformerAttention):
    """Performer whose gradient takes the stabilisers for constants: the quirk ``performer_detached_stabiliser``."""

    def _features(self, x: Tensor, choose_stabiliser: Callable[[Tensor], Tensor]) -> Tensor:
        return super()._features(x, lambda largest: choose_stabiliser(largest).detach())


class PaddedDetachedPerformerAttention(PaddedPerformerAttention, DetachedPerformerAttention):
    """Performer with both faults."""


class PaddedBigBirdAttention(BigBirdAttention):
    """BigBird that counts the blocks of the padded batch: the quirk ``bigbird_padded_blocks``.

    The last block is that of the largest graph; all layers have the random blocks of `draw_public` with seed 0.
    """

    def _last_blocks(self, context: GraphContext) -> Tensor:
        return torch.full_like(context.sizes, -(-context.max_nodes // self.block_size) - 1)

    def _random_blocks(self, block: Tensor, last: Tensor) -> Tensor:
        return self._draw(int(last[0]) + 1 if len(last) else 0).to(block.device)[block]

    def _draw(self, num_blocks: int) -> Tensor:
        return draw_with_seed_0(num_blocks, self.num_heads, self.num_random_blocks)


class GlobalRandomBigBirdAttention(PaddedBigBirdAttention):
    """BigBird that also resets numpy's global random state at each call: the quirk ``bigbird_global_rng``."""

    def _draw(self, num_blocks: int) -> Tensor:
        np.random.seed(0)
        return draw_public(np.random, num_blocks, self.num_heads, self.num_random_blocks)


@lru_cache(maxsize=64)
def draw_with_seed_0(num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Return the blocks of `draw_public` by a new random state."""
    return draw_public(np.random.RandomState(0), num_blocks, num_heads, num_random)


def draw_public(rng: np.random.RandomState | ModuleType, num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Draw R random blocks for each block and head as GraphGPS does, those that are attended to anyway included.

    In long sequences all come from the first 2R + 5 blocks, in shorter ones half of them from the first R + 5 and half
    from the rest; missing blocks are repeated. Its other draw for 1024, 3072 or 4096 nodes is not repeated.

    Shapes: returns (num_blocks, H, R), 0 in the first row.
    """
    near, num_near = num_blocks, num_random
    if num_blocks > 2 * num_random + 5:
        near = 2 * num_random + 5
    elif num_blocks > num_random + 5:
        near, num_near = num_random + 5, num_random // 2
    table = np.zeros((num_blocks, num_heads, num_random), dtype=np.int64)
    parts = ((slice(0, num_near), np.arange(near)), (slice(num_near, num_random), np.arange(near, num_blocks)))
    for rows in (range(1, near), range(near, num_blocks)):
        for columns, blocks in parts:
            count = columns.stop - columns.start
            for row, head in product(rows, range(num_heads if count else 0)):
                table[row, head, columns] = np.resize(rng.permutation(blocks)[:count], count)
    return torch.from_numpy(table)


class FirstRowGINE(GINE):
    """GINE that adds row 1 of x to each sum in place of the node's row: the quirk ``gine_row_1`` of GraphGPS."""

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return new node features, and the edge features as they are."""
        return self.inner(self._add_messages(x[1].expand_as(x), x, edge_index, edge_attr, encoding)), edge_attr


class MixedHeadsAttention(SampledEdgeAttention):
    """Attention along sampled edges whose scores mix up heads and edges: the quirk ``spexphormer_mixed_heads``.

    With H heads and K edges into each node, the products of keys and edge features are listed by edge, then by head,
    and reshaped to H parts of K, so that scores are of other edges and heads. With one head it is no fault.

    Raises:
        InputError: when called: some nodes have more edges than others.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor, edges: Tensor) -> Tensor:
        """Return the output of each head, (M, H, D)."""
        num_targets, num_heads, dim = q.shape
        degree = edges.size(1) // max(1, num_targets)
        if not torch.equal(edges[1], torch.arange(num_targets, device=q.device).repeat_interleave(degree)):
            raise InputError(
                "mix_heads repeats a public layer, which needs as many edges into each node: set "
                "spexphormer.repeat_missing True, or drop the quirk spexphormer_mixed_heads"
            )
        source, _, row = edges.unflatten(1, (num_targets, degree))  # (M, K) each
        products = (e[row] * k[source]).reshape(num_targets, num_heads, degree, dim)  # of (M, K, H, D)
        logit = (products * q[:, :, None]).sum(-1) + bias[row].transpose(1, 2)  # (M, H, K)
        weight = logit.clamp(-LARGEST_SAMPLED_LOGIT, LARGEST_SAMPLED_LOGIT).softmax(-1)
        return (weight[..., None] * v[source].transpose(1, 2)).sum(2)


class EdgeNormOnNodesEncoder(FeatureEncoder):
    """Feature encoder whose norm of edges is applied to the nodes, as GraphGym's: the quirk ``edge_norm_on_nodes``."""

    def normalise_edges(self, batch: Any) -> None:
        """Normalise ``batch.x``."""
        batch.x = self.edge_norm(batch.x)


class PaddedKMIPAttention(KMIPAttention):
    """k-MIP attention that can select the padding of a batch as keys: the quirk ``kmip_no_mask``."""

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each padded graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        out = super().forward(*with_padding(x, context))
        return from_padded(out.view(context.num_graphs, context.max_nodes, x.size(1)), context)

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return selected keys and weights (H, N, K); padding is an empty slot: weights may sum to less than 1."""
        context = GraphContext.of(context, x)
        graph = super().attention_graph(*with_padding(x, context))  # (H, B * Nmax, K)
        node, mask = to_padded(torch.arange(len(context.batch), device=context.batch.device)[:, None], context)
        mask = mask.flatten()
        node = node.flatten().masked_fill(~mask, -1)  # (B * Nmax,), of each padded row
        index, weight = graph.index[:, mask], graph.weight[:, mask]
        index = node[index.clamp(min=0)].masked_fill(index < 0, -1)
        return AttentionGraph(index, weight.masked_fill(index < 0, 0.0))


class FirstKeyAgain(KeySelection):
    """Fills the empty slots of a query with fewer than k keys with the first node: the quirk ``kmip_duplicate_key_0``.

    Args:
        among (KeySelection, optional): selection of the other keys; None: `BestKeys`. (default: None)
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)

    @torch.no_grad()
    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select, and fill up to num_keys; see `KeySelection`."""
        index, score = self.among(q, k, context, num_keys, backend)
        missing = (0, num_keys - index.size(-1))
        index, score = pad(index, missing, value=-1), pad(score, missing)  # (H, N, num_keys)
        first = context.ptr[context.batch]  # (N,)
        again = (q * k[:, first]).sum(-1)[..., None]  # (H, N, 1)
        return torch.where(index < 0, first[:, None], index), torch.where(index < 0, again, score)


class PaddedPathsEncoder(GraphormerEncoder):
    """Graphormer encoder whose places without an edge hold edges of type 0: the quirk ``graphormer_padded_paths``."""

    def _before_edges(self, tables: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
        total, tables = super()._before_edges(tables, num_pairs)
        # type 0 at every place, and taken away again where there is an edge
        return total + tables[:, 0].sum(dim=0), tables - tables[:, :1]


class UnmovedEdgesToken(GraphToken):
    """Graph token that does not renumber edges: the quirk ``graphormer_token_shifts_edges``."""

    def _move_edges(self, batch: Batch, moved: Tensor) -> None:
        """Leave the edges as they are."""


class PublicExpander(Expander):
    """Edge set ``expander_edge_index`` of each graph; with ``raw`` that of `RAW`."""

    raw: bool = False
    FROM_CONFIG = {**Expander.FROM_CONFIG, "raw": "prep.exp_raw"}

    @staticmethod
    def compute(
        graph: Data, deg: int, algorithm: str, max_num_iters: int, seed: int, raw: bool = False
    ) -> dict[str, Tensor]:
        """Return the edges, which are random by seed and graph."""
        rng, expansion = expander_generator(seed, graph.graph_id), RAW if raw else Expansion()
        options = {"max_num_iters": max_num_iters, "expansion": expansion}
        return {"expander_edge_index": expander_edges(graph.num_nodes, deg, algorithm, rng=rng, **options)}


def raw_spectral_value(edges: np.ndarray, num_nodes: int) -> float:
    """Return the second smallest eigenvalue of D - A, where D counts loops and A does not; edges in both directions."""
    degree = np.bincount(edges[0], minlength=num_nodes).astype(np.float64)
    return second_eigenvalue(degree, adjacency_without_loops(edges, num_nodes))


# Expander graphs of Exphormer's code, the quirk ``exphormer_raw_expander``: loops and repeated edges stay, in the order
# of the draw, the test's degrees count loops, and its bound is that of the setting, also for graphs of few nodes.
RAW = Expansion(raw_spectral_value, choose_degree=lambda degree, _: degree, simplify=lambda edges, _: edges)


def with_every_edge_reversed(graph: Data) -> Data:
    """Return a copy of a graph with the reverse of each edge appended: the quirk ``exphormer_double_edges``.

    In a graph that is undirected already, every edge then counts twice.

    Shapes: edge_index (2, E) -> (2, 2 E), edge_attr (E, D) -> (2 E, D).
    """
    graph = copy.copy(graph)
    graph.edge_index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    if graph.edge_attr is not None:
        graph.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr])
    return graph


# (key, value) -> class -> its subclass with the fault
VARIANTS: dict[tuple[str, Any], dict[type[nn.Module], type[nn.Module]]] = {
    ("gt.kmip.pad_keys", True): {KMIPAttention: PaddedKMIPAttention},
    ("gt.performer.mask_keys", False): {PerformerAttention: PaddedPerformerAttention},
    ("gt.performer.detach_stabiliser", True): {
        PerformerAttention: DetachedPerformerAttention,
        PaddedPerformerAttention: PaddedDetachedPerformerAttention,
    },
    ("gt.bigbird.pattern", "public"): {BigBirdAttention: PaddedBigBirdAttention},
    ("gt.bigbird.pattern", "public_global_rng"): {BigBirdAttention: GlobalRandomBigBirdAttention},
    ("gt.gine.broadcast_row_1", True): {GINE: FirstRowGINE},
    ("posenc_GraphormerBias.pad_paths", True): {GraphormerEncoder: PaddedPathsEncoder},
    ("posenc_GraphormerBias.move_edges", False): {GraphToken: UnmovedEdgesToken},
    ("dataset.edge_norm_on_nodes", True): {FeatureEncoder: EdgeNormOnNodesEncoder},
    ("network.spexphormer.mix_heads", True): {SampledEdgeAttention: MixedHeadsAttention},
}


def repeat_faults(network: nn.Module, settings: Mapping[str, Any], name: str = "") -> nn.Module:
    """Return a network or a part of one whose modules, in place, have the faults that the settings switch on.

    Args:
        network (Module): New, of correct modules.
        settings (Mapping): Key -> value, those of `FAULTS` among them; without one, its fault is off.
        name (str, optional): Registered name of the network: GraphGPS's Performer pads whole graphs. (default: ``""``)
    """
    modules = list(network.modules())
    if settings.get("gt.kmip.repeat_first_key", False):
        for module in modules:
            if isinstance(module, KMIPAttention):
                _repeat_first_key(module)
    if name == "Performer" and settings.get("gt.performer.mask_keys") is False:
        network.__class__ = PaddedGPSModel
    for (key, value), classes in VARIANTS.items():
        for module in modules if settings.get(key) == value else ():
            module.__class__ = classes.get(type(module), type(module))
    return network


def _repeat_first_key(attention: KMIPAttention) -> None:
    """Give k-MIP attention the selection `FirstKeyAgain`, inside of k annealing."""
    if isinstance(attention.selection, AnnealedKeys):
        attention.selection.among = FirstKeyAgain(attention.selection.among)
    else:
        attention.selection = FirstKeyAgain(attention.selection)
