"""The C kernels on a CPU that this machine does not have: compiled for it, and run under QEMU's user emulation.

Debian, Ubuntu: ``apt install gcc-aarch64-linux-gnu qemu-user``. Inside of `emulated` every kernel of the process is
one of the other CPU. A call is a process of its own (`call_library.c`), some hundredths of a second, and inputs and
outputs go through a file. Its threads are fresh ones, since it has no OpenMP. Emulation says whether results are right
and how many instructions they take, not how long these take.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from graphgps_kmip.native import compile_kernels, instruction_sets
from graphgps_kmip.native.instruction_sets import ARM, INSTRUCTION_SETS, VARIABLE

# A CPU that has the instructions of a set and none of the next, so that others end the process.
CPUS = {"neon": "cortex-a72", "dotprod": "neoverse-n1", "i8mm": "max"}
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # where Debian puts the libraries that programs of the compiler need
CALLER, COUNTER = (Path(__file__).with_name(f"{name}.c") for name in ("call_library", "count_instructions"))
CALL = struct.Struct("<qQ32q8d64sq")  # of call_library.c
ALIGN = 64


def missing() -> str:
    """Say what emulation needs and this machine does not have; "" where it works."""
    absent = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} (apt install gcc-aarch64-linux-gnu qemu-user)" if absent else ""


@contextlib.contextmanager
def emulated(name: str) -> Iterator[None]:
    """Let every C kernel inside the block be one for the instruction set ``name`` of `CPUS`, and run under emulation.

    Raises:
        RuntimeError: the compiler or the emulator is not installed.
    """
    if reason := missing():
        raise RuntimeError(reason)
    sizes: dict[int, int] = {}
    data_ptr = torch.Tensor.data_ptr

    def remembered(tensor: torch.Tensor) -> int:
        address = data_ptr(tensor)
        sizes[address] = tensor.nbytes
        return address

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        caller = _compiled([COMPILER, str(CALLER)], folder / "call_library")
        command = [EMULATOR, "-cpu", CPUS[name], "-L", str(SYSTEM)]
        load = lambda library: Library(library, command, [str(caller)], folder, sizes)  # noqa: E731
        stack.enter_context(mock.patch.dict(os.environ, {"CC": COMPILER, VARIABLE: name}))
        stack.enter_context(mock.patch.object(instruction_sets, "machine", return_value=ARM))
        flags = frozenset(INSTRUCTION_SETS[name].needs.split())
        stack.enter_context(mock.patch.object(instruction_sets, "_cpu_flags", return_value=flags))
        stack.enter_context(mock.patch.object(compile_kernels, "load_trusted", load))
        stack.enter_context(mock.patch.object(torch.Tensor, "data_ptr", remembered))
        compile_kernels.forget()
        stack.callback(compile_kernels.forget)
        yield


class Library:
    """A library of another CPU, with functions as `ctypes.CDLL` has them."""

    def __init__(self, path: Path, emulator: list[str], caller: list[str], folder: Path, sizes: dict[int, int]) -> None:
        self._path, self._emulator, self._caller = path, emulator, caller
        self._folder, self._sizes = folder, sizes

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        function = Function(self, name)
        setattr(self, name, function)
        return function

    def _counter(self) -> Path:
        """The plugin that counts, compiled for this machine, on which the emulator runs."""
        plugin = self._folder / "count_instructions.so"
        return plugin if plugin.exists() else _compiled(["cc", "-shared", "-fPIC", str(COUNTER)], plugin)


class Function:
    """A function of a `Library`; integers, doubles and the pointers of `native.pointer` may be its arguments."""

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name
        self.restype: Any = ctypes.c_int

    def __call__(self, *args: Any) -> Any:
        """Call the function; what it writes is in the tensors afterwards, as in a call through `ctypes`."""
        call, places = self._packed(args)
        answer = self._run(call, 1)
        for address, (start, size) in places.items():
            ctypes.memmove(address, answer[start : start + size], size)
        result, *_, text, _ = CALL.unpack_from(answer)
        if self.restype is ctypes.c_char_p:
            return text.partition(b"\0")[0]
        return self.restype(result).value

    def instructions(self, *args: Any) -> int:
        """Count the instructions of one call; what it writes is lost."""
        call, _ = self._packed(args)
        return self._run_counted(call, 1) - self._run_counted(call, 0)

    def _packed(self, args: tuple[Any, ...]) -> tuple[bytes, dict[int, tuple[int, int]]]:
        """Return the file of a call, and where in it what belongs to each address is."""
        integers, doubles, pointers, places = [], [], 0, {}
        parts, end = [], CALL.size
        for arg in args:
            if isinstance(arg, ctypes.c_double):
                doubles.append(arg.value)
                continue
            value = getattr(arg, "value", arg) or 0
            if isinstance(arg, ctypes.c_void_p) and value:
                if value not in places:
                    start, size = -(-end // ALIGN) * ALIGN, self._library._sizes[value]
                    parts += [bytes(start - end), ctypes.string_at(value, size)]
                    places[value], end = (start, size), start + size
                pointers |= 1 << len(integers)
                value = places[value][0]
            integers.append(value - (value >> 63 << 64))  # unsigned numbers keep their bits
        integers += [0] * (32 - len(integers))
        doubles += [0.0] * (8 - len(doubles))
        head = CALL.pack(0, pointers, *integers, *doubles, b"", self.restype is ctypes.c_char_p)
        return b"".join([head, *parts]), places

    def _run(self, call: bytes, times: int, *options: str) -> bytes:
        file = self._library._folder / "call"
        file.write_bytes(call)
        words = [*self._library._emulator, *options, *self._library._caller]
        words += [str(self._library._path), self._name, str(file), str(times)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self._name} ended with {done.returncode} under emulation: {done.stderr.strip()}")
        return file.read_bytes()

    def _run_counted(self, call: bytes, times: int) -> int:
        out = self._library._folder / "count"
        self._run(call, times, "-plugin", f"file={self._library._counter()},out={out}")
        return int(out.read_text())


def _compiled(words: list[str], program: Path) -> Path:
    done = subprocess.run([*words, "-O1", "-o", str(program), "-ldl"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
    return program
