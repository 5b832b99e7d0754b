"""GPS layer and model: a message passing branch and an attention branch side by side (k-MIP thesis section 2.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.model.norm import NORMS


class GPSLayer(nn.Module):
    r"""One layer of GraphGPS (Rampášek et al. 2022) with injected branches.

    .. math::
        X_M &= \mathrm{norm}(\mathrm{drop}(\mathrm{MPNN}(X, E)) + X) \\
        X_T &= \mathrm{norm}(\mathrm{drop}(\mathrm{attention}(X)) + X) \\
        X' &= \mathrm{norm}(\mathrm{FFN}(X_M + X_T) + X_M + X_T)

    with ``FFN = drop Linear(2C, C) drop act Linear(C, 2C)``. An MPNN with ``internal_residual`` (GatedGCN) gets neither
    dropout nor residual here: it brings its own.

    Args:
        dim: width C.
        local: message passing module ``(x, edge_index, edge_attr) -> (x, edge_attr)``, or None.
        attention: attention module ``(x, context) -> x``, or with a state (see `GPSModel`), or None.
        dropout: probability after each branch and inside the FFN.
        norm: a row of `NORMS`.
        act: builds the activation of the FFN.

    Shapes:
        x (N, C), context, state -> (N, C), edge_attr (E, C) or None, state.

    Raises:
        ValueError: both branches are None, or the norm is unknown.
    """

    def __init__(
        self,
        dim: int,
        local: nn.Module | None,
        attention: nn.Module | None,
        dropout: float = 0.0,
        norm: str = "batch",
        act: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        if local is None and attention is None:
            raise ValueError("a GPS layer needs a branch: gt.layer_type None+None leaves nothing to compute")
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        self.local, self.attention = local, attention
        self.local_norm = NORMS[norm](dim) if local is not None else None
        self.attention_norm = NORMS[norm](dim) if attention is not None else None
        self.ffn_norm = NORMS[norm](dim)
        self.dropout = nn.Dropout(dropout)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 2 * dim), act(), nn.Dropout(dropout), nn.Linear(2 * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, context: GraphContext, state: object = None) -> tuple[Tensor, Tensor | None, object]:
        """Return new node features, new edge features and the attention's new state."""
        edge_attr, branches = context.edge_attr, []
        if self.local is not None:
            h, edge_attr = self.local(x, context.edge_index, context.edge_attr)
            if not getattr(self.local, "internal_residual", False):
                h = self.dropout(h) + x
            branches.append(self.local_norm(h, context))
        if self.attention is not None:
            h, state = (self.attention(x, context), None) if state is None else self.attention(x, context, state)
            branches.append(self.attention_norm(self.dropout(h) + x, context))
        h = sum(branches)
        return self.ffn_norm(h + self.ffn(h), context), edge_attr, state


class GPSModel(nn.Module):
    """Encoder, optional input layers, a stack of GPS layers, prediction head: ``model(batch) -> (pred, true)``.

    An attention that defines ``initial_state(context)`` gets that state in the first layer and each layer's new state
    in the next one.

    Args:
        encoder: writes ``batch.x`` (N, C) and, where there are edge features, ``batch.edge_attr`` (E, C).
        layers: the stack, first layer first.
        head: ``(batch) -> (pred, true)``.
        pre_mp: layers between encoder and stack, on ``batch.x``, or None.
    """

    def __init__(
        self, encoder: nn.Module, layers: Sequence[nn.Module], head: nn.Module, pre_mp: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.pre_mp = encoder, pre_mp
        self.layers, self.head = nn.ModuleList(layers), head

    def forward(self, batch: object) -> tuple[Tensor, Tensor]:
        """Return predictions and labels; of the batch only x and edge_attr are replaced."""
        batch = self.encoder(batch)
        if self.pre_mp is not None:
            batch.x = self.pre_mp(batch.x)
        context, x = GraphContext.from_data(batch), batch.x
        first = getattr(self.layers[0], "attention", None) if len(self.layers) else None
        state = first.initial_state(context) if hasattr(first, "initial_state") else None
        for layer in self.layers:
            x, edge_attr, state = layer(x, context, state)
            context = context.with_edge_attr(edge_attr)
        batch.x, batch.edge_attr = x, context.edge_attr
        return self.head(batch)
