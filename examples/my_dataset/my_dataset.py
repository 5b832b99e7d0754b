"""A data set of one's own: is there a triangle in the graph?"""

import networkx
import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from graphgps_kmip import DatasetRecord, register_dataset


def load(root):
    """Return 600 random trees, half of them closed to a triangle somewhere; `root` is the folder dataset.dir."""
    graphs = []
    for seed in range(600):
        tree, label = networkx.random_labeled_tree(12, seed=seed), seed % 2
        if label:
            centre = max(tree, key=tree.degree)
            tree.add_edge(*list(tree.neighbors(centre))[:2])
        else:
            far = networkx.single_source_shortest_path_length(tree, 0)
            tree.add_edge(0, max(far, key=far.get))  # a longer circle, so that counting edges does not help
        data = from_networkx(tree)
        graphs.append(Data(x=torch.ones(12, 1), edge_index=data.edge_index, y=torch.tensor([label])))
    return graphs


register_dataset(DatasetRecord(format="Mine", name="triangles", load=load, task_type="classification"))
