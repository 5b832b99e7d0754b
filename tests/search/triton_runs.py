"""How Triton kernels are tried without a GPU: by Triton's interpreter, and by compiling them for one."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
# A process either interprets or compiles, from the first import of triton on.
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETING else "cpu"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (pip install triton)"
)


# Arguments of the kernels by what they point to; all others are of the element type asked for.
KINDS = dict.fromkeys(("ptr_q", "ptr_k", "rows"), "i32")
KINDS |= dict.fromkeys(("index", "starts", "ends"), "i64")
KINDS |= dict.fromkeys(("norm_q", "norm_k"), "fp32") | {"keep": "i1"}
NUMBERS = {"num_rows", "num_slots", "num_q", "num_k", "num_graphs", "num_keys", "size_class"}
ERRORS = {"relative_error", "absolute_error"}


def assembly_for(
    capability: int, kernel: Any, constants: dict[str, Any], dtype: str = "fp32", low: str = "", **options: Any
) -> str:
    """Compile a kernel down to machine code for a card that need not be there, and return its PTX."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    kinds = KINDS | {"order": "i64" if "starts" in names else "i32"} | dict.fromkeys(("q_low", "k_low"), low or dtype)
    types = dict.fromkeys(constants, "constexpr") | dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(ERRORS, "fp32")
    signature = {name: types.get(name, f"*{kinds.get(name, dtype)}") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]
