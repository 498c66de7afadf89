"""A step in headless Chromium beside the same step natively, in blocks that take turns, and what both came to.

    python -m benchmarks.web_step resnet20 conv2 --json

A model's name is exported for ``onnxruntime_web`` and for ``onnxruntime``; a folder is an artifact of the former, whose
graph both sides then run. Values are compared with those of the browser's graph run natively, times with the native
graph's: ONNX Runtime here on one thread, the browser on one and two; self-test values at the artifact's batch size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.web_browser import Bench, open_bench
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensor_file import decode_tensors
from edge.runtimes.checking import checking_runtime
from edge.runtimes.micro_batches import TRAIN, run_step
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import load_self_test

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Page

    from edge.runtimes.base import Session

WEB, NATIVE = "onnxruntime_web", "onnxruntime"
THREADS = (1, 2)
COMPARED_STEPS, STEPS, MB = 3, 4, 1 << 20


class NativeSide:
    """The artifact in this process."""

    def __init__(self, manifest: ArtifactManifest, files: Mapping[str, Path]) -> None:
        self._manifest = manifest
        self.session: Session = checking_runtime(manifest.runtime).load(manifest, files, threads=1)
        self._feeds = load_self_test(self.session, manifest, batch=manifest.batch)

    def steps(self, count: int) -> tuple[list[float], list[float]]:
        """Milliseconds and losses of ``count`` steps."""
        took, losses = [], []
        for _ in range(count):
            started = time.perf_counter()
            losses.append(run_step(self.session, self._manifest, TRAIN, self._feeds)["loss"])
            took.append(1000 * (time.perf_counter() - started))
        return took, losses


def compare(bench: Bench, name: str, here: Path, blocks: int) -> dict[str, Any]:
    """One artifact, and the native one in folder ``here``: their difference after three steps, and median times."""
    manifest, files = read_artifact_folder(bench.artifacts[name])
    same, native = NativeSide(manifest, files), NativeSide(*read_artifact_folder(here))
    took: dict[str, list[float]] = {"native": []}
    found: dict[str, Any] = {"artifact": name, "batch": manifest.batch}
    _, losses = same.steps(COMPARED_STEPS)
    native.steps(COMPARED_STEPS)
    with bench.page() as one, bench.page() as two:
        pages: dict[str, Page] = {f"web_{threads}": page for threads, page in zip(THREADS, (one, two), strict=True)}
        for (side, page), threads in zip(pages.items(), THREADS, strict=True):
            opened = page.evaluate("([name, n]) => bench.open(`artifact/${name}/`, n)", [name, threads])
            page.evaluate("batch => bench.load(batch)", manifest.batch)
            ran = page.evaluate("count => bench.steps(count)", COMPARED_STEPS)
            took[side] = []
            if threads == 1:
                page.evaluate("bench.send('/put/state')")
                measured = ran["peakBytes"] - opened["idleBytes"]
                found |= {"self_test": opened["selfTest"], "idle_bytes": opened["idleBytes"], "peak_bytes": measured}
                found |= _differences(same.session, decode_tensors(bench.received["state"], where=name), manifest)
                pairs = zip(ran["losses"], losses, strict=True)
                found["loss_rel_err"] = max(abs(web - here) / abs(here) for web, here in pairs)
        for _ in range(blocks):
            took["native"] += native.steps(STEPS)[0]
            for side, page in pages.items():
                took[side] += page.evaluate("count => bench.steps(count)", STEPS)["ms"]
    medians = {side: statistics.median(values) for side, values in took.items()}
    found["ms"] = {side: round(value, 1) for side, value in medians.items()}
    found["ratio"] = {side: round(value / medians["native"], 2) for side, value in medians.items()}
    best = {side: min(values) for side, values in took.items()}
    found["best_ms"] = {side: round(value, 1) for side, value in best.items()}
    found["best_ratio"] = {side: round(value / best["native"], 2) for side, value in best.items()}
    found["predicted_runtime_bytes"] = manifest.cost.predicted_peak_bytes - manifest.cost.state_bytes
    return found


def _differences(session: Session, state: Mapping[str, np.ndarray], manifest: ArtifactManifest) -> dict[str, float]:
    """Largest relative L2 distance of a tensor from the native one: of parameters and buffers, and of all."""
    worst = {"update": 0.0, "state": 0.0}
    for name, value in state.items():
        if value.dtype.kind != "f":
            continue
        here = session.read(name).astype(np.float64)
        distance = float(np.linalg.norm(value - here) / max(float(np.linalg.norm(here)), 1e-12))
        worst["state"] = max(worst["state"], distance)
        if manifest.tensor(name).role in ("parameter", "buffer"):
            worst["update"] = max(worst["update"], distance)
    return {f"{kind}_rel_l2": value for kind, value in worst.items()}


def _exported(model: str, runtime: str, folder: Path) -> Path:
    """The artifact of ``model`` for ``runtime``, made in ``folder``."""
    out = folder / runtime / model
    command = [sys.executable, "-m", "edge", "export", "--model", model, "--runtime", runtime, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def _line(row: dict[str, Any]) -> str:
    ms, ratio, best = row["ms"], row["ratio"], row["best_ratio"]
    peaks = f"{row['peak_bytes'] / MB:.0f} | {row['predicted_runtime_bytes'] / MB:.0f}"
    errors = f"{row['loss_rel_err']:.1e} | {row['update_rel_l2']:.1e}"
    times = f"{ms['native']} | {ms['web_1']} | {ms['web_2']} | {ratio['web_1']} | {best['web_1']} | {ratio['web_2']}"
    return f"| {row['artifact']} | {times} | {errors} | {peaks} |"


def _rows(artifacts: list[str], made: Path, blocks: int) -> list[dict[str, Any]]:
    """Compare every artifact, a line for each as it is done; those that are exported first lie in ``made``."""
    folders: dict[str, tuple[Path, Path]] = {}
    for text in artifacts:
        if Path(text).is_dir():
            folders[Path(text).name] = (Path(text).resolve(), Path(text).resolve())
        else:
            folders[text] = (_exported(text, WEB, made), _exported(text, NATIVE, made))
    print(f"load before: {os.getloadavg()[0]:.1f}")
    print(
        "| artifact | native ms | web 1 | web 2 | ratio 1 | of best | ratio 2 | loss | update | peak MB | predicted |"
    )
    rows = []
    with open_bench({name: web for name, (web, _) in folders.items()}) as bench:
        for name, (_, native) in folders.items():
            rows.append(compare(bench, name, native, blocks))
            print(_line(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Read the arguments, print a table, and JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", nargs="+", help="name of a model, or folder of an artifact")
    parser.add_argument("--blocks", type=int, default=6, help="of four steps each, on every side")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="apportion-bench-") as made:
        rows = _rows(chosen.artifact, Path(made), chosen.blocks)
    print(f"load after: {os.getloadavg()[0]:.1f}")
    if chosen.json:
        print(json.dumps({"schema": "apportion.benchmark.web_step/1", "rows": rows}))


if __name__ == "__main__":
    main()
