"""GPS layers of the public codes, checked against their records: what each code builds, and what it calls it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.compat.public_faults import FirstRowGINE
from graphgps_kmip.model import GPSLayer
from graphgps_kmip.mpnn import GAT, GCN, GIN, GINE, PNA, GatedGCN, GENConv
from tests.recorded import check, load

DIM, HEADS = 8, 2
Builder = Callable[..., nn.Module]
LOCAL: dict[str, Builder] = {
    "CustomGatedGCN": GatedGCN,
    "GAT": partial(GAT, heads=HEADS),
    "GCN": GCN,
    "GENConv": GENConv,
    "GIN": GIN,
    "GINE": GINE,
    "PNA": PNA,
}
# Where a code differs. LRGB adds GatedGCN's residual outside: the same mathematics.
BY_CODE: dict[str, dict[str, Builder]] = {
    "gps": {},
    "gps_eslappe": {
        "CustomGatedGCN": partial(GatedGCN, equivstable_pe=True),
        "GINE": partial(FirstRowGINE, equivstable_pe=True),
    },
    "kmip": {"CustomGatedGCN": partial(GatedGCN, residual=False), "GINE": partial(GINE, inner="norm_linear")},
    "lrgb": {"GINE": partial(GINE, inner="norm_linear")},
}
# Beginnings of recorded names -> of ours, the first that fits; norms and inner networks of GINE see `renamer`.
NORMS = {"norm1_local.": "local_norm.0.", "norm1_(attn|global).": "attention_norm.0.", "norm2.": "ffn_norm."}
NAMES = {
    "local_model.([A-E]).": r"local.0.\1.",
    "local_model.bn_node_x.": "local.0.node_norm.module.",
    "local_model.bn_edge_e.": "local.0.edge_norm.module.",
    "local_model.mlp_r_ij.": "local.0.gate.mlp.",
    "local_model.mlp.1.": "local.0.conv.mlp.1.module.",
    "ff_linear1.": "ffn.0.",
    "ff_linear2.": "ffn.3.",
    "self_attn.in_proj_": "attention.0.qkv.",
    "self_attn.out_proj.": "attention.0.out.",
    "self_attn.MQs.": "attention.0.query.",
    "self_attn.MKs.": "attention.0.key.",
    "self_attn.MVs.": "attention.0.value.",
    "self_attn.MO.": "attention.0.out.",
}


def check_layer(
    name: str,
    attention: nn.Module | None,
    names: Mapping[str, str] = {},  # noqa: B006
    buffers: Mapping[str, Tensor] = {},  # noqa: B006
) -> None:
    """Compare the layer of a record with ours.

    Args:
        name: ``<code>_<MPNN>_<attention>_<norm>_norm_...``.
        attention: ours, for width 8 and 2 heads.
        names: start of a recorded parameter name of the attention -> of ours, without ``attention.``.
        buffers: buffers of our attention that the record does not have.
    """
    code, local_name, _, norm = re.match(r"([a-z]+)_([A-Za-z]+)_([A-Za-z]+)_(batch|layer|no)_norm", name).groups()
    kind = f"{code}_eslappe" if name.endswith("_eslappe") else code
    act = nn.GELU if "_gelu" in name else nn.ReLU
    local = None if local_name == "None" else (LOCAL | BY_CODE[kind])[local_name](DIM, act=act)
    layer = GPSLayer(DIM, local, attention, norm={"no": "none"}.get(norm, norm), act=act).double()
    rename = renamer(local, norm, {f"self_attn.{old}": f"attention.0.{new}" for old, new in names.items()})

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(Data.from_dict(inputs)))
        return {"x": x, "edge_attr": edge_attr}

    # the originals also make the norm of a branch that is not there, and never call it; GINE's epsilon is a buffer, 0
    unused = {"norm1_local": local is None, "norm1_(attn|global)": attention is None}
    unused["local_model.eps"] = isinstance(local, GINE)
    pattern = "|".join(part for part, is_unused in unused.items() if is_unused) or "$^"
    record = {key: value for key, value in load(f"B_layers/{name}").items() if not re.search(pattern, key)}
    check(layer, forward, record | {f"state/attention.0.{key}": v for key, v in buffers.items()}, rename)


def renamer(local: nn.Module | None, norm: str, names: Mapping[str, str]) -> Callable[[str], str]:
    """Return what maps recorded names to those of our layer."""
    inside = "norm.module." if norm == "batch" else "norm."
    table = NAMES | {old: new + inside for old, new in NORMS.items()} | names
    if isinstance(local, GINE):
        table["local_model.nn.0."] = "local.0.inner.0." + "module." * isinstance(local.inner[0], BatchNorm)
        table["local_model.nn."] = "local.0.inner."
    table["local_model."] = "local.0.conv."

    def rename(key: str) -> str:
        fits = ((found, new) for old, new in table.items() if (found := re.match(old.replace(".", r"\."), key)))
        return next((found.expand(new) + key[found.end() :] for found, new in fits), key)

    return rename
