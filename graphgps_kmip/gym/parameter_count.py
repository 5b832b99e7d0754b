"""Parameter counts by component, and the text of a dry run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from torch import nn
from yacs.config import CfgNode

from graphgps_kmip.model.layer_recipe import adds_nothing
from graphgps_kmip.networks.gps_networks import GPS, norm_of, recipe_of

IN_LAYER = re.compile(r"layers\.(\d+)\.")
BRANCHES = ("local", "attention", "node", "edge")  # lists of modules that differ
STATE = "initial_state"  # of the first attention that has one: it serves all layers


def count_layers(model: nn.Module) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Return the parameters of each component of a network, such as ``head.mlp``: outside of layers, of each layer."""
    network = getattr(model, "model", model)  # GraphGym wraps its networks once
    once: Counter[str] = Counter()
    layers: dict[int, Counter[str]] = {}
    for name, parameter in network.named_parameters():
        layer = IN_LAYER.match(name)
        if layer and STATE not in name.split("."):
            component = _component(network.layers[int(layer[1])], name[layer.end() :], 1)
            layers.setdefault(int(layer[1]), Counter())[component] += parameter.numel()
        else:
            once[STATE if layer else _component(network, name, 2)] += parameter.numel()
    return dict(once), [dict(layers[i]) for i in sorted(layers)]


def _component(module: nn.Module, name: str, depth: int) -> str:
    """Return the component of a parameter: ``depth`` attributes on the way to it, then the class of a branch."""
    *path, leaf = name.split(".")
    attributes: list[str] = []
    for part in path:
        is_entry = isinstance(module, (nn.ModuleList, nn.Sequential))
        if len(attributes) == depth and not is_entry:
            break
        module = module.get_submodule(part)
        if not is_entry:
            attributes.append(part)
        elif attributes and attributes[-1] in BRANCHES:
            return f"{'.'.join(attributes)} {type(module).__name__}"
    return ".".join(attributes) or leaf


def describe(model: nn.Module, config: CfgNode, data: Sequence[tuple[str, str]]) -> str:
    """Return config, model, counts and data statistics as text."""
    sections = {"config": config.dump().rstrip(), "model": str(model)}
    if config.model.type in GPS:
        sections["layers"] = _layers_line(model, config)
    sections["parameters"] = parameter_table(model)
    sections["data"] = "\n".join(f"{name:<28} {value}" for name, value in data)
    return "\n\n".join(f"--- {title}\n{text}" for title, text in sections.items())


def _layers_line(model: nn.Module, config: CfgNode) -> str:
    norms = {"none": "no norms", "batch": "batch norm", "layer": "layer norm", "graph": "graph norm"}
    recipe = recipe_of(config) if config.model.type != "SingleModel" else replace(recipe_of(config), ffn=False)
    bare = {type(module).__name__ for module in model.modules() if adds_nothing(module)}  # whatever the recipe says
    without = "".join(f"; no residual of nodes in {name}" for name in sorted(bare))
    layers = f"{config.gt.layers} of {config.gt.layer_type}"
    return f"{layers}: {recipe.describe()}; {norms[norm_of(config.gt)]}{without}"


def parameter_table(model: nn.Module) -> str:
    """Return the parameter count of each component, once those of layers that are alike, and their sum."""
    once, layers = count_layers(model)
    rows = list(once.items())
    start = 0
    for layer, alike in groupby(layers):
        stop = start + len(list(alike))
        name = f"layers.{start}" if stop == start + 1 else f"layers.{start} to layers.{stop - 1}, each"
        rows += [(name, sum(layer.values())), *((f"  {part}", count) for part, count in layer.items())]
        start = stop
    rows.append(("total", sum(once.values()) + sum(sum(layer.values()) for layer in layers)))
    return "\n".join(f"{name:<32} {count:>12,}" for name, count in rows)
