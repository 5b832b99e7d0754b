"""The toy fit: its transformers are those of theorem 2, and its fits are repeatable and get better."""

from __future__ import annotations

import math

import pytest
import torch

from graphgps_kmip.expressivity.toy_fit import TARGETS, Task, Transformers, fit, linear_error

SMALL = Task(num_tokens=4, dim=2, batch=16, test_size=64)


def by_hand(model: Transformers, seed: int, x: torch.Tensor) -> torch.Tensor:
    """One block on one input (N, d), head by head."""
    weights, biases = ([part[seed] for part in parts] for parts in (model.weights, model.biases))
    qkv = (x @ weights[0] + biases[0]).chunk(3, dim=1)
    q, k, v = (part.unflatten(1, (model.heads, -1)) for part in qkv)  # (N, H, D)
    heads = []
    for head in range(model.heads):
        score = q[:, head] @ k[:, head].T / math.sqrt(q.size(2))
        lowest_kept = score.sort(dim=1, descending=True).values[:, [model.k - 1]]
        heads.append(score.masked_fill(score < lowest_kept, -torch.inf).softmax(1) @ v[:, head])
    x = x + torch.cat(heads, 1) @ weights[1] + biases[1]
    return x + torch.relu(x @ weights[2] + biases[2]) @ weights[3] + biases[3]


@pytest.mark.parametrize("width", [1, 4])
def test_a_block_is_attention_and_mlp_with_residuals(width: int) -> None:
    model = Transformers(3, 1, 2, width=width, seeds=(5, 6)).double()
    for bias in model.biases:
        torch.nn.init.normal_(bias)
    x = torch.randn(2, 1, 7, 3, dtype=torch.float64)
    out = model(x)
    for seed in (0, 1):
        torch.testing.assert_close(out[seed, 0], by_hand(model, seed, x[seed, 0]))


def test_blocks_have_two_heads_of_width_one_and_mlps_of_width_four() -> None:
    assert [tuple(weight.shape) for weight in Transformers(3, 1, 2).weights] == [
        (1, 3, 6),
        (1, 2, 3),
        (1, 3, 4),
        (1, 4, 3),
    ]


def test_k_mip_with_all_keys_is_full_attention() -> None:
    x = torch.randn(1, 2, 5, 3)
    torch.testing.assert_close(Transformers(3, 2, 5)(x), Transformers(3, 2, 0)(x))


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_fixed_and_permute_with_their_tokens(name: str) -> None:
    x = torch.randn(2, 6, 3)
    order = torch.randperm(6)
    torch.testing.assert_close(TARGETS[name](x)[:, order], TARGETS[name](x[:, order]))
    assert torch.equal(TARGETS[name](x), TARGETS[name](x))


def test_a_fit_is_repeatable_one_error_a_seed_and_better_with_more_steps() -> None:
    few = fit("transformer", 1, 2, 2, (0, 1), SMALL)
    assert few == fit("transformer", 1, 2, 2, (0, 1), SMALL)
    assert few[0] != few[1]
    more = fit("transformer", 1, 2, 80, (0, 1), SMALL)
    assert max(more) < min(few)


def test_a_seed_is_fitted_as_if_it_were_alone() -> None:
    together, alone = fit("nearest", 1, 2, 3, (3, 4), SMALL), fit("nearest", 1, 2, 3, (4,), SMALL)
    assert together[1] == pytest.approx(alone[0], rel=1e-4)


def test_the_error_of_an_affine_map_is_between_those_of_perfection_and_a_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < linear_error("nearest", SMALL) <= 1
    monkeypatch.setitem(TARGETS, "affine", lambda x: 2 * x + 1)
    assert linear_error("affine", SMALL) == pytest.approx(0, abs=1e-5)
    monkeypatch.setitem(TARGETS, "square", lambda x: x.square().sum(-1, keepdim=True).expand_as(x) * math.pi)
    assert linear_error("square", SMALL) > 0.5
