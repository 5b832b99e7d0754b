"""GPS layer and GPS model (GraphGPS, Rampášek et al. 2022): message passing and attention branches in parallel."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.utils import dropout_edge

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.feature_encoding import SparseDropout
from graphgps_kmip.model.layer_recipe import LayerRecipe, LayerScale, leaves_residual
from graphgps_kmip.model.norms import NORMS
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.dropout import Dropout
from graphgps_kmip.search.dispatch import Memo


def checkpoint_layer(layer: nn.Module, *args: Any, call: Callable[..., Any] | None = None) -> Any:
    """Return ``layer(*args)``, or that of its method ``call``, with gradient checkpointing (Chen et al. 2016).

    Results, gradients and buffers are the same: dropout draws the same masks, batch norms count a batch once, and
    results of k-MIP searches are stored, not computed again (`Memo`).
    """
    memo = Memo()

    @contextmanager
    def second_pass() -> Iterator[None]:
        with memo.replaying(), _frozen_statistics(layer):
            yield

    contexts = lambda: (memo.recording(), _Again(second_pass))  # noqa: E731
    return checkpoint(call or layer, *args, use_reentrant=False, context_fn=contexts)


class _Again:
    """A context manager that can be entered several times: torch enters it in every backward pass of a graph."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make, self.stack = make, ExitStack()

    def __enter__(self) -> None:
        self.stack.enter_context(self.make())

    def __exit__(self, *error: Any) -> bool | None:
        return self.stack.__exit__(*error)


@contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norms normalise by the batch, as in training, without moving their running statistics."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm) and norm.track_running_stats]
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # they must be handed over as they were: the first pass saved them
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)


Branches = nn.Module | Sequence[nn.Module] | None
States = tuple[object, ...]  # one for each attention, None for those without


class GPSLayer(nn.Module):
    r"""One layer of GraphGPS (Rampášek et al. 2022) with injected branches, any number of each kind.

    .. math::
        X_M &= \mathrm{norm}(\mathrm{drop}(\mathrm{MPNN}(X, E)) + X) \\
        X_T &= \mathrm{norm}(\mathrm{drop}(\mathrm{attention}(X)) + X) \\
        X' &= \mathrm{norm}(\mathrm{FFN}(\textstyle\sum X_M + \sum X_T) + \sum X_M + \sum X_T)

    with ``FFN = drop Linear(2C, C) drop act Linear(C, 2C)``. An MPNN with ``internal_residual`` (GatedGCN) has its own
    dropout and, without ``outer_residual``, residual. All branches read the same X and E; of several new E the last
    counts. A `LayerRecipe` changes residuals, FFN, order of branches and place of norms; with ``norm_place`` pre,

    .. math::
        H = X + \textstyle\sum \mathrm{drop}(\mathrm{branch}(\mathrm{norm}(X))), \qquad
        X' = H + \mathrm{FFN}(\mathrm{norm}(H))

    where X is added once, if some branch has a residual. Without the FFN, X' is act of what the branches give.

    Args:
        dim (int): width C.
        local (Module or sequence or None): message passing ``(x, edge_index, edge_attr) -> (x, edge_attr)``.
        attention (Module or sequence or None): ``(x, context) -> x``, or with a state (see `GPSModel`).
        dropout (float, optional): probability after each branch and inside the FFN. (default: 0.0)
        norm (str, optional): a key of `NORMS`. (default: "batch")
        act (callable, optional): builds the activation of the FFN. (default: ReLU)
        recipe (LayerRecipe, optional): What is around the branches. (default: that of GraphGPS)
        chain_edges (bool, optional): message passing branches read the edge features of the branch before, as in
            Exphormer's MultiModel. (default: False)

    Shapes: x (N, C), context, states -> (N, C), edge_attr (E, C) or None, states.
    """

    def __init__(
        self,
        dim: int,
        local: Branches,
        attention: Branches,
        dropout: float = 0.0,
        norm: str = "batch",
        act: Callable[[], nn.Module] = nn.ReLU,
        recipe: LayerRecipe = LayerRecipe(),  # noqa: B008 (frozen)
        chain_edges: bool = False,
    ) -> None:
        super().__init__()
        self.recipe, self.chain_edges = recipe, chain_edges
        if norm not in NORMS:
            raise InputError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        self.local, self.attention = nn.ModuleList(list_branches(local)), nn.ModuleList(list_branches(attention))
        if not len(self.local) + len(self.attention):
            raise InputError("gt.layer_type None+None has no branch: name a message passing layer or an attention")
        for module in self.local:
            recipe.check_message_passing(module)
        self.local_norm = nn.ModuleList(NORMS[norm](dim) for _ in self.local)
        self.local_residual = nn.ModuleList(
            nn.Linear(dim, dim) if recipe.local_residual_map == "linear" else nn.Identity() for _ in self.local
        )
        self.attention_norm = nn.ModuleList(NORMS[norm](dim) for _ in self.attention)
        scale = recipe.attention_layer_scale
        self.attention_scale = nn.ModuleList(LayerScale(dim, scale) if scale else nn.Identity() for _ in self.attention)
        self.ffn_norm = NORMS[norm](dim) if recipe.ffn else None
        self.dropout, self.ffn = Dropout(dropout), act()
        if recipe.ffn:
            self.ffn = nn.Sequential(
                nn.Linear(dim, 2 * dim), self.ffn, Dropout(dropout), nn.Linear(2 * dim, dim), Dropout(dropout)
            )
        elif recipe.dropout_place == "output":
            self.dropout, self.ffn = nn.Identity(), nn.Sequential(self.ffn, self.dropout)

    def forward(
        self, x: Tensor, context: GraphContext, states: States | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Return new node features, new edge features and the attentions' new states."""
        recipe = self.recipe
        messages, edge_attr = self._pass_messages(x, context)
        if recipe.order == "local_first" and messages:
            x, messages = self._join_branches(messages, x, recipe.local_residual), []
        attended, states = self._attend(x, context, states)
        if messages or attended:
            residual = (messages and recipe.local_residual) or (attended and recipe.attention_residual)
            x = self._join_branches(messages + attended, x, bool(residual))
        if self.ffn_norm is None:
            return self.ffn(x), edge_attr, states
        if recipe.norm_place == "pre":
            return x + self.ffn(self.ffn_norm(x, context)), edge_attr, states
        return self.ffn_norm(x + self.ffn(x), context), edge_attr, states

    def _pass_messages(self, x: Tensor, context: GraphContext) -> tuple[list[Tensor], Tensor | None]:
        edge_attr, outputs = context.edge_attr, []
        for local, norm, residual_map in zip(self.local, self.local_norm, self.local_residual, strict=True):
            read = norm(x, context) if self.recipe.norm_place == "pre" else x
            encoding = () if getattr(local, "gate", None) is None else (context.encoding,)
            h, new = local(read, context.edge_index, edge_attr if self.chain_edges else context.edge_attr, *encoding)
            edge_attr = edge_attr if new is context.edge_attr else new
            h = h if getattr(local, "internal_residual", False) else self.dropout(h)
            residual = self.recipe.local_residual and leaves_residual(local)
            outputs.append(self._add_residual(h, residual_map(x), norm, context, residual))
        return outputs, edge_attr

    def _attend(self, x: Tensor, context: GraphContext, states: States | None) -> tuple[list[Tensor], States]:
        outputs, new_states = [], []
        states = states or [None] * len(self.attention)
        for attention, norm, scale, state in zip(
            self.attention, self.attention_norm, self.attention_scale, states, strict=True
        ):
            read = norm(x, context) if self.recipe.norm_place == "pre" else x
            h, state = (attention(read, context), None) if state is None else attention(read, context, state)
            new_states.append(state)
            h = scale(self.dropout(h))
            outputs.append(self._add_residual(h, x, norm, context, self.recipe.attention_residual))
        return outputs, tuple(new_states)

    def _add_residual(self, h: Tensor, x: Tensor, norm: nn.Module, context: GraphContext, residual: bool) -> Tensor:
        if self.recipe.norm_place == "pre":
            return h
        return norm(h + x if residual else h, context)

    def _join_branches(self, outputs: list[Tensor], x: Tensor, residual: bool) -> Tensor:
        total = sum(outputs)
        return x + total if residual and self.recipe.norm_place == "pre" else total


class GPSModel(nn.Module):
    """Encoder, optional input layers, a stack of GPS layers, prediction head: ``model(batch) -> (pred, true)``.

    ``batch`` is any batch of torch_geometric, or a plain ``Data``, which is a batch of one graph. It is not changed.
    An attention that defines ``initial_state(context)`` gets that state in the first layer, and each layer's new state
    in the next one; of a module, only the first layer has the parameters. One pass can serve several splits of the
    nodes of a graph: a list ``batch.encoded`` gets the last features, or has those for the head.

    Args:
        encoder (Module): writes ``batch.x`` (N, C) and, where there are edge features, ``batch.edge_attr`` (E, C).
        layers (Sequence[GPSLayer]): the stack, first layer first.
        head (Module): ``(batch) -> (pred, true)``.
        pre_mp (Module, optional): layers between encoder and stack, on ``batch.x``, or None. (default: None)
        recompute (bool, optional): gradient checkpointing of each layer. (default: False)
        jump (Module, optional): joins the outputs of all layers; None: the last one counts. (default: None)
        feature_dropout (float, optional): probability for the features of the data, before the encoder. (default: 0.0)
        edge_dropout (float, optional): probability for each edge, drawn once for all layers. (default: 0.0)
    """

    def __init__(
        self,
        encoder: nn.Module,
        layers: Sequence[GPSLayer],
        head: nn.Module,
        pre_mp: nn.Module | None = None,
        *,
        recompute: bool = False,
        jump: nn.Module | None = None,
        feature_dropout: float = 0.0,
        edge_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.recompute, self.jump, self.edge_dropout = recompute, jump, edge_dropout
        self.feature_dropout = SparseDropout(feature_dropout) if feature_dropout else None
        self.encoder, self.pre_mp = encoder, pre_mp
        self.layers, self.head = nn.ModuleList(layers), head
        for layer in list(layers)[1:]:
            for attention in layer.attention:
                if isinstance(getattr(attention, "initial_state", None), nn.Module):
                    del attention.initial_state

    @property
    def reads_encoded(self) -> bool:
        """Whether a batch with features in ``encoded`` goes to the head alone; False for a forward of another class."""
        return type(self).forward is GPSModel.forward

    def forward(self, batch: Data, split: str | None = None) -> tuple[Tensor, Tensor]:
        """Return predictions and labels, of the nodes of ``split`` or else ``batch.split`` where masks divide them."""
        batch = copy_batch(batch, split)
        encoded = batch.get("encoded")
        if encoded:
            (batch.x,) = encoded
            return self.head(batch)
        batch = self._encode(batch)
        if encoded is not None:
            encoded.append(batch.x)
        return self.head(batch)

    def _encode(self, batch: Data) -> Data:
        if self.feature_dropout is not None:
            batch.x = self.feature_dropout(batch.x)
        batch = self.encoder(batch)
        if self.pre_mp is not None:
            batch.x = self.pre_mp(batch.x)
        whole = GraphContext.from_data(batch)
        context = self._drop_edges(whole)
        batch.x, edge_attr = self.run_layers(batch.x, context)
        batch.edge_attr = edge_attr if context is whole else whole.edge_attr
        return batch

    def _drop_edges(self, context: GraphContext) -> GraphContext:
        if not self.training or not self.edge_dropout or context.edge_index is None:
            return context
        edge_index, index = dropout_edge(context.edge_index, self.edge_dropout)
        return context.with_edges(edge_index, None if context.edge_attr is None else context.edge_attr[index])

    def run_layers(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor | None]:
        """Return the node features (N, C) and the edge features (E, C) or None after the last layer."""
        states = initial_states(self.layers[0].attention, context) if len(self.layers) else ()
        outputs = []
        for layer in self.layers:
            call = partial(checkpoint_layer, layer) if self.recompute and torch.is_grad_enabled() else layer
            x, edge_attr, states = call(x, context, states)
            context = context.with_edge_attr(edge_attr)
            if self.jump is not None:
                outputs.append(x)
        return (x if self.jump is None else self.jump(outputs)), context.edge_attr


def copy_batch(data: Data, split: str | None = None) -> Batch:
    """Return a batch with ``batch``, ``ptr`` and ``split`` that a network may write into; tensors are not copied."""
    batch = copy.copy(data) if isinstance(data, Batch) else Batch(_base_cls=type(data), **data.to_dict())
    if batch.get("ptr") is None:
        context = GraphContext.from_data(data)
        batch.batch, batch.ptr = context.batch, context.ptr
    if split is not None:
        batch.split = split
    return batch


def initial_states(attentions: Iterable[nn.Module], context: GraphContext) -> States:
    """Return the first state of each attention, None for those without."""
    return tuple(a.initial_state(context) if hasattr(a, "initial_state") else None for a in attentions)


def list_branches(branches: Branches) -> list[nn.Module]:
    """Return one branch, several or none as a list."""
    return [] if branches is None else [branches] if isinstance(branches, nn.Module) else list(branches)
