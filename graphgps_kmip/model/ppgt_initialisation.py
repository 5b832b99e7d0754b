r"""Initial weights of PPGT, by the rules of its public code, which differ from those of torch.

* Linear maps of layers, pair blocks, subgraph encoder and heads: normal, standard deviation 0.02.
* Linear maps of the data's own features: uniform below :math:`1 / \sqrt{n}` for n inputs (He et al. 2015, slope
  :math:`\sqrt 5`: torch's default).
* Stems: uniform below :math:`\sqrt{6 / n}` in hidden layers (slope 0) and :math:`\sqrt{3 / n}` in the last (slope 1).
* Embeddings: standard normal. Biases: 0.

Norms, layer scales and tokens keep what their modules set: ones and zeros, the given start, deviation 0.02.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn

STD = 0.02
LINEAR_SLOPE = math.sqrt(5)


def initialise_ppgt(network: nn.Module, encoders: Iterable[nn.Module], stems: Iterable[nn.Module]) -> None:
    """Set the initial weights of all linear maps and embeddings of a network.

    Args:
        network (Module): all of it.
        encoders (Iterable[Module]): its parts that encode the data's own features.
        stems (Iterable[Module]): its stems, each a chain of linear maps, the last of which makes the features.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=STD)
            _zero_bias(module)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
    for encoder in encoders:
        for linear in linear_maps(encoder):
            nn.init.kaiming_uniform_(linear.weight, a=LINEAR_SLOPE)
    for stem in stems:
        *hidden, last = linear_maps(stem)
        for linear in hidden:
            nn.init.kaiming_uniform_(linear.weight, a=0)
        nn.init.kaiming_uniform_(last.weight, a=1)


def linear_maps(module: nn.Module) -> list[nn.Linear]:
    """Return the linear maps of a module, itself included, in the order in which they were defined."""
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


def _zero_bias(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
