"""How large a sample is, and where its hidden values are written: derived from a record."""

from __future__ import annotations

from dataclasses import dataclass

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Statistics
from graphgps_kmip.data.sample_graphs import LEAVES, UNIT
from graphgps_kmip.errors import InputError

VALUES = 3  # hidden values: few enough that 60 training graphs show every pair of them several times
BEACON_STEP, BEACON_LEAST = 4, 6  # pendant nodes that show a beacon's value in the structure
MOST_GRAPHS, FEWEST_GRAPHS = 300, 30
MOST_NODES, FEWEST_NODES = 60, 12
MOST_NODES_OF_ONE, FEWEST_NODES_OF_ONE = 1500, 60
MOST_DEGREE = 40
MOST_DEGREE_OF_ONE = 16  # a landmark is 3 hops away there: more neighbours drown what comes from it
MOST_EDGES = 400_000  # of all graphs together: an epoch then takes about a second
UNKNOWN = Statistics(graphs=MOST_GRAPHS, mean_nodes=30)  # for a record that says nothing of its size
UNKNOWN_DEGREE, UNKNOWN_NEIGHBORS = 4.0, 8.0


@dataclass(frozen=True)
class Plan:
    """Size and carrier of a sample.

    Args:
        graphs: number of graphs.
        nodes: mean number of nodes, before pendant ones are added.
        pendants: mean number of pendant nodes.
        degree: edges for each node as they are stored.
        directed: an edge is stored in one direction only.
        neighbors: k of the k-nearest-neighbour graph; 0 where edges are drawn.
        values: number C of hidden values; classes beyond them do not occur.
        carrier: what shows the hidden values: "features"; "positions", if no other column is left; or "structure",
            as pendant nodes, if features are derived from the edges or distinguish fewer than 4 nodes.
    """

    graphs: int
    nodes: int
    pendants: int
    degree: float
    directed: bool
    neighbors: int
    values: int
    carrier: str

    @classmethod
    def of(cls, record: DatasetRecord, derived: bool) -> Plan:
        """Read a record; ``derived``: its node features will be computed from the edges.

        Raises:
            ValueError: the record does not say what its features look like, or that nodes have none.
        """
        features, known, one = record.features, record.statistics or UNKNOWN, record.level == "node"
        if features is None:
            raise InputError(f"{record.title}: a sample needs its features: give the record features=Features(...)")
        if not features.node and not derived:
            raise InputError(f"{record.title}: nodes have no features: call make_sample with featurize=<transform>")
        cloud = features.positions > 0 and not one
        directed = cloud or bool(known.directed)
        unknown = UNKNOWN_NEIGHBORS if cloud else UNKNOWN_DEGREE
        degree = unknown if known.mean_edges is None else known.mean_edges / known.mean_nodes
        degree *= 2 if known.edges_once and not directed else 1
        degree = min(MOST_DEGREE_OF_ONE if one else MOST_DEGREE, degree)
        neighbors = max(1, round(degree)) if cloud else 0
        carrier = _carrier(features, derived)
        values = _values(record, carrier)
        low, high = (FEWEST_NODES_OF_ONE, MOST_NODES_OF_ONE) if one else (FEWEST_NODES, MOST_NODES)
        # A beacon in a point cloud has neighbors + 1 points to itself, which should be a small part of the graph.
        nodes = max(round(min(max(known.mean_nodes, low), high)), 4 * (neighbors + 1) if cloud else 0)
        graphs = 1 if one else max(FEWEST_GRAPHS, min(MOST_GRAPHS, known.graphs, int(MOST_EDGES / (degree * nodes))))
        inner = _without_pendants(nodes, values, one) if carrier == "structure" else nodes
        return cls(graphs, inner, nodes - inner, degree, directed, neighbors, values, carrier)


def free_columns(features: Features) -> int:
    """Return the number of float columns of ``x`` that hold no coordinate."""
    return features.node - features.positions if features.node >= features.positions else features.node


def _carrier(features: Features, derived: bool) -> str:
    if derived or not features.node:
        telling = False
    elif isinstance(features.node, int):
        telling = free_columns(features) > 0
    else:
        telling = max(features.node) >= 4  # two values of ordinary nodes, two of beacons
    return "features" if telling else "positions" if features.positions else "structure"


def _values(record: DatasetRecord, carrier: str) -> int:
    features = record.features
    most = [VALUES]
    if record.task_type == "classification":
        most.append(features.classes)
    if carrier == "features" and not isinstance(features.node, int):
        most.append(max(features.node) // 2)
    return max(1, min(most))


def _without_pendants(nodes: int, values: int, one: bool) -> int:
    """Return how many nodes to start from, so that about ``nodes`` are there with the pendant ones."""
    of_beacon = BEACON_LEAST + BEACON_STEP * (values - 1) / 2
    if one:  # each leaf has one
        return round(nodes * UNIT / (UNIT + LEAVES + of_beacon))
    return max(8, round((nodes - of_beacon) / (1 + (values - 1) / 2)))
