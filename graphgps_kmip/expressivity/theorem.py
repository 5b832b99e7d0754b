"""Check of theorem 1 on GPS models: graphs that SEG-WL leaves equal, a model leaves equal (thesis, theorem 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphgps_kmip.expressivity.graph_pairs import Pair
from graphgps_kmip.expressivity.seg_wl import Colouring, Encoding, Graph, seg_wl, theorem_scheme

Model = Callable[[Graph, Encoding], Tensor]  # (N, C)


@dataclass(frozen=True)
class Outcome:
    """What a model and SEG-WL made of a pair.

    Args:
        equal: SEG-WL leaves the pair equal.
        error: largest difference between outputs of two nodes of one colour, relative to the largest output; for a
            pair that is left equal, the multisets of outputs differ by no more.
        difference: a lower bound of the distance of the two multisets of outputs, relative alike.
        readout: difference between the mean outputs of the graphs, relative alike.
    """

    equal: bool
    error: float
    difference: float
    readout: float


def try_model(model: Model, pair: Pair, encodings: tuple[Encoding, Encoding], rounds: int | None = None) -> Outcome:
    """Run a model and SEG-WL with the theorem's scheme on a pair.

    The proof shows more than the theorem says (lemma 1): after l layers, nodes of one colour of round l have equal
    outputs, in whatever graph. That is what `Outcome.error` measures.

    Args:
        model: ``(graph, encoding) -> (N, C)``.
        pair: two graphs.
        encodings: of both.
        rounds: of SEG-WL, the number of the model's layers; None: until the colours are stable.
    """
    graphs = (pair.first, pair.second)
    schemes = [theorem_scheme(graph, encoding) for graph, encoding in zip(graphs, encodings, strict=True)]
    colouring = seg_wl(graphs, schemes, rounds)
    with torch.no_grad():
        outputs = [model(graph, encoding) for graph, encoding in zip(graphs, encodings, strict=True)]
    scale = max(float(torch.cat(outputs).abs().max()), torch.finfo(torch.float64).tiny)
    means = [out.mean(0) for out in outputs]
    return Outcome(
        equal=colouring.separated_after() is None,
        error=spread(colouring, outputs) / scale,
        difference=difference(*outputs) / scale,
        readout=float((means[0] - means[1]).abs().max()) / scale,
    )


def spread(colouring: Colouring, outputs: list[Tensor]) -> float:
    """Return the largest difference between outputs of nodes of one colour, in any of the graphs."""
    colours = torch.cat([torch.from_numpy(of_graph) for of_graph in colouring.history[-1]])
    out, index = torch.cat(outputs), colours[:, None].expand(-1, outputs[0].size(1))
    empty = out.new_zeros(int(colours.max()) + 1, out.size(1))
    highest, lowest = (empty.scatter_reduce(0, index, out, kind, include_self=False) for kind in ("amax", "amin"))
    return float((highest - lowest).max())


def difference(one: Tensor, other: Tensor) -> float:
    """Return a lower bound of the distance of two multisets of rows: each column is sorted by itself.

    Of graphs of different sizes, infinity.
    """
    if len(one) != len(other):
        return float("inf")
    return float((one.sort(dim=0).values - other.sort(dim=0).values).abs().max())


@dataclass(frozen=True)
class Reach:
    """Whether the theorem speaks of a component of a GPS layer.

    Args:
        inside: it has the properties that the proof uses (paper, appendix B: A1 to A3).
        why: one line.
        per_round: l layers separate no more than l rounds; else only stable colours bound them.
    """

    inside: bool
    why: str
    per_round: bool = True


REACH: dict[str, Reach] = {
    "Transformer": Reach(True, "a sum over the set of nodes"),
    "Performer": Reach(True, "one function of the set of nodes, while its random vectors are not drawn anew"),
    "kMIP": Reach(True, "keys with equal scores are in general equal nodes, whose values are equal too"),
    "kMIP, diversity": Reach(True, "as kMIP"),
    "Exphormer": Reach(True, "along the graph's own edges, with their features"),
    "Exphormer, virtual nodes": Reach(True, "a virtual node sees the set of nodes, and begins alike in all graphs"),
    "kMIP, tied keys": Reach(False, "keys that tie by the weights have different values: the first index wins"),
    "kMIP, repeat_first_key": Reach(False, "reads the first node: depends on the order of nodes"),
    "kMIP, random_attention": Reach(False, "draws keys anew in each call"),
    "Exphormer, expander": Reach(False, "random edges that f_R does not have: inside once they are edges of f_R"),
    "BigBird": Reach(False, "blocks of consecutive nodes: depends on their order, but in graphs of few blocks"),
    "BiasedTransformer": Reach(False, "reads encodings of pairs without an edge: inside once f_R has these"),
    "GCN": Reach(True, "divides by degrees of neighbours, which colours hold only a round later", per_round=False),
    "GAT": Reach(True, "a sum over incoming edges"),
    "GATv2": Reach(True, "a sum over incoming edges"),
    "GENConv": Reach(True, "a sum over incoming edges"),
    "GIN": Reach(True, "a sum over incoming edges"),
    "GINE": Reach(True, "a sum over incoming edges"),
    "GatedGCN": Reach(
        True, "a sum over incoming edges; edges see their source and target nodes; batch norms are taken out"
    ),
    "PNA": Reach(True, "mean, maximum and sum over incoming edges"),
}
