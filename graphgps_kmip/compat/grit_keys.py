"""Keys of the public code of GRIT (LiamMa/GRIT, Ma et al. 2023): options of its attention, and RRWP of its networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphgps_kmip.compat.foreign_keys import Code

ENCODER = "dataset.node_encoder_name"
# The name of RRWP in older versions of the code, which one of its files still has; its present version refuses it.
OLD_GROUP = "posenc_RWPSE"

KEYS: dict[str, str] = {
    **{f"gt.attn.{key}": f"gt.grit.{key}" for key in ("act", "clamp", "use_bias", "deg_scaler", "O_e", "norm_e")},
    "gt.update_e": "gt.grit.update_e",
    **{f"gt.{key}": f"grit.{key}" for key in ("bn_momentum", "bn_no_runner", "rezero")},
    **{f"{OLD_GROUP}.{key}": f"posenc_RRWP.{key}" for key in ("enable", "ksteps", "add_identity")},
}
ONLY: dict[str, tuple[Any, ...]] = {
    "gt.attn.use": (True,),
    "gt.attn.full_attn": (True,),
    "gt.attn.sparse": (False,),
    "gt.attn.graphormer_attn": (False,),
    "posenc_RRWP.spd": (False,),
}
UNREAD: dict[str, tuple[Any, ...] | None] = {
    "mlflow.use": (False,),
    "mlflow.*": None,
    "gt.attn.edge_enhance": (True,),  # its layers say True themselves
    **{f"gt.attn.{key}": None for key in ("signed_sqrt", "sqrt_relu", "scaled_attn", "no_qk", "fwl")},
    "gnn.dim_edge": None,  # gnn.dim_inner, whatever it says
    **{f"{group}.{key}": None for group in (OLD_GROUP, "posenc_RRWP") for key in ("add_node_attr", "add_inverse")},
}


def derive(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node encoder with RRWP, which the network adds wherever it is enabled, and where it is computed."""
    found: dict[str, Any] = {}
    name = given.get(ENCODER)
    if name is not None:
        enabled = given.get("posenc_RRWP.enable", given.get(f"{OLD_GROUP}.enable", False))
        found[ENCODER] = encoder_with_rrwp(name, True) if enabled else name
    if given.get("dataset.pe_transform_on_the_fly"):
        found["posenc_RRWP.where"] = "batch"
    return found


def encoder_with_rrwp(name: str, enabled: bool) -> str:
    """Return the name of a node encoder with RRWP among its parts if that is enabled, else without."""
    parts = str(name).split("+")
    if enabled:
        return name if "RRWP" in parts else f"{name}+RRWP"
    return "+".join(part for part in parts if part != "RRWP")


GRIT = Code("grit", KEYS, (ENCODER, "dataset.pe_transform_on_the_fly"), derive, ONLY, UNREAD)
