"""Node and edge encoders of COCO-SP and PascalVOC-SP: standardise the features of superpixels, then map linearly.

The constants are those of the training graphs (SLIC compactness 30, ``edge_wt_region_boundary``) in "Where did the gap
go?" (Tönshoff et al. 2023; toenshoff/LRGB). Columns of a node: mean, deviation, maximum, minimum of 3 colours; centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.feature_encoders import map_columns, read_features
from graphgps_kmip.errors import InputError


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each column of a data set's raw features."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# fmt: off
VOC_NODE = Scale(
    (0.45824501, 0.43857411, 0.40561178, 0.067938097, 0.065604292, 0.065742709, 0.65212941,
     0.62894762, 0.60173863, 0.27769071, 0.26425251, 0.23729359, 193.44997, 234.72206),
    (0.25952947, 0.25716761, 0.27130592, 0.054822665, 0.05442927, 0.054474957, 0.26238337,
     0.2660054, 0.2775068, 0.25197381, 0.24986187, 0.26069802, 117.68297, 140.07195),
)
VOC_EDGE = Scale((0.07640745, 33.73478), (0.0868775, 20.945076))
COCO_NODE = Scale(
    (0.46977347, 0.44679317, 0.40790915, 0.070808627, 0.068686441, 0.068498217, 0.67777938,
     0.65244222, 0.62096798, 0.27554795, 0.25910738, 0.22901227, 242.61935, 289.85367),
    (0.26218116, 0.25831082, 0.27416739, 0.057440419, 0.056832556, 0.057100497, 0.25929087,
     0.26201612, 0.27675411, 0.25456995, 0.2514092, 0.2618233, 151.52475, 176.30779),
)
COCO_EDGE = Scale((0.07848548, 43.68736), (0.08902349, 28.473562))
# fmt: on


class SuperpixelNodeEncoder(nn.Module):
    r"""Encode the 14 features of a superpixel: :math:`x' = W (x - \mu) / \sigma + b`.

    Args:
        scale (Scale): `VOC_NODE` or `COCO_NODE`.
        dim (int): Width C.

    Shapes: batch.x (N, 14) -> (N, C), in the dtype of the weights; an `InputError` with other columns.
    """

    attribute = "x"

    def __init__(self, scale: Scale, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(len(scale.mean), dim)
        self.register_buffer("mean", torch.tensor(scale.mean), persistent=False)
        self.register_buffer("std", torch.tensor(scale.std), persistent=False)

    def forward(self, batch: Batch) -> Batch:
        """Replace the features."""
        features = read_features(batch, self.attribute, "VOCEdge and COCOEdge")
        if features.dim() != 2 or features.size(1) != len(self.mean):
            raise InputError(
                f"{self.attribute} must be (rows, {len(self.mean)}) for a superpixel encoder, got "
                f"{tuple(features.shape)}: use dataset.name edge_wt_region_boundary, or LinearNode and LinearEdge"
            )
        batch[self.attribute] = map_columns(self.encoder, (features - self.mean) / self.std)
        return batch


class SuperpixelEdgeEncoder(SuperpixelNodeEncoder):
    """Encode the 2 features of a boundary between superpixels, of `VOC_EDGE` or `COCO_EDGE`: (E, 2) -> (E, C)."""

    attribute = "edge_attr"
