"""PPGT's case studies of token magnitude."""

from __future__ import annotations

import math

import pytest
import torch
from run.magnitude import attention_kinds, encoded_differences, norm_autoencoders


def test_dot_products_favour_the_long_key_cosines_ignore_lengths_and_distances_pick_the_nearest() -> None:
    weights = attention_kinds()["weights"]
    for kind in weights.values():
        assert sum(kind.values()) == pytest.approx(1)
    assert max(weights["dot product"], key=weights["dot product"].get) == "k2"
    assert max(weights["L2"], key=weights["L2"].get) == "k1"
    scaled = attention_kinds(keys={"k1": (1.2, 0.75), "k2": (5.2, 4.6), "k3": (0.2, 0.2)})["weights"]
    assert scaled["cosine"] == pytest.approx(weights["cosine"])
    assert scaled["dot product"]["k2"] > weights["dot product"]["k2"]


def test_sinusoids_set_pairs_apart_that_random_walks_hardly_tell() -> None:
    result = encoded_differences(ksteps=6, num_bases=2)
    walks = torch.zeros(9, 9, dtype=torch.float64)
    for first, second in result["edges"]:
        walks[first, second] = walks[second, first] = 1
    walks = walks / walks.sum(dim=1, keepdim=True)
    power = torch.eye(9, dtype=torch.float64)
    (i, j), (_, k) = result["pairs"].values()
    for step in range(7):
        p, q = float(power[i, j]), float(power[i, k])
        assert result["raw"][step] == pytest.approx(abs(p - q))
        waves = [
            abs(wave(2**s * math.pi * p) - wave(2**s * math.pi * q)) for s in (0, 1) for wave in (math.sin, math.cos)
        ]
        assert result["encoded"][step] == pytest.approx(waves)
        power = power @ walks
    assert max(map(max, result["encoded"])) > 3 * max(result["raw"])


def test_an_autoencoder_with_rms_norm_loses_magnitudes_and_those_with_the_others_keep_them() -> None:
    norms = norm_autoencoders(epochs=400)["norms"]
    assert norms["RMSN"]["magnitude_error"] > 0.15
    assert norms["BN"]["magnitude_error"] < 0.05
    assert norms["AdaRMSN"]["magnitude_error"] < norms["RMSN"]["magnitude_error"] / 3  # it gets better for longer
    assert norm_autoencoders(epochs=3) == norm_autoencoders(epochs=3)
