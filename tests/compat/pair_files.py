"""The public files of PPGT and GRIT, from the data in pair_files.yaml: their settings, and models built from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.gym.config_loading import load_config

FOLDER = Path(__file__).parent
DATA: dict[str, Any] = yaml.safe_load((FOLDER / "pair_files.yaml").read_text())
FILES: dict[str, dict[str, Any]] = {row["name"]: row | {"letter": letter} for letter, row in DATA["files"].items()}
STATES: dict[str, dict[str, list[int]]] = yaml.safe_load((FOLDER / "pair_states.yaml").read_text())
PPGT, GRIT = ([name for name, row in FILES.items() if row["dialect"] == code] for code in ("ppgt", "grit"))


def settings_of(name: str) -> dict[str, Any]:
    letter = FILES[name]["letter"]
    values = DATA["values"].items()
    return {key: yaml.safe_load(text) for key, texts in values for text, files in texts.items() if letter in files}


def as_tree(settings: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, leaf = key.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    return tree


def load(name: str, folder: Path, *argv: str, **changes: Any) -> None:
    """Load a public file into GraphGym's config; ``changes`` are made to its text, ``argv`` are the command line's."""
    file = folder / "public.yaml"
    file.write_text(yaml.safe_dump(as_tree(settings_of(name) | changes)))
    load_config(cfg, file, list(argv))


def build(name: str, folder: Path, *argv: str) -> nn.Module:
    load(name, folder, *argv)
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = FILES[name]["dims"]
    with torch.device("meta"):
        return create_model(to_device=False)


def shapes_of(name: str) -> dict[str, list[int]]:
    """Return names and shapes of the parameters of a model of PPGT's code, layer by layer."""
    settings, shapes = settings_of(name), {}
    numbers = {"layers": settings["gt.layers"], "class_attention_layers": settings.get("gt.class_attn_layers", 0)}
    for key, shape in STATES[name].items():
        match = re.match(r"(\w+)\.\*\.", key)
        for layer in range(numbers[match[1]]) if match else (0,):
            shapes[key.replace("*", str(layer))] = shape
    return shapes
