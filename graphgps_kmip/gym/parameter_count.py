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
from graphgps_kmip.networks.gps_networks import GPS, read_norm, read_recipe

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


def describe(
    model: nn.Module,
    config: CfgNode,
    data: Sequence[tuple[str, str]],
    batches: int | None = None,
    runs: int = 1,
    verbose: bool = False,
) -> str:
    """Return model, parameter counts, data statistics and cost as text; with ``verbose`` all modules and keys too."""
    sections = {"model": parameter_table(model)}
    if config.model.type in GPS:
        sections["layers"] = _layers_line(model, config)
    epochs, optim = config.optim.max_epoch, config.optim
    cost = [("runs", f"{runs}")] if runs > 1 else []
    patience = config.train.early_stop_patience
    fewer = f", fewer where the score stays below the best for {patience}" if patience else ""
    cost.append(("epochs of a run", f"{epochs:,}{fewer}"))
    if batches:
        cost.append(("batches of an epoch", f"{batches:,}"))
        cost.append(("optimizer steps of a run", f"{epochs * -(-batches // optim.batch_accumulation):,}"))
    for title, rows in {"data": data, "cost": cost}.items():
        sections[title] = "\n".join(f"{name:<28} {value}" for name, value in rows)
    if verbose:
        sections |= {"modules": str(model), "config": config.dump().rstrip()}
    return "\n\n".join(f"--- {title}\n{text}" for title, text in sections.items())


def _layers_line(model: nn.Module, config: CfgNode) -> str:
    norms = {"none": "no norms", "batch": "batch norm", "layer": "layer norm", "graph": "graph norm"}
    recipe = read_recipe(config) if config.model.type != "SingleModel" else replace(read_recipe(config), ffn=False)
    bare = {type(module).__name__ for module in model.modules() if adds_nothing(module)}  # whatever the recipe says
    without = "".join(f"; no residual of nodes in {name}" for name in sorted(bare))
    layers = f"{config.gt.layers} of {config.gt.layer_type}"
    return f"{layers}: {recipe.describe()}; {norms[read_norm(config.gt)]}{without}"


def parameter_table(model: nn.Module) -> str:
    """Return the parameter count and class of each component, once of layers that are alike, and the sum."""
    network = getattr(model, "model", model)
    once, layers = count_layers(model)
    outside = [(name, count, _name_class(network, name)) for name, count in once.items()]
    rows, heads = [row for row in outside if row[0][:4] != "head"], [row for row in outside if row[0][:4] == "head"]
    start = 0
    for layer, alike in groupby(layers):
        stop = start + len(list(alike))
        name = f"layers.{start}" if stop == start + 1 else f"layers.{start} to layers.{stop - 1}, each"
        rows.append((name, sum(layer.values()), _name_class(network, f"layers.{start}")))
        module = network.layers[start]
        rows += [(f"  {part.partition(' ')[0]}", count, _name_class(module, part)) for part, count in layer.items()]
        start = stop
    total = sum(once.values()) + sum(sum(layer.values()) for layer in layers)
    rows += [*heads, ("total", total, type(network).__name__)]
    return "\n".join(f"{name:<32} {count:>12,}  {text}".rstrip() for name, count, text in rows)


def _name_class(parent: nn.Module, component: str) -> str:
    """Return the class of a component, with its options or the classes in it; an empty text for a bare parameter."""
    path, _, branch = component.partition(" ")
    try:
        module = parent.get_submodule(path)
    except AttributeError:
        return ""
    if branch:
        module = next(part for part in module if type(part).__name__ == branch)
    is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    options = ", ".join(type(part).__name__ for part in module) if is_list else module.extra_repr()
    return type(module).__name__ + (f"({options})" if options else "")
