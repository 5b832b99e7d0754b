"""The C kernels on a CPU that this machine does not have: compiled for it, and run under QEMU's user emulation.

Debian, Ubuntu: ``apt install gcc-aarch64-linux-gnu qemu-user``. A call is a process (`call_library.c`) without OpenMP.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from graphgps_kmip.ops.native import compile_kernels, instruction_sets
from graphgps_kmip.ops.native.instruction_sets import ARM, INSTRUCTION_SETS, VARIABLE
from tests import processes

# A CPU that has the instructions of a set and none of the next, so that others end the process.
CPUS = {"neon": "cortex-a72", "dotprod": "neoverse-n1", "i8mm": "max"}
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # where Debian puts the libraries that programs of the compiler need
CALLER = Path(__file__).with_name("call_library.c")
CALL = struct.Struct("<qQ32q8d64sq")  # of call_library.c
ALIGN = 64


def missing() -> str:
    absent = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} (apt install gcc-aarch64-linux-gnu qemu-user)" if absent else ""


class Emulator:
    def __init__(self, cpu: str, folder: Path) -> None:
        self._folder, self._command = folder, [EMULATOR, "-cpu", cpu, "-L", str(SYSTEM)]
        self._caller = folder / "call_library"
        done = processes.run([COMPILER, str(CALLER), "-O1", "-o", str(self._caller), "-ldl"])
        if done.returncode:
            raise RuntimeError(f"{COMPILER}: {done.stderr.strip()}")
        self.sizes: dict[int, int] = {}  # address -> bytes of the tensors that kernels have been given

    def run(self, library: Path, function: str, call: bytes) -> bytes:
        file = self._folder / "call"
        file.write_bytes(call)
        command = [*self._command, self._caller, library, function, file]
        # there, and not in the user's folder, the emulator leaves the memory of a program that is killed
        done = processes.run(command, cwd=self._folder)
        if done.returncode:
            raise RuntimeError(f"{function} ended with {done.returncode} under emulation: {done.stderr.strip()}")
        return file.read_bytes()


@contextlib.contextmanager
def emulated(name: str) -> Iterator[Emulator]:
    """Let every C kernel inside be one for the instruction set ``name`` of `CPUS`, and run under emulation."""
    if reason := missing():
        raise RuntimeError(reason)
    data_ptr = torch.Tensor.data_ptr
    flags = frozenset(INSTRUCTION_SETS[name].needs.split())
    with contextlib.ExitStack() as stack:
        emulator = Emulator(CPUS[name], Path(stack.enter_context(tempfile.TemporaryDirectory())))

        def remember(tensor: torch.Tensor) -> int:
            address = data_ptr(tensor)
            emulator.sizes[address] = tensor.nbytes
            return address

        stack.enter_context(mock.patch.dict(os.environ, {"CC": COMPILER, VARIABLE: name}))
        stack.enter_context(mock.patch.object(instruction_sets, "machine", return_value=ARM))
        stack.enter_context(mock.patch.object(instruction_sets, "_cpu_flags", return_value=flags))
        stack.enter_context(mock.patch.object(compile_kernels, "load_trusted", partial(Library, emulator)))
        stack.enter_context(mock.patch.object(torch.Tensor, "data_ptr", remember))
        compile_kernels.forget()
        stack.callback(compile_kernels.forget)
        yield emulator


class Library:
    def __init__(self, emulator: Emulator, path: Path) -> None:
        self._emulator, self._path = emulator, path

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        function = Function(self._emulator, self._path, name)
        setattr(self, name, function)
        return function


class Function:
    """A function of a `Library`; integers, doubles and the pointers of `native.pointer` may be its arguments."""

    def __init__(self, emulator: Emulator, library: Path, name: str) -> None:
        self._emulator, self._library, self._name = emulator, library, name
        self.restype: Any = ctypes.c_int

    def __call__(self, *args: Any) -> Any:
        call, places = self._packed(args)
        answer = self._emulator.run(self._library, self._name, call)
        for address, (start, size) in places.items():
            ctypes.memmove(address, answer[start : start + size], size)
        result, *_, text, _ = CALL.unpack_from(answer)
        if self.restype is ctypes.c_char_p:
            return text.partition(b"\0")[0]
        return self.restype(result).value

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
                    start, size = -(-end // ALIGN) * ALIGN, self._emulator.sizes[value]
                    parts += [bytes(start - end), ctypes.string_at(value, size)]
                    places[value], end = (start, size), start + size
                pointers |= 1 << len(integers)
                value = places[value][0]
            integers.append(ctypes.c_int64(value).value)  # of large unsigned numbers the same bits
        integers += [0] * (32 - len(integers))
        doubles += [0.0] * (8 - len(doubles))
        head = CALL.pack(0, pointers, *integers, *doubles, b"", self.restype is ctypes.c_char_p)
        return b"".join([head, *parts]), places
