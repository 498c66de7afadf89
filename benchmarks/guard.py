"""The regression guard: figures that do not depend on the machine, each held to a bound.

    python -m benchmarks.guard                  # every figure beside its bound; status 1 where one is above
    python -m benchmarks.guard --record         # and a line for docs/measurements/guard.md, on stdout

A figure is a count (modules that a start imports, calls of an export, bytes that a sum allocates) or a ratio of
processor time against the same work in plain torch or numpy, taken in turns in this process on one thread, least of the
blocks. None is seconds.
Bounds are in :data:`BOUNDS`: about half above what ratios were when they were set, counts a tenth.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

BLOCKS = 7

Figure = Callable[[], float]


def cpu_ratio(ours: Callable[[], object], plain: Callable[[], object], *, blocks: int = BLOCKS) -> float:
    """Least processor time of ``ours`` over that of ``plain``, in turns, after one of each."""
    ours(), plain()
    mine, theirs = [], []
    for _ in range(blocks):
        for side, times in ((ours, mine), (plain, theirs)):
            begun = time.process_time()
            side()
            times.append(time.process_time() - begun)
    return min(mine) / min(theirs)


def modules_loaded(code: str) -> float:
    """Modules in a fresh interpreter after ``code``, beside those of an empty one."""

    def count(text: str) -> int:
        program = f"import sys\n{text}\nprint(len(sys.modules), file=sys.__stderr__)"
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        return int(done.stderr.split()[-1])

    return float(count(code) - count("pass"))


def start_of_help() -> float:
    """``apportion --help``."""
    return modules_loaded(
        "import io\nsys.stdout = io.StringIO()\nfrom coordinator.cli.entry import main\nmain(['--help'])"
    )


def start_of_agent() -> float:
    """The agent's supervisor, as it waits for its first order."""
    return modules_loaded("import edge.agent\nassert not {'torch', 'onnxruntime'} & sys.modules.keys()")


def step(model: str, batch: int, *, cut: str = "", runtime_name: str = "onnxruntime") -> float:
    """A training step of a device runtime over torch eager."""
    import torch

    from coordinator.cli.bench_sides import TorchStep
    from coordinator.cli.model_arguments import ModelArguments
    from coordinator.submodels.build import module_tensors
    from edge.runtimes import runtime
    from edge.training.artifact_folder import MANIFEST_NAME
    from export.bundle import export_artifact

    torch.set_num_threads(1)
    prepared = ModelArguments(model, (3, 32, 32) if cut else (), 10 if cut else 0, batch, cut=cut).prepare()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "artifact"
        manifest = export_artifact(
            prepared.module,
            prepared.step,
            folder,
            build=prepared.build,
            classes=prepared.class_names,
            runtime=runtime_name,
        )
        files = {file.name: folder / file.name for file in manifest.files}
        session = runtime(manifest.runtime).load(manifest, files, threads=1)
        plain = TorchStep(folder / MANIFEST_NAME, batch, torch.contiguous_format)
        session.load_state(module_tensors(prepared.module))
        draw = np.random.default_rng(0)
        x = draw.standard_normal((batch, *manifest.input.shape), np.float32)
        hyper = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
        feeds = {"input": x, "target": draw.integers(0, len(manifest.classes), batch)}
        feeds |= {name: np.asarray(value, np.float32) for name, value in hyper.items()}

        def ours() -> None:
            for _ in range(5):
                session.run("train", feeds)

        def theirs() -> None:
            for _ in range(5):
                plain.run()

        return cpu_ratio(ours, theirs)


def step_of_mlp() -> float:
    """Of the demo's perceptron, whose time is its matrix products and its update."""
    return step("mlp", 32)


def step_of_resnet8() -> float:
    """Of a small ResNet, whose time is convolutions and batch norm."""
    return step("resnet8", 8)


def step_of_an_eighth() -> float:
    """Of a ResNet-20 of 2 to 8 channels on ExecuTorch: layers that do not fill a vector."""
    return step("resnet20_slt", 32, cut="small_model:0.125", runtime_name="executorch")


def export() -> float:
    """Thousands of calls of functions in an export with its check, as the interpreter's profiler counts them."""
    from coordinator.cli.model_arguments import ModelArguments
    from export.bundle import export_artifact

    prepared = ModelArguments("mlp", (8,), 4, 4).prepare()
    counts = []
    for _ in range(2):  # the first one fills caches
        profile = cProfile.Profile()
        with tempfile.TemporaryDirectory() as name, profile:
            export_artifact(prepared.module, prepared.step, Path(name) / "artifact", classes=prepared.class_names)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    return counts[-1] / 1000


class _Sum:
    """Twenty updates of 10 MB on disk, for both sides."""

    def __init__(self, folder: Path) -> None:
        from benchmarks.aggregation import module, scene_of, write_updates
        from coordinator.blobs.blob_store import BlobStore
        from coordinator.methods.fedavg import FedAvg

        self._method = FedAvg(module(), {})
        self._state = self._method.init()
        self.model_bytes = sum(value.nbytes for value in self._state.tensors.values())
        blobs = BlobStore(folder / "blobs")
        self._recorded = write_updates(blobs, dict(self._state.tensors), 20)
        self.at_point: Callable[[str], None] = lambda point: None
        self._scene = scene_of(self._method, blobs, lambda point: self.at_point(point))
        self.paths = [blobs.path(entry.update_digest) for entry in self._recorded]

    def ours(self) -> None:
        """The global model after them."""
        from coordinator.rounds.participants import updates_of

        self._method.aggregate(self._state, updates_of(self._scene, self._recorded))


def aggregation_time() -> float:
    """A sum of updates from disk over numpy's of the same files in float64."""
    from benchmarks.aggregation import with_numpy

    with tempfile.TemporaryDirectory() as name:
        scene = _Sum(Path(name))
        return cpu_ratio(scene.ours, lambda: with_numpy(scene.paths, np.float64))


def aggregation_memory() -> float:
    """Most bytes that are allocated at a time while an update is added to those before it, over the model's."""
    with tempfile.TemporaryDirectory() as name:
        scene, peaks = _Sum(Path(name)), []

        def after_update(point: str) -> None:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.reset_peak()

        scene.ours()
        scene.at_point = after_update
        tracemalloc.start()
        scene.ours()
        tracemalloc.stop()
        return max(peaks[2:]) / scene.model_bytes


def simulated_step() -> float:
    """A step of a simulated device over a plain loop's."""
    from benchmarks.simulated_step import compared_steps
    from coordinator.simulation.local_training import repeatable_torch

    repeatable_torch(1, "cpu")
    plain, simulated = compared_steps("resnet8", 8, 1e-4)

    def repeated(one: Callable[[], float]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(5):
                one()

        return run

    return cpu_ratio(repeated(simulated), repeated(plain))


FIGURES: dict[str, Figure] = {
    "start of --help, modules": start_of_help,
    "start of the agent, modules": start_of_agent,
    "step of mlp, of torch": step_of_mlp,
    "step of resnet8, of torch": step_of_resnet8,
    "ExecuTorch's step of a narrow resnet20, of torch": step_of_an_eighth,
    "export of an mlp, thousand calls": export,
    "aggregation, of numpy": aggregation_time,
    "aggregation's memory, of the model": aggregation_memory,
    "simulated step, of torch": simulated_step,
}

BOUNDS: dict[str, float] = {
    "start of --help, modules": 16,
    "start of the agent, modules": 188,
    "step of mlp, of torch": 2.4,
    "step of resnet8, of torch": 1.4,
    "ExecuTorch's step of a narrow resnet20, of torch": 0.8,
    "export of an mlp, thousand calls": 1350,
    "aggregation, of numpy": 2.6,
    "aggregation's memory, of the model": 2.4,
    "simulated step, of torch": 1.4,
}
"""Figure -> what it may be at most."""


def main() -> int:
    """Measure, print, and say whether every figure holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="print a line of the page's table at the end")
    chosen = parser.parse_args()
    found = {}
    for name, figure in FIGURES.items():
        found[name] = figure()
        verdict = "" if found[name] <= BOUNDS[name] else "  above its bound"
        print(f"{name:50} {found[name]:8.2f}  at most {BOUNDS[name]:g}{verdict}", flush=True)
    if chosen.record:
        cells = " | ".join(f"{found[name]:.2f}".removesuffix(".00") for name in FIGURES)
        print(f"| {datetime.date.today()} | {processor()} | {cells} |")
    return int(any(found[name] > BOUNDS[name] for name in FIGURES))


def processor() -> str:
    """This machine's, as its kernel names it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
