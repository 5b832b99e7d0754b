"""KMIPGPSConv: torch_geometric's GPSConv with k-MIP attention, or with any other attention of this package.

``GPSConv.forward`` calls its ``attn`` only if that is of one of two classes, and ignores any other module.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GPSConv, MessagePassing
from torch_geometric.nn.inits import reset

from graphgps_kmip.attention.kmip import KMIPAttention


class KMIPGPSConv(GPSConv):
    """`torch_geometric.nn.GPSConv` whose global attention is `KMIPAttention`.

    Any other attention ``(x, batch) -> x`` of this package may be assigned to ``layer.attn``.

    Args:
        channels (int): Columns C of the node features.
        conv (MessagePassing or None): Local message passing layer.
        heads (int, optional): Heads of the attention. (default: ``1``)
        dropout (float, optional): Dropout probability after each branch and in the MLP. (default: ``0.0``)
        act (str, optional): Activation of the MLP. (default: ``"relu"``)
        act_kwargs (dict, optional): Arguments of the activation. (default: ``None``)
        norm (str, optional): Norm after each part; None: none. (default: ``"batch_norm"``)
        norm_kwargs (dict, optional): Arguments of the norm. (default: ``None``)
        attn_kwargs (dict, optional): Options of `KMIPAttention`, such as ``{"k": 20}``. (default: ``None``)

    Shapes: x (N, C), edge_index (2, E), batch (N,) in order of the graphs, or None -> (N, C).
    """

    def __init__(
        self,
        channels: int,
        conv: MessagePassing | None,
        heads: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        act_kwargs: dict[str, Any] | None = None,
        norm: str | None = "batch_norm",
        norm_kwargs: dict[str, Any] | None = None,
        attn_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(channels, conv, heads, dropout, act, act_kwargs, norm, norm_kwargs)
        self.attn, self.attn_type = KMIPAttention(channels, heads, **attn_kwargs or {}), "kMIP"

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in self.children():
            reset(part)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return new node features; further arguments are those of ``conv``, such as ``edge_attr``."""
        branches = []
        if self.conv is not None:
            branches.append(self._add(self.conv(x, edge_index, **kwargs), x, self.norm1, batch))
        branches.append(self._add(self.attn(x, batch), x, self.norm2, batch))
        out = sum(branches)
        return self._normalise(self.norm3, out + self.mlp(out), batch)

    def _add(self, h: Tensor, x: Tensor, norm: nn.Module | None, batch: Tensor | None) -> Tensor:
        return self._normalise(norm, dropout(h, self.dropout, self.training) + x, batch)

    def _normalise(self, norm: nn.Module | None, h: Tensor, batch: Tensor | None) -> Tensor:
        if norm is None:
            return h
        return norm(h, batch=batch) if self.norm_with_batch else norm(h)
