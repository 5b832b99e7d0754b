"""Export the model of a finished run, compare it with the model, and store it; --aoti compiles it ahead of time.

python main.py --cfg configs/quickstart/digits-kmip.yaml
python examples/export/export_run.py results/digits-kmip/0 digits-kmip.pt2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from graphgps_kmip import batch_of
from graphgps_kmip.gym.trained import trained
from graphgps_kmip.model.export_model import export_model, tensors_of


def main(words: list[str]) -> None:
    """Export, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run of a model of whole graphs")
    parser.add_argument("out", type=Path, help="file to write, *.pt2")
    parser.add_argument("--aoti", action="store_true", help="compile by AOTInductor; needs a C++ compiler and minutes")
    args = parser.parse_args(words)
    with trained(args.run) as run, torch.no_grad():
        graphs = list(run.dataset.part("test"))
        program = export_model(run.model, batch_of(graphs[:4]))
        if args.aoti:
            torch._inductor.aoti_compile_and_package(program, package_path=str(args.out))
            predict = torch._inductor.aoti_load_package(str(args.out))
        else:
            torch.export.save(program, args.out)
            predict = torch.export.load(args.out).module()
        batches = [batch_of(graphs[:number]) for number in (1, 7, len(graphs))]  # other sizes than that of the trace
        largest = max(float((predict(tensors_of(batch)) - run.model(batch)[0]).abs().max()) for batch in batches)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes; predictions of {len(graphs)} graphs differ by {largest:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
