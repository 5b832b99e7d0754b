"""The states of all random generators of this process, in types that `torch.load(weights_only=True)` takes."""

from __future__ import annotations

import random

import numpy as np
import torch


def random_state() -> dict:
    """Return the states of torch, numpy, Python and, where it is in use, of the current CUDA device."""
    _, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Put all generators back into a state that `random_state` returned."""
    keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
