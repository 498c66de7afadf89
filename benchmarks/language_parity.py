"""Whole language models through the parity gate: worst gradient error, and what an export takes.

    python -m benchmarks.language_parity --shapes gpt2,smollm-135m --bases float32,float16,int8,int4

Every shape and precision of the base is a process of its own: factors of rank 8, 128 symbols, batch 1, Adam. The gate
compares every factor's gradient with torch float64 on the same dequantised base, and three steps in a row. It holds one
block of the base at a time as float64.

Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from export.language.architecture import PUBLIC

BASES = "float32,float16,int8,int4"


def exported(shape: str, base: str) -> dict[str, Any]:
    """Figures of one export, in this process."""
    from coordinator.cli.model_arguments import ModelArguments
    from coordinator.language.source import PREFIX
    from export.bundle import export_artifact
    from export.forms.step_form import PLAIN

    arguments = ModelArguments(PREFIX + shape, (128,), 0, 1, 0, "fedlora:8", "adam", PLAIN, (f"base={base}",))
    prepared = arguments.prepare()
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        manifest = export_artifact(prepared.module, prepared.step, Path(folder) / "artifact", build=prepared.build)
    return {
        "shape": shape,
        "base": base,
        "max_grad_rel_err": manifest.parity.max_grad_rel_err,
        "torch_fp32_rel_err": manifest.parity.torch_fp32_rel_err,
        "loss_rel_err": manifest.parity.loss_rel_err,
        "cpu_s": round(time.process_time() - begun, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    """Run them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(PUBLIC))
    parser.add_argument("--bases", default=BASES)
    parser.add_argument("--here", action="store_true", help="the first of each in this process")
    chosen = parser.parse_args()
    shapes, bases = chosen.shapes.split(","), chosen.bases.split(",")
    if chosen.here:
        print(json.dumps(exported(shapes[0], bases[0])), flush=True)
        return
    for shape in shapes:
        for base in bases:
            command = [sys.executable, "-m", "benchmarks.language_parity", "--here", "--shapes", shape, "--bases", base]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
