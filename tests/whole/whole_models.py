"""Builds our model of a recorded YAML file the way a user does, and compares it with what its own code computes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.compat.checkpoint_names import choose_names
from graphgps_kmip.compat.dialects import quirks_met
from graphgps_kmip.compat.key_translation import refuse
from graphgps_kmip.compat.parameter_renaming import list_constants, rename_parameters
from graphgps_kmip.encoding import laplacian as laplacian_encoder
from graphgps_kmip.gym.config_loading import flatten, load_config
from tests.whole.dropout_audit import audited, recorded
from tests.whole.whole_records import Record, batch_of, fingerprint, normal, weights

PREDICTIONS, GRADIENTS = 1e-9, 1e-7  # relative to the largest number, or absolute where that is below 1


@dataclass
class Comparison:
    """Errors by what was compared, and the dropouts in which ours and the original differ.

    Args:
        errors: "eval pred", "train grad", "train stats", ... -> largest relative error and where.
        dropouts: those that only one of the two calls, or the other one less often.
    """

    errors: dict[str, tuple[float, str]] = field(default_factory=dict)
    dropouts: list[str] = field(default_factory=list)

    def note(self, kind: str, error: float, where: str) -> None:
        """Keep the largest error of a kind; NaN counts as infinite."""
        error = error if error == error else float("inf")
        if error >= self.errors.get(kind, (-1.0, ""))[0]:
            self.errors[kind] = (error, where)

    def problems(self) -> list[str]:
        """Return what is beyond the tolerances, in words."""
        tolerance = {"pred": PREDICTIONS, "grad": GRADIENTS, "stats": PREDICTIONS}
        beyond = [
            f"{kind}: {error:.2e} ({where})"
            for kind, (error, where) in self.errors.items()
            if error > tolerance[kind.split()[1]]
        ]
        return beyond + [f"dropout {dropout}" for dropout in self.dropouts]


def public_file(settings: dict[str, Any], folder: Path) -> Path:
    """Write flat settings as the YAML file of a public code."""
    file = folder / "public.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def configure(file: Path, record: Record, overrides: dict[str, Any]) -> None:
    """Load a file, with the dialect found from it, then say what the data would.

    Args:
        file: a YAML file, public or ours.
        record: what it is compared with.
        overrides: further settings, as of the command line.
    """
    settings = {key: value for key, value in record["overrides"].items() if not key.startswith("computed")} | overrides
    load_config(cfg, file, [word for key, value in settings.items() for word in (key, json.dumps(value))])
    refuse(dict(flatten(cfg)))
    shape = record["eval"]["pred"]["shape"]
    words = shape[2] if len(shape) == 3 else record["dim_out"]  # GraphGym counts the names, the head has the vocabulary
    cfg.share.dim_in, cfg.share.dim_out, cfg.share.num_splits = record["dim_in"], words, 3
    shape = record["graphs"][0].get("edge_attr", {"shape": [0, 0]})["shape"]
    cfg.dataset.edge_dim = shape[1] if len(shape) > 1 else 1
    cfg.freeze()


def compare(file: Path, record: Record, monkeypatch: pytest.MonkeyPatch, **overrides: Any) -> Comparison:
    """Return how our model of a file differs from the original; arguments as of `configure`."""
    configure(file, record, overrides)
    model, result = create_model(to_device=False).double(), Comparison()
    theirs = weights(record["state"], {})
    ours, fixed = model.state_dict(), list_constants(model)
    state = rename_parameters(theirs, ours, choose_names(theirs), file.with_suffix(".ckpt"), constants=fixed)
    places = {id(value): name for name, value in theirs.items()}
    names = {places[id(value)]: name for name, value in state.items() if id(value) in places}
    state = {name: value.clone() for name, value in state.items()}
    for mode in ("eval", "train"):
        model.load_state_dict(state)
        model.train(mode == "train").zero_grad()
        with monkeypatch.context() as patch:
            patch.setattr(laplacian_encoder, "random_signs", lambda vectors, **_: vectors.new_ones(vectors.size(1)))
            _without_dropout(model, patch)
            pred = _scores(model(batch_of(record))[0], record)
            _compare_predictions(result, mode, pred, record)
            (pred * normal("cotangent", pred.shape)).sum().backward()
        _compare_gradients(result, mode, model, names, record)
    ours = dict(model.named_buffers())
    for name, expected in record["train"].get("stats", {}).items():
        if name in names:  # else it is of a norm that is never called
            result.note("train stats", _error(fingerprint(ours[names[name]], name), expected), name)
    model.train()
    num_edges = batch_of(record).num_edges
    with audited(model, monkeypatch, num_edges) as actual, torch.no_grad():
        model(batch_of(record))
    expected = recorded(record["dropouts"], num_edges)
    result.dropouts += [f"{dropout} x {count} in the original only" for dropout, count in (expected - actual).items()]
    result.dropouts += [f"{dropout} x {count} in ours only" for dropout, count in (actual - expected).items()]
    return result


def _scores(pred: Tensor, record: Record) -> Tensor:
    """Return the predictions in their recorded shape, without the ranks that ours has beside the logits of pairs."""
    if record["head"] == "inductive_edge":
        pred = pred[:, 0]
    shape = record["eval"]["pred"]["shape"]
    return pred.reshape(shape) if pred.numel() == math.prod(shape) else pred


def compare_with_quirks(
    file: Path, record: Record, monkeypatch: pytest.MonkeyPatch, **overrides: Any
) -> tuple[Comparison, list[str]]:
    """Return the comparison of a file as it is read, or, where that differs, with the quirks that the log names."""
    result, quirks = compare(file, record, monkeypatch, **overrides), quirks_met(cfg)
    cfg.defrost()
    if not result.problems() or not quirks:
        return result, []
    return compare(file, record, monkeypatch, quirks=quirks, **overrides), quirks


def _without_dropout(model: nn.Module, patch: pytest.MonkeyPatch) -> None:
    """Set every rate to 0: those of modules, and the numbers that attentions keep."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            patch.setattr(module, "p", 0.0)
        elif isinstance(getattr(module, "dropout", None), float):
            patch.setattr(module, "dropout", 0.0)


def _compare_predictions(result: Comparison, mode: str, pred: Tensor, record: Record) -> None:
    expected = record[mode]["pred"]
    shape, first = list(pred.shape), torch.tensor(expected["first"], dtype=torch.double)
    if shape != expected["shape"]:
        result.note(f"{mode} pred", float("inf"), f"shape {shape}, recorded {expected['shape']}")
        return
    actual = pred.detach().reshape(-1)[: len(first)]
    scale = max(1.0, float(first.abs().max()))
    result.note(f"{mode} pred", float((actual - first).abs().max()) / scale, "values")
    result.note(f"{mode} pred", _error(fingerprint(pred, "pred"), expected["fingerprint"]), "fingerprint")


def _compare_gradients(result: Comparison, mode: str, model: nn.Module, names: dict[str, str], record: Record) -> None:
    ours = dict(model.named_parameters())
    for name, expected in record[mode]["grad"].items():
        expected = [0.0, 0.0, 0.0] if expected == 0 or expected is None else expected
        if name in names:
            gradient = ours[names[name]].grad
            actual = [0.0, 0.0, 0.0] if gradient is None else fingerprint(gradient, name)
            result.note(f"{mode} grad", _error(actual, expected), name)
        elif any(abs(value) > GRADIENTS for value in expected):
            result.note(f"{mode} grad", float("inf"), f"{name} has no place and a gradient")


def _error(actual: list[float], expected: list[float]) -> float:
    """Return the largest difference of two fingerprints, relative to the length of the tensor where that exceeds 1."""
    length = max(1.0, expected[1] ** 0.5)
    scale = (length, max(1.0, expected[1]), length)
    return max(abs(a - b) / s for a, b, s in zip(actual, expected, scale, strict=True))
