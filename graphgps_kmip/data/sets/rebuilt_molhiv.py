"""ogbg-molhiv rebuilt from SMILES: the molecules of the HIV screen and their labels as ogb's tables.

`rebuild` (``python run/rebuild_molhiv.py``) makes graphs with ogb's categories of atoms and bonds, and the scaffold
split, by which ogb made its data set. Its releases of RDKit are not known, so that features may differ in places:
scores stand beside printed ones under a name of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

import numpy as np
from tqdm import tqdm

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.file_errors import naming_disk, reading
from graphgps_kmip.data.ogb_tables import SPLIT
from graphgps_kmip.data.scaffold_split import murcko_scaffold, scaffold_split
from graphgps_kmip.data.sets import ogb
from graphgps_kmip.data.smiles_graph import molecule_graph, quiet_rdkit, read_smiles
from graphgps_kmip.errors import DataError, InputError

if TYPE_CHECKING:
    from rdkit.Chem import Mol

PUBLISHED = ogb.GRAPHS[0]
MARK = "rebuilt.json"  # what the tables were made from
RAW = replace(
    PUBLISHED.raw,
    files=(*PUBLISHED.raw.files, MARK),
    base="ogbg_molhiv_rebuilt",
    archives=(),
    inside="",
    urls={},
)
TEXT, LABEL = "smiles", "HIV_active"  # columns of the CSV file
Tables = dict[str, np.ndarray]


def load(home: str) -> GraphDataset:
    """Return the graphs with their scaffold split, as `graphgps_kmip.data.sets.ogb.load_graphs` those of ogb."""
    if not Path(home, RAW.base, MARK).is_file():  # asked to download, as the loading classes of torch_geometric do
        raise URLError("they are not published: run/rebuild_molhiv.py makes them")
    return ogb.load_graphs(home, PUBLISHED.name, RAW)


def rebuild(source: Path, root: Path) -> dict[str, object]:
    """Write ogb's tables of the molecules in a CSV file, and return what is written beside them to mark them.

    Args:
        source (Path): CSV file, packed by gzip or not, with the columns ``smiles`` and ``HIV_active`` (0 or 1).
        root (Path): Folder of all data sets (``dataset.dir``); the tables go to ``ogb/ogbg_molhiv_rebuilt`` in it.

    Raises:
        DataError: RDKit is not installed; the CSV file cannot be used; there are tables already.
    """
    folder = root.expanduser().absolute() / RAW.folder
    if there := [name for name in ("raw", "split", MARK) if (folder / name).exists()]:
        raise DataError(f"{folder / there[0]}: there is one already: remove {folder} to rebuild the data set")
    texts, labels = read_molecules(source)
    tables, scaffolds, irregular = molecule_tables(texts)
    parts = dict(zip(SPLIT, scaffold_split(scaffolds), strict=True))
    tables["graph-label"] = labels[:, None]
    mark = _mark(source, tables, parts, {number: texts[number] for number in irregular})
    with naming_disk(f"rebuilding {RECORDS[0].title}", folder):
        _write(folder, tables, parts, mark)
    return mark


def read_molecules(source: Path) -> tuple[list[str], np.ndarray]:
    """Return SMILES and labels (int64) of a CSV file.

    Raises:
        DataError: the file cannot be read, or has no such columns or other labels.
    """
    import pandas as pd

    if not source.is_file():
        raise DataError(f"{source}: there is no such file: name the CSV file of the molecules")
    with reading(source):
        table = pd.read_csv(source, dtype={TEXT: str})
        if absent := {TEXT, LABEL} - {*table.columns}:
            raise InputError(f"it has no column {min(absent)}, its columns are {', '.join(map(str, table.columns))}")
        if table.empty:
            raise InputError("it holds no molecule")
        if wrong := np.flatnonzero(~table[LABEL].isin([0, 1]) | table[TEXT].isna()).tolist():
            raise InputError(f"line {wrong[0] + 2} has no SMILES text, or a label that is not 0 or 1")
    return table[TEXT].tolist(), table[LABEL].to_numpy(np.int64)


def molecule_tables(texts: Sequence[str]) -> tuple[Tables, list[str], list[int]]:
    """Return ogb's tables of molecules, their scaffolds, and the numbers of those that break RDKit's rules of valence.

    The latter keep their places, and are read without these rules, as by older releases of RDKit.

    Raises:
        DataError: RDKit is not installed.
        InputError: a text is no molecule.
    """
    graphs, scaffolds, irregular = [], [], []
    with quiet_rdkit():
        for number, text in enumerate(tqdm(texts, "molecules")):
            try:
                found = read_smiles(text)
            except InputError:
                found = _irregular(number, text)
                irregular.append(number)
            graphs.append(molecule_graph(found))
            scaffolds.append(murcko_scaffold(found))
    bonds = [graph["edge_index"][:, ::2].T for graph in graphs]  # their tables hold each bond once
    tables = {
        "edge": np.concatenate(bonds),
        "num-node-list": np.array([len(graph["x"]) for graph in graphs])[:, None],
        "num-edge-list": np.array([len(one) for one in bonds])[:, None],
        "node-feat": np.concatenate([graph["x"] for graph in graphs]),
        "edge-feat": np.concatenate([graph["edge_attr"][::2] for graph in graphs]),
    }
    return tables, scaffolds, irregular


def _irregular(number: int, text: str) -> Mol:
    try:
        return read_smiles(text, any_valence=True)
    except InputError as error:
        raise InputError(f"line {number + 2}: {error}: correct or remove it") from error


def _mark(
    source: Path, tables: Tables, parts: Mapping[str, np.ndarray], irregular: Mapping[int, str]
) -> dict[str, object]:
    from rdkit import __version__ as release

    labels = tables["graph-label"][:, 0]
    return {
        "rebuilt": True,
        "from": source.name,
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "rdkit": release,
        "graphs": len(labels),
        "mean_nodes": float(tables["num-node-list"].mean()),
        "mean_edges": float(tables["num-edge-list"].mean()),
        "sizes": {part: len(numbers) for part, numbers in parts.items()},
        "active": {part: int(labels[numbers].sum()) for part, numbers in parts.items()},
        "irregular_valences": dict(irregular),
    }


def _write(folder: Path, tables: Tables, parts: Mapping[str, np.ndarray], mark: Mapping[str, object]) -> None:
    """Write the files to a hidden folder, and move them into place when they are complete, the mark last."""
    part_folder = folder / ".rebuilding"
    shutil.rmtree(part_folder, ignore_errors=True)  # of a process that was killed here
    files = {f"raw/{name}.csv.gz": table for name, table in tables.items()}
    files |= {f"split/scaffold/{SPLIT[part]}.csv.gz": numbers[:, None] for part, numbers in parts.items()}
    try:
        for name, table in files.items():
            (part_folder / name).parent.mkdir(parents=True, exist_ok=True)
            _write_table(part_folder / name, table)
        (part_folder / MARK).write_text(json.dumps(mark, indent=1) + "\n")
        for name in ("raw", "split", MARK):
            os.replace(part_folder / name, folder / name)
    finally:
        shutil.rmtree(part_folder, ignore_errors=True)


def _write_table(path: Path, table: np.ndarray) -> None:
    import pandas as pd

    # No time inside, so that the same molecules give the same files.
    pd.DataFrame(table).to_csv(path, header=False, index=False, compression={"method": "gzip", "mtime": 0})


RECORDS = (
    replace(
        PUBLISHED,
        name="ogbg-molhiv-rebuilt",
        title="ogbg-molhiv (rebuilt)",
        load=load,
        split="by scaffold, computed as the official one",
        summary="ogbg-molhiv's molecules, graphs and split made from SMILES by run/rebuild_molhiv.py; no download",
        source=replace(PUBLISHED.source, citation=f"Wu et al., MoleculeNet, 2018; {PUBLISHED.source.citation}"),
        raw=RAW,
        made_here="rebuilt",
    ),
)
