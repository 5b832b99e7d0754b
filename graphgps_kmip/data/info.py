"""Facts derived from a loaded data set (dims, classes, sizes), and the checks that a user's own data must pass."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch_geometric.utils import is_undirected
from tqdm import tqdm

from graphgps_kmip.data.checks import check_edges, columns, dim_out_of, labels_of, split_sizes
from graphgps_kmip.data.dataset import GraphDataset, Summary
from graphgps_kmip.data.record import DatasetRecord
from graphgps_kmip.errors import InputError
from graphgps_kmip.files import replace_file

UNITS = {"graph": "graph", "link": "pair of nodes"}
LONG = 20_000  # graphs from which on looking at each of them is worth a progress bar
LOOKED_AT = 10  # graphs whose edges decide whether a data set counts as directed, as in GraphGPS


@dataclass(frozen=True)
class DatasetInfo:
    """What models, tasks and reports need to know of a data set.

    Args:
        name: its title, for messages.
        level: "graph", "inductive_node", "node" or "link".
        sizes: samples that train, validate and test: graphs, or nodes at level "node".
        graphs, dim_in, ...: as in `Summary`.
    """

    name: str
    level: str
    sizes: tuple[int, int, int]
    graphs: int
    dim_in: int
    dim_edge: int
    dim_out: int
    mean_nodes: float
    max_nodes: int
    mean_edges: float
    directed: bool

    @classmethod
    def of(cls, dataset: GraphDataset, record: DatasetRecord) -> DatasetInfo:
        """Look at every graph once, or at what was kept of that look (`GraphDataset.summary`).

        Raises:
            ValueError: no graphs, an empty split, missing or misshapen x, y, edge_index or edge_attr, edges to nodes
                that do not exist, class labels that are NaN, negative or fractional.
        """
        if len(dataset) == 0:
            raise InputError(f"{record.title}: the data set has no graphs: check what its load(root) returns")
        sizes = split_sizes(dataset, record)
        summary = dataset.summary or summarize(dataset, record)
        return cls(name=record.title, level=record.level, sizes=sizes, **asdict(summary))

    def describe(self) -> list[tuple[str, str]]:
        """Return rows (what, value) for people."""
        unit = "nodes" if self.level == "node" else "graphs"
        return [
            ("data set", self.name),
            (f"{unit} (train / val / test)", " / ".join(f"{size:,}" for size in self.sizes)),
            ("nodes of a graph", f"{self.mean_nodes:,.1f} on average, {self.max_nodes:,} at most"),
            ("edges of a graph", f"{self.mean_edges:,.1f} on average, {'directed' if self.directed else 'undirected'}"),
            ("features", f"{self.dim_in} of a node, {self.dim_edge or 'none'} of an edge"),
            ("outputs", f"{self.dim_out} for each {UNITS.get(self.level, 'node')}"),
        ]


def summarize(dataset: GraphDataset, record: DatasetRecord) -> Summary:
    """Look at every graph once.

    Raises:
        ValueError: as `DatasetInfo.of`.
    """
    widths, out, nodes, edges = set(), set(), [], []
    many = len(dataset) > LONG
    for number, graph in enumerate(tqdm(dataset.graphs, f"{record.title}: looking at every graph", disable=not many)):
        where = f"{record.title}, graph {number}"
        check_edges(graph, where)
        widths.add((columns(graph.x, where), columns(graph.edge_attr, where)))
        out.add(dim_out_of(labels_of(graph, record, where), record, where))
        nodes.append(graph.num_nodes)
        edges.append(graph.num_edges)
    same_targets = len(out) == 1 or record.task_type == "classification"
    if len(widths) > 1 or not same_targets:
        raise InputError(f"{record.title}: graphs differ in the columns of x, edge_attr or y: give all the same")
    dim_in, dim_edge = widths.pop()
    first = [dataset.graphs[i] for i in range(min(LOOKED_AT, len(dataset)))]
    return Summary(
        graphs=len(dataset),
        dim_in=dim_in,
        dim_edge=dim_edge,
        dim_out=max(out),
        mean_nodes=sum(nodes) / len(nodes),
        max_nodes=max(nodes),
        mean_edges=sum(edges) / len(edges),
        directed=not all(is_undirected(graph.edge_index, num_nodes=graph.num_nodes) for graph in first),
    )


def kept_summary(dataset: GraphDataset, record: DatasetRecord, folder: Path) -> Summary:
    """Return `summarize` of a data set, computed once for what lies in the folder of its processed files."""
    basis = hashlib.sha256(repr((record.level, record.task_type, record.features)).encode()).hexdigest()[:12]
    path = folder / f"summary-{record.key.replace('/', '-')}-{basis}.json"
    try:
        return Summary(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or not a whole one: it can always be made again
        summary = summarize(dataset, record)
    replace_file(path, (json.dumps(asdict(summary)) + "\n").encode())
    return summary
