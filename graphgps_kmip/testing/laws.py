"""Laws that every attention obeys (see GraphContext for the contract) on any device, and their batches.

The error of a broken law names the parameter or input. A registry entry that does not promise a law names it in
``breaks``: "alone", "permutation", "shapes", "gradients", "deterministic", "precision", "inputs", "batch_vector".
"""

# ruff: noqa: D103 (the name of each function is the sentence of its law)

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.registry import Spec

CPU = torch.device("cpu")
DIM, NUM_HEADS = 16, 2
PAIR_DIMS = {"BiasedTransformer": NUM_HEADS}  # width of the features of pairs that an attention reads; others DIM
SIZES = [7, 1, 12, 5]
SHAPES = {
    "one node": ([1], 0),
    "one-node graphs": ([1, 1, 1], 2),
    "no edges": ([6, 3], 0),
    "tiny": ([2, 3], 2),
    "one graph": ([20], 2),
    "empty graph within": ([4, 0, 5], 2),
    "no nodes": ([0], 0),
    "no graphs": ([], 0),
}
# differences of sums of a few hundred terms in another order
ROUNDING = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-4, "atol": 1e-4}}

# the effect of a broken law on training
MATTERS = "this matters for float32 and bfloat16 training"
HARMLESS = "float32 and bfloat16 training are not affected"


@dataclass(frozen=True)
class Trial:
    """The registry entry of an attention or message passing layer, a device, and the dtype of weights and inputs."""

    spec: Spec
    device: torch.device = CPU
    dtype: torch.dtype = torch.float64

    def layer(self) -> nn.Module:
        """Make the layer with its default options and the same weights each time, in eval mode."""
        torch.manual_seed(1)
        sizes = (DIM, NUM_HEADS) if self.spec.kind == "attention" else (DIM,)
        return self.spec.component(*sizes).to(self.device, self.dtype).eval()

    def batch(self, sizes: list[int], num_edges: int = 2) -> tuple[Tensor, GraphContext]:
        """Draw graphs of these sizes by `make_batch`, with the pairs that the layer reads."""
        torch.manual_seed(2)
        graphs = make_batch(sizes, num_edges=num_edges, pair_dim=PAIR_DIMS.get(self.spec.name, DIM))
        return move(graphs, self.device, self.dtype)


def attend(attention: nn.Module, x: Tensor, context: GraphContext | Tensor | None) -> Tensor:
    """Call an attention, with its initial state where it has one."""
    if not hasattr(attention, "initial_state"):
        return attention(x, context)
    return attention(x, context, attention.initial_state(GraphContext.of(context, x)))[0]


def make_batch(
    sizes: list[int], dim: int = DIM, num_edges: int = 2, pair_dim: int = NUM_HEADS
) -> tuple[Tensor, GraphContext]:
    """Draw nodes (float64) of graphs of these sizes, ``num_edges`` random edges a node, expander edges, all pairs."""
    sizes_tensor = torch.tensor(sizes, dtype=torch.long)
    batch = torch.repeat_interleave(sizes_tensor)
    ptr = torch.cat([sizes_tensor.new_zeros(1), sizes_tensor.cumsum(0)])
    target = torch.arange(len(batch)).repeat_interleave(num_edges)
    graph = batch[target]
    source = ptr[graph] + (torch.rand(len(target)) * sizes_tensor[graph]).long()
    edge_attr = torch.randn(len(target), dim, dtype=torch.float64)
    pairs = (batch[:, None] == batch).nonzero().T  # (2, P)
    pair_attr = torch.randn(pairs.size(1), pair_dim, dtype=torch.float64)
    edge_index = torch.stack([source, target])
    expander = {"expander": (edge_index.flip(0)[:, ::2], None)}
    context = GraphContext(batch, ptr, edge_index, edge_attr, edge_sets=expander, pair_index=pairs, pair_attr=pair_attr)
    return torch.randn(len(batch), dim, dtype=torch.float64), context


def move(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return tensors (single, in tuples, dicts or a context) on a device, floats in a dtype."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, GraphContext):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
        tensors = {name: part for name, part in attributes.items() if isinstance(part, (Tensor, dict))}
        return replace(value, **move(tensors, device, dtype))
    if isinstance(value, dict):
        return {name: move(part, device, dtype) for name, part in value.items()}
    return tuple(move(part, device, dtype) for part in value)


def cut_graph(x: Tensor, context: GraphContext, graph: int) -> tuple[Tensor, GraphContext]:
    """Cut one graph out of a batch."""
    start, end = context.ptr[graph : graph + 2].tolist()
    expander = context.edge_sets["expander"][0]
    inside, pairs, expanded = (
        context.batch[index[0]] == graph for index in (context.edge_index, context.pair_index, expander)
    )
    alone = GraphContext(
        torch.zeros_like(context.batch[start:end]),
        context.ptr.new_tensor([0, end - start]),
        context.edge_index[:, inside] - start,
        context.edge_attr[inside],
        edge_sets={"expander": (expander[:, expanded] - start, None)},
        pair_index=context.pair_index[:, pairs] - start,
        pair_attr=context.pair_attr[pairs],
    )
    return x[start:end], alone


def permute(x: Tensor, context: GraphContext) -> tuple[Tensor, GraphContext, Tensor]:
    """Permute the nodes inside each graph, and the edges; the permutation maps new nodes to old ones."""
    pieces = zip(context.ptr.tolist(), context.sizes.tolist(), strict=False)
    order = torch.cat([start + torch.randperm(size) for start, size in pieces]).to(x.device)
    new_of_old = order.argsort()
    edges = torch.randperm(context.edge_index.size(1)).to(x.device)
    shuffled = replace(
        context,
        edge_index=new_of_old[context.edge_index[:, edges]],
        edge_attr=context.edge_attr[edges],
        edge_sets={"expander": (new_of_old[context.edge_sets["expander"][0]].flip(1), None)},
        pair_index=new_of_old[context.pair_index],
    )
    return x[order], shuffled, order


class LawBroken(AssertionError):
    """An attention does not do what the law says."""


@dataclass(frozen=True)
class Law:
    """A law."""

    promise: str  # its name in ``breaks`` of a registry entry
    check: Callable[[Trial], None]  # ``check(trial)``, raises AssertionError
    exact: bool  # needs float64; otherwise it holds in float32 too, to rounding

    @property
    def name(self) -> str:
        """The sentence of the law."""
        return self.check.__name__.replace("_", " ")


LAWS: list[Law] = []


def _law(promise: str, *, exact: bool = False) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    def add(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        LAWS.append(Law(promise, check, exact))
        return check

    return add


def _require(holds: object, broken: str, meaning: str = MATTERS) -> None:
    if not holds:
        raise LawBroken(f"{broken}: {meaning}")


def _require_close(out: Tensor, expected: Tensor, what: str, rtol: float, atol: float) -> None:
    """Require equality to rounding; a difference below the rounding of a dtype does not matter for training in it."""
    _require(out.shape == expected.shape, f"{what} has shape {tuple(out.shape)}, not {tuple(expected.shape)}")
    if torch.allclose(out, expected, rtol=rtol, atol=atol):
        return
    off = float((out - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=1e-30))
    meaning = MATTERS
    if off < torch.finfo(torch.bfloat16).eps:
        meaning = "bfloat16 rounds more than that, but this matters for float32 training"
    if off < ROUNDING[torch.float32]["rtol"]:
        meaning = HARMLESS
    raise LawBroken(f"{what} is off by {off:.1e} of its largest number: {meaning}")


@_law("alone")
def a_graph_alone_gives_the_same_output_as_in_a_batch(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES)
    alone = [attend(attention, *cut_graph(x, context, graph)) for graph in range(len(SIZES))]
    out = attend(attention, x, context)
    _require_close(torch.cat(alone), out, "the output of graphs alone", **ROUNDING[trial.dtype])


@_law("permutation")
def permuting_the_nodes_and_edges_permutes_the_output(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES)
    shuffled_x, shuffled, order = permute(x, context)
    out, expected = attend(attention, shuffled_x, shuffled), attend(attention, x, context)[order]
    _require_close(out, expected, "the output of permuted nodes", **ROUNDING[trial.dtype])


@_law("shapes")
def graphs_of_any_shape_give_finite_outputs_and_gradients(trial: Trial) -> None:
    for name, (sizes, num_edges) in SHAPES.items():
        attention, (x, context) = trial.layer(), trial.batch(sizes, num_edges)
        out = attend(attention, x.requires_grad_(), context)
        _require(out.shape == x.shape, f"{name}: the output has shape {tuple(out.shape)}, not {tuple(x.shape)}")
        out.square().sum().backward()
        _require(out.isfinite().all(), f"{name}: the output is not finite")
        _require_finite_gradients(attention, x, f"{name}: ")


@_law("gradients")
def gradients_reach_the_input_and_every_parameter(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES)
    attend(attention, x.requires_grad_(), context).square().sum().backward()
    least = 1e-10 if trial.dtype == torch.float64 else 1e-5  # above what rounding makes of a gradient of zero
    gradients = {name: parameter.grad for name, parameter in attention.named_parameters()}
    missed = {name for name, grad in gradients.items() if grad is None or not (grad.abs() > least).any()}
    zero = {name for name in gradients if any(fnmatch(name, pattern) for pattern in trial.spec.traits.zero_grad)}
    _require(
        missed == zero,
        f"parameters without a gradient ({sorted(missed)}) must be those that zero_grad of the row names "
        f"({sorted(zero)}), and no others",
    )
    without = (x.grad.abs().amax(1) <= least).nonzero().flatten().tolist()
    _require(not without, f"the input x has no gradient in the rows of nodes {without}")


@_law("gradients", exact=True)
def gradients_equal_finite_differences(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch([3, 1, 2])
    tensors = {"the input x": x.requires_grad_(), **dict(attention.named_parameters())}

    def agree(names: Iterable[str], **steps: float) -> bool:
        inputs = [value if name in names else value.detach() for name, value in tensors.items()]
        return torch.autograd.gradcheck(output, inputs, fast_mode=True, raise_exception=False, **_atomics(x), **steps)

    def output(x: Tensor, *values: Tensor) -> Tensor:
        weights = {f"attention.{name}": value for name, value in zip([*tensors][1:], values, strict=True)}
        return torch.func.functional_call(_Called(attention), weights, (x, context))

    if not agree(tensors):
        wrong = [name for name in tensors if not agree([name])] or tensors
        rough = agree(tensors, eps=1e-3, atol=1e-3, rtol=1e-2)  # steps above the rounding of float32
        reason = f"only float32's rounding shows, {HARMLESS}" if rough else MATTERS
        raise LawBroken(f"the gradient of {', '.join(wrong)} differs from finite differences: {reason}")


@_law("gradients", exact=True)
def gradients_of_gradients_equal_finite_differences_or_are_an_error(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch([3, 1, 2])
    try:
        right = torch.autograd.gradgradcheck(
            lambda x: attend(attention, x, context),
            (x.requires_grad_(),),
            fast_mode=True,
            raise_exception=False,
            **_atomics(x),
        )
        _require(right, "the second derivative by the input x is wrong", HARMLESS)
    except RuntimeError as error:
        refused = "no second derivative" in str(error) or "not implemented" in str(error)  # ours, torch's
        _require(refused, f"the second derivative by the input x raises {error}", HARMLESS)


@_law("deterministic")
def eval_mode_does_not_depend_on_the_random_state(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES)
    first = attend(attention, x, context)
    torch.manual_seed(99)
    _require_same(attend(attention, x, context), first, trial, "the output with another random state")


@_law("deterministic")
def the_state_dict_carries_the_whole_function(trial: Trial) -> None:
    attention, other = trial.layer(), trial.layer()
    x, context = trial.batch(SIZES)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    expected = attend(attention, x, context)
    _require(not torch.equal(attend(other, x, context), expected), "other weights give the same output")
    other.load_state_dict(attention.state_dict())
    _require_same(attend(other, x, context), expected, trial, "the output after load_state_dict")


@_law("precision", exact=True)
def float32_is_close_to_float64(trial: Trial) -> None:
    expected = attend(trial.layer(), *trial.batch(SIZES))
    single = replace(trial, dtype=torch.float32)
    out = attend(single.layer(), *single.batch(SIZES))
    _require(out.dtype == torch.float32, f"float32 inputs give {out.dtype}")
    _require_close(out.double(), expected, "the output in float32", **ROUNDING[torch.float32])


@_law("precision", exact=True)
def bfloat16_autocast_gives_finite_outputs_and_gradients(trial: Trial) -> None:
    single = replace(trial, dtype=torch.float32)
    attention, (x, context) = single.layer(), single.batch(SIZES)
    with torch.autocast(trial.device.type, dtype=torch.bfloat16):
        out = attend(attention, x.requires_grad_(), context)
    _require(out.shape == x.shape, f"the output has shape {tuple(out.shape)}, not {tuple(x.shape)}")
    out.float().square().sum().backward()
    meaning = "this matters for bfloat16 training (bf16-mixed), not for float32"
    _require(out.isfinite().all(), "the output under bfloat16 autocast is not finite", meaning)
    _require_finite_gradients(attention, x, "under bfloat16 autocast ", meaning)


@_law("precision", exact=True)
def half_precision_weights_and_inputs_give_close_outputs_and_finite_gradients(trial: Trial) -> None:
    for sizes in (SIZES, [1], [0], []):
        expected = attend(trial.layer(), *trial.batch(sizes))
        for dtype in (torch.bfloat16, torch.float16):
            half = replace(trial, dtype=dtype)
            meaning = "this matters for bfloat16 training (bf16-true), not for float32"
            meaning = meaning if dtype == torch.bfloat16 else HARMLESS
            attention, (x, context) = half.layer(), half.batch(sizes)
            out = attend(attention, x.requires_grad_(), context)
            _require(out.dtype == dtype, f"{dtype} inputs give {out.dtype}", meaning)
            # k-MIP may take another key of nearly the same score, so that a single output is further off
            off = float((out - expected).detach().abs().median()) if len(x) else 0.0
            _require(off < 0.1, f"in {dtype} half of the outputs are off by {off:.3g} and more", meaning)
            out.float().square().sum().backward()
            _require_finite_gradients(attention, x, f"in {dtype} ", meaning)


@_law("inputs")
def inputs_are_not_modified_in_place(trial: Trial) -> None:
    attention, (x, context) = trial.layer().train(), trial.batch(SIZES)
    names = ("batch", "ptr", "edge_index", "edge_attr", "pair_index", "pair_attr")
    tensors = {"x": x, **{f"context.{name}": getattr(context, name) for name in names}}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    attend(attention, x, context)
    changed = [name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])]
    _require(not changed, f"the input {', '.join(changed)} has changed")


@_law("batch_vector")
def a_plain_batch_vector_serves_as_context(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES, num_edges=0)
    expected = attend(attention, x, GraphContext(context.batch, context.ptr))
    _require_same(attend(attention, x, context.batch), expected, trial, "the output with context = batch")
    single = attend(attention, x[:7], None)
    _require_close(single, expected[:7], "the output with context = None", **ROUNDING[trial.dtype])


@_law("batch_vector")
def an_attention_with_a_state_makes_its_own_where_none_is_given(trial: Trial) -> None:
    attention, (x, context) = trial.layer(), trial.batch(SIZES)
    out = attention(x, context)
    _require(isinstance(out, Tensor), f"without a state it gives a {type(out).__name__}, not the output alone")
    _require_same(out, attend(attention, x, context), trial, "the output without a state")


def _require_same(out: Tensor, expected: Tensor, trial: Trial, what: str) -> None:
    # on a GPU atomic additions have no fixed order
    exact = {"rtol": 0, "atol": 0} if trial.device.type == "cpu" else ROUNDING[trial.dtype]
    _require_close(out, expected, what, **exact)


def _atomics(x: Tensor) -> dict[str, Any]:
    return {} if x.device.type == "cpu" else {"nondet_tol": 1e-10}


def _require_finite_gradients(attention: nn.Module, x: Tensor, when: str, meaning: str = MATTERS) -> None:
    tensors = {"the input x": x, **dict(attention.named_parameters())}
    wrong = [name for name, leaf in tensors.items() if leaf.grad is not None and not leaf.grad.isfinite().all()]
    _require(not wrong, f"{when}the gradient of {', '.join(wrong)} is not finite", meaning)


class _Called(nn.Module):
    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        return attend(self.attention, x, context)
