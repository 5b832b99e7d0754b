"""Machine code of Triton kernels for cards that are absent, as the tools in Triton's package list it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

# Names of arguments of kernels by what they point to: the element type asked for, float32 at least, or integers.
FLOATS = """q k v q_turned k_turned score out weight grad_out grad_q grad_score values
    own other edge factor gate grad_gate grad_own grad_other grad_edge
    e bias total grad_sum grad_total grad_logit used first_factor second_factor
    qkv key_bias theta phi grad_qkv grad_key_bias grad_theta grad_phi""".split()
WIDE = "partial mean inverse grad_factor lse delta".split()
KINDS = dict.fromkeys(("order", "tile_row", "tile_graph", "ptr_q", "ptr_k", "rows"), "i32")
KINDS |= dict.fromkeys(("index", "starts", "ends", "bounds", "split", "owner", "source", "target", "kind"), "i64")
KINDS |= dict.fromkeys(("first_row", "second_row", "ptr", "pair_ptr"), "i64")
KINDS |= dict.fromkeys(("norm_q", "norm_k"), "fp32") | {"keep": "i1"}


class Instruction(NamedTuple):
    """One machine instruction: its operation, such as HMMA, and the place of the one it branches to, if it is known."""

    operation: str
    target: int | None = None


class Code(NamedTuple):
    """A kernel that was compiled for one compute capability.

    Args:
        ptx (str): its assembly.
        instructions (list of Instruction): its machine code.
        registers (int): of a thread.
        spilled (int): bytes of a thread that lie on its stack, in memory, because registers did not suffice.
        shared (int): bytes of shared memory of a program.
        warps (int): of a program.
    """

    ptx: str
    instructions: list[Instruction]
    registers: int
    spilled: int
    shared: int
    warps: int


def compile_for(
    capability: int, kernel: Any, constants: dict[str, Any], dtype: str = "fp32", low: str = "", **options: Any
) -> Code:
    """Compile a kernel of this package down to machine code; no GPU is needed.

    Args:
        capability: 80 (A100), 90 (H100, H200), 100 (B200), 120, ...
        kernel: a function under ``triton.jit``.
        constants: values of its ``tl.constexpr`` arguments.
        dtype: Triton's name of the element type of queries, keys and values.
        low: likewise of those in low precision; "": `dtype`.
        options: of the compiler: num_warps (default: 4), maxnreg.

    Raises:
        RuntimeError: Triton does not compile it.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = kernel.arg_names
    kinds = KINDS | dict.fromkeys(FLOATS, dtype) | dict.fromkeys(("q_low", "k_low"), low or dtype)
    kinds |= dict.fromkeys(WIDE, "fp64" if dtype == "fp64" else "fp32")
    if {"starts", "bounds"} & set(names):
        kinds["order"] = "i64"  # of lists and segments: entries, not keys
    if "ptr" in names:
        kinds |= dict.fromkeys(("tile_graph", "tile_row"), "i64")  # of full attention, not of the search
    constants = {name: value for name, value in constants.items() if name in names}
    types = {name: f"*{kind}" for name, kind in kinds.items()} | dict.fromkeys(constants, "constexpr")
    types |= {"seed": "i64"}
    signature = {name: types.get(name, "fp32" if "error" in name else "i32") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4} | options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(compiled.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", file)
        listing = _tool("nvdisasm", "-c", file)
    return Code(
        compiled.asm["ptx"],
        parse(listing),
        int(re.search(r"REG:(\d+)", usage)[1]),
        int(re.search(r"STACK:(\d+)", usage)[1]),
        compiled.metadata.shared,
        compiled.metadata.num_warps,
    )


def _tool(name: str, *words: str | Path) -> str:
    import triton.backends.nvidia as package

    program = Path(package.__file__).parent / "bin" / name
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


def parse(listing: str) -> list[Instruction]:
    """Return the instructions of nvdisasm's listing, with the targets of their branches."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.+?);", line):
            lines.append(code[1])
    targets = (re.search(r"\bBRA\b.*\(\.(L_x_\d+)\)", line) for line in lines)
    operations = (re.sub(r"^@!?U?P\w+\s+", "", line).split()[0].split(".")[0] for line in lines)
    return [
        Instruction(operation, labels.get(target[1]) if target else None)
        for operation, target in zip(operations, targets, strict=True)
    ]


class Loop(NamedTuple):
    """First and last instruction of a loop."""

    first: int
    last: int

    def holds(self, other: Loop) -> bool:
        """Whether another loop lies inside this one."""
        return self != other and self.first <= other.first and other.last <= self.last


def loops(code: list[Instruction]) -> list[Loop]:
    """Return the loops, that is the branches backwards, by their first instruction; endless ones of one are padding."""
    found = (Loop(one.target, at) for at, one in enumerate(code) if one.target is not None and one.target < at)
    return sorted(found)


def body(code: list[Instruction], loop: Loop) -> Counter[str]:
    """Count the instructions of a loop that are not in a loop inside it, by operation."""
    inner = [other for other in loops(code) if loop.holds(other)]
    places = (at for at in range(loop.first, loop.last + 1) if not any(one.first <= at <= one.last for one in inner))
    return Counter(code[at].operation for at in places)


def jumped_over(code: list[Instruction], loop: Loop) -> int:
    """Count the instructions of a loop's `body` that a branch forward jumps over together with all loops inside.

    They run only where what those loops are for is to be done; 0 if there is no such branch.
    """
    inner = [other for other in loops(code) if loop.holds(other)]
    jumps = (
        Loop(at, one.target)
        for at, one in enumerate(code[: loop.last])
        if one.target is not None and loop.first <= at < one.target <= loop.last
    )
    over = [jump for jump in jumps if inner and all(jump.holds(one) for one in inner)]
    if not over:
        return 0
    jump = max(over, key=lambda jump: jump.last - jump.first)
    inside = sum(one.last - one.first + 1 for one in inner if not any(other.holds(one) for other in inner))
    return jump.last - jump.first - 1 - inside


def programs_at_once(code: Code, registers: int, shared: int, warps: int) -> int:
    """Return how many programs one multiprocessor holds at once: 32 at the most.

    Args:
        code: of the kernel.
        registers: of a multiprocessor; they are given out by 256 to each warp.
        shared: bytes of shared memory of a multiprocessor; each program takes 1 KiB more than its own.
        warps: that a multiprocessor holds.
    """
    by_registers = registers // (-(-code.registers * 32 // 256) * 256 * code.warps)
    return min(by_registers, warps // code.warps, shared // (code.shared + 1024), 32)
