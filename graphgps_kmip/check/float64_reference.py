"""Components on a device in low precision against the same weights in plain float64 torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.check.attention_batches import CPU, Trial, attend, make_batch, moved
from graphgps_kmip.check.attention_laws import SHAPES
from graphgps_kmip.check.outcomes import NotHere
from graphgps_kmip.native import without_kernels
from graphgps_kmip.networks.create_model import create_model
from graphgps_kmip.registry import entries

SIZES = [40, 1, 130, 7, 64]  # several tiles of a kernel, one node, fewer nodes than keys of k-MIP
OUTPUT, GRADIENT = 1e-4, 5e-3  # float32 against float64, relative to the largest number (GRIT has roots near 0: 1e-3)
FLOOR = 1e-3  # of the largest gradient: smaller ones, such as those that are 0 by mathematics, are compared with this
HALF_MEDIAN = 0.05  # autocast: by what half of the numbers may be off, relative to the largest
DIM = 16
ENCODED = {"posenc_RRWP.where": "batch", "posenc_RRWP.ksteps": 5}
LOCAL = ("GCN", "GINE", "GAT", "GatedGCN")
GLOBAL = ("Transformer", "BigBird", "Performer", "Exphormer", "GECO", "kMIP")


@dataclass(frozen=True)
class Case:
    """A component, inputs for it, and how it is called.

    Args:
        kind (str): "attention", "message passing" or "model".
        name (str): of the component.
        build (callable): () -> module in eval mode.
        inputs (callable): (sizes of graphs, edges of a node) -> inputs, float64 on the CPU.
        call (callable): (module, inputs) -> output.
    """

    kind: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[list[int], int], Any]
    call: Callable[[nn.Module, Any], Tensor]

    def make(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Return the component with the same weights each time."""
        torch.manual_seed(1)
        return self.build().to(device, dtype).eval()

    def given(self, device: torch.device, dtype: torch.dtype, sizes: list[int], num_edges: int = 2) -> Any:
        """Return the same inputs each time."""
        torch.manual_seed(2)
        inputs = self.inputs(sizes, num_edges)
        if isinstance(inputs, Batch):
            return inputs.to(device).apply(lambda value: moved(value, device, dtype))
        return moved(inputs, device, dtype)


def cases() -> Iterator[Case]:
    """Yield every registered attention and message passing layer, and the models of the quickstart."""
    for name, spec in entries("attention").items():
        trial = Trial(spec)
        yield Case("attention", name, trial.attention, trial.batch, lambda module, given: attend(module, *given))
    for name, spec in entries("message_passing").items():
        options = {"edge_dim": DIM} if "edge_dim" in spec.options else {}
        yield Case("message passing", name, lambda s=spec, o=options: s.component(DIM, 0.0, **o), _nodes, _call_layer)
    for layer_type in [*(f"{name}+None" for name in LOCAL), *(f"GatedGCN+{name}" for name in GLOBAL)]:
        yield Case("model", layer_type, lambda layer=layer_type: _gps(layer), _graphs, _predict)
    for network in ("GritTransformer", "PPGT"):
        yield Case("model", network, lambda name=network: _over_pairs(name), _graphs, _predict)


def compare_float32(case: Case, device: torch.device) -> str:
    """Compare outputs and all gradients, and return the largest errors.

    Raises:
        AssertionError: they differ by more than `OUTPUT` and `GRADIENT`.
    """
    with without_kernels():
        expected, expected_grads = _outputs_and_gradients(case, CPU, torch.float64)
    found, found_grads = _outputs_and_gradients(case, device, torch.float32)
    error = _relative_error(found, expected)
    floor = FLOOR * max((float(grad.abs().max()) for grad in expected_grads.values()), default=0.0)
    names = {name: _relative_error(found_grads[name], grad, floor) for name, grad in expected_grads.items()}
    worst = max(names, key=names.__getitem__, default="")
    if not error <= OUTPUT:  # NaN is no pass
        raise AssertionError(f"the output is off by {error:.1e} of its largest number (allowed {OUTPUT:g})")
    if worst and not names[worst] <= GRADIENT:
        raise AssertionError(f"the gradient of {worst} is off by {names[worst]:.1e} (allowed {GRADIENT:g})")
    return f"{error:.0e}, gradients {names.get(worst, 0.0):.0e}"


def compare_autocast(case: Case, device: torch.device, dtype: torch.dtype) -> str:
    """Run forward and backward under autocast; compare outputs loosely and return by what half of them is off.

    Raises:
        AssertionError: not finite, or off.
    """
    if device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise NotHere("this GPU has no bfloat16")
    with without_kernels(), torch.no_grad():
        expected = case.call(case.make(CPU, torch.float64), case.given(CPU, torch.float64, SIZES))
    module, inputs = case.make(device, torch.float32), case.given(device, torch.float32, SIZES)
    with torch.autocast(device.type, dtype=dtype):
        out = case.call(module, inputs)
    _backward(out.float())
    _require_finite(out, module)
    off = float((out.detach().cpu().double() - expected).abs().median() / expected.abs().max())
    if not off <= HALF_MEDIAN:
        raise AssertionError(f"half of the outputs are off by {off:.2g} of the largest and more")
    return f"{off:.0e}"


def tiny_graphs(case: Case, device: torch.device) -> str:
    """Train a step on graphs of one node, of no edge and of no node, in float32.

    Raises:
        AssertionError: an output or a gradient is not finite, or (its name comes first) the step fails.
    """
    for name, (sizes, num_edges) in SHAPES.items():
        if case.kind == "model" and 0 in (*sizes, len(sizes)):
            continue  # collation makes no batch of no graph, and heads of graphs pool at least a node
        module, inputs = case.make(device, torch.float32), case.given(device, torch.float32, sizes, num_edges)
        try:
            out = case.call(module, inputs)
            _backward(out)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        _require_finite(out, module, name)
    return ""


def _outputs_and_gradients(case: Case, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    module = case.make(device, dtype)
    out = case.call(module, case.given(device, dtype, SIZES))
    _backward(out)
    grads = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return out.detach(), grads


def _backward(out: Tensor) -> None:
    out.square().sum().backward()


def _relative_error(found: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    if found.shape != expected.shape:
        raise AssertionError(f"shape {tuple(found.shape)}, not {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    return float((found.cpu().double() - expected).abs().max()) / max(float(expected.abs().max()), floor, 1e-30)


def _require_finite(out: Tensor, module: nn.Module, where: str = "") -> None:
    tensors = {"the output": out} | {f"the gradient of {name}": one.grad for name, one in module.named_parameters()}
    wrong = [name for name, one in tensors.items() if one is not None and not bool(one.isfinite().all())]
    if wrong:
        raise AssertionError(f"{where + ': ' if where else ''}not finite: {', '.join(wrong[:3])}")


def _nodes(sizes: list[int], num_edges: int) -> tuple[Tensor, Tensor, Tensor]:
    x, context = make_batch(sizes, DIM, num_edges)
    return x, context.edge_index, context.edge_attr


def _call_layer(layer: nn.Module, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, edge_attr = layer(*given)
    return torch.cat([x, edge_attr])


def _graphs(sizes: list[int], num_edges: int) -> Batch:
    graphs = []
    for size in sizes:
        x, context = make_batch([size], 5, num_edges)
        y = torch.zeros(1, dtype=torch.long)
        graphs.append(Data(x=x, edge_index=context.edge_index, edge_attr=context.edge_attr, y=y))
    return Batch.from_data_list(graphs)


def _predict(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch)[0]


def _gps(layer_type: str) -> nn.Module:
    sizes = {"in_dim": 5, "out_dim": 3, "edge_dim": 5, "num_layers": 2, "dim": DIM, "num_heads": 2}
    return create_model(layer_type, **sizes, pooling="mean", settings={"prep.use_exp_edges": False})


def _over_pairs(network: str) -> nn.Module:
    sizes = {"in_dim": 5, "out_dim": 3, "num_layers": 2, "dim": DIM, "num_heads": 2}
    if network == "PPGT":
        own = {"ppgt.stem_hidden": [DIM], "gnn.head": "linear_graph", "dataset.edge_encoder": False}
        return create_model("", **sizes, network=network, settings=ENCODED | own)
    own = {"gt.layer_type": "GRIT", "dataset.edge_encoder": False}
    return create_model(
        "", **sizes, network=network, pooling="add", node_encoder="LinearNode+RRWP", settings=ENCODED | own
    )
