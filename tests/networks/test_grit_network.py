"""The network GritTransformer: whole recorded models, sizes of the public files, and a drop-in branch of GPS layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.networks.create_model import create_model


def grit(in_dim: int, out_dim: int, node: str, settings: dict[str, Any], **options: Any) -> nn.Module:
    options |= {"node_encoder": f"{node}+RRWP", "settings": settings}
    return create_model("GRIT", in_dim, out_dim, network="GritTransformer", **options)


def batch_of(sizes: list[int], edges_per_node: int = 2) -> Batch:
    graphs = []
    for size in sizes:
        source = torch.arange(size).repeat_interleave(edges_per_node)
        target = torch.randint(size, (len(source),))
        edges = torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)
        attr = torch.randn(edges.size(1), 2, dtype=torch.float64)
        x = torch.randn(size, 3, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=edges, edge_attr=attr, y=torch.zeros(1)))
    return Batch.from_data_list(graphs)


IN_BATCH = {"posenc_RRWP.where": "batch", "posenc_RRWP.ksteps": 4, "posenc_RRWP.precision": "float64"}
SMALL = {"num_layers": 2, "dim": 8, "num_heads": 2, "head": "inductive_node", "edge_encoder": "LinearEdge"}
SMALL |= {"edge_dim": 2, "node_encoder": "LinearNode+RRWP"}


def test_the_second_layer_of_a_branch_reads_the_pairs_that_the_first_one_made() -> None:
    model = create_model("GatedGCN+GRIT", 3, 4, settings=IN_BATCH, **SMALL).double().train()
    model(batch_of([5, 4]))[0].pow(3).sum().backward()
    first, last = (layer.attention[0].pairs.linear.weight.grad for layer in model.layers)
    assert first.abs().max() > 1e-10
    assert last is None or not last.any()  # nothing reads those of the last one


def test_settings_reach_the_layers() -> None:
    settings = {
        **{"grit.bn_momentum": 0.3, "grit.bn_no_runner": True, "grit.rezero": True},
        **{"gt.grit.clamp": 2.0, "gt.grit.use_bias": True, "gt.grit.deg_scaler": False, "gt.grit.O_e": False},
        **{"gt.dropout": 0.2, "gt.attn_dropout": 0.4},
    }
    model = grit(3, 4, "LinearNode", settings, **SMALL)
    layer, last = model.layers
    attention, [norm] = layer.attention[0], layer.attention_norm
    assert (norm.momentum, norm.running_mean) == (0.3, None)
    assert (attention.pairs.norm[0].momentum, attention.pairs.norm[0].running_mean) == (0.3, None)
    assert (attention.clamp, attention.degree_factors, attention.pairs.linear) == (2.0, None, None)
    assert attention.key.bias is not None
    assert (attention.dropout, attention.out_dropout.p, attention.pairs.dropout) == (0.4, 0.2, 0.2)
    assert layer.ffn_alpha.shape == attention.pairs.alpha.shape == (1, 1)
    assert (attention.pairs.update, last.attention[0].pairs.update) == (True, False)
