"""Analyses of trained k-MIP models from their checkpoints (thesis, sections 6.7 and 6.8; k-MIP paper, appendix I.1).

python main.py --cfg configs/quickstart/digits-kmip.yaml train.ckpt_best True
python run/analyse.py distance --run results/digits-kmip/0 --graphs 50 --out distance.json

Scores are sorted once, and k-MIP attention at k is the sum over the first k keys; scores are divided by sqrt(D), as in
the layer.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from torch_geometric.data import Data

from graphgps_kmip.attention import collect_attention
from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.data import GraphDataset
from graphgps_kmip.errors import ConfigError, InputError, report_mistakes
from graphgps_kmip.gym.attention_saving import MAX_NODES, save_attention
from graphgps_kmip.gym.trained import Trained, trained
from graphgps_kmip.networks.create_model import batch_of
from graphgps_kmip.ops.context import AttentionGraph
from graphgps_kmip.ops.sparse_attention import softmax_weight

POINTS = 60  # of a curve over k
LEVELS = (0.5, 0.8)  # of the attention weight: both papers name the k that reaches them
Graphs = dict[int, Data]  # by their number in the split
SCORES = 2**22  # held at a time: some 100 MB with their order and weights
ORDERS = ("descending", "public")  # of the keys, see `kmip_outputs`


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
    orders = ORDERS if args.public_order else ORDERS[:1]

    def measure(heads: Heads, counts: list[int]) -> Tensor:
        tensors = heads.q, heads.k, heads.v
        curves = [distance_to_full(*tensors, counts, order).double() for order in orders]
        return torch.cat([*curves, distance_of_samples(*tensors)[:, None].to(curves[0])], 1)

    content, values = _measure_runs(args, measure)
    groups = by_layer(values[:, :-1])
    samples = {name: group[..., -1:] for name, group in groups.items()}
    content["reference"] = {
        name: {key: curve[0] for key, curve in spread(group).items()} for name, group in samples.items()
    }
    later = samples.get("others", samples["first"]).flatten().tolist()
    content["cells"] = {"distance of N(0, I) samples to full attention": {"value": later}}
    groups |= {"gaussian": values[:, -1:]}
    parts = {name: group[..., :-1].chunk(len(orders), -1) for name, group in groups.items()}
    if args.public_order:
        content["public_order"] = _groups({name: curves[1] for name, curves in parts.items()})
    write_json(args.out, content | {"groups": _groups({name: curves[0] for name, curves in parts.items()})})


def cumulative(args: argparse.Namespace) -> None:
    """Sum the weights of full attention on the k keys of largest inner product, over k; also for Gaussian q and k."""
    content, values = _measure_runs(args, lambda head, counts: cumulative_weight(head.q, head.k, counts))
    groups = by_layer(values[:, :-1]) | {"gaussian": values[:, -1:]}
    curve, counts = spread(groups.get("others", groups["first"]))["mean"], content["k"]
    content["cells"] = {
        f"k for attention weight {level}": {"value": [crossing(counts, curve, level)]} for level in LEVELS
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
            layers = kmip_layers(run.model)
            if len(learned[0]) != len(layers):
                raise ConfigError(f"{run_dir}: its layers have other attention beside k-MIP: take a run without it")
            counts.append([degree_counts(layer).tolist() for layer in zip(*learned, strict=True)])
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
        kmip_layers(run.model)
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
    args: argparse.Namespace, measure: Callable[[Heads, list[int]], Tensor]
) -> tuple[dict[str, Any], Tensor]:
    """Return the facts of a run, and the measures (H, K) of the heads of each graph and layer, then of N(0, 1)."""
    with _open_run(args.run[0], args) as (run, selected):
        layers, sizes = kmip_layers(run.model), [graph.num_nodes for graph in selected.values()]
        for key in ("diversity", "random_fraction"):
            if any(hasattr(choice, key) for choice in layers[0].selection.modules()):
                raise ConfigError(
                    f"{args.run[0]}: with {key} its layers choose other keys than k-MIP: take another run"
                )
        num_keys = [layer.k for layer in layers]
        content = {"measure": args.command, "runs": [run.facts], "split": args.split, "min_nodes": args.min_nodes}
        content |= {"graphs": list(selected), "nodes": sizes, "num_keys": num_keys}
        content["k"] = key_counts(max(sizes), POINTS, *num_keys)
        rows = []
        for number, graph in selected.items():
            heads = collect_heads(run.model, batch_of([graph], args.split).to(args.device))
            heads.append(gaussian_heads(heads[0], number))
            rows.append(torch.stack([measure(layer_heads, content["k"]).cpu() for layer_heads in heads]))
        return content, torch.stack(rows)


def _groups(values: dict[str, Tensor]) -> dict[str, Any]:
    heads = {name: {"heads": group.double().mean(0).tolist()} for name, group in values.items()}
    return {name: spread(group) | heads[name] for name, group in values.items()}


def key_counts(max_keys: int, points: int, *further: int) -> list[int]:
    """Return numbers of keys from 1 to `max_keys`: about `points`, evenly in their logarithm, and further ones."""
    grid = {round(float(value)) for value in np.geomspace(1, max_keys, points)}
    return sorted(grid | {value for value in further if value <= max_keys})


@torch.no_grad()
def kmip_outputs(q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], order: str = "descending") -> Tensor:
    """Return what k-MIP attention gives at each number of keys; from N on, it is full attention.

    Of keys with equal scores the first ones are taken. Time is that of sorting H * N^2 numbers.

    Args:
        q: queries.
        k: keys.
        v: values.
        counts: numbers of keys, in increasing order.
        order: ``descending``: k-MIP attention. ``public``: as the public script of thesis figure 6.6, keys of smallest
            inner product, with weights divided by the sum over k + 1 of them; in float64.

    Shapes: q and k (H, N, D), v (H, N, C), counts K numbers; returns (H, K, N, C).
    """
    ends, public = _clamp_counts(counts, k), order == "public"
    if public:
        q, k, v = q.double(), k.double(), v.double()
    return torch.stack([_attend_head(*head, ends, public) for head in zip(q, k, v, strict=True)])


def distance_to_full(q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], order: str = "descending") -> Tensor:
    """Return the L2 distance between the rows of k-MIP and of full attention, averaged over the N rows.

    Rows are those of one head, before the heads are joined. Arguments are those of `kmip_outputs`.

    Shapes: q and k (H, N, D), v (H, N, C), counts K numbers in increasing order; returns (H, K).
    """
    outputs = kmip_outputs(q, k, v, [*counts, k.size(1)] if counts[-1] < k.size(1) else counts, order)
    return (outputs[:, : len(counts)] - outputs[:, -1:]).norm(dim=-1).mean(-1)


@torch.no_grad()
def distance_of_samples(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    r"""Return the mean distance between rows of full attention and samples of N(0, I): the papers' reference, 4.5417.

    Its expectation, instead of one draw: for a row o and a sample x of N(0, I_C)

    .. math:: E|x - o| = \sqrt{2} \, \frac{\Gamma((C + 1) / 2)}{\Gamma(C / 2)} \, {}_1F_1(-1/2;\ C/2;\ -|o|^2 / 2)

    which is about sqrt(C + |o|^2).

    Shapes: q and k (H, N, D), v (H, N, C); returns (H,).
    """
    rows = torch.stack([_full_attention(*head) for head in zip(q, k, v, strict=True)])
    squares = rows.square().sum(-1)  # (H, N)
    half = v.size(-1) / 2
    factor = math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))
    expected = factor * scipy.special.hyp1f1(-0.5, half, -squares.double().cpu().numpy() / 2)
    return torch.from_numpy(expected).mean(-1)


@torch.no_grad()
def cumulative_weight(q: Tensor, k: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the share of the full attention weight on the keys of largest score, averaged over the N queries.

    Both papers print a sum over the queries (thesis, equation 6.1; paper, equation 39); a weight of 0.5 is a mean.

    Shapes: q and k (H, N, D), counts K numbers in increasing order; returns (H, K).
    """
    ends = _clamp_counts(counts, k)
    sums = [
        sum(weight.cumsum(-1)[:, ends - 1].sum(0) for weight, _ in _rank_keys(*head)) for head in zip(q, k, strict=True)
    ]
    return torch.stack(sums) / q.size(1)


def _full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([softmax_weight(rows @ k.mT, q.size(-1)) @ v for rows in _split_queries(q, k)])


def _split_queries(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    return q.split(max(1, SCORES // len(k)))


def _clamp_counts(counts: Sequence[int], k: Tensor) -> Tensor:
    return torch.tensor(counts, device=k.device).clamp(max=k.size(1))


def _rank_keys(q: Tensor, k: Tensor, ascending: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for R queries at a time, the full attention weights in order of scores, and their keys: (R, N) each."""
    for queries in _split_queries(q, k):
        score, index = (queries @ k.mT).sort(dim=-1, descending=not ascending, stable=True)
        yield softmax_weight(score, q.size(-1)), index


def _attend_head(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, public: bool) -> Tensor:
    """Shapes: q and k (N, D), v (N, C), ends (K,); returns (K, N, C)."""
    terms = (ends + public).clamp(max=len(k))  # of the sum that divides the weights
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])  # a bag from each end to the next, of which some are empty
    parts = []
    for weight, index in _rank_keys(q, k, ascending=public):
        total = weight.cumsum(-1)[:, terms - 1, None]
        weight, index = (tensor[:, : ends[-1]].contiguous() for tensor in (weight, index))
        rows = torch.arange(len(index), device=index.device)[:, None] * index.size(1)
        bags = embedding_bag(
            index.view(-1), v, (rows + starts).view(-1), mode="sum", per_sample_weights=weight.view(-1)
        )
        sums = bags.view(len(index), len(ends), -1).cumsum(1)  # (R, K, C)
        parts.append(sums / total)
    return torch.cat(parts).transpose(0, 1)


class Heads(NamedTuple):
    """Queries, keys and values of the heads of one layer. Shapes: q and k (H, N, D), v (H, N, C)."""

    q: Tensor
    k: Tensor
    v: Tensor


def kmip_layers(model: nn.Module) -> list[KMIPAttention]:
    """Return the k-MIP attentions of a model; an `InputError` if it has none."""
    layers = [module for module in model.modules() if isinstance(module, KMIPAttention)]
    if not layers:
        raise InputError("this model has no k-MIP attention: give a run of one that has, such as GPS+kMIP")
    return layers


@torch.no_grad()
def collect_heads(model: nn.Module, batch: Any) -> list[Heads]:
    """Return the heads of the model's k-MIP layers, in order of use, for a batch; it is left in eval mode."""
    heads: list[Heads] = []

    def keep(layer: KMIPAttention, args: tuple) -> None:
        q, k, v = (
            linear(args[0]).unflatten(1, (layer.num_heads, -1)).transpose(0, 1).contiguous()  # (H, N, D)
            for linear in (layer.query, layer.key, layer.value)
        )
        heads.append(Heads(q, k, v))

    hooks = [layer.register_forward_pre_hook(keep) for layer in kmip_layers(model)]
    try:
        model.eval()(batch.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return heads


def gaussian_heads(like: Heads, seed: int) -> Heads:
    """Return heads of the same shapes whose entries are drawn from N(0, 1), the same ones for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return Heads(*(torch.randn(tensor.shape, generator=draw).to(tensor) for tensor in like))


def degree_counts(graphs: list[AttentionGraph]) -> Tensor:
    """Return how many nodes, over all graphs and heads of one layer, have out-degree 0, 1, 2, ..."""
    return torch.cat([graph.out_degree().flatten() for graph in graphs]).bincount()


def by_layer(values: Tensor) -> dict[str, Tensor]:
    """Split the ``first`` layer from the ``others`` of values (G, L, ...): many of its inputs are identical."""
    return {"first": values[:, :1]} | ({"others": values[:, 1:]} if values.size(1) > 1 else {})


def spread(values: Tensor) -> dict[str, list[float]]:
    """Return ``mean``, and two population standard deviations.

    ``std`` is over graphs, layers and heads (thesis, figures 6.6 and 6.7); ``std_graphs`` over graphs, each with the
    mean over its layers and heads (k-MIP paper, figure 8).

    Shapes: values (G, L, H, K), the lists have K numbers.
    """
    values = values.double()
    alike = values.flatten(0, 2)
    graph_means = values.mean((1, 2))
    curves = {"mean": alike.mean(0), "std": alike.std(0, correction=0), "std_graphs": graph_means.std(0, correction=0)}
    return {name: [float(f"{number:.6g}") for number in curve.tolist()] for name, curve in curves.items()}


def crossing(counts: Sequence[int], curve: Sequence[float], level: float) -> float:
    """Return where an increasing curve reaches a level, linearly between points; its first point if that is above."""
    for i, value in enumerate(curve):
        if value >= level:
            if i == 0:
                return float(counts[0])
            share = (level - curve[i - 1]) / (value - curve[i - 1])
            return counts[i - 1] + share * (counts[i] - counts[i - 1])
    return float(counts[-1])  # a rounding error below 1


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
