"""The two branches of SGFormer, global attention and graph convolutions, and their sum (Wu et al. 2023, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.errors import InputError

AGGREGATES = ("add", "cat")


class AttentionBranch(nn.Module):
    r"""Input layer and attentions, each averaged with its input and normalised.

    .. math::
        X_0 = \mathrm{drop}(\mathrm{ReLU}(\mathrm{LN}(W X))), \qquad
        X_l = \mathrm{drop}(\mathrm{ReLU}(\mathrm{LN}((\mathrm{attention}(X_{l-1}) + X_{l-1}) / 2)))

    Args:
        dim_in (int): columns of x.
        dim (int): width C.
        attention (Sequence[Module]): ``(x, context) -> x`` of width C, first layer first.
        dropout (float, optional): probability. (default: 0.0)

    Shapes: x (N, dim_in), context -> (N, C).
    """

    def __init__(self, dim_in: int, dim: int, attention: Sequence[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.input, self.attention = nn.Linear(dim_in, dim), nn.ModuleList(attention)
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(len(attention) + 1))
        self.act = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Return new node features."""
        x = self.act(self.norm[0](self.input(x)))
        for attention, norm in zip(self.attention, self.norm[1:], strict=True):
            x = self.act(norm((attention(x, context) + x) / 2))
        return x


class ConvolutionBranch(nn.Module):
    r"""Input layer and message passing, to which the output of the input layer is added each time.

    .. math::
        X_0 = \mathrm{drop}(\mathrm{ReLU}(\mathrm{BN}(W X))), \qquad
        X_l = \mathrm{drop}(\mathrm{ReLU}(\mathrm{BN}(\mathrm{MPNN}(X_{l-1}, E)))) + X_0

    Args:
        dim_in (int): columns of x.
        dim (int): width C.
        convs (Sequence[Module]): message passing ``(x, edge_index, edge_attr) -> (x, edge_attr)`` of width C, first
            layer first; in the paper GCN.
        dropout (float, optional): probability. (default: 0.0)

    Shapes: x (N, dim_in), context -> (N, C).
    """

    def __init__(self, dim_in: int, dim: int, convs: Sequence[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.input, self.convs = nn.Linear(dim_in, dim), nn.ModuleList(convs)
        self.norm = nn.ModuleList(BatchNorm(dim, allow_single_element=True) for _ in range(len(convs) + 1))
        self.act = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Return new node features."""
        x = start = self.act(self.norm[0](self.input(x)))
        for conv, norm in zip(self.convs, self.norm[1:], strict=True):
            message, _ = conv(context.sources(x), context.edge_index, context.edge_attr)
            x = self.act(norm(message)) + start
        return x


class SGFormerLayer(nn.Module):
    r"""Both branches of SGFormer on the same features, and their weighted sum: the only layer of a `GPSModel`.

    .. math:: X' = \alpha X_{\mathrm{GNN}} + (1 - \alpha) X_{\mathrm{attention}}

    Args:
        attention_branch (AttentionBranch): width C.
        convolution_branch (ConvolutionBranch): width C.
        graph_weight (float, optional): :math:`\alpha`, in [0, 1]. (default: 0.8)
        aggregate (str, optional): ``add``; or ``cat``: both side by side, attention first. (default: "add")

    Shapes:
        x (N, dim_in), context -> (N, C), with ``cat`` (N, 2C), edge_attr as given, states as given.

    Raises:
        ValueError: graph_weight is not in [0, 1], or an unknown aggregate.
    """

    attention = ()  # read by GPSModel: no states

    def __init__(
        self,
        attention_branch: AttentionBranch,
        convolution_branch: ConvolutionBranch,
        graph_weight: float = 0.8,
        aggregate: str = "add",
    ) -> None:
        super().__init__()
        if not 0 <= graph_weight <= 1:
            raise InputError(f"graph_weight must be in [0, 1], got {graph_weight}")
        if aggregate not in AGGREGATES:
            raise InputError(f"aggregate must be one of {', '.join(AGGREGATES)}, got {aggregate!r}")
        self.attention_branch, self.convolution_branch = attention_branch, convolution_branch
        self.graph_weight, self.aggregate = graph_weight, aggregate

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the states."""
        attended, convolved = self.attention_branch(x, context), self.convolution_branch(x, context)
        if self.aggregate == "cat":
            joined = torch.cat([attended, convolved], 1)
        else:
            joined = self.graph_weight * convolved + (1 - self.graph_weight) * attended
        return joined, context.edge_attr, states
