"""The one table from keys and values of public YAML files to ours, applied when a YAML or a command line is loaded."""

from __future__ import annotations

import logging
from typing import Any

# Keys of the public k-MIP code. Old component names are aliases in the component tables.
KEYS: dict[str, str] = {
    "gt.sparse.k": "gt.kmip.k",
    "gt.sparse.kq_dim": "gt.kmip.dim_kq",
    "gt.sparse.val_dim": "gt.kmip.dim_val",
    "gt.sparse.head_agg": "gt.kmip.head_agg",
    "gt.sparse.random_attention": "gt.kmip.random_attention",
    "gt.sparse.random_fraction": "gt.kmip.random_fraction",
    "gt.bigbird.attention_type": "gt.bigbird.form",
}
# Ways in which public files write a value, by our key.
VALUES: dict[str, dict[Any, Any]] = {
    "gt.kmip.dim_kq": {"none": None},
    "gt.kmip.dim_val": {"none": None},
    "gt.kmip.head_agg": {None: "none", "None": "none", "null": "none"},
}


def translate(key: str, value: Any) -> tuple[str, Any]:
    """Return a setting under our key and in our form; a translated key is logged."""
    ours = KEYS.get(key, key)
    if ours != key:
        logging.info("config: %s is read as %s", key, ours)
    forms = VALUES.get(ours, {})
    return ours, forms[value] if not isinstance(value, (list, dict)) and value in forms else value
