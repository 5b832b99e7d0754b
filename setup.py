"""Packaging of graphgps_kmip: what it needs, in ranges; the exact releases that are tested are in constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent

# Read as text: importing the package would need torch, which is not there while pip builds the metadata.
VERSION = re.search(
    r'^__version__ = "([^"]+)"', ROOT.joinpath("graphgps_kmip/__init__.py").read_text(encoding="utf-8"), re.M
).group(1)

H5 = "h5py>=3.10"
SUBMITIT = ["submitit>=1.5", "cloudpickle>=3"]  # run/reproduce.py run --slurm
OPTUNA = "optuna>=5"  # run/reproduce.py run --search tpe
TRITON = "triton>=3.2; sys_platform == 'linux'"  # GPU kernels; it is published for Linux only

# What a wheel holds besides the package, in graphgps_kmip/shipped: configs, experiments and the scripts that they run.
SHIPPED = ("main.py", "configs/**/*.yaml", "run/**/*.py", "run/**/*.c", "run/**/*.yaml", "run/**/*.csv")
CHECKOUT_ONLY = {Path("run/demo.py")}  # it shows a fresh clone


class BuildWithConfigs(build_py):
    """Copies configs, experiments and scripts into the wheel; an editable install finds them beside the package."""

    def run(self) -> None:
        """Build the package, then copy."""
        super().run()
        if not self.editable_mode:
            for source, target in self.shipped().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def shipped(self) -> dict[str, str]:
        """Return the file below the project's root -> its place below the folder of the build."""
        found = sorted({path.relative_to(ROOT) for pattern in SHIPPED for path in ROOT.glob(pattern)} - CHECKOUT_ONLY)
        folder = Path(self.build_lib, "graphgps_kmip", "shipped")
        return {str(path): str(folder / path) for path in found}

    def get_source_files(self) -> list[str]:
        """Return what a source distribution must hold."""
        return [*super().get_source_files(), *self.shipped()]

    def get_output_mapping(self) -> dict[str, str]:
        """Return what is made -> of what."""
        made = {} if self.editable_mode else {target: source for source, target in self.shipped().items()}
        return {**super().get_output_mapping(), **made}

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return what is made."""
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self.shipped().values())]


setup(
    name="graphgps_kmip",
    version=VERSION,
    description="Graph transformers in the GraphGPS recipe with k-Maximum Inner Product (k-MIP) attention",
    long_description=ROOT.joinpath("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="MIT",
    license_files=["LICENSE"],
    keywords=["graph transformer", "graph neural network", "GraphGPS", "GraphGym", "k-MIP attention"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    cmdclass={"build_py": BuildWithConfigs},
    packages=find_packages(include=["graphgps_kmip", "graphgps_kmip.*"]),
    package_data={
        "graphgps_kmip": ["py.typed"],  # its annotations count for type checkers
        "graphgps_kmip.ops.native": ["*.c", "*.h"],  # compiled at their first use
        "graphgps_kmip.report": ["*.html"],
    },
    entry_points={
        "console_scripts": [
            "graphgps-kmip = graphgps_kmip.command_line:run",  # main.py
            "graphgps-kmip-reproduce = graphgps_kmip.reproduce:main",  # run/reproduce.py
        ]
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
        # run/docs.sh; exact releases, for a newer one may warn where this one does not, and warnings are errors.
        "docs": ["sphinx==9.0.4", "myst-nb==1.4.0", "furo==2025.12.19", "sphinx-copybutton==0.5.2"],
    },
)
