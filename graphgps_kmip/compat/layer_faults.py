"""Faults of public layers, for runs that must repeat them: k-MIP, Performer, BigBird and GINE, padded graphs.

Each fault is a subclass of the correct operator. Its config key is an option of the builder, beside those of the
operator: ``build_performer``, ``build_bigbird`` and ``build_gine`` are the registry entries of these names. The public
k-MIP code has padding among the keys, and key 0 in missing slots.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from graphgps_kmip.attention.bigbird import BigBirdAttention
from graphgps_kmip.attention.context import AttentionGraph, GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.key_selection import BestKeys, KeySelection
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.attention.performer import PerformerAttention
from graphgps_kmip.attention.sampled_edges import LARGEST_LOGIT, SampledEdgeAttention
from graphgps_kmip.compat.padded_graphs import PaddedContext, with_padding
from graphgps_kmip.errors import InputError
from graphgps_kmip.model.feature_encoding import FeatureEncoder
from graphgps_kmip.mpnn.gin import GINE
from graphgps_kmip.mpnn.message_passing import Nodes, source_and_target
from graphgps_kmip.ranges import Choice
from graphgps_kmip.registry import register

Choose = Callable[..., type[nn.Module]]


def with_faults(operator: type[nn.Module]) -> Callable[[Choose], Callable[..., nn.Module]]:
    """Make a builder of an operator from a function that chooses its class by further options.

    The builder's signature is that of the operator, whose defaults are not repeated, and the options of the function;
    one that both have goes to both.

    Args:
        operator (type): the correct operator.
    """

    def decorate(choose: Choose) -> Callable[..., nn.Module]:
        of_operator, of_choice = inspect.signature(operator), inspect.signature(choose).parameters

        @functools.wraps(choose)
        def build(*args: Any, **options: Any) -> nn.Module:
            variant = choose(**{name: value for name, value in options.items() if name in of_choice})
            kept = {name: value for name, value in options.items() if name in of_operator.parameters}
            return variant(*args, **kept)

        faults = [option for name, option in of_choice.items() if name not in of_operator.parameters]
        build.__signature__ = of_operator.replace(parameters=[*of_operator.parameters.values(), *faults])
        both = (typing.get_type_hints(one, include_extras=True) for one in (choose, operator.__init__))
        build.__annotations__ = functools.reduce(dict.__or__, both) | {"return": operator}
        build.__doc__, build.__name__ = operator.__doc__, operator.__name__
        return build

    return decorate


class PaddedPerformerAttention(PerformerAttention):
    """Performer whose padding counts in the sum of the denominator: the quirk ``performer_unmasked_keys``.

    Each graph is padded with zeros to the largest one of the batch, unless the network has done so; the values of
    padding are 0.
    """

    def attend(self, x: Tensor, context: GraphContext) -> Tensor:
        """Attend inside each padded graph: x (N, dim) -> (N, num_heads * dim_head)."""
        if isinstance(context, PaddedContext):
            return super().attend(x, context)
        x, context = with_padding(x, context)
        return super().attend(x, context)[context.real]

    def _by_chunks(self, q: Tensor, k: Tensor, v: Tensor, context: PaddedContext) -> Tensor:
        return super()._by_chunks(q, k, v.masked_fill(~context.real[:, None, None], 0.0), context)


class DetachedPerformerAttention(PerformerAttention):
    """Performer whose gradient takes the stabilisers for constants, although they do not cancel.

    The gradient of keys may be far off: the quirk ``performer_detached_stabiliser``.
    """

    def _features(self, x: Tensor, stabiliser_of: Callable[[Tensor], Tensor]) -> Tensor:
        return super()._features(x, lambda largest: stabiliser_of(largest).detach())


class PaddedDetachedPerformerAttention(PaddedPerformerAttention, DetachedPerformerAttention):
    """Performer with both faults."""


# (mask_keys, detach_stabiliser) -> class
PERFORMERS: dict[tuple[bool, bool], type[PerformerAttention]] = {
    (True, False): PerformerAttention,
    (False, False): PaddedPerformerAttention,
    (True, True): DetachedPerformerAttention,
    (False, True): PaddedDetachedPerformerAttention,
}


@register("attention", "Performer")
@with_faults(PerformerAttention)
def build_performer(*, mask_keys: bool = True, detach_stabiliser: bool = False, use_bias: bool = False) -> type:
    """Choose the class by the keys of ``gt.performer``.

    Raises:
        ValueError: keys with a bias and padding among them, which no public GPS layer has.
    """
    if use_bias and not mask_keys:
        raise InputError("mask_keys False repeats a public layer, whose keys have no bias: set use_bias False")
    return PERFORMERS[mask_keys, detach_stabiliser]


class PaddedBigBirdAttention(BigBirdAttention):
    """BigBird that counts the blocks of the padded batch: the quirk ``bigbird_padded_blocks``.

    The last block is that of the largest graph, and the random blocks are those of `draw_public`, alike in all layers.
    """

    def _last_blocks(self, context: GraphContext) -> Tensor:
        return torch.full_like(context.sizes, -(-context.max_nodes // self.block_size) - 1)

    def _random_blocks(self, block: Tensor, last: Tensor) -> Tensor:
        return self._draw(int(last[0]) + 1 if len(last) else 0).to(block.device)[block]

    def _draw(self, num_blocks: int) -> Tensor:
        return public_random_blocks(num_blocks, self.num_heads, self.num_random_blocks)


class GlobalRandomBigBirdAttention(PaddedBigBirdAttention):
    """BigBird that moreover resets numpy's global random state at each call: the quirk ``bigbird_global_rng``."""

    def _draw(self, num_blocks: int) -> Tensor:
        np.random.seed(0)
        return draw_public(np.random, num_blocks, self.num_heads, self.num_random_blocks)


BIGBIRDS: dict[str, type[BigBirdAttention]] = {
    "graph": BigBirdAttention,
    "public": PaddedBigBirdAttention,
    "public_global_rng": GlobalRandomBigBirdAttention,
}


# In the public code, too, the layers' dropout reaches BigBird, which has no dropout of weights.
@register("attention", "BigBird", breaks=("permutation",), dropout="dropout")
@with_faults(BigBirdAttention)
def build_bigbird(*, pattern: Annotated[str, Choice(BIGBIRDS)] = "graph") -> type:
    """Choose the class by ``gt.bigbird.pattern``.

    Raises:
        ValueError: an unknown pattern.
    """
    if pattern not in BIGBIRDS:
        raise InputError(f"pattern must be one of {', '.join(BIGBIRDS)}, got {pattern!r}")
    return BIGBIRDS[pattern]


@lru_cache(maxsize=64)
def public_random_blocks(num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Return what the public code draws, with a random state of its own: :func:`draw_public` with seed 0."""
    return draw_public(np.random.RandomState(0), num_blocks, num_heads, num_random)


def draw_public(rng: np.random.RandomState | ModuleType, num_blocks: int, num_heads: int, num_random: int) -> Tensor:
    """Draw random blocks as GraphGPS does, where they may repeat those that are attended to anyway, even the own one.

    In long sequences all come from the first 2R + 5 blocks, in shorter ones half of them from the first R + 5 and half
    from the rest. Where the public code fails for want of blocks, those that it has are repeated. It draws differently
    for sequences padded to 1024, 3072 or 4096 nodes; this is not repeated.

    Args:
        rng (RandomState or module): numpy's random state, or its random module for the global one.
        num_blocks (int): blocks of the padded sequence.
        num_heads (int): heads H.
        num_random (int): blocks R to draw.

    Shapes:
        returns (num_blocks, H, R), 0 in the first row.
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
    """GINE that adds row 1 of x to every sum in place of the node's own row: the quirk ``gine_row_1``.

    GraphGPS's GINE with EquivStableLapPE does. Results depend on the order of nodes, and a batch needs two nodes.
    """

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return new node features, and the edge features as they are."""
        own = source_and_target(x)[1]
        return self.inner(self._with_messages(own[1].expand_as(own), x, edge_index, edge_attr, encoding)), edge_attr


@register("message_passing", "GINE")
@with_faults(GINE)
def build_gine(*, broadcast_row_1: bool = False) -> type:
    """Choose the class by ``gt.gine.broadcast_row_1``."""
    return FirstRowGINE if broadcast_row_1 else GINE


class MixedHeadsAttention(SampledEdgeAttention):
    """Attention along sampled edges whose scores mix up heads and edges: the quirk ``spexphormer_mixed_heads``.

    With H heads and K edges into each node, the products of keys and edge features are listed edge by edge, head by
    head, and the list is cut into H parts of K, one of each query: number s of head h has a score of another edge and
    head. So the output depends on the order of the edges. With one head it is no fault.

    Raises:
        ValueError: when called: some nodes have more edges than others.
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
        weight = logit.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).softmax(-1)
        return (weight[..., None] * v[source].transpose(1, 2)).sum(2)


class EdgeNormOnNodesEncoder(FeatureEncoder):
    """Feature encoder whose norm of edges is applied to the nodes, as GraphGym's: the quirk ``edge_norm_on_nodes``."""

    def normalise_edges(self, batch: Any) -> None:
        """Normalise ``batch.x``."""
        batch.x = self.edge_norm(batch.x)


class PaddedKMIPAttention(KMIPAttention):
    """k-MIP attention whose graphs are padded with zeros to the largest one of the batch; the padding counts as nodes.

    These can be selected, so that a graph's output depends on the others: the quirk ``kmip_no_mask``. The arguments are
    those of `KMIPAttention`.
    """

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each padded graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        if context.halo is not None:
            raise InputError("pad_keys does not run on a graph sharded over processes: set gt.kmip.pad_keys False")
        out = super().forward(*with_padding(x, context))
        return from_padded(out.view(context.num_graphs, context.max_nodes, x.size(1)), context)

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights, without dropout and without those of padding."""
        context = GraphContext.of(context, x)
        return without_padding(super().attention_graph(*with_padding(x, context)), context)


class FirstKeyAgain(KeySelection):
    """The first node of the graph in each slot of a query with fewer than k keys, where it counts again.

    So the output depends on the order of the nodes: the quirk ``kmip_duplicate_key_0``.

    Args:
        among (KeySelection, optional): selection of the other keys; None: `BestKeys`. (default: None)
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select, and fill up to num_keys; see `KeySelection`."""
        index, score = self.among(q, k, context, num_keys, backend)
        missing = (0, num_keys - index.size(-1))
        return repeat_first_key(q, k, pad(index, missing, value=-1), pad(score, missing, value=-torch.inf), context)


def without_padding(graph: AttentionGraph, context: GraphContext) -> AttentionGraph:
    """Undo `with_padding` in what was learned: padding among the keys becomes an empty slot.

    The weights of a query then no longer sum to 1.

    Shapes:
        index and weight (H, B * Nmax, K) -> (H, N, K).
    """
    node, mask = to_padded(torch.arange(len(context.batch), device=context.batch.device)[:, None], context)
    mask = mask.flatten()
    node = node.flatten().masked_fill(~mask, -1)  # (B * Nmax,), of each padded row
    index, weight = graph.index[:, mask], graph.weight[:, mask]
    index = node[index.clamp(min=0)].masked_fill(index < 0, -1)
    return AttentionGraph(index, weight.masked_fill(index < 0, 0.0))


@torch.no_grad()
def repeat_first_key(
    q: Tensor, k: Tensor, index: Tensor, score: Tensor, context: GraphContext
) -> tuple[Tensor, Tensor]:
    """Put the first node of the graph into the slots of queries that have fewer keys, so that it counts again in each.

    Shapes:
        q and k (H, N, D), index and score (H, N, K); returns tensors like index and score.
    """
    first = context.ptr[context.batch]  # (N,)
    again = (q * k[:, first]).sum(-1)[..., None]  # (H, N, 1)
    return torch.where(index < 0, first[:, None], index), torch.where(index < 0, again, score)
