"""Keys of the public files of Graphormer and of GPS layers with its bias, and the parameters of the public code."""

from __future__ import annotations

from typing import Any

Tree = dict[str, dict[str, Any]]
TABLES = {"enable": True, "num_spatial_types": 20}
MOLECULES: Tree = {
    "dataset": {"format": "PyG-ZINC", "name": "subset", "task": "graph", "task_type": "regression"}
    | {"transductive": False, "node_encoder": True, "node_encoder_name": "TypeDictNode+GraphormerBias"}
    | {"node_encoder_num_types": 28, "edge_encoder_name": "TypeDictEdge", "edge_encoder_num_types": 4}
    | {"node_encoder_bn": False, "edge_encoder_bn": False},
    "posenc_GraphormerBias": TABLES | {"node_degrees_only": False, "num_in_degrees": 64, "num_out_degrees": 64},
    "train": {"mode": "custom", "batch_size": 8},
}
ZINC = MOLECULES | {
    "dataset": MOLECULES["dataset"] | {"edge_encoder": False},
    "model": {"type": "Graphormer", "loss_fun": "l1", "graph_pooling": "graph_token"},
    "graphormer": {"num_layers": 12, "num_heads": 8, "embed_dim": 80, "dropout": 0.0}
    | dict.fromkeys(("attention_dropout", "mlp_dropout", "input_dropout"), 0.1),
    "gnn": {"head": "graphormer_graph", "layers_pre_mp": 0, "layers_post_mp": 3, "dim_inner": 80, "act": "relu"},
    "optim": {"optimizer": "adamW", "base_lr": 0.001, "scheduler": "polynomial_with_warmup"},
}
BOTH = MOLECULES | {  # layers of GPS with Graphormer's bias and token
    "dataset": MOLECULES["dataset"] | {"edge_encoder": True},
    "model": {"type": "GPSModel", "loss_fun": "l1", "graph_pooling": "graph_token"},
    "graphormer": {"use_graph_token": True},
    "gt": {"layer_type": "GINE+BiasedTransformer", "layers": 10, "n_heads": 4, "dim_hidden": 64, "attn_dropout": 0.5},
    "gnn": {"head": "san_graph", "layers_pre_mp": 0, "layers_post_mp": 3, "dim_inner": 64, "act": "relu"},
    "optim": {"optimizer": "adamW", "base_lr": 0.001, "scheduler": "cosine_with_warmup"},
}
BESIDE = BOTH | {  # beside another encoding, without the token
    "dataset": BOTH["dataset"] | {"node_encoder_name": "TypeDictNode+GraphormerBias+RWSE"},
    "model": BOTH["model"] | {"graph_pooling": "add"},
    "graphormer": {"use_graph_token": False},
    "posenc_RWSE": {"enable": True, "kernel": {"times_func": "range(1,21)"}, "model": "Linear", "dim_pe": 28}
    | {"raw_norm_type": "BatchNorm"},
}
CORNELL: Tree = {
    "dataset": {"format": "PyG-WebKB", "name": "cornell", "task": "node", "task_type": "classification"}
    | {"transductive": True, "node_encoder": True, "node_encoder_name": "LinearNode+GraphormerBias"}
    | {"edge_encoder": False, "edge_encoder_name": "DummyEdge", "node_encoder_bn": False, "edge_encoder_bn": False},
    "posenc_GraphormerBias": TABLES | {"num_in_degrees": 9, "num_out_degrees": 94},
    "train": {"mode": "custom", "sampler": "full_batch"},
    "model": {"type": "Graphormer", "loss_fun": "cross_entropy"},
    "graphormer": {"use_graph_token": False, "num_layers": 2, "num_heads": 4, "embed_dim": 64}
    | {"dropout": 0.2, "attention_dropout": 0.0, "mlp_dropout": 0.2, "input_dropout": 0.0},
    "gnn": {"head": "node", "layers_pre_mp": 0, "layers_post_mp": 1, "dim_inner": 64, "act": "gelu", "dropout": 0.2},
    "optim": {"optimizer": "adamW", "base_lr": 0.0005, "scheduler": "cosine_with_warmup"},
}
DEGREES = CORNELL | {"posenc_GraphormerBias": CORNELL["posenc_GraphormerBias"] | {"node_degrees_only": True}}


def linear(dim_in: int, dim_out: int) -> int:
    return (dim_in + 1) * dim_out


def layer(dim: int) -> int:
    return 4 * linear(dim, dim) + 2 * linear(dim, dim) + 4 * dim  # attention, feed-forward network, two norms


def gps_layer(dim: int) -> int:
    ffn = linear(dim, 2 * dim) + linear(2 * dim, dim)
    return 2 * linear(dim, dim) + 4 * linear(dim, dim) + ffn + 6 * dim  # GINE, attention, three norms


def bias(heads: int, edge_types: int) -> int:
    """Distances, matrices of places in a path, types of edges."""
    return 21 * heads + 20 * heads**2 + edge_types * heads


SAN_HEAD = linear(64, 32) + linear(32, 16) + linear(16, 1)
# file -> its keys; the parameters of encoders and head, and of each layer
FILES: dict[str, tuple[Tree, int, int]] = {
    "zinc-Graphormer": (
        ZINC,
        28 * 80 + bias(8, 4) + 8 + (64 + 64) * 80 + 80 + 2 * 80 + linear(80, 1),
        layer(80),
    ),
    "webkb-cor-Graphormer": (
        CORNELL,
        linear(1703, 64) + bias(4, 0) + (9 + 94) * 64 + linear(64, 5),
        layer(64),
    ),
    "webkb-cor-Graphormer with degrees only": (
        DEGREES,
        linear(1703, 64) + (9 + 94) * 64 + linear(64, 5),
        layer(64),
    ),
    "zinc-GPSwGraphormer+VN": (
        BOTH,
        28 * 64 + 4 * 64 + bias(4, 4) + 4 + (64 + 64) * 64 + 64 + SAN_HEAD,
        gps_layer(64),
    ),
    "zinc-GPSwGraphormer": (
        BESIDE,
        28 * 36 + 4 * 64 + bias(4, 4) + (64 + 64) * 36 + 2 * 20 + linear(20, 28) + SAN_HEAD,
        gps_layer(64),
    ),
}


def public_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the parameters that the public code saves for zinc-Graphormer."""
    table, norm = "model.encoder.node_encoder.encoder", {"weight": (80,), "bias": (80,)}
    square = {"weight": (80, 80), "bias": (80,)}
    shapes: dict[str, tuple[int, ...]] = {
        f"{table}1.encoder.weight": (28, 80),
        f"{table}2.0.spatial_encoder.weight": (21, 8),
        f"{table}2.0.edge_dis_encoder.weight": (20 * 8 * 8, 1),
        f"{table}2.0.edge_encoder.weight": (4, 8),
        f"{table}2.0.graph_token": (1, 8, 1),
        f"{table}2.1.in_degree_encoder.weight": (64, 80),
        f"{table}2.1.out_degree_encoder.weight": (64, 80),
        f"{table}2.1.graph_token": (1, 80),
        "model.post_mp.layers.0.weight": (1, 80),
        "model.post_mp.layers.0.bias": (1,),
    }
    parts = {"model.post_mp.ln": norm}
    for layer in (f"model.layers.{i}" for i in range(layers)):
        shapes |= {f"{layer}.attention.in_proj_weight": (240, 80), f"{layer}.attention.in_proj_bias": (240,)}
        parts |= {f"{layer}.{name}": norm for name in ("input_norm", "mlp.0")}
        parts |= {f"{layer}.{name}": square for name in ("attention.out_proj", "mlp.1", "mlp.4")}
    return shapes | {f"{name}.{kind}": shape for name, kinds in parts.items() for kind, shape in kinds.items()}
