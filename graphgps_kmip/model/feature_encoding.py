"""Feature encoder, pre-MLP and dropout of raw features: node and edge attributes to vectors of one width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import normalize
from torch_geometric.nn import BatchNorm

from graphgps_kmip.errors import InputError


class UnitRows(nn.Module):
    """Scale every row but zeros to Euclidean length 1, as GraphGym's layers do (You et al. 2020; ``gnn.l2norm``)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled rows."""
        return normalize(x, dim=-1)


class SparseDropout(nn.Module):
    """Dropout with probability p that draws for nonzero entries only: the same distribution as ``nn.Dropout``.

    Gradients of zeros pass unchanged: in expectation, those of ``nn.Dropout``.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy with some numbers dropped and the others scaled by 1 / (1 - p); x itself in eval mode."""
        if not self.training or self.p == 0:
            return x
        if not x.is_floating_point():
            raise InputError(
                "dropout of the features of the nodes: they are whole numbers, types or counts: set "
                "recipe.feature_dropout 0"
            )
        at = x.nonzero(as_tuple=True)
        return x.index_put(at, drop(x[at], self.p))


class FeatureEncoder(nn.Module):
    """Apply a node encoder and an edge encoder; without one, those features are unchanged.

    Args:
        dim (int): width C of the encoded features.
        node (Module or None): module ``batch -> batch`` that replaces ``batch.x`` by (N, C), or None.
        edge (Module or None): module ``batch -> batch`` that replaces ``batch.edge_attr`` by (E, C), or None.
        node_norm (bool, optional): BatchNorm after the node encoder. (default: False)
        edge_norm (bool, optional): BatchNorm after the edge encoder. (default: False)
        dim_edge (int, optional): width of the encoded edge features, C if None. (default: None)
        rrwp (Module, optional): an `RRWPLinear`, which adds RRWP after both norms, as in GRIT. (default: None)
    """

    def __init__(
        self,
        dim: int,
        node: nn.Module | None,
        edge: nn.Module | None,
        node_norm: bool = False,
        edge_norm: bool = False,
        dim_edge: int | None = None,
        rrwp: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.node, self.edge, self.rrwp = node, edge, rrwp
        self.node_norm = BatchNorm(dim, allow_single_element=True) if node is not None and node_norm else None
        has_norm = edge is not None and edge_norm
        self.edge_norm = BatchNorm(dim_edge or dim, allow_single_element=True) if has_norm else None

    def forward(self, batch: Any) -> Any:
        """Replace ``batch.x`` and ``batch.edge_attr`` by their encodings; RRWP sets ``batch.pair_attr``, too."""
        if self.node is not None:
            batch = self.node(batch)
        if self.node_norm is not None:
            batch.x = self.node_norm(batch.x)
        if self.edge is not None:
            batch = self.edge(batch)
        if self.edge_norm is not None:
            self.normalise_edges(batch)  # public_faults.py has another one
        return batch if self.rrwp is None else self.rrwp(batch)

    def normalise_edges(self, batch: Any) -> None:
        """Normalise ``batch.edge_attr``."""
        batch.edge_attr = self.edge_norm(batch.edge_attr)


def input_layers(
    dim: int,
    num_layers: int,
    norm: bool = True,
    dropout: float = 0.0,
    act: Callable[[], nn.Module] = nn.ReLU,
    l2norm: bool = False,
    dim_in: int | None = None,
) -> nn.Sequential | None:
    """Pre-MLP between encoder and layers: ``num_layers`` of Linear, BatchNorm, dropout, activation; None for 0 layers.

    The linear map has a bias only without BatchNorm, as in GraphGym. ``l2norm`` scales each row to length 1 after each
    layer, GraphGym's default. Shapes: x (N, dim_in) -> (N, C); ``dim_in`` is C if None.
    """
    if num_layers < 1:
        return None
    layers: list[nn.Module] = []
    for i in range(num_layers):
        layers.append(nn.Linear(dim if i or dim_in is None else dim_in, dim, bias=not norm))
        layers += [BatchNorm(dim, allow_single_element=True)] if norm else []
        layers += [nn.Dropout(dropout), act()]
        layers += [UnitRows()] if l2norm else []
    return nn.Sequential(*layers)
