"""`KMIPGPSConv` in the place of torch_geometric's `GPSConv`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import GINEConv, GPSConv

from graphgps_kmip.attention import FullAttention
from graphgps_kmip.attention.gps_conv import KMIPGPSConv

BATCH = torch.tensor([0] * 6 + [1] * 4)
EDGES = torch.tensor([[0, 1, 2, 6, 7], [1, 2, 0, 7, 8]])


def layers(norm: str | None, heads: int = 2) -> list[GPSConv]:
    options = {"heads": heads, "dropout": 0.3, "act": "gelu", "norm": norm}
    torch.manual_seed(0)
    convs = [GINEConv(torch.nn.Linear(8, 8)) for _ in range(2)]
    attention = {"k": 6, "head_agg": "Linear"}  # all keys: k-MIP is full attention
    return [GPSConv(8, convs[0], **options), KMIPGPSConv(8, convs[1], **options, attn_kwargs=attention)]


@pytest.mark.parametrize("norm", ["batch_norm", "graph_norm", None])
def test_with_all_keys_it_equals_the_layer_of_torch_geometric(norm: str | None) -> None:
    reference, kmip = (layer.double() for layer in layers(norm))
    state = {name: value for name, value in reference.state_dict().items() if not name.startswith("attn.")}
    for kind in ("weight", "bias"):
        parts = getattr(reference.attn, f"in_proj_{kind}").chunk(3)
        state |= {f"attn.{part}.{kind}": value for part, value in zip(("query", "key", "value"), parts, strict=True)}
        state[f"attn.out.{kind}"] = getattr(reference.attn.out_proj, kind)
    kmip.load_state_dict(state)
    x, edge_attr = torch.randn(10, 8).double(), torch.randn(5, 8).double()
    for training in (True, False):
        outputs = []
        for layer in (reference, kmip):
            torch.manual_seed(1)  # dropout
            outputs.append(layer.train(training)(x, EDGES, BATCH, edge_attr=edge_attr))
        torch.testing.assert_close(*outputs)


def test_an_attention_that_is_put_in_place_is_called() -> None:
    layer, attention = KMIPGPSConv(8, None, heads=2), FullAttention(8, 2)
    layer.attn = attention
    layer(torch.randn(10, 8), EDGES, BATCH).square().sum().backward()
    assert all(parameter.grad is not None for parameter in attention.parameters())


def test_the_code_of_the_readme_runs() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "KMIPGPSConv" in code)
    names: dict[str, torch.Tensor] = {}
    exec(code, names)
    assert names["x"].shape == (100, 64)
