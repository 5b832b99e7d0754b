"""Activations by name: registry entries, those of GraphGym included."""

from __future__ import annotations

from functools import partial

from torch import nn

from graphgps_kmip.registry import register

register("activation", "relu", nn.ReLU)
register("activation", "gelu", nn.GELU)
register("activation", "silu", nn.SiLU, aliases=("swish",))
register("activation", "elu", nn.ELU)
register("activation", "selu", nn.SELU)
register("activation", "prelu", nn.PReLU)
for _name, _slope in (("lrelu_01", 0.1), ("lrelu_025", 0.25), ("lrelu_05", 0.5)):
    register("activation", _name, partial(nn.LeakyReLU, _slope), summary=f"LeakyReLU of negative slope {_slope}")
