"""Edge gate from distances of an encoding: EquivStableLapPE (Wang et al. 2022, the PEG layer)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import refuse_encoding


class DistanceGate(nn.Module):
    r"""One number in (0, 1) per edge, from the distance between its source and target node in the encoding p.

    .. math:: r_{ij} = \sigma(w_2^T \, \mathrm{act}(w_1 \lVert p_i - p_j \rVert^2 + b_1) + b_2)

    Distances, and so the gate, are invariant to signs and bases of the eigenvectors.

    Args:
        dim (int): hidden width.
        act (callable, optional): builds the activation. (default: ReLU)

    Shapes:
        encoding (N, P), edge_index (2, E) -> (E, 1).

    Raises:
        ValueError: encoding is None.
    """

    def __init__(self, dim: int, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, dim), act(), nn.Linear(dim, 1))

    def forward(self, encoding: Tensor | None, edge_index: Tensor) -> Tensor:
        """Return the gate of each edge."""
        if encoding is None:
            raise InputError(
                "a layer with equivstable_pe=True needs the encoding: set posenc_EquivStableLapPE.enable True and "
                "name EquivStableLapPE in dataset.node_encoder_name"
            )
        source, target = edge_index
        difference = encoding.index_select(0, target) - encoding.index_select(0, source)
        return torch.sigmoid(self.mlp(difference.square().sum(dim=1, keepdim=True)))


def factor_of(layer: str, gate: DistanceGate | None, encoding: Tensor | None, edge_index: Tensor) -> Tensor | None:
    """Return the gate of each edge (E, 1), or None for a layer that was built without one.

    Raises:
        ValueError: an encoding without a gate, or a gate without an encoding.
    """
    if gate is None:
        return refuse_encoding(layer, encoding)
    return gate(encoding, edge_index)
