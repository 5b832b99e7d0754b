"""A trained model as one program of torch.export, for graphs of any number and size.

The program takes the tensors of a batch by name. Import ``graphgps_kmip`` before loading it, for its operators; it runs
on the kind of device that it was exported on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError


class OnTensors(nn.Module):
    """A model of batches as a function of their tensors; `constants` are its other attributes, such as ``split``."""

    def __init__(self, model: nn.Module, constants: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.constants = model, constants

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the predictions."""
        return self.model(Batch(**tensors, **self.constants))[0]


def tensors_of(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch that a model may read, by name: all but labels and masks."""
    return {
        name: value
        for name, value in batch.to_dict().items()
        if isinstance(value, Tensor) and name != "y" and not name.endswith("_mask")
    }


def export_model(model: nn.Module, batch: Any) -> torch.export.ExportedProgram:
    """Export a model for inference: ``program.module()(tensors_of(batch))`` gives its predictions.

    Args:
        model (Module): ``model(batch) -> (pred, true)``, in eval mode.
        batch (Batch): two or more graphs; which attributes there are, and their widths, are those of the program.

    Raises:
        InputError: the model is in training mode, or the batch has fewer than two graphs.
    """
    if model.training:
        raise InputError("export_model takes a model for inference: call model.eval() first")
    if getattr(batch, "ptr", None) is None or batch.num_graphs < 2:
        raise InputError("export_model takes a batch of two or more graphs: the sizes of one graph would become fixed")
    tensors = tensors_of(batch)
    constants = {name: value for name, value in batch.to_dict().items() if isinstance(value, str | float | int)}
    auto = torch.export.Dim.AUTO
    dynamic = {name: {1 if name.endswith("_index") else 0: auto} for name in tensors}
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):  # else one graph is another program
        return torch.export.export(OnTensors(model, constants), (tensors,), dynamic_shapes=(dynamic,))
