"""Analyses of trained k-MIP models from their checkpoints (thesis, sections 6.7 and 6.8; k-MIP paper, appendix I.1).

python main.py --cfg configs/quickstart/digits-kmip.yaml train.ckpt_best True
python run/analyse.py distance --run results/digits-kmip/0 --graphs 50 --out distance.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.analysis import attention_analysis as analysis
from graphgps_kmip.attention import collect_attention
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.data import GraphDataset
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.gym.attention_saving import MAX_NODES, save_attention
from graphgps_kmip.gym.trained import Trained, trained
from graphgps_kmip.networks.create_model import batch_of

POINTS = 60  # of a curve over k
LEVELS = (0.5, 0.8)  # of the attention weight: both papers name the k that reaches them
Graphs = dict[int, Data]  # by their number in the split


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (work, default, out) in COMMANDS.items():
        add = commands.add_parser(name, help=work.__doc__, description=work.__doc__).add_argument
        runs = "+" if work is degrees else 1
        add("--run", nargs=runs, type=Path, required=True, metavar="RUN", help="folder of a finished run")
        add("--graphs", type=int, default=default, help=f"how many (default {default})")
        add("--min-nodes", type=int, default=0, help="only graphs with more nodes than this (default 0)")
        add("--split", choices=("train", "val", "test"), default="test", help="split (default test)")
        add("--device", choices=("cpu", "cuda"), default="cpu", help="where it runs (default cpu)")
        add("--out", type=Path, required=True, help=out)
        if work is distance:
            text = "also with the keys in ascending order of inner product, as in the public script"
            add("--public-order", action="store_true", help=text)
    args = parser.parse_args(argv)
    if args.graphs < 1 or args.min_nodes < 0:
        parser.error("--graphs must be 1 or more, and --min-nodes 0 or more")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here, leave the option out")
    return args


def distance(args: argparse.Namespace) -> None:
    """Compare k-MIP with full attention on the same q, k, v: the L2 distance of rows over k; also for Gaussian data."""
    orders = analysis.ORDERS if args.public_order else analysis.ORDERS[:1]

    def measure(heads: analysis.Heads, counts: list[int]) -> Tensor:
        tensors = heads.q, heads.k, heads.v
        curves = [analysis.distance_to_full(*tensors, counts, order).double() for order in orders]
        return torch.cat([*curves, analysis.distance_of_samples(*tensors)[:, None].to(curves[0])], 1)

    content, values = _measure_runs(args, measure)
    groups = analysis.by_layer(values[:, :-1])
    samples = {name: of_group[..., -1:] for name, of_group in groups.items()}
    content["reference"] = {
        name: {key: curve[0] for key, curve in analysis.spread(of_group).items()} for name, of_group in samples.items()
    }
    later = samples.get("others", samples["first"]).flatten().tolist()
    content["cells"] = {"distance of N(0, I) samples to full attention": {"value": later}}
    groups |= {"gaussian": values[:, -1:]}
    parts = {name: of_group[..., :-1].chunk(len(orders), -1) for name, of_group in groups.items()}
    if args.public_order:
        content["public_order"] = _groups({name: curves[1] for name, curves in parts.items()})
    write_json(args.out, content | {"groups": _groups({name: curves[0] for name, curves in parts.items()})})


def cumulative(args: argparse.Namespace) -> None:
    """Sum the weights of full attention on the k keys of largest inner product, over k; also for Gaussian q and k."""
    content, values = _measure_runs(args, lambda head, counts: analysis.cumulative_weight(head.q, head.k, counts))
    groups = analysis.by_layer(values[:, :-1]) | {"gaussian": values[:, -1:]}
    curve, counts = analysis.spread(groups.get("others", groups["first"]))["mean"], content["k"]
    content["cells"] = {
        f"k for attention weight {level}": {"value": [analysis.crossing(counts, curve, level)]} for level in LEVELS
    }
    write_json(args.out, content | {"groups": _groups(groups)})


def graphs(args: argparse.Namespace) -> None:
    """Save what every layer and head attends to in each graph: graph-1.npz, graph-2.npz, ... to be drawn."""
    with _open_run(args.run[0], args) as (run, selected):
        args.out.mkdir(parents=True, exist_ok=True)
        for number, graph in enumerate(selected.values(), start=1):
            if not save_attention(run.model, GraphDataset([graph]), args.out / f"graph-{number}.npz"):
                raise ConfigError(
                    f"{args.run[0]}: no attention picture can be made of its graphs: they need 2-D positions and at "
                    f"most {MAX_NODES} nodes, without graph tokens"
                )
    print(f"written: {args.out}/graph-1.npz to graph-{len(selected)}.npz")


def degrees(args: argparse.Namespace) -> None:
    """Count the out-degrees of the attention graphs of each layer, over all heads and graphs, for several models."""
    facts, counts, num_keys = [], [], []
    for run_dir in args.run:
        with _open_run(run_dir, args) as (run, selected):
            batches = (batch_of([graph], args.split).to(args.device) for graph in selected.values())
            learned = [collect_attention(run.model, batch) for batch in batches]
            layers = analysis.kmip_layers(run.model)
            if len(learned[0]) != len(layers):
                raise ConfigError(f"{run_dir}: its layers have other attention beside k-MIP: take a run without it")
            counts.append([analysis.degree_counts(layer).tolist() for layer in zip(*learned, strict=True)])
            facts.append(run.facts)
            num_keys.append([layer.k for layer in layers])
    if any(keys != num_keys[0] for keys in num_keys):
        raise ConfigError(f"--run: these models attend to different numbers of keys, {num_keys}: compare equal ones")
    content = {"measure": "degrees", "runs": facts, "split": args.split, "graphs": args.graphs}
    write_json(args.out, content | {"num_keys": num_keys[0], "counts": counts})


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], int, str]] = {
    "distance": (distance, 50, "JSON file"),
    "cumulative": (cumulative, 50, "JSON file"),
    "graphs": (graphs, 4, "folder"),
    "degrees": (degrees, 200, "JSON file"),
}


@contextmanager
def _open_run(run_dir: Path, args: argparse.Namespace) -> Iterator[tuple[Trained, Graphs]]:
    with trained(run_dir) as run:
        analysis.kmip_layers(run.model)
        run.model.to(args.device)
        part = run.dataset.part(args.split)
        large = (number for number in range(len(part)) if part[number].num_nodes > args.min_nodes)
        selected = {number: part[number] for number in islice(large, args.graphs)}
        if len(selected) < args.graphs:
            raise ConfigError(
                f"{run_dir}: {len(selected)} of the {len(part)} graphs of {args.split} have more than {args.min_nodes} "
                f"nodes, and --graphs asks for {args.graphs}: take fewer, or a smaller --min-nodes"
            )
        yield run, selected


def _measure_runs(
    args: argparse.Namespace, measure: Callable[[analysis.Heads, list[int]], Tensor]
) -> tuple[dict[str, Any], Tensor]:
    """Return the facts of a run, and the measures (H, K) of the heads of each graph and layer, then of N(0, 1)."""
    with _open_run(args.run[0], args) as (run, selected):
        layers, sizes = analysis.kmip_layers(run.model), [graph.num_nodes for graph in selected.values()]
        for key in ("diversity", "random_fraction"):
            if any(hasattr(choice, key) for choice in layers[0].selection.modules()):
                raise ConfigError(
                    f"{args.run[0]}: with {key} its layers choose other keys than k-MIP: take another run"
                )
        num_keys = [layer.k for layer in layers]
        content = {"measure": args.command, "runs": [run.facts], "split": args.split, "min_nodes": args.min_nodes}
        content |= {"graphs": list(selected), "nodes": sizes, "num_keys": num_keys}
        content["k"] = analysis.key_counts(max(sizes), POINTS, *num_keys)
        rows = []
        for number, graph in selected.items():
            heads = analysis.collect_heads(run.model, batch_of([graph], args.split).to(args.device))
            heads.append(analysis.gaussian_heads(heads[0], number))
            rows.append(torch.stack([measure(of_layer, content["k"]).cpu() for of_layer in heads]))
        return content, torch.stack(rows)


def _groups(values: dict[str, Tensor]) -> dict[str, Any]:
    heads = {name: {"heads": of_group.double().mean(0).tolist()} for name, of_group in values.items()}
    return {name: analysis.spread(of_group) | heads[name] for name, of_group in values.items()}


@report_mistakes
def main(argv: list[str]) -> int:
    """Analyse; return the exit code."""
    args = parse(argv)
    COMMANDS[args.command][0](args)
    if args.command != "graphs":
        print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
