"""GIN (Xu et al. 2019) and GINE (GIN with edge features, Hu et al. 2020) message passing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm
from torch_geometric.utils import scatter

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import Convolution, DistanceGate, SummedGIN, compute_gate, required_edge_attr
from graphgps_kmip.ops.dropout import Dropout
from graphgps_kmip.ranges import Choice
from graphgps_kmip.registry import register


@register("message_passing", "GIN")
class GIN(Convolution):
    r"""Graph isomorphism convolution; edge features are not used.

    .. math:: x_i' = \mathrm{Linear}(\mathrm{act}(\mathrm{Linear}(x_i + \textstyle\sum_j x_j)))

    Differs from the paper: no learned weight of x_i (epsilon is 0), no BatchNorm inside, as in GraphGPS.

    Arguments, shapes and errors are those of `Convolution`, but act, which builds the activation inside.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedGIN(nn.Sequential(nn.Linear(dim, dim), act(), nn.Linear(dim, dim)))


Act = Callable[[], nn.Module]
# Of GraphGPS and Exphormer; of LRGB's networks of GINE only; of the k-MIP code and LRGB's GPS layers.
INNER: dict[str, Callable[[int, float, Act], nn.Sequential]] = {
    "mlp": lambda dim, _dropout, act: nn.Sequential(nn.Linear(dim, dim), act(), nn.Linear(dim, dim)),
    "mlp_dropout": lambda dim, dropout, act: nn.Sequential(
        nn.Linear(dim, dim), act(), Dropout(dropout), nn.Linear(dim, dim), Dropout(dropout)
    ),
    "norm_linear": lambda dim, _dropout, _act: nn.Sequential(
        BatchNorm(dim, allow_single_element=True), nn.Linear(dim, dim)
    ),
}


@register("message_passing", "GINE")
class GINE(nn.Module):
    r"""Graph isomorphism convolution that adds edge features to the messages.

    .. math:: x_i' = \mathrm{inner}(x_i + \textstyle\sum_j r_{ij} \, \mathrm{ReLU}(x_j + e_{ij}))

    where r is 1, or the gate of EquivStableLapPE (see `DistanceGate`, here always with a ReLU). Differs from
    torch_geometric's GINEConv only by r; epsilon is 0.

    Args:
        dim (int): width C of nodes and edges.
        dropout (float, optional): probability, inside ``mlp_dropout`` only. (default: 0.0)
        act (Act, optional): builds the activation of the inner network. (default: ReLU)
        inner (str, optional): mlp (Linear, act, Linear), mlp_dropout (the same with a dropout after act and at the
            end), or norm_linear (BatchNorm, Linear). (default: "mlp")
        equivstable_pe (bool, optional): gate by the distance of source and target in ``encoding``. (default: False)

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C), encoding like x -> (N, C), edge_attr as given.

    Raises:
        ValueError: an unknown inner network; when called: edge_attr is None, encoding does not fit ``equivstable_pe``.
    """

    internal_residual = False

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        act: Act = nn.ReLU,
        *,
        inner: Annotated[str, Choice(INNER)] = "mlp",
        equivstable_pe: bool = False,
    ) -> None:
        super().__init__()
        if inner not in INNER:
            raise InputError(f"gt.gine.inner must be one of {', '.join(INNER)}, got {inner!r}")
        self.inner = INNER[inner](dim, dropout, act)
        self.gate = DistanceGate(dim) if equivstable_pe else None

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return new node features, and the edge features as they are."""
        return self.inner(self._add_messages(x, x, edge_index, edge_attr, encoding)), edge_attr

    def _add_messages(
        self, nodes: Tensor, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None
    ) -> Tensor:
        """Return ``nodes`` (N, C) with the messages into each node added."""
        edge_attr = required_edge_attr("GINE", edge_attr)
        source, target = edge_index
        factor = compute_gate("GINE", self.gate, encoding, edge_index)
        message = torch.relu(x.index_select(0, source) + edge_attr)
        return nodes + scatter(message if factor is None else message * factor, target, dim_size=nodes.size(0))
