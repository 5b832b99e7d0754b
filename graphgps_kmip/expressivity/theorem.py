"""Check of theorem 1 on GPS models: graphs that SEG-WL leaves equal, a model leaves equal (thesis, theorem 12).

The graphs are pairs: the standard ones by name, and random ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from graphgps_kmip.expressivity.seg_wl import (
    Colouring,
    Encoding,
    Graph,
    circulant,
    cycle,
    directed,
    seg_wl,
    theorem_scheme,
    undirected,
    union,
)


@dataclass(frozen=True)
class Pair:
    """Two graphs; whether only the order of nodes differs, and whether 1-WL separates them (None: not known)."""

    name: str
    first: Graph
    second: Graph
    isomorphic: bool = False
    wl: bool | None = None


def path(num_nodes: int) -> Graph:
    """Return one path of N nodes."""
    return undirected([(node, node + 1) for node in range(num_nodes - 1)], num_nodes)


def decalin() -> Graph:
    """Return the carbon of decalin: two rings of six that share an edge."""
    return undirected([(node, (node + 1) % 10) for node in range(10)] + [(0, 5)], 10)


def bicyclopentyl() -> Graph:
    """Return the carbon of bicyclopentyl: two rings of five, linked by an edge."""
    rings = [(ring + node, ring + (node + 1) % 5) for ring in (0, 5) for node in range(5)]
    return undirected([*rings, (0, 5)], 10)


def prism() -> Graph:
    """Return two triangles whose nodes are linked one to one."""
    triangles = [(ring + node, ring + (node + 1) % 3) for ring in (0, 3) for node in range(3)]
    return undirected(triangles + [(node, node + 3) for node in range(3)], 6)


def utility() -> Graph:
    """Return K(3,3): every one of three nodes linked to every one of three others."""
    return undirected([(node, other) for node in range(3) for other in range(3, 6)], 6)


def on_torus(steps: set[tuple[int, int]], size: int = 4) -> Graph:
    """Return the graph on Z_n x Z_n that links places whose difference is one of some steps."""
    places = [(a, b) for a in range(size) for b in range(size)]
    edges = [
        (i, j)
        for i, (a, b) in enumerate(places)
        for j, (c, d) in enumerate(places)
        if ((c - a) % size, (d - b) % size) in steps
    ]
    return directed(edges, size**2)


ROOK = {(0, step) for step in (1, 2, 3)} | {(step, 0) for step in (1, 2, 3)}
SHRIKHANDE = {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}


def _permuted(name: str, graph: Graph, seed: int) -> Pair:
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    return Pair(name, graph, graph.permuted(order), isomorphic=True, wl=False)


def _caterpillars() -> tuple[Graph, Graph]:
    """Two trees of equal degrees: a path of six with a leaf at its third node, or at its second one."""
    spine = [(node, node + 1) for node in range(5)]
    return undirected([*spine, (2, 6)], 7), undirected([*spine, (1, 6)], 7)


def _coloured_square(x: list[int]) -> Graph:
    return cycle(4).with_features(x=torch.tensor(x)[:, None])


def _bonded_square(kinds: list[int]) -> Graph:
    return cycle(4).with_features(edge_attr=torch.tensor(kinds + kinds)[:, None])


def standard_pairs() -> list[Pair]:
    """Return pairs whose outcome is known. The papers draw theirs (figure 6; 3.3) without a name."""
    star = [(0, leaf) for leaf in (1, 2, 3)]
    return [
        Pair("hexagon, two triangles", cycle(6), union(cycle(3), cycle(3)), wl=False),
        Pair("decalin, bicyclopentyl", decalin(), bicyclopentyl(), wl=False),
        Pair("octagon, two squares", cycle(8), union(cycle(4), cycle(4)), wl=False),
        Pair("prism, K(3,3)", prism(), utility(), wl=False),
        Pair("CSL(11, 2), CSL(11, 3)", circulant(11, [1, 2]), circulant(11, [1, 3]), wl=False),
        Pair("CSL(41, 2), CSL(41, 3)", circulant(41, [1, 2]), circulant(41, [1, 3]), wl=False),
        Pair("4x4 rook, Shrikhande", on_torus(ROOK), on_torus(SHRIKHANDE), wl=False),
        Pair("star, path (4 nodes)", undirected(star, 4), path(4), wl=True),
        Pair("trees of equal degrees", *_caterpillars(), wl=True),
        Pair("square: colours aabb, abab", _coloured_square([0, 0, 1, 1]), _coloured_square([0, 1, 0, 1]), wl=True),
        Pair("square: bonds aabb, abab", _bonded_square([0, 0, 1, 1]), _bonded_square([0, 1, 0, 1]), wl=True),
        Pair("arrows in, arrows out", directed([(1, 0), (2, 0)], 3), directed([(0, 1), (0, 2)], 3), wl=True),
        _permuted("decalin, permuted", decalin(), 1),
        _permuted("Shrikhande, permuted", on_torus(SHRIKHANDE), 2),
        _permuted("tree, permuted", _caterpillars()[0], 3),
    ]


def probes() -> list[Pair]:
    """Return pairs that show what lies outside the theorem on GPS models, by the nodes' order or by pairs without edge.

    Nodes that all differ, permuted; graphs whose nodes come in three kinds; trees that differ in the second round.
    """
    graph = circulant(14, [1, 3])
    graph = graph.with_features(x=torch.randn(14, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return [
        _permuted("nodes that all differ, permuted", graph, 4),
        Pair("decalin, bicyclopentyl", decalin(), bicyclopentyl()),
        Pair("trees of equal degrees", *_caterpillars()),
    ]


def random_pair(seed: int) -> Pair:
    """Draw a pair, of a random kind of `KINDS`."""
    generator = torch.Generator().manual_seed(seed)
    names = list(KINDS)
    return KINDS[names[int(torch.randint(len(names), (), generator=generator))]](generator)


def _random_graph(generator: torch.Generator) -> Graph:
    """Draw a graph of 4 to 9 nodes, two kinds of nodes and of edges, each edge with its kind in both directions."""
    size = int(torch.randint(4, 10, (), generator=generator))
    linked = torch.rand(size, size, generator=generator).triu(1) > 0.65
    edges = linked.nonzero().tolist()
    kinds = torch.randint(2, (len(edges), 1), generator=generator)
    x = torch.randint(2, (size, 1), generator=generator)
    return undirected(edges, size).with_features(x=x, edge_attr=torch.cat([kinds, kinds]))


def _copy(generator: torch.Generator) -> Pair:
    graph = _random_graph(generator)
    order = torch.randperm(graph.num_nodes, generator=generator)
    return Pair("permuted copy", graph, graph.permuted(order), isomorphic=True, wl=False)


def _cycles(generator: torch.Generator) -> Pair:
    """Draw two ways to partition some nodes into cycles: regular, so alike for 1-WL."""
    first, second, third = (int(n) for n in torch.randint(3, 6, (3,), generator=generator))
    graphs = union(cycle(first + second), cycle(third)), union(cycle(first), cycle(second + third))
    return Pair("unions of cycles", *graphs, isomorphic=first == third, wl=False)


def _rewired(generator: torch.Generator) -> Pair:
    """Draw a graph, and one with the target nodes of two of its edges exchanged: all degrees stay."""
    graph = _random_graph(generator)
    half = graph.edge_index.size(1) // 2
    links = graph.edge_index[:, :half].T.tolist()
    present = {frozenset(link) for link in links}
    for i in torch.randperm(half, generator=generator).tolist():
        for j in range(half):
            (a, b), (c, d) = links[i], links[j]
            new = {frozenset((a, d)), frozenset((c, b))}
            if len({a, b, c, d}) == 4 and not new & present:
                links[i], links[j] = (a, d), (c, b)
                other = undirected(links, graph.num_nodes).with_features(x=graph.x, edge_attr=graph.edge_attr)
                return Pair("rewired", graph, other)
    return Pair("rewired", graph, graph, isomorphic=True, wl=False)


def _standard(generator: torch.Generator) -> Pair:
    small = [pair for pair in standard_pairs() if pair.first.num_nodes <= 16]
    return small[int(torch.randint(len(small), (), generator=generator))]


KINDS: dict[str, Callable[[torch.Generator], Pair]] = {
    "copy": _copy,
    "cycles": _cycles,
    "rewired": _rewired,
    "standard": _standard,
}


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


def difference(rows: Tensor, other: Tensor) -> float:
    """Return a lower bound of the distance of two multisets of rows: each column is sorted by itself.

    Of graphs of different sizes, infinity.
    """
    if len(rows) != len(other):
        return float("inf")
    return float((rows.sort(dim=0).values - other.sort(dim=0).values).abs().max())


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
    "APPNP": Reach(True, "divides by degrees of neighbours, and takes several rounds at once", per_round=False),
    "GAT": Reach(True, "a sum over incoming edges"),
    "GATv2": Reach(True, "a sum over incoming edges"),
    "GraphSAGE": Reach(True, "a mean over incoming edges"),
    "GENConv": Reach(True, "a sum over incoming edges"),
    "GIN": Reach(True, "a sum over incoming edges"),
    "GINE": Reach(True, "a sum over incoming edges"),
    "GatedGCN": Reach(
        True, "a sum over incoming edges; edges see their source and target nodes; batch norms are taken out"
    ),
    "PNA": Reach(True, "mean, maximum and sum over incoming edges"),
}
