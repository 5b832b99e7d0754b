"""Layers of PPGT (Ma et al.): pre-norm blocks of attention and a feed-forward network, for nodes and for class tokens.

The parts of the pair stem, too, have this form of residual branch: dropout, stochastic depth per graph, layer scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.row_layers import NORM_LAYERS, DropPath


class ResidualBranch(nn.Module):
    r"""Add a branch to the residual stream, :math:`y = x + \gamma \odot \mathrm{droppath}(\mathrm{dropout}(h))`.

    Args:
        dim (int): channels C.
        dropout (float, optional): probability to drop a number of h. (default: 0.0)
        drop_path (float, optional): probability to drop h of a whole graph. (default: 0.0)
        drop_path_scale (bool, optional): divide kept graphs by 1 - drop_path. (default: True)
        layer_scale (float, optional): start of the learned vector gamma (Touvron et al. 2021); 0: no gamma.
            (default: 0.0)

    Shapes: x and h (M, C), ptr (B+1,) or None -> (M, C).
    """

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        drop_path_scale: bool = True,
        layer_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path, drop_path_scale)
        self.layer_scale = nn.Parameter(torch.full((dim,), float(layer_scale))) if layer_scale else None

    def forward(self, x: Tensor, h: Tensor, ptr: Tensor | None = None) -> Tensor:
        """Return the sum; ptr is the first row of each graph, None: each row is a graph, see `DropPath`."""
        h = self.drop_path(self.dropout(h), ptr)
        return x + h if self.layer_scale is None else torch.addcmul(x, self.layer_scale, h)


@dataclass(frozen=True)
class BranchOptions:
    """What the two residual branches of a layer have in common.

    Args:
        norm (str, optional): in front of each, a key of `NORM_LAYERS`. (default: "ada_rms_norm")
        dropout (float, optional): see `ResidualBranch`. (default: 0.0)
        drop_path (float, optional): likewise. (default: 0.0)
        drop_path_scale (bool, optional): likewise. (default: True)
        layer_scale (float, optional): likewise. (default: 0.0)
    """

    norm: str = "ada_rms_norm"
    dropout: float = 0.0
    drop_path: float = 0.0
    drop_path_scale: bool = True
    layer_scale: float = 0.0

    def build(self, dim: int) -> tuple[nn.Module, ResidualBranch]:
        """Return the norm and the branch of C channels.

        Raises:
            ValueError: an unknown norm.
        """
        norm = look_up(NORM_LAYERS, self.norm, "ppgt.norm")(dim)
        return norm, ResidualBranch(dim, self.dropout, self.drop_path, self.drop_path_scale, self.layer_scale)


class SwiGLU(nn.Module):
    r"""Gated feed-forward network (Shazeer 2020), :math:`W_3 (\mathrm{silu}(W_1 x) \odot W_2 x)` with biases.

    Args:
        dim (int): channels C.
        ratio (float, optional): width over C of the plain network of as many parameters: two thirds of it are hidden.
            (default: 2.0)
        dropout (float, optional): probability to drop a hidden number. (default: 0.0)

    Shapes: x (M, C) -> (M, C).
    """

    def __init__(self, dim: int, ratio: float = 2.0, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = int(dim * ratio * 2 / 3)
        self.gate, self.value, self.out = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        return self.out(self.dropout(silu(self.gate(x)) * self.value(x)))


def feed_forward(
    dim: int, ratio: float = 2.0, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.GELU
) -> nn.Sequential:
    """Return Linear, activation, dropout, Linear, with ratio * dim hidden channels.

    Args:
        dim (int): channels C.
        ratio (float, optional): hidden width over C. (default: 2.0)
        dropout (float, optional): probability to drop a hidden number. (default: 0.0)
        act (callable, optional): builds the activation. (default: GELU)

    Shapes: x (M, C) -> (M, C).
    """
    hidden = int(ratio * dim)
    return nn.Sequential(nn.Linear(dim, hidden), act(), nn.Dropout(dropout), nn.Linear(hidden, dim))


class PPGTLayer(nn.Module):
    r"""One layer of PPGT: attention and a feed-forward network, both normalised before.

    .. math::
        X' &= X + \gamma_1 \odot \mathrm{droppath}(\mathrm{drop}(\mathrm{attention}(\mathrm{norm}(X)))) \\
        X'' &= X' + \gamma_2 \odot \mathrm{droppath}(\mathrm{drop}(\mathrm{FFN}(\mathrm{norm}(X'))))

    The two branches drop graphs independently. A `GPSModel` stacks these layers like GPS layers; edge features are
    unchanged.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context) -> x``, or with a state (see `GPSModel`): PPGT's is `SimplifiedL2Attention`.
        ffn (Module): `feed_forward` or `SwiGLU`.
        options (BranchOptions, optional): of both branches. (default: ``BranchOptions()``)

    Shapes:
        x (N, C), context, states (one or none) -> (N, C), edge_attr as the context has it, states.

    Raises:
        ValueError: an unknown norm.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        ffn: nn.Module,
        options: BranchOptions = BranchOptions(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list: read by GPSModel
        self.attention_norm, self.attention_branch = options.build(dim)
        self.ffn, (self.ffn_norm, self.ffn_branch) = ffn, options.build(dim)

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the states."""
        state = states[0] if states else None
        h = self.attention_norm(x)
        h, state = (self.attention[0](h, context), None) if state is None else self.attention[0](h, context, state)
        x = self.attention_branch(x, h, context.ptr)
        x = self.ffn_branch(x, self.ffn(self.ffn_norm(x)), context.ptr)
        return x, context.edge_attr, (state,) if states else states


class ClassAttentionLayer(nn.Module):
    r"""One layer of class attention (Touvron et al. 2021, CaiT): a token of each graph reads the nodes of its graph.

    As `PPGTLayer`, for tokens; keys and values are the nodes as they are, not normalised. Stochastic depth draws once
    per token.

    Args:
        dim (int): width C.
        attention (Module): ``(token, x, context) -> token``: `ClassAttention`.
        ffn (Module): `feed_forward` or `SwiGLU`.
        options (BranchOptions, optional): of both branches. (default: ``BranchOptions()``)

    Shapes: token (B, C), x (N, C), context -> (B, C).

    Raises:
        ValueError: an unknown norm.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        ffn: nn.Module,
        options: BranchOptions = BranchOptions(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.attention, (self.attention_norm, self.attention_branch) = attention, options.build(dim)
        self.ffn, (self.ffn_norm, self.ffn_branch) = ffn, options.build(dim)

    def forward(self, token: Tensor, x: Tensor, context: GraphContext) -> Tensor:
        """Return the new token of each graph."""
        token = self.attention_branch(token, self.attention(self.attention_norm(token), x, context))
        return self.ffn_branch(token, self.ffn(self.ffn_norm(token)))
