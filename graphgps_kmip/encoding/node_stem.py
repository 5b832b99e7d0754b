"""Node stem of PPGT: linear maps of RRWP's diagonal, degree, order and location; node mask, target node, class token.

Ma et al. 2025 (PPGT), section on the architecture; `PairStem` is its counterpart for pairs of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.rrwp import RRWP, diagonal, with_rrwp
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ops.node_pairs import first_nodes
from graphgps_kmip.ranges import Choice, refusal

NODE_FEATURES = ("rrwp", "log_degree", "log_order", "location")
INITIAL_STD = 0.02  # of tokens, as in the public code


class NodeStem(nn.Module):
    r"""Add linear maps of structural features to the node features.

    .. math:: x_i' = x_i + \sum_f W_f f_i + b_f

    with f of: ``rrwp`` (the probabilities P_ii), ``log_degree`` log(1 + d_i), ``log_order`` log(1 + N), ``location``
    (batch.pos). Without ``batch.x`` the sum stands alone.

    Args:
        encoding (RRWP): Its values are precomputed, or computed here for each mini-batch.
        dim (int): Width C.
        features (Sequence[str], optional): Of `NODE_FEATURES`. (default: ``("rrwp", "log_degree", "log_order")``)
        dim_location (int, optional): Columns of ``batch.pos``. (default: 2)

    Shapes: batch.x (N, C), batch.rrwp (P, K), batch.rrwp_degree (N,), batch.pos (N, dim_location) -> batch.x (N, C).

    Raises:
        InputError: an unknown feature when built; values or locations missing, or locations of another width, when
            called.
    """

    def __init__(
        self,
        encoding: RRWP,
        dim: int,
        *,
        features: Sequence[str] = ("rrwp", "log_degree", "log_order"),
        dim_location: int = 2,
    ) -> None:
        super().__init__()
        check_names("ppgt.node_features", features, NODE_FEATURES)
        widths = {"rrwp": encoding.num_channels, "location": dim_location}
        self.encoding = encoding
        self.linears = nn.ModuleDict({name: nn.Linear(widths.get(name, 1), dim) for name in features})

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if self.linears.keys() & {"rrwp", "log_degree"}:
            batch = with_rrwp(batch, self.encoding)
        for name, linear in self.linears.items():
            added = linear(self._feature(batch, name).to(linear.weight.dtype))
            batch.x = added if batch.get("x") is None else batch.x + added
        return batch

    def _feature(self, batch: Batch, name: str) -> Tensor:
        """Return one feature of each node, (N, its width)."""
        ptr = first_nodes(batch)
        if name == "rrwp":
            return diagonal(batch.rrwp, ptr, batch.get("rrwp_index"))
        if name == "log_degree":
            return batch.rrwp_degree.double().log1p()[:, None]
        if name == "log_order":
            return ptr.diff().double().log1p().repeat_interleave(ptr.diff())[:, None]
        return locations(batch, "ppgt.node_features", self.linears[name].in_features)


class NodeMask(nn.Module):
    """Set the features of randomly chosen nodes to 0 while training; the others are not scaled up, unlike in dropout.

    Args:
        rate (float): Probability of each node, in [0, 1).

    Shapes: batch.x (N, C) -> (N, C).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if self.training:
            kept = torch.rand(len(batch.x), 1, device=batch.x.device) >= self.rate
            batch.x = batch.x * kept
        return batch


class TargetNode(nn.Module):
    """Add one learned vector to the nodes whose class is asked for, such as the centre of a sampled subgraph.

    Args:
        dim (int): Width C.

    Shapes: batch.x (N, C), batch.target_mask (N,) -> batch.x (N, C).

    Raises:
        InputError: no target_mask, when called.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, dim) * INITIAL_STD)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if batch.get("target_mask") is None:
            raise InputError(
                "ppgt.node_features: target needs batch.target_mask, which a sampler of subgraphs sets: leave it out"
            )
        batch.x = batch.x + batch.target_mask[:, None] * self.token
        return batch


class ClassToken(nn.Module):
    """Make the class token of each graph: one learned vector, and an MLP of the number of nodes.

    Args:
        dim (int): Width C.
        order (str, optional): ``"order"`` (N itself), ``"log_order"`` (log(1 + N)) or ``"none"``. (default: ``"none"``)

    Shapes: batch.ptr (B + 1,) -> batch.class_token (B, C).
    """

    def __init__(self, dim: int, *, order: str = "none") -> None:
        super().__init__()
        check_names("ppgt.class_token", [order], ("none", "order", "log_order"))
        self.order, self.token = order, nn.Parameter(torch.randn(1, dim) * INITIAL_STD)
        layers = nn.Linear(1, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim)
        self.mlp = None if order == "none" else nn.Sequential(*layers)

    def forward(self, batch: Batch) -> Batch:
        """Set ``batch.class_token``."""
        sizes = first_nodes(batch).diff()[:, None].to(self.token.dtype)
        if self.mlp is None:
            batch.class_token = self.token.expand(len(sizes), -1)
        else:
            batch.class_token = self.token + self.mlp(sizes.log1p() if self.order == "log_order" else sizes)
        return batch


def locations(batch: Batch, key: str, dim: int) -> Tensor:
    """Return ``batch.pos`` (N, dim).

    Args:
        batch (Batch): Its nodes have positions.
        key (str): The config key that asks for them, for errors.
        dim (int): How many columns they must have.

    Raises:
        InputError: there are none, or they have another number of columns.
    """
    if batch.get("pos") is None:
        raise InputError(f"{key}: location needs batch.pos, which the data does not have: leave it out")
    if batch.pos.size(1) != dim:
        raise InputError(
            f"{key}: location has {batch.pos.size(1)} columns, ppgt.dim_location says {dim}: set it to the former"
        )
    return batch.pos


def check_names(key: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise a `ConfigError` where a name is not allowed.

    Args:
        key (str): The config key, for the error.
        given (Iterable[str]): Names.
        allowed (Iterable[str]): What they may be.
    """
    for name in given:
        if why := refusal(Choice(tuple(allowed)), name):
            raise ConfigError(f"{key}: {why}")
