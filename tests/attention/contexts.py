"""Graphs of given sizes as a GraphContext."""

from __future__ import annotations

from typing import Any

import torch

from graphgps_kmip.attention import GraphContext


def context_of(sizes: list[int], **parts: Any) -> GraphContext:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return GraphContext(torch.repeat_interleave(ptr.diff()), ptr, **parts)
