"""The digits' config with encoders by name, for the tests of encodings."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.positional_encoding import encoding_parts
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs

ROOT = Path(__file__).parents[2]
MODELS = {"LapPE": "DeepSet", "SignNet": "MLP", "RWSE": "Linear", "HKdiagSE": "mlp", "ElstaticSE": "Linear"}
MODELS |= dict.fromkeys(("ERN", "ERE", "RWSEEdge", "LDP"), "Linear")
NARROW = ("EquivStableLapPE", "GraphormerBias", "RRWP")  # they take no columns
TABLES = {"num_spatial_types": 4, "num_in_degrees": 9, "num_out_degrees": 9}


def load(name: str, *argv: str, edges: str = "") -> None:
    """Load the digits' config with encoders of nodes and edges, and the blocks of their encodings switched on."""
    blocks = ["dataset.edge_encoder_name", edges, "dataset.edge_encoder", "True"] if edges else []
    parts = encoding_parts() | encoding_parts(on_edges=True)
    for row in [parts[part] for part in f"{name}+{edges}".split("+") if part in parts]:
        blocks += [f"{row.group}.enable", "True"]
        blocks += [f"{row.group}.dim_pe", "4"] if row.name not in NARROW else []
        blocks += [f"{row.group}.model", MODELS[row.name]] if row.name in MODELS else []
        blocks += [f"{row.group}.post_layers", "1"] if row.name in MODELS else []
        blocks += [f"{row.group}.kernel.times_func", "range(1, 5)"] if row.name in ("RWSE", "HKdiagSE") else []
        blocks += ["graphormer.use_graph_token", "False"] if row.name == "GraphormerBias" else []
        tables = TABLES.items() if row.name == "GraphormerBias" else ()
        blocks += [word for key, rows in tables for word in (f"{row.group}.{key}", str(rows))]
    file = ROOT / "configs" / "quickstart" / "digits-kmip.yaml"
    load_config(cfg, file, ["dataset.node_encoder_name", name, "gt.layers", "1", *blocks, *argv])


def sample(tmp_path: Path) -> Batch:
    cfg.dataset.sample, cfg.dataset.dir = True, str(tmp_path)
    graphs = load_dataset("sklearn", "digits", str(tmp_path)).graphs
    return Batch.from_data_list([graphs[number] for number in (0, 1, 2)])


def model_and_batch() -> tuple[nn.Module, Batch]:
    with configured(planned_runs(1)[0]):
        parts = assemble()
    return parts.model.model, Batch.from_data_list([parts.dataset.graphs[number] for number in (0, 1, 2)])
