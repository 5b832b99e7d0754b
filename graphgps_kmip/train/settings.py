"""Training settings (`TrainSettings`) and the progress of a run (`RunState`), as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from graphgps_kmip.ranges import COUNT, NATURAL, NOT_NEGATIVE, POSITIVE, Choice, whole
from graphgps_kmip.signatures import check_arguments


@dataclass(frozen=True)
class TrainSettings:
    """How long to train, when to evaluate and save, and how to step; the config key is in brackets.

    The annotations say what is allowed, in the config too.

    Args:
        max_epoch: number of epochs (`optim.max_epoch`).
        eval_period: epochs from one evaluation to the next; first and last are evaluated, too (`train.eval_period`).
        max_seconds: seconds of computation that end the training after its next evaluation; 0: none do. On a CPU those
            of the process, which other work on the machine does not lengthen, on a GPU wall time (`optim.max_seconds`).
        early_stop_patience: evaluated epochs without a better score that end it; 0: none (`train.early_stop_patience`).
        eval_test: evaluate the test split at "every" evaluation, or only at a new "best" (`train.eval_test`).
        batch_accumulation: batches per step; the step also comes at the last batch (`optim.batch_accumulation`).
        accumulation_mean: divide each loss by `batch_accumulation`, as the public k-MIP code; False: sum, as GraphGPS.
        clip_grad_norm: maximum total norm of the gradient; None: no clipping (`optim.clip_grad_norm_value`).
        enable_ckpt: keep checkpoints at all (`train.enable_ckpt`).
        ckpt_period: epochs from one to the next; the last is written, too (`train.ckpt_period`).
        ckpt_best: also keep `ckpt/best.ckpt` (`train.ckpt_best`).
        ckpt_clean: of the numbered checkpoints keep the newest only (`train.ckpt_clean`).
        auto_resume: go on from a checkpoint of the same configuration (`train.auto_resume`).
        epoch_resume: the epoch whose checkpoint to go on from; -1: the newest (`train.epoch_resume`).
        precision: "32-true", "bf16-mixed" (autocast) or "64-true" (`train.precision`).
        seed: the seed that was set before the model was built; recorded only.
        round: significant digits of the numbers in stats.json; the best epoch is chosen by these rounded numbers.
        config_hash: identifies the configuration; a run resumes only its own.
        name: shown beside the progress bar.
        notes: plain facts to copy into record.json, such as `{"sample": True}`.

    Raises:
        InputError: a value that is not allowed.
    """

    max_epoch: Annotated[int, COUNT]
    max_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    eval_period: Annotated[int, COUNT] = 1
    early_stop_patience: Annotated[int, NATURAL] = 0
    eval_test: Annotated[str, Choice(("every", "best"))] = "every"
    batch_accumulation: Annotated[int, COUNT] = 1
    accumulation_mean: bool = False
    clip_grad_norm: Annotated[float | None, POSITIVE] = None
    enable_ckpt: bool = True
    ckpt_period: Annotated[int, COUNT] = 100
    ckpt_best: bool = False
    ckpt_clean: bool = True
    auto_resume: bool = False
    epoch_resume: Annotated[int, whole(-1, 10**9)] = -1
    precision: Annotated[str, Choice(("32-true", "bf16-mixed", "64-true"))] = "32-true"
    seed: int = 0
    round: Annotated[int, whole(1, 17)] = 6
    config_hash: str = ""
    name: str = ""
    notes: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(TrainSettings, vars(self))

    def is_due(self, epoch: int, period: int) -> bool:
        """Return whether something done every `period` epochs, and at the last one, is due at `epoch` (from 0)."""
        return (epoch + 1) % period == 0 or epoch + 1 == self.max_epoch

    def evaluates(self, epoch: int) -> bool:
        """Return whether `epoch` is evaluated: every `eval_period` epochs, the first and the last."""
        return epoch == 0 or self.is_due(epoch, self.eval_period)


@dataclass
class RunState:
    """The state after an epoch, as a checkpoint holds it.

    Args:
        epoch: the last completed epoch; -1: none.
        best: `epoch`, `value` (of the selecting metric) and the statistics of every split at the best epoch.
        val_loss: the last one evaluated, for reduce-on-plateau.
        seconds: spent in completed epochs, evaluation included, over all resumes.
        compute_seconds: the same, as `optim.max_seconds` counts.
    """

    epoch: int = -1
    best: dict[str, Any] = field(default_factory=dict)
    val_loss: float | None = None
    seconds: float = 0.0
    compute_seconds: float = 0.0
