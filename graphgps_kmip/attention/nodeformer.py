"""NodeFormer attention: Performer's random features with Gumbel noise (Wu et al. 2022, section 3.2).

Of "NodeFormer: A Scalable Graph Structure Learning Transformer for Node Classification" (NeurIPS 2022) the kernelized
Gumbel-Softmax. Its relational bias is the message passing of a GPS layer (``gt.layer_type GCN+NodeFormer``); its loss
on the weights of edges is left out. The features are drawn once, the public code draws them in every call.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from graphgps_kmip.attention.head_arguments import check_least
from graphgps_kmip.attention.performer import PerformerAttention, linear_attention, max_per_graph
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ranges import POSITIVE, WIDTH, whole
from graphgps_kmip.registry import register


@register("attention", "NodeFormer")
class NodeFormerAttention(PerformerAttention):
    r"""Multi-head attention by random features with a temperature; in training keys are weighted by Gumbel noise.

    .. math:: o_n = W \big\Vert_h \frac{1}{S} \sum_s
        \frac{\phi(q_n / \sqrt\tau)^\top \sum_m e^{g_{ms} / \tau} \phi(k_m / \sqrt\tau) v_m^\top}
        {\phi(q_n / \sqrt\tau)^\top \sum_m e^{g_{ms} / \tau} \phi(k_m / \sqrt\tau)} + b

    with phi as of `PerformerAttention` and noise g of each key, sample and head. In eval mode there is no noise.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads.
        dropout (float, optional): probability to drop an output channel, in training only. (default: 0.0)
        dim_head (int, optional): channels D per head, independent of dim. (default: 64)
        num_features (int, optional): random features per head; None: floor(D ln D). (default: 30)
        tau (float, optional): temperature, above 0. (default: 0.25)
        num_samples (int, optional): samples S of the noise in a training step. (default: 10)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        dim_head: Annotated[int, WIDTH] = 64,
        num_features: Annotated[int | None, whole(1, 4096)] = 30,
        tau: Annotated[float, POSITIVE] = 0.25,
        num_samples: Annotated[int, whole(1, 1000)] = 10,
    ) -> None:
        super().__init__(dim, num_heads, dropout, dim_head=dim_head, num_features=num_features, use_bias=True)
        check_least(1, num_samples=num_samples)
        self.tau, self.num_samples = tau, num_samples

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: GraphContext) -> Tensor:
        q = self._features(q / self.tau**0.5, lambda largest: largest)  # (N, H, F)
        k = self._features(k / self.tau**0.5, lambda largest: max_per_graph(largest, context)[context.batch])
        if not self.training:
            total, weight = linear_attention(q, k, v, context)
            return total / weight
        out = torch.zeros_like(v)
        for _ in range(self.num_samples):
            noise = -torch.empty_like(k[..., :1]).exponential_().log() / self.tau
            noise = (noise - max_per_graph(noise, context)[context.batch]).exp()  # the quotient cancels the largest
            total, weight = linear_attention(q, k * noise, v, context)
            out = out + total / weight
        return out / self.num_samples
