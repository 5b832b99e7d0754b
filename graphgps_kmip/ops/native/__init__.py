"""C sources of the CPU kernels, compiled at their first use by the C compiler of the machine."""

from graphgps_kmip.ops.native.compile_kernels import (
    NoKernel,
    dtype_flags,
    load,
    pointer,
    switched_off,
    unavailable_reason,
    without_kernels,
)

__all__ = ["NoKernel", "dtype_flags", "load", "pointer", "switched_off", "unavailable_reason", "without_kernels"]
