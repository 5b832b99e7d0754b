"""Table of attentions: classes or builders ``(dim, num_heads, dropout, *, options)``, called ``(x, context) -> x``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.attention import (
    BiasedFullAttention,
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    PerformerAttention,
)
from graphgps_kmip.gym.kmip_builder import build_kmip
from graphgps_kmip.registry import Row, add_row
from graphgps_kmip.signatures import defaults

ATTENTION: dict[str, Row] = {}


def register_attention(
    name: str,
    component: Callable[..., nn.Module],
    *,
    breaks: tuple[str, ...] = (),
    zero_grad: tuple[str, ...] = (),
) -> None:
    """Add an attention: ``gt.layer_type: GatedGCN+<name>`` uses it, ``gt.<name in lower case>`` configures it.

    Args:
        name: its name.
        component: class with ``(dim, num_heads, dropout, *, options)``, called ``(x, context) -> x``.
        breaks: laws that it does not promise, see `Row`.
        zero_grad: parameters whose gradient is zero by mathematics, see `Row`.

    Raises:
        ConfigError: the name is taken, or the options cannot be listed (``**kwargs``, no default).
    """
    row = add_row(ATTENTION, name, component, breaks=breaks, zero_grad=zero_grad)
    if "gt" in cfg and not cfg.is_frozen():  # registered after set_cfg: the group joins the live config
        cfg.gt.setdefault(row.group, CfgNode(defaults(component)))


SPARSE = "sparse_attn_dropout"
add_row(ATTENTION, "kMIP", build_kmip, aliases=("SparseAttention",), zero_grad=("key.bias",), dropout=SPARSE)
add_row(ATTENTION, "Transformer", FullAttention)
add_row(ATTENTION, "BiasedTransformer", BiasedFullAttention, breaks=("batch_vector",))
add_row(ATTENTION, "Performer", PerformerAttention)
# In the public code, too, the layers' dropout reaches BigBird, which has no dropout of weights.
add_row(ATTENTION, "BigBird", BigBirdAttention, breaks=("permutation",), dropout="dropout")
NO_GRADIENT = ("initial_state.expander.weight",)  # without such edges
add_row(ATTENTION, "Exphormer", ExphormerAttention, zero_grad=NO_GRADIENT, dropout=SPARSE)
