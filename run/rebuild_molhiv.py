"""ogbg-molhiv rebuilt: makes ogb's tables from SMILES and labels, for dataset.name ogbg-molhiv-rebuilt.

python run/rebuild_molhiv.py HIV.csv --dir datasets

The CSV file, packed by gzip or not, has the columns smiles and HIV_active, as MoleculeNet publishes it. RDKit makes the
graphs (pip install rdkit), half a minute for 41,127 molecules.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphgps_kmip.data.sets.rebuilt_molhiv import PUBLISHED, RAW, rebuild
from graphgps_kmip.errors import UserError, one_line


def main(words: list[str]) -> int:
    """Write the tables, print their sizes beside the published ones; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="CSV file with the columns smiles and HIV_active")
    parser.add_argument("--dir", type=Path, default=Path("datasets"), help="folder of all data sets (default datasets)")
    args = parser.parse_args(words)
    try:
        mark = rebuild(args.source, args.dir)
    except (UserError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    known = PUBLISHED.statistics
    sizes = "{train:,} / {val:,} / {test:,}".format(**mark["sizes"])
    rows = {
        "graphs": (f"{mark['graphs']:,}", f"{known.graphs:,}"),
        "mean nodes": (f"{mark['mean_nodes']:.1f}", known.mean_nodes),
        "mean edges": (f"{mark['mean_edges']:.1f}", known.mean_edges),
        "training / validation / test": (sizes, " / ".join(f"{size:,}" for size in known.sizes)),
    }
    for name, (found, published) in rows.items():
        print(f"{name}: {found} (published: {published})")
    print("active: {train:,} / {val:,} / {test:,}".format(**mark["active"]))
    print(f"valences that RDKit {mark['rdkit']} refuses, kept: {len(mark['irregular_valences'])} molecules")
    print(f"written to {args.dir / RAW.folder}; dataset.name ogbg-molhiv-rebuilt reads it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
