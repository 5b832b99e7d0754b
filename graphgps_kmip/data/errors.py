"""Exception types of data sets, under the names that they had here before they moved."""

from __future__ import annotations

from graphgps_kmip.errors import DataError, UnsafeFile

__all__ = ["DataError", "UnsafeFile"]
