"""k-MIP attention by its config group ``gt.kmip``: which variant of it the settings ask for."""

from __future__ import annotations

from typing import Annotated

from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.attention.k_annealing import AnnealedKeys, check_start
from graphgps_kmip.attention.key_selection import BestKeys, DiverseKeys, KeySelection, RandomKeys
from graphgps_kmip.attention.kmip import HEAD_AGGREGATIONS, KMIPAttention
from graphgps_kmip.compat.layer_faults import FirstKeyAgain, PaddedKMIPAttention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import COUNT, NATURAL, NOT_NEGATIVE, WIDTH, Choice, Range, Registered
from graphgps_kmip.registry import register


@register("attention", "kMIP", aliases=("SparseAttention",), zero_grad=("key.bias",), dropout="sparse_attn_dropout")
def build_kmip(
    dim: int,
    num_heads: int,
    dropout: float = 0.0,
    *,
    k: Annotated[int, COUNT] = 10,
    dim_kq: Annotated[int | None, WIDTH] = None,
    dim_val: Annotated[int | None, WIDTH] = None,
    head_agg: Annotated[str, Choice(HEAD_AGGREGATIONS)] = "none",
    search: Annotated[str, Registered("a search backend, or auto")] = "auto",
    shard: bool = False,
    k_start: Annotated[int, NATURAL] = 0,
    anneal_until: Annotated[float, Range(0, 1, above=True)] = 0.5,
    diversity: Annotated[float, NOT_NEGATIVE] = 0.0,
    random_attention: bool = False,
    random_fraction: Annotated[float, Range(0, 1, above=True)] = 0.1,
    pad_keys: bool = False,
    repeat_first_key: bool = False,
) -> KMIPAttention:
    """Multi-head attention where every node attends to the k nodes of its graph with the largest inner product.

    Every keyword is a key of ``gt.kmip``, hence the many of them; what stands behind ``search`` is off by default.

    Args:
        dim: as all before ``k_start``, see `KMIPAttention`.
        num_heads: heads.
        dropout: of the weights.
        k: keys for each node and head.
        dim_kq: channels of queries and keys of a head.
        dim_val: channels of values of a head.
        head_agg: "none" or "Linear".
        search: backend of the search.
        shard: attend to the nodes of all processes.
        k_start: k before training, 0: as k. See `AnnealedKeys`.
        anneal_until: share of the training in which k falls.
        diversity: what a copy of a key loses; 0 is k-MIP. See `DiverseKeys`.
        random_attention: attend to the best of some keys that are drawn at random. See `RandomKeys`.
        random_fraction: share of a graph's nodes that is drawn.
        pad_keys: a fault of the public code, see `PaddedKMIPAttention`.
        repeat_first_key: another one, see `FirstKeyAgain`.

    Raises:
        ValueError: one of the arguments is out of its range, or they do not fit together.
    """
    check_share("anneal_until", anneal_until)  # when it is off, too, as the next one
    check_share("random_fraction", random_fraction)
    if shard and (diversity or random_attention or pad_keys or repeat_first_key):
        raise InputError("shard has no diversity, random_attention, pad_keys or repeat_first_key: switch these off")
    if random_attention and repeat_first_key:
        raise InputError("random_attention may leave out the key of repeat_first_key: switch one of them off")
    selection: KeySelection = RandomKeys(random_fraction) if random_attention else BestKeys()
    if diversity:
        selection = DiverseKeys(diversity, selection)
    if repeat_first_key:
        selection = FirstKeyAgain(selection)
    if k_start:
        check_start(k_start, k)
        selection = AnnealedKeys(k_start, anneal_until, selection)
    variant = PaddedKMIPAttention if pad_keys else KMIPAttention
    return variant(
        dim,
        num_heads,
        dropout,
        k=k,
        dim_kq=dim_kq,
        dim_val=dim_val,
        head_agg=head_agg,
        search=search,
        shard=shard,
        selection=selection,
    )
