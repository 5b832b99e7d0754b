"""PPGT's case studies of magnitude: kinds of attention, RRWP under SPE, autoencoders; proposition E.3 of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from graphgps_kmip.common.row_layers import NORM_LAYERS
from graphgps_kmip.expressivity.magnitude_cases import attention_kinds, encoded_differences, norm_autoencoders


def test_dot_products_favour_the_long_key_cosines_ignore_lengths_and_distances_pick_the_nearest() -> None:
    weights = attention_kinds()["weights"]
    for kind in weights.values():
        assert sum(kind.values()) == pytest.approx(1)
    assert max(weights["dot product"], key=weights["dot product"].get) == "k2"
    assert max(weights["L2"], key=weights["L2"].get) == "k1"
    scaled = attention_kinds(keys={"k1": (1.2, 0.75), "k2": (5.2, 4.6), "k3": (0.2, 0.2)})["weights"]
    assert scaled["cosine"] == pytest.approx(weights["cosine"])
    assert scaled["dot product"]["k2"] > weights["dot product"]["k2"]


def test_weights_by_distance_are_those_of_simplified_l2_attention() -> None:
    query, keys = (0.3, -1.2, 0.5), {"a": (1.0, 0.2, -0.4), "b": (-0.7, -0.9, 0.1)}
    score = {
        name: sum(q * k - k * k / 2 for q, k in zip(query, key, strict=True)) / math.sqrt(3)
        for name, key in keys.items()
    }
    total = sum(map(math.exp, score.values()))
    assert attention_kinds(query, keys)["weights"]["L2"] == pytest.approx(
        {name: math.exp(one) / total for name, one in score.items()}
    )


def test_sinusoids_set_pairs_apart_that_random_walks_hardly_tell() -> None:
    found = encoded_differences(ksteps=6, num_bases=2)
    walks = torch.zeros(9, 9, dtype=torch.float64)
    for first, second in found["edges"]:
        walks[first, second] = walks[second, first] = 1
    walks = walks / walks.sum(dim=1, keepdim=True)
    power = torch.eye(9, dtype=torch.float64)
    (i, j), (_, k) = found["pairs"].values()
    for step in range(7):
        p, q = float(power[i, j]), float(power[i, k])
        assert found["raw"][step] == pytest.approx(abs(p - q))
        waves = [
            abs(wave(2**s * math.pi * p) - wave(2**s * math.pi * q)) for s in (0, 1) for wave in (math.sin, math.cos)
        ]
        assert found["encoded"][step] == pytest.approx(waves)
        power = power @ walks
    assert max(map(max, found["encoded"])) > 3 * max(found["raw"])


def test_an_autoencoder_with_rms_norm_loses_magnitudes_and_those_with_the_others_keep_them() -> None:
    norms = norm_autoencoders(epochs=800)["norms"]
    assert norms["RMSN"]["magnitude_error"] > 0.15
    assert norms["BN"]["magnitude_error"] < 0.05
    assert norms["AdaRMSN"]["magnitude_error"] < 0.05
    assert norm_autoencoders(epochs=3) == norm_autoencoders(epochs=3)


@pytest.mark.parametrize("scale", [1e-2, 0.5, 30.0])
def test_proposition_e3_layer_and_rms_norm_do_not_see_the_scale_of_a_token_and_ada_rms_norm_may(scale: float) -> None:
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for blind in (nn.LayerNorm(16, eps=0), nn.RMSNorm(16, eps=0)):
        torch.testing.assert_close(blind.double()(scale * x), blind(x), rtol=1e-12, atol=1e-12)
    ada = NORM_LAYERS["ada_rms_norm"](16).double()
    torch.testing.assert_close(ada(scale * x), ada(x), rtol=2e-2, atol=2e-2)  # its start is RMSNorm; eps stays
    with torch.no_grad():
        ada.alpha.fill_(1.0)
        ada.beta.fill_(0.0)
    torch.testing.assert_close(ada(scale * x), scale * x, rtol=1e-3, atol=1e-6)  # eps 1e-6 in both roots
