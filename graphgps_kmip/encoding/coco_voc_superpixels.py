"""Encoders of the superpixel graphs PascalVOC-SP and COCO-SP: standardise with published constants, then map linearly.

The constants are facts about the training graphs (SLIC compactness 30, ``edge_wt_region_boundary``), published with
"Where did the gap go?" (Tönshoff et al. 2023; toenshoff/LRGB, graphgps/encoder/voc_superpixels_encoder.py) and the same
in the public k-MIP code. A node's columns are the mean, standard deviation, maximum and minimum of its three colours,
and its centre in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.feature_encoders import edge_features
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


class _StandardLinear(nn.Module):
    """W (features - mean) / std + b, or W features + b."""

    def __init__(self, scale: Scale, dim: int, standardise: bool = True) -> None:
        super().__init__()
        columns = len(scale.mean)
        self.encoder = nn.Linear(columns, dim)
        # Not in checkpoints: they are constants, and a change of `standardise` must not be undone by loading one.
        self.register_buffer("mean", torch.tensor(scale.mean) * standardise, persistent=False)
        self.register_buffer("std", torch.tensor(scale.std) if standardise else torch.ones(columns), persistent=False)

    def encode(self, features: Tensor, name: str) -> Tensor:
        if features.dim() != 2 or features.size(1) != len(self.mean):
            raise InputError(
                f"{name} must be (rows, {len(self.mean)}) for a superpixel encoder, got {tuple(features.shape)}: "
                "use dataset.name edge_wt_region_boundary, or LinearNode and LinearEdge"
            )
        return self.encoder(((features - self.mean) / self.std).to(self.encoder.weight.dtype))


class SuperpixelNodeEncoder(_StandardLinear):
    r"""Encode the 14 features of a superpixel: :math:`x' = W (x - \mu) / \sigma + b`.

    Args:
        scale: `VOC_NODE` or `COCO_NODE`.
        dim: width C.
        standardise: False leaves the features as they are, as the first public GraphGPS code does.

    Shapes: batch.x (N, 14) -> (N, C), in the dtype of the weights.

    Raises:
        InputError: batch.x has another number of columns, when called.
    """

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encode(batch.x, "x")
        return batch


class SuperpixelEdgeEncoder(_StandardLinear):
    r"""Encode the 2 features of a boundary between superpixels: :math:`e' = W (e - \mu) / \sigma + b`.

    Args:
        scale: `VOC_EDGE` or `COCO_EDGE`.
        dim: width C.
        standardise: False leaves the features as they are, as the public k-MIP code does on PascalVOC-SP.

    Shapes: batch.edge_attr (E, 2) -> (E, C), in the dtype of the weights.

    Raises:
        InputError: the edges have no features or another number of columns, when called.
    """

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        batch.edge_attr = self.encode(edge_features(batch, "VOCEdge and COCOEdge"), "edge_attr")
        return batch
