"""The experiment: few frames from `run_experiment` to a model's forward; a screen that cannot be written."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from pathlib import Path

import pytest
from torch import Tensor

import main
from graphgps_kmip.attention import FullAttention
from graphgps_kmip.common.signals import log_to_screen
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.registry import register_attention
from tests.test_main import DIGITS, SHORT

PACKAGE = Path(__file__).parents[2] / "graphgps_kmip"


@pytest.mark.usefixtures("own_registry", "small_samples")
def test_at_most_six_frames_are_between_the_experiment_and_a_models_forward(tmp_path: Path) -> None:
    stacks: list[list[str]] = []

    class Looking(FullAttention):
        def forward(self, x: Tensor, context: GraphContext) -> Tensor:
            frames = traceback.extract_stack()
            stacks.append([frame.name for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)])
            return super().forward(x, context)

    register_attention("Looking", Looking)
    argv = ["dataset.sample", "True", "gt.layer_type", "GatedGCN+Looking", "out_dir", str(tmp_path)]
    assert main.run(["--cfg", DIGITS, *SHORT, *argv]) == 0
    for names in stacks[:1]:
        experiment, forward = names.index("run_experiment"), names.index("forward")
        assert forward - experiment - 1 <= 6, names[experiment : forward + 1]
        assert experiment <= 2, "main.run, carry_out"
    assert stacks


pytestmark = pytest.mark.usefixtures("few_digits")

FULL = Path("/dev/full")


def without_reader() -> io.TextIOWrapper:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_standard_output_on_a_full_disk_is_left_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched, FULL.open("w") as full:
        patched.setattr(sys, "stdout", full)
        assert main.run(["--cfg", DIGITS, "out_dir", str(tmp_path), *SHORT]) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert "best accuracy" in (tmp_path / "digits-kmip/0/logging.log").read_text()


def test_a_reader_that_goes_away_is_no_error_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", without_reader())
        log_to_screen()
        logging.info("one")
        logging.info("two")
        sys.stdout.close()  # flushes what is left
    assert capfd.readouterr().err == ""


def test_characters_that_the_screen_cannot_show_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(screen, encoding="ascii"))
        log_to_screen()
        logging.info("name_tag caf\u00e9")
        assert screen.getvalue() == b"name_tag caf\\xe9\n"
    assert capfd.readouterr().err == ""
