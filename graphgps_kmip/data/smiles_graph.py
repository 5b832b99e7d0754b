"""Molecules from SMILES: graphs with ogb's categories of atoms and bonds, by ogb's ``smiles2graph`` and RDKit."""

from __future__ import annotations

import numpy as np

from graphgps_kmip.errors import DataError, InputError


def molecule(smiles: str) -> dict[str, np.ndarray]:
    """Return ``x`` (N, 9), ``edge_index`` (2, E) and ``edge_attr`` (E, 3) of a molecule, int64.

    Each bond is there in both directions, one after the other.

    Raises:
        DataError: RDKit is not installed.
        InputError: the text is no molecule.
    """
    try:
        from ogb.utils.mol import smiles2graph  # here: ogb asks the network for newer releases of itself
    except ImportError as error:
        raise DataError(
            "its molecules come as text, and RDKit, which makes graphs of them, is not installed: pip install rdkit"
        ) from error
    try:
        graph = smiles2graph(smiles)
    except (AttributeError, TypeError) as error:  # RDKit made no molecule of it
        raise InputError(f"{str(smiles)[:40]!r} is no molecule") from error
    return {"x": graph["node_feat"], "edge_index": graph["edge_index"], "edge_attr": graph["edge_feat"]}
