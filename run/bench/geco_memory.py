"""Predicted peak memory of a training pass of a GECO layer: what it must keep, and what its backward pass adds."""

from __future__ import annotations

from graphgps_kmip.attention.long_filter import FilterShape
from graphgps_kmip.ops import circular_convolution, row_chunks

BYTES = 4  # of a float32
DEFAULT = FilterShape()


def predicted_bytes(num_nodes: int, num_edges: int, dim: int, order: int = 2, shape: FilterShape = DEFAULT) -> int:
    """Return the peak above the inputs of forward and backward of a layer on one graph in float32, on a CPU.

    Kept for the backward pass, in numbers: of each node 2 C of features and neighbours, 2 C behind the batch norm,
    (K + 1) C of gates and value, K C of filters, what the filters' network reads (places) and its last hidden layer
    (width); of each edge its weight. This is the K N + M of the paper, with all that it hides.

    The backward pass of the convolutions holds all of it, the gradients of gates, value and filters, (2 K + 1) C, and
    the chunk of channels that it works on: gates, value and their gradients, 2 (K + 1); spectra of values and filters
    and what is convolved, 3 K; and the gradient of the output, its spectrum and a transform. The later steps free more
    than they make.

    The filters' network keeps `KEEP_BYTES` of its first rows, if it has so many.

    Args:
        num_nodes (int): N, whose only prime factors are 2, 3, 5 and 7.
        num_edges (int): M, directed.
        dim (int): C.
        order (int, optional): K. (default: 2)
        shape (FilterShape, optional): network of the filters. (default: ``FilterShape()``)
    """
    kept = num_nodes * ((4 + 2 * order + 1) * dim + shape.places + shape.width) + num_edges
    gradients = num_nodes * (2 * order + 1) * dim
    chunk = num_nodes * channels_at_a_time(num_nodes, dim) * (2 * (order + 1) + 3 * order + 3)
    layers = shape.layers + 1
    network = min(row_chunks.KEEP_BYTES, BYTES * num_nodes * 3 * layers * shape.width)  # linear, product, sine
    return BYTES * (kept + gradients + chunk) + network


def channels_at_a_time(num_nodes: int, dim: int) -> int:
    """Return how many channels of one graph are convolved at a time on a CPU."""
    numbers = 2 * num_nodes
    few = min(circular_convolution.FEW_CHANNELS, circular_convolution.LARGEST_CHUNK // numbers)
    return min(dim, max(1, circular_convolution.CHUNK_NUMBERS["cpu"] // numbers, few))
