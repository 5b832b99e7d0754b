"""Packaging of graphgps_kmip: what it needs, in ranges; the exact releases that are tested are in constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

# Read as text: importing the package would need torch, which is not there while pip builds the metadata.
VERSION = re.search(
    r'^__version__ = "([^"]+)"', Path(__file__).with_name("graphgps_kmip").joinpath("__init__.py").read_text(), re.M
).group(1)

H5 = "h5py>=3.10"
SUBMITIT = ["submitit>=1.5", "cloudpickle>=3"]  # run/reproduce.py run --slurm
OPTUNA = "optuna>=5"  # run/reproduce.py run --search tpe
TRITON = "triton>=3.2; sys_platform == 'linux'"  # GPU kernels; it is published for Linux only

setup(
    name="graphgps_kmip",
    version=VERSION,
    description="Graph transformers in the GraphGPS recipe with k-Maximum Inner Product (k-MIP) attention",
    license="MIT",
    packages=find_packages(include=["graphgps_kmip", "graphgps_kmip.*"]),
    package_data={
        "graphgps_kmip.native": ["*.c", "*.h"],  # compiled at their first use
        "graphgps_kmip.report": ["*.html"],
    },
    # Lower bounds, so that the package fits into a user's own environment; what is tested is Python 3.11 with
    # constraints.txt.
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.6",
        "torch-geometric>=2.6",
        "lightning-fabric>=2.4",
        "torchmetrics>=1.3",
        "pykeops>=2.2",
        "ogb>=1.3.6",
        "yacs>=0.1.8",
        "pyyaml>=6",
        "numpy>=1.26",
        "scipy>=1.11",
        "scikit-learn>=1.3",
        "threadpoolctl>=3",
        "pandas>=2.1",
        "matplotlib>=3.8",
        "jinja2>=3.1",
        "pillow>=10",
        "tqdm>=4.66",
        "filelock>=3.12",
    ],
    extras_require={
        "test": [
            *("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.90", "coverage>=7.4", "ruff>=0.9"),
            *(H5, TRITON, OPTUNA, *SUBMITIT),
        ],
        "tensorboard": ["tensorboard>=2.15"],
        "wandb": ["wandb>=0.16"],
        "h5": [H5],  # S3DIS comes as h5 files
        "chem": ["rdkit>=2023.9"],  # PCQM4Mv2 comes as SMILES
        "triton": [TRITON],  # the CUDA build of torch brings it along
        "slurm": SUBMITIT,
        "search": [OPTUNA],
        "bench": ["faiss-cpu>=1.9"],  # one of the baselines of run/bench
    },
)
