"""Social networks: Penn94, pokec, Flickr, Reddit and Yelp; one graph each, with official splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import Features, RawFiles, Source, Statistics, node_record
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.safe_pickle import load_array

# Google Drive names of the files of LINKX that torch_geometric has no class for.
POKEC = {"pokec.mat": "1dNs5E7BrWJbgcHeQ_zuy5Ozp2tRCWG0y", "pokec-splits.npy": "1ZhpAiyTNc0cE_hhgyiqxnkKREHK7MK-_"}
# Those of GraphSAINT's data sets, in this order: matrix of edges, features, classes, parts.
GRAPHSAINT = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
FLICKR_IDS = (
    "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
    "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
    "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
    "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
)
YELP_IDS = (
    "1Juwx8HtDwSzmVIJ31ooVa1WljI4U5JnA",
    "1Zy6BZH_zLEjKlEFSduKE5tV9qqA_8VtM",
    "1VUcBGr0T0-klqerjAjxRmAqFuld_SMWU",
    "1NI5pa5Chpd-52eSmLW60OnB3WS5ikxq_",
)
LINKX = "https://github.com/CUAI/Non-Homophily-Large-Scale/raw/master/data"


def _google_drive(folder: str, ids: Mapping[str, str]) -> RawFiles:
    """Return raw files by the names that Google Drive has for them."""
    address = "https://drive.usercontent.google.com/download?id={}&confirm=t"
    urls = {f"raw/{name}": address.format(id) for name, id in ids.items()}
    return RawFiles(folder, tuple(urls), urls=urls)


def load_pokec(home: str) -> Data:
    """Return the graph of LINKX: friendships as in SNAP's file, 65 columns of the profiles, gender as the label.

    torch_geometric's ``SNAPDataset`` has neither labels nor features nor splits, and leaves out four edges.

    Shapes: masks (N, S) for S splits; users of unknown gender have label -1 and are in no part.
    """
    import numpy as np
    import torch
    from scipy.io import loadmat
    from torch_geometric.utils import index_to_mask

    graph, split = (Path(home, "raw", name) for name in POKEC)
    with reading(graph):
        raw = loadmat(graph)
    with reading(split), open(split, "rb") as file:
        splits = load_array(file)
    data = Data(
        x=torch.from_numpy(raw["node_feat"]).float(),
        edge_index=torch.from_numpy(raw["edge_index"].astype(np.int64)),
        y=torch.from_numpy(raw["label"].astype(np.int64)).flatten(),
    )
    for name, key in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        parts = [torch.as_tensor(one[key]) for one in splits]
        data[name] = torch.stack([index_to_mask(part, data.num_nodes) for part in parts], dim=1)
    return data


def _linkx(page: str) -> Source:
    return Source(
        citation="Lim, Hoehne, Li, Huang, Gupta, Bhalerao and Lim, Large Scale Learning on Non-Homophilous Graphs, "
        "NeurIPS 2021",
        licence="not stated",
        page=f"github.com/CUAI/Non-Homophily-Large-Scale ({page})",
    )


def _graphsaint(folder: str) -> Source:
    return Source(
        citation="Zeng, Zhou, Srivastava, Kannan and Prasanna, GraphSAINT: Graph Sampling Based Inductive Learning "
        "Method, ICLR 2020",
        licence="not stated",
        page=f"github.com/GraphSAINT/GraphSAINT (Google Drive folder {folder})",
    )


PENN94 = node_record(
    "PyG-actor",
    "LINKXDataset",
    {"name": "penn94"},
    name="Penn94",
    title="Penn94",
    split="5 official random splits of the labelled nodes, 50/25/25 percent",
    summary="Facebook friendships at one university in 2005; gender from profile entries, unknown for some nodes",
    features=Features(node=4814, classes=2),
    statistics=Statistics(1, 41554, 1362229, edges_once=True, directed=False),
    source=_linkx("data/facebook100/Penn94.mat, to be named data.mat, and data/splits"),
    raw=RawFiles(
        "LINKXDataset",
        ("raw/data.mat", "raw/fb100-Penn94-splits.npy"),
        base="penn94",
        urls={
            "raw/data.mat": f"{LINKX}/facebook100/Penn94.mat",
            "raw/fb100-Penn94-splits.npy": f"{LINKX}/splits/fb100-Penn94-splits.npy",
        },
    ),
)
RECORDS = (
    PENN94,
    replace(PENN94, format="PyG-Penn94"),
    node_record(
        "SNAP",
        load=load_pokec,
        name="pokec",
        title="pokec",
        split="5 official random splits of the labelled nodes, 50/25/25 percent",
        summary="friendships of a Slovak social network, as LINKX prepared them; gender from the rest of the profile",
        features=Features(node=65, classes=2),
        statistics=Statistics(1, 1632803, 30622564, directed=True),
        source=_linkx("Google Drive links in dataset.py and data_utils.py"),
        raw=_google_drive("Pokec", POKEC),
    ),
    node_record(
        "PyG-Flickr",
        "Flickr",
        title="Flickr",
        split="official masks, 50/25/25 percent",
        summary="pictures that share a place, gallery or group; from the words of their descriptions to 7 kinds",
        features=Features(node=500, classes=7),
        statistics=Statistics(1, 89250, 899756, directed=False, sizes=(44625, 22312, 22313)),
        source=_graphsaint("flickr"),
        raw=_google_drive("Flickr", dict(zip(GRAPHSAINT, FLICKR_IDS, strict=True))),
    ),
    node_record(
        "PyG-Reddit",
        "Reddit",
        title="Reddit",
        split="official masks, by day: 66/10/24 percent",
        summary="posts that the same users commented on; 41 communities; 114 million edges",
        features=Features(node=602, classes=41),
        statistics=Statistics(1, 232965, 114615892, directed=False, sizes=(153431, 23831, 55703)),
        source=Source(
            citation="Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017",
            licence="not stated",
            page="data.dgl.ai/dataset/reddit.zip",
        ),
        raw=RawFiles(
            "Reddit",
            ("raw/reddit_data.npz", "raw/reddit_graph.npz"),
            archives=("reddit.zip",),
            urls={"reddit.zip": "https://data.dgl.ai/dataset/reddit.zip"},
        ),
    ),
    node_record(
        "PyG-Yelp",
        "Yelp",
        task_type="classification_multilabel",
        metric="f1",
        title="Yelp",
        split="official masks, 75/15/10 percent",
        summary="reviewers and their friends; 100 kinds of business that they reviewed",
        features=Features(node=300, classes=100),
        statistics=Statistics(1, 716847, 13954819, sizes=(537635, 107527, 71685)),
        source=_graphsaint("yelp"),
        raw=_google_drive("Yelp", dict(zip(GRAPHSAINT, YELP_IDS, strict=True))),
    ),
)
