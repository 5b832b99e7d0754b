"""Theorem 1 on GPS models (thesis, theorem 12): graphs that SEG-WL leaves equal, a model leaves equal.

Pairs of graphs, encodings for SEG-WL, the comparison of a model with SEG-WL, and the data of the figures (thesis 3.2,
3.3; k-MIP paper 5, 6). Encodings are rounded, for equal nodes differ in the last digits (see `rounded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.expressivity.seg_wl import (
    Colouring,
    Encoding,
    Graph,
    circulant,
    cycle,
    directed,
    rounded,
    seg_wl,
    theorem_scheme,
    undirected,
    union,
    wl,
)

DECIMALS = 8  # eigenvectors of such small graphs are right to 12 or more
SAME = 1e-8  # eigenvalues that are nearer are one eigenvalue
STEPS = range(1, 17)  # of random walks, as GraphGPS has them on ZINC
MAX_FREQS = 8  # eigenpairs, of the public configs


@dataclass(frozen=True)
class Pair:
    """Two graphs, whether only the order of nodes differs, and whether 1-WL separates them (None: unknown)."""

    name: str
    first: Graph
    second: Graph
    isomorphic: bool = False
    wl: bool | None = None


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


def link_on_torus(steps: set[tuple[int, int]], size: int = 4) -> Graph:
    """Return the graph on Z_n x Z_n whose edges (a, b) -> (c, d) have one of these differences (c - a, d - b)."""
    nodes = range(size)
    edges = [
        (a * size + b, (a + down) % size * size + (b + right) % size)
        for a in nodes
        for b in nodes
        for down, right in steps
    ]
    return directed(sorted(edges), size**2)


ROOK = {(0, step) for step in (1, 2, 3)} | {(step, 0) for step in (1, 2, 3)}
SHRIKHANDE = {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}


def _permute(name: str, graph: Graph, seed: int) -> Pair:
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
    star, path = [(0, 1), (0, 2), (0, 3)], [(0, 1), (1, 2), (2, 3)]
    utility = undirected([(node, other) for node in range(3) for other in range(3, 6)], 6)
    return [
        Pair("hexagon, two triangles", cycle(6), union(cycle(3), cycle(3)), wl=False),
        Pair("decalin, bicyclopentyl", decalin(), bicyclopentyl(), wl=False),
        Pair("octagon, two squares", cycle(8), union(cycle(4), cycle(4)), wl=False),
        Pair("prism, K(3,3)", prism(), utility, wl=False),
        Pair("CSL(11, 2), CSL(11, 3)", circulant(11, [1, 2]), circulant(11, [1, 3]), wl=False),
        Pair("CSL(41, 2), CSL(41, 3)", circulant(41, [1, 2]), circulant(41, [1, 3]), wl=False),
        Pair("4x4 rook, Shrikhande", link_on_torus(ROOK), link_on_torus(SHRIKHANDE), wl=False),
        Pair("star, path (4 nodes)", undirected(star, 4), undirected(path, 4), wl=True),
        Pair("trees of equal degrees", *_caterpillars(), wl=True),
        Pair("square: colours aabb, abab", _coloured_square([0, 0, 1, 1]), _coloured_square([0, 1, 0, 1]), wl=True),
        Pair("square: bonds aabb, abab", _bonded_square([0, 0, 1, 1]), _bonded_square([0, 1, 0, 1]), wl=True),
        Pair("arrows in, arrows out", directed([(1, 0), (2, 0)], 3), directed([(0, 1), (0, 2)], 3), wl=True),
        _permute("decalin, permuted", decalin(), 1),
        _permute("Shrikhande, permuted", link_on_torus(SHRIKHANDE), 2),
        _permute("tree, permuted", _caterpillars()[0], 3),
    ]


def probes() -> list[Pair]:
    """Return pairs that show what is outside the theorem: attentions that read the order of nodes or other pairs."""
    graph = circulant(14, [1, 3])
    graph = graph.with_features(x=torch.randn(14, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return [
        _permute("nodes that all differ, permuted", graph, 4),
        Pair("decalin, bicyclopentyl", decalin(), bicyclopentyl()),
        Pair("trees of equal degrees", *_caterpillars()),
    ]


def random_pair(seed: int) -> Pair:
    """Draw a pair, of a random kind of `KINDS`."""
    generator = torch.Generator().manual_seed(seed)
    names = list(KINDS)
    return KINDS[names[int(torch.randint(len(names), (), generator=generator))]](generator)


def _draw_graph(generator: torch.Generator) -> Graph:
    """Draw a graph of 4 to 9 nodes, two kinds of nodes and of edges, each edge with its kind in both directions."""
    size = int(torch.randint(4, 10, (), generator=generator))
    linked = torch.rand(size, size, generator=generator).triu(1) > 0.65
    edges = linked.nonzero().tolist()
    kinds = torch.randint(2, (len(edges), 1), generator=generator)
    x = torch.randint(2, (size, 1), generator=generator)
    return undirected(edges, size).with_features(x=x, edge_attr=torch.cat([kinds, kinds]))


def _draw_copy(generator: torch.Generator) -> Pair:
    graph = _draw_graph(generator)
    order = torch.randperm(graph.num_nodes, generator=generator)
    return Pair("permuted copy", graph, graph.permuted(order), isomorphic=True, wl=False)


def _draw_cycles(generator: torch.Generator) -> Pair:
    """Draw two ways to partition some nodes into cycles: regular, so equal for 1-WL."""
    first, second, third = (int(n) for n in torch.randint(3, 6, (3,), generator=generator))
    graphs = union(cycle(first + second), cycle(third)), union(cycle(first), cycle(second + third))
    return Pair("unions of cycles", *graphs, isomorphic=first == third, wl=False)


def _draw_rewired(generator: torch.Generator) -> Pair:
    """Draw a graph, and one with the target nodes of two of its edges exchanged: all degrees stay."""
    graph = _draw_graph(generator)
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


def _draw_standard(generator: torch.Generator) -> Pair:
    small = [pair for pair in standard_pairs() if pair.first.num_nodes <= 16]
    return small[int(torch.randint(len(small), (), generator=generator))]


KINDS: dict[str, Callable[[torch.Generator], Pair]] = {
    "copy": _draw_copy,
    "cycles": _draw_cycles,
    "rewired": _draw_rewired,
    "standard": _draw_standard,
}


def encode(name: str, graph: Graph, decimals: int = DECIMALS) -> Encoding:
    """Return a row of `ENCODINGS` of a graph, rounded."""
    return rounded(ENCODINGS[name](graph), decimals)


def _eigenpairs(graph: Graph, count: int) -> tuple[Tensor, Tensor]:
    return laplacian_eigenpairs(graph.edge_index, graph.num_nodes, count, "sym")


def _eigenvalues(graph: Graph) -> Encoding:
    """Give each node all eigenvalues of its graph."""
    eigenvalues, _ = _eigenpairs(graph, graph.num_nodes)
    return Encoding(node=eigenvalues.expand(graph.num_nodes, -1))


def _eigenspaces(graph: Graph) -> Encoding:
    r"""Give projections :math:`P_\lambda = U U^T`, which do not depend on signs and bases of eigenvectors.

    Of each distinct eigenvalue node v gets :math:`\lambda, P_\lambda(v, v)`, and edge (u, v) :math:`P_\lambda(u, v)`.
    """
    eigenvalues, vectors = _eigenpairs(graph, graph.num_nodes)
    begins = torch.cat([eigenvalues.new_zeros(1, dtype=torch.bool), eigenvalues.diff() > SAME])
    space = begins.cumsum(0)  # (N,), number of each vector's eigenspace
    source, target = graph.edge_index
    nodes, edges = [], []
    for number in range(int(space.max()) + 1):
        inside = vectors[:, space == number]
        value = eigenvalues[space == number].mean()
        nodes += [value.expand(graph.num_nodes), inside.square().sum(1)]
        edges.append((inside[source] * inside[target]).sum(1))
    return Encoding(node=torch.stack(nodes, 1), edge=torch.stack(edges, 1))


def _eigenvectors(graph: Graph) -> Encoding:
    """Give LapPE's input: entries of the first eigenvectors and eigenvalues, with the solver's signs and bases."""
    eigenvalues, vectors = _eigenpairs(graph, MAX_FREQS)
    both = torch.stack([eigenvalues.expand_as(vectors), vectors], dim=2)  # (N, K, 2)
    return Encoding(node=both.flatten(1).nan_to_num(0.0))


def hops(graph: Graph) -> Encoding:
    """Give each pair of nodes the length of the shortest path, -1 without a path: Graphormer's encoding."""
    count = graph.num_nodes
    linked = torch.zeros(count, count, dtype=torch.bool)
    linked[graph.edge_index[1], graph.edge_index[0]] = True  # row: the node that is reached
    length, reached = torch.full((count, count), -1), torch.eye(count, dtype=torch.bool)
    for steps in range(count):
        length[reached & (length < 0)] = steps
        reached = (reached.double() @ linked.mT.double()) > 0
    return Encoding(pair=length.mT[..., None])


ENCODINGS: dict[str, Callable[[Graph], Encoding]] = {
    "none": lambda graph: Encoding(),  # noqa: ARG005
    "RWSE": lambda graph: Encoding(return_probabilities(graph.edge_index, graph.num_nodes, STEPS, dtype=torch.float64)),
    "Laplacian eigenvalues": _eigenvalues,
    "Laplacian eigenspaces": _eigenspaces,
    "shortest paths": hops,  # of all pairs: what no GPS model reads
    "Laplacian eigenvectors": _eigenvectors,
}
INVARIANT = tuple(name for name in ENCODINGS if name != "Laplacian eigenvectors")  # alike for isomorphic graphs


Model = Callable[[Graph, Encoding], Tensor]  # (N, C)


@dataclass(frozen=True)
class Outcome:
    """Result of a model and of SEG-WL on a pair."""

    equal: bool  # SEG-WL leaves the pair equal
    error: float  # largest difference between outputs of two nodes of one colour, relative to the largest output
    difference: float  # a lower bound of the distance of the two multisets of outputs
    readout: float  # difference between the mean outputs of the graphs


def try_model(model: Model, pair: Pair, encodings: tuple[Encoding, Encoding], rounds: int | None = None) -> Outcome:
    """Run a model and SEG-WL with the theorem's scheme on a pair.

    `Outcome.error` measures lemma 1: after l layers, nodes of one colour of round l have equal outputs, in any graph.

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
    colours = torch.cat([torch.from_numpy(graph_colours) for graph_colours in colouring.history[-1]])
    out, index = torch.cat(outputs), colours[:, None].expand(-1, outputs[0].size(1))
    empty = out.new_zeros(int(colours.max()) + 1, out.size(1))
    highest, lowest = (empty.scatter_reduce(0, index, out, kind, include_self=False) for kind in ("amax", "amin"))
    return float((highest - lowest).max())


def difference(rows: Tensor, other: Tensor) -> float:
    """Return a lower bound of the distance of two multisets of rows: columns sorted; infinite for different sizes."""
    if len(rows) != len(other):
        return float("inf")
    return float((rows.sort(dim=0).values - other.sort(dim=0).values).abs().max())


@dataclass(frozen=True)
class Reach:
    """Whether a component of a GPS layer has the properties that the proof uses (k-MIP paper, appendix B: A1 to A3)."""

    inside: bool  # it has them
    why: str
    per_round: bool = True  # l layers separate no more than l rounds; else only stable colours bound them


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
    "GatedGCN": Reach(True, "a sum over incoming edges, which see source and target; batch norms are taken out"),
    "PNA": Reach(True, "mean, maximum and sum over incoming edges"),
}


Places = list[tuple[float, float]]

HALF = [(-0.87, 1.0), (-1.73, 0.5), (-1.73, -0.5), (-0.87, -1.0)]  # of two hexagons that share the edge on x = 0
DECALIN: Places = [(0.0, 0.5), *HALF, (0.0, -0.5), *[(-x, y) for x, y in reversed(HALF)]]


def _place_pentagon(center: float, first: float) -> Places:
    return [(center + cos(first + 0.4 * pi * node), sin(first + 0.4 * pi * node)) for node in range(5)]


BICYCLOPENTYL: Places = [*_place_pentagon(-1.6, 0.0), *_place_pentagon(1.6, pi)]


def draw_iteration() -> dict[str, Any]:
    """Return one round of 1-WL on a small graph: its colours before and after, and the signature of every node."""
    graph = undirected([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 5)], 6)
    graph = graph.with_features(x=torch.tensor([[0], [0], [0], [1], [0], [0]]))
    before, after = (colours[0].tolist() for colours in wl([graph], rounds=1).history)
    near: list[list[int]] = [[] for _ in before]
    for source, target in graph.edge_index.T.tolist():
        near[target].append(before[source])
    signatures = [f"({old}, {{{', '.join(map(str, sorted(seen)))}}})" for old, seen in zip(before, near, strict=True)]
    places = [(-1.7, 0.85), (-1.7, -0.85), (-0.3, 0.0), (1.2, 0.0), (2.6, 0.85), (2.6, -0.85)]
    sides = [(0, 1), (0, -1), (1, 1), (-1, -1), (0, 1), (0, -1)]  # where the signature has room
    colours = {"before": before, "after": after, "signatures": signatures, "sides": sides}
    return {"graph": _draw_graph_at("", graph, places), **colours}


def draw_pair() -> dict[str, Any]:
    """Return the colours of two graphs that 1-WL leaves equal, and of SEG-WL with encodings, which separates them."""
    graphs = (decalin(), bicyclopentyl())
    colourings = {"1-WL": wl(graphs)}
    for name in ("Laplacian eigenvalues", "RWSE"):
        schemes = [theorem_scheme(graph, encode(name, graph)) for graph in graphs]
        colourings[f"SEG-WL with {name}"] = seg_wl(graphs, schemes)
    drawn = zip(("decalin", "bicyclopentyl"), graphs, (DECALIN, BICYCLOPENTYL), strict=True)
    return {
        "graphs": [_draw_graph_at(*row) for row in drawn],
        "tests": [_describe_test(title, colouring) for title, colouring in colourings.items()],
    }


def _draw_graph_at(name: str, graph: Graph, places: Places) -> dict[str, Any]:
    edges = sorted({tuple(sorted(edge)) for edge in graph.edge_index.T.tolist()})
    return {"name": name, "places": places, "edges": edges}


def _describe_test(title: str, colouring: Colouring) -> dict[str, Any]:
    """Return the stable colours: those of different tests are not comparable."""
    colours = [graph_colours.tolist() for graph_colours in colouring.history[-1]]
    return {"test": title, "separated_after": colouring.separated_after(), "colours": colours}
