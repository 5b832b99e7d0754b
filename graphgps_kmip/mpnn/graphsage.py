"""GraphSAGE message passing: mean over neighbours beside the node itself (Hamilton et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from graphgps_kmip.mpnn.message_passing import NodeConvolution
from graphgps_kmip.mpnn.summed_convolutions import SummedSAGE
from graphgps_kmip.registry import register


@register("message_passing", "GraphSAGE")
class GraphSAGE(NodeConvolution):
    r"""Mean of the in-neighbours beside the node itself; edge features are not used.

    .. math:: x_i' = b + W_1 x_i + W_2 \, \mathrm{mean}_{j \in N(i)} x_j

    as in Hamilton et al. 2017 (algorithm 1, line 5, with the mean of all neighbours); their line 7, which scales each
    node to norm 1, is left out, as in torch_geometric's default and in "tuned GNN" tables (Luo et al. 2024).

    Args:
        dim (int): width C.
        dropout (float, optional): not used, for a common signature. (default: 0.0)
        act (callable, optional): not used, for a common signature. (default: ReLU)

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: an encoding is given.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedSAGE(dim, dim)
