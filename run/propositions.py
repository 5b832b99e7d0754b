"""Propositions of the PPGT paper, seen on pairs of graphs and on norms (appendix E), in seconds on a CPU.

  python run/propositions.py --out FOLDER

E.1: PPGT networks with random weights distinguish exactly the pairs that GD-WL with their random walks distinguishes.
E.3: scaling tokens does not change LayerNorm and RMSNorm, but AdaRMSNorm. The exit code is 1 if one was not seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.expressivity.seg_wl import Graph, gd_wl, separated_by
from graphgps_kmip.expressivity.theorem import Pair, standard_pairs
from graphgps_kmip.ops.row_layers import NORM_LAYERS

KSTEPS = 8
WALKS = RRWP(ksteps=KSTEPS, channels="K+1", precision="float64")
TOLERANCE = 1e-9  # relative, float64; sums in another order differ by 1e-14
SCALES = (0.1, 3.0, 10.0)  # of proposition E.3
SCALED_NORMS = {"LN": "layer_norm", "RMSN": "rms_norm", "AdaRMSN": "ada_rms_norm"}
SETTINGS = {
    "dataset.node_encoder_name": "TypeDictNode",
    "dataset.node_encoder_num_types": 1,
    "dataset.edge_encoder": False,
    "posenc_RRWP.ksteps": KSTEPS,
    "posenc_RRWP.channels": "K+1",
    "posenc_RRWP.precision": "float64",
    "posenc_RRWP.where": "batch",
    "gnn.head": "linear_graph",
    "model.graph_pooling": "add",
}


def network(layers: int = 3, seed: int = 0) -> nn.Module:
    """Return a PPGT in float64 and eval mode whose weights are large enough to matter."""
    torch.manual_seed(seed)
    model = create_model("", 1, 16, network="PPGT", num_layers=layers, dim=16, num_heads=4, settings=SETTINGS)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return model.double().eval()


def difference(model: nn.Module, first: Graph, second: Graph) -> float:
    """Return the largest difference of the outputs for two graphs, relative to the largest output."""
    graphs = [
        Data(x=torch.zeros(graph.num_nodes, 1, dtype=torch.long), edge_index=graph.edge_index, y=torch.zeros(1, 16))
        for graph in (first, second)
    ]
    with torch.no_grad():
        out, _ = model(Batch.from_data_list(graphs))
    return float((out[0] - out[1]).abs().max() / out.abs().max())


def plain_pairs() -> list[Pair]:
    """Return the standard pairs without features and directions, which the model does not read."""
    return [pair for pair in standard_pairs() if is_plain(pair.first) and is_plain(pair.second)]


def is_plain(graph: Graph) -> bool:
    """Return whether a graph has no features and no directions."""
    edges = set(map(tuple, graph.edge_index.T.tolist()))
    return graph.x is None and graph.edge_attr is None and edges == {(v, u) for u, v in edges}


def scale_changes(dim: int = 16, seed: int = 0) -> dict[str, float]:
    """Return the largest relative change of each norm's output when its input is scaled by `SCALES`; see AdaRMSN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, dim, generator=generator, dtype=torch.float64)
    changes = {}
    for name, key in SCALED_NORMS.items():
        norm = NORM_LAYERS[key](dim).double()
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(torch.randn(dim, generator=generator, dtype=torch.float64))
            y = norm(x)
            changes[name] = max(float((norm(scale * x) - y).abs().max() / y.abs().max()) for scale in SCALES)
    return changes


def results() -> dict[str, Any]:
    """Return cells of both tables, and whether each proposition was seen."""
    model, cells, holds = network(), {}, True
    for pair in plain_pairs():
        graphs = (pair.first, pair.second)
        after = gd_wl(graphs, WALKS).separated_after()
        changed = difference(model, *graphs)
        holds = holds and (changed > TOLERANCE) == (after is not None)
        rounds = {"1-WL": separated_by("1-WL", *graphs), "GD-WL": after, "3-WL": separated_by("3-WL", *graphs)}
        cells[pair.name] = {name: "equal" if count is None else [count] for name, count in rounds.items()}
        cells[pair.name]["PPGT"] = [changed]
    changes = scale_changes()
    scaled = changes["AdaRMSN"] > 0.1 and max(changes["LN"], changes["RMSN"]) < 1e-3  # both have eps
    return {
        "E.1": {"cells": cells, "holds": holds},
        "E.3": {"cells": {name: {"change": [change]} for name, change in changes.items()}, "holds": scaled},
    }


def main(argv: list[str]) -> int:
    """Run both; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/propositions"), help="results folder")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    contents = results()
    for name, content in contents.items():
        write_json(args.out / f"{name}.json", content)
        print(f"Proposition {name}: what it says {'was seen' if content['holds'] else 'WAS NOT SEEN'}.")
        for row, cells in content["cells"].items():
            shown = (f"{key} {value if isinstance(value, str) else f'{value[0]:.3g}'}" for key, value in cells.items())
            print(f"  {row:<28}{', '.join(shown)}")
    return 0 if all(content["holds"] for content in contents.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
