"""Synchronised batch norm over the rows of all processes, on any device; torch's SyncBatchNorm needs CUDA."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.collectives import total


class SharedBatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` whose statistics in training are those of the rows of all processes together.

    Every process must call it, also with no row. A single row in all is normalised by the running statistics.

    Shapes: x (n, C) -> (n, C), n differing between processes.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; biased variance, and the unbiased one into the running statistics, as torch does."""
        if not self.training:
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_tensor(float(x.size(0)))
        count, summed = total(torch.cat([count[None], wide.sum(dim=0)])).split([1, x.size(1)])
        mean = summed / count.clamp(min=1)
        variance = total((wide - mean).square().sum(dim=0)) / count.clamp(min=1)
        if x.size(0) <= 1 and count <= 1:  # in this order: the second makes the host wait for a GPU
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), momentum)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), momentum)
        scale = (variance + self.eps).rsqrt() * self.weight
        return ((wide - mean) * scale + self.bias).to(x.dtype)


def share_batch_norms(model: nn.Module) -> nn.Module:
    """Replace every batch norm inside a model by one over all processes; parameters and buffers stay the same objects.

    One process: the model as it is.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    for module in list(model.modules()):
        if isinstance(module, BatchNorm):  # one row here may be one of many: only the norm inside counts them all
            module.allow_single_element = False
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, _shared(child))
    return _shared(model) if isinstance(model, _BatchNorm) else model


def _shared(norm: _BatchNorm) -> SharedBatchNorm:
    shared = SharedBatchNorm(norm.num_features, norm.eps, norm.momentum)
    shared.weight, shared.bias, shared.training = norm.weight, norm.bias, norm.training
    for name, buffer in norm.named_buffers():
        shared.register_buffer(name, buffer)
    return shared
