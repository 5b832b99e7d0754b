"""GPS layer and GPS model (GraphGPS, Rampášek et al. 2022): message passing and attention branches in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.errors import InputError
from graphgps_kmip.model.gradient_checkpointing import recomputed
from graphgps_kmip.model.norms import NORMS

Branches = nn.Module | Sequence[nn.Module] | None
States = tuple[object, ...]  # one for each attention, None for those without


class GPSLayer(nn.Module):
    r"""One layer of GraphGPS (Rampášek et al. 2022) with injected branches, any number of each kind.

    .. math::
        X_M &= \mathrm{norm}(\mathrm{drop}(\mathrm{MPNN}(X, E)) + X) \\
        X_T &= \mathrm{norm}(\mathrm{drop}(\mathrm{attention}(X)) + X) \\
        X' &= \mathrm{norm}(\mathrm{FFN}(\textstyle\sum X_M + \sum X_T) + \sum X_M + \sum X_T)

    with ``FFN = drop Linear(2C, C) drop act Linear(C, 2C)``. An MPNN with ``internal_residual`` (GatedGCN) gets neither
    dropout nor residual here: it has its own. All branches read the same X and E; if several return new edge features,
    those of the last one are used. With ``chain_edges`` a message passing branch reads those of the branch before.

    Args:
        dim (int): width C.
        local (Module or sequence of Modules or None): message passing modules ``(x, edge_index, edge_attr) -> (x,
            edge_attr)``: one, several or None.
        attention (Module or sequence of Modules or None): attention modules ``(x, context) -> x``, or with a state (see
            `GPSModel`): one, several or None.
        dropout (float, optional): probability after each branch and inside the FFN. (default: 0.0)
        norm (str, optional): a key of `NORMS`. (default: "batch")
        act (callable, optional): builds the activation of the FFN. (default: ReLU)
        ffn (bool, optional): False leaves out the FFN and its norm, ``X' = act(sum X_M + sum X_T)``: Exphormer's
            SingleModel. (default: True)
        chain_edges (bool, optional): message passing branches pass edge features to the next one in the same layer:
            Exphormer's MultiModel. (default: False)

    Shapes:
        x (N, C), context, states -> (N, C), edge_attr (E, C) or None, states.

    Raises:
        ValueError: there is no branch, or the norm is unknown.
    """

    def __init__(
        self,
        dim: int,
        local: Branches,
        attention: Branches,
        dropout: float = 0.0,
        norm: str = "batch",
        act: Callable[[], nn.Module] = nn.ReLU,
        ffn: bool = True,
        chain_edges: bool = False,
    ) -> None:
        super().__init__()
        self.chain_edges = chain_edges
        if norm not in NORMS:
            raise InputError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        self.local, self.attention = nn.ModuleList(_listed(local)), nn.ModuleList(_listed(attention))
        if not len(self.local) + len(self.attention):
            raise InputError("gt.layer_type None+None has no branch: name a message passing layer or an attention")
        self.local_norm = nn.ModuleList(NORMS[norm](dim) for _ in self.local)
        self.attention_norm = nn.ModuleList(NORMS[norm](dim) for _ in self.attention)
        self.ffn_norm = NORMS[norm](dim) if ffn else None
        self.dropout = nn.Dropout(dropout)
        self.ffn = act()
        if ffn:
            self.ffn = nn.Sequential(
                nn.Linear(dim, 2 * dim), self.ffn, nn.Dropout(dropout), nn.Linear(2 * dim, dim), nn.Dropout(dropout)
            )

    def forward(
        self, x: Tensor, context: GraphContext, states: States | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Return new node features, new edge features and the attentions' new states."""
        edge_attr, branches, passed_on = context.edge_attr, [], []
        for local, norm in zip(self.local, self.local_norm, strict=True):
            h, new = self._message(local, x, context.with_edge_attr(edge_attr) if self.chain_edges else context)
            edge_attr = edge_attr if new is context.edge_attr else new
            branches.append(norm(h, context))
        for attention, norm, state in zip(
            self.attention, self.attention_norm, states or [None] * len(self.attention), strict=True
        ):
            h, state = (attention(x, context), None) if state is None else attention(x, context, state)
            passed_on.append(state)
            branches.append(norm(self.dropout(h) + x, context))
        h = sum(branches)
        h = self.ffn(h) if self.ffn_norm is None else self.ffn_norm(h + self.ffn(h), context)
        return h, edge_attr, tuple(passed_on)

    def _message(self, local: nn.Module, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor | None]:
        encoding = () if getattr(local, "gate", None) is None else (context.sources(context.encoding),)
        h, edge_attr = local(context.sources(x), context.edge_index, context.edge_attr, *encoding)
        return (h if getattr(local, "internal_residual", False) else self.dropout(h) + x), edge_attr


class GPSModel(nn.Module):
    """Encoder, optional input layers, a stack of GPS layers, prediction head: ``model(batch) -> (pred, true)``.

    An attention that defines ``initial_state(context)`` gets that state in the first layer, and each layer's new state
    in the next one. If it is a module, only the first layer keeps it: its parameters exist once.

    Args:
        encoder (Module): writes ``batch.x`` (N, C) and, where there are edge features, ``batch.edge_attr`` (E, C).
        layers (Sequence[GPSLayer]): the stack, first layer first.
        head (Module): ``(batch) -> (pred, true)``.
        pre_mp (Module, optional): layers between encoder and stack, on ``batch.x``, or None. (default: None)
        recompute (bool, optional): gradient checkpointing: keep only the input of a layer, and recompute it in the
            backward pass. (default: False)
    """

    def __init__(
        self,
        encoder: nn.Module,
        layers: Sequence[GPSLayer],
        head: nn.Module,
        pre_mp: nn.Module | None = None,
        *,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.encoder, self.pre_mp = encoder, pre_mp
        self.layers, self.head = nn.ModuleList(layers), head
        for layer in list(layers)[1:]:
            for attention in layer.attention:
                if isinstance(getattr(attention, "initial_state", None), nn.Module):
                    del attention.initial_state

    def forward(self, batch: object) -> tuple[Tensor, Tensor]:
        """Return predictions and labels; of the batch only x and edge_attr are replaced."""
        batch = self.encoder(batch)
        if self.pre_mp is not None:
            batch.x = self.pre_mp(batch.x)
        batch.x, batch.edge_attr = self.run_layers(batch.x, GraphContext.from_data(batch))
        return self.head(batch)

    def run_layers(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor | None]:
        """Return the node features (N, C) and the edge features (E, C) or None behind the last layer."""
        states = initial_states(self.layers[0].attention, context) if len(self.layers) else ()
        for layer in self.layers:
            call = partial(recomputed, layer) if self.recompute and torch.is_grad_enabled() else layer
            x, edge_attr, states = call(x, context, states)
            context = context.with_edge_attr(edge_attr)
        return x, context.edge_attr


def initial_states(attentions: Iterable[nn.Module], context: GraphContext) -> States:
    """Return the first state of each attention, None for those without."""
    return tuple(a.initial_state(context) if hasattr(a, "initial_state") else None for a in attentions)


def _listed(branches: Branches) -> list[nn.Module]:
    return [] if branches is None else [branches] if isinstance(branches, nn.Module) else list(branches)
