"""The two sides of a bench, each a child process that runs a block of ten steps when told to.

The device side is the trainer itself; the torch side is this module run as a program.
"""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.cli.bench_device import BenchInputs, bench_order
from edge.contracts.errors import DeviceRefused
from edge.runtimes.environments import runtime_python
from edge.supervisor.trainer_link import TrainerEnded, TrainerEvent, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import Failed, Ready, Train, Trained

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T", Ready, Trained)

STEPS_PER_BLOCK = 10
LANGUAGE_STEPS_PER_BLOCK = 2
"""Of a language model, each of which takes seconds."""
FEATURES_BYTES = 1 << 30
"""What kept features may take: all that a bench has."""
TIMEOUT_S = 300.0


class DeviceSide:
    """A trainer child with the artifact loaded; a context manager that ends it.

    Attributes:
        cpu_ms: processor time per step of the last block, of all threads together; the median.
        update: digest of what the last block trained.
    """

    def __init__(self, inputs: BenchInputs, threads: int) -> None:
        self._inputs, self._threads = inputs, threads
        self._events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
        runtime = inputs.manifest.runtime
        self._link = TrainerLink(python=str(runtime_python(runtime)), runtime=runtime, deliver=self._events.put)
        self._count = 0
        self.cpu_ms = 0.0
        self.update = ""
        self._link.start()
        self._await(Ready)  # it tells of a trainer without Python, which an agent would use too

    def __enter__(self) -> DeviceSide:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.end()

    def block(self, steps: int = 0) -> float:
        """Median milliseconds per step of one block.

        Args:
            steps: of the block; 0: as many as every other has.

        Raises:
            DeviceRefused: the trainer failed or ended.
        """
        self._count += 1
        inputs = self._inputs
        steps = steps or steps_per_block(inputs)
        self._link.train(
            Train(
                order=bench_order(inputs, self._count, steps, self._threads),
                manifest=str(inputs.artifact / "manifest.json"),
                files={f.name: str(inputs.artifact / f.name) for f in inputs.manifest.files},
                weights=str(inputs.weights),
                data=str(inputs.data),
                update=str(inputs.data.parent / "update.safetensors"),
                threads=self._threads,
                progress_s=1e9,
                constants=str(inputs.base) if inputs.base else "",
                features=str(inputs.data.parent / "features") if inputs.reads_features else "",
                features_bytes=FEATURES_BYTES,
            ),
            inputs.manifest,
        )
        reply = self._await(Trained)
        self.cpu_ms, self.update = reply.step_cpu_ms_p50, reply.digest
        return reply.step_ms_p50

    def _await(self, kind: type[T]) -> T:
        while True:
            event = self._events.get(timeout=TIMEOUT_S)
            if isinstance(event, TrainerEnded):
                raise DeviceRefused(f"the trainer ended: {event.reason}")
            if isinstance(event, TrainerSaid) and isinstance(event.reply, Failed):
                raise DeviceRefused(f"the trainer failed: {event.reply.reason}")
            if isinstance(event, TrainerSaid) and isinstance(event.reply, kind):
                return event.reply


class TorchSide:
    """A torch child; ``peak_bytes`` and ``layout`` (the faster one, eager) are known after a block.

    Args:
        compiled: by ``torch.compile``, forward and backward; else it is eager.
    """

    def __init__(self, inputs: BenchInputs, threads: int, *, compiled: bool = False) -> None:
        manifest = inputs.manifest
        job = {
            "manifest": str(inputs.artifact / "manifest.json"),
            "batch": manifest.batch,
            "threads": threads,
            "base": str(inputs.base or ""),
            "weights": str(inputs.weights),
            "compiled": compiled,
        }
        self._steps = steps_per_block(inputs)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli.bench_sides", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peak_bytes = 0
        self.cpu_ms = 0.0
        self.layout = ""

    def __enter__(self) -> TorchSide:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()

    def block(self, steps: int = 0) -> float:
        """Median milliseconds per step of one block.

        Args:
            steps: of the block; 0: as many as every other has.

        Raises:
            DeviceRefused: torch failed.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{steps or self._steps}\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise DeviceRefused(f"the torch side ended with status {self._child.wait()}; see its error above")
        answer = json.loads(line)
        self.peak_bytes, self.layout, self.cpu_ms = answer["peak_bytes"], answer["layout"], answer["cpu_ms"]
        return float(answer["step_ms"])


class TorchStep:
    """One training step of the artifact's module in one memory layout, eager unless it is compiled.

    Factors get Frobenius decay in place of weight decay, as in the artifact: its products can be most of a step.
    """

    _DECAY = 1e-4

    def __init__(
        self,
        manifest_path: Path,
        batch: int,
        layout: torch.memory_format,
        base: str = "",
        weights: str = "",
        *,
        compiled: bool = False,
    ) -> None:
        import msgspec
        import torch

        from coordinator.exporting.cut_exporter import rebuild_module
        from edge.contracts.manifest import ArtifactManifest
        from export.prepared_module import batch_norms, is_frozen
        from export.training_step import StepSpec

        manifest = ArtifactManifest.from_bytes(manifest_path.read_bytes())
        spec = msgspec.convert(manifest.build["step"], StepSpec)
        self._module = rebuild_module(manifest.build).train()
        if base:
            self._module = _with_values(self._module, Path(base), Path(weights))
        for name, parameter in self._module.named_parameters():
            parameter.requires_grad_(name not in spec.frozen)
        if spec.frozen_norm == "static":
            for name, norm in batch_norms(self._module).items():
                norm.train(not is_frozen(name, self._module, spec))
        generator = torch.Generator().manual_seed(0)
        shape = (batch, *spec.input.shape)
        if spec.input.dtype == "int64":
            self._x = torch.randint(0, spec.input.vocabulary, shape, generator=generator)
        else:
            self._x = torch.randn(shape, generator=generator)
        if layout is torch.channels_last:
            self._module = self._module.to(memory_format=layout)
            self._x = self._x.contiguous(memory_format=layout)
        places = next((t.shape for t in spec.tensors if t.name == "y"), spec.target_shape)
        self._y = torch.randint(0, spec.classes, (batch, *places), generator=generator)
        named = dict(self._module.named_parameters())
        self._pairs = [(named[pair.u], named[pair.v]) for pair in spec.frobenius]
        factors = [p for name, p in named.items() if p.requires_grad and name in spec.factors]
        others = [p for name, p in named.items() if p.requires_grad and name not in spec.factors]
        trained = [{"params": others}, {"params": factors, "weight_decay": 0.0}]
        if spec.optimizer.kind == "sgd":
            self._optimizer: Any = torch.optim.SGD(trained, lr=0.01, momentum=0.9, weight_decay=self._DECAY)
        else:
            kind = torch.optim.AdamW if spec.optimizer.kind == "adamw" else torch.optim.Adam
            self._optimizer = kind(trained, lr=1e-3, weight_decay=self._DECAY)
        self._forward: Any = torch.compile(self._module) if compiled else self._module

    def run(self) -> float:
        """Milliseconds of one step, the loss read."""
        import torch

        started = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self._forward(self._x), self._y)
        loss.backward()
        self._add_frobenius_decay()
        self._optimizer.step()
        loss.item()
        return (time.perf_counter() - started) * 1e3

    def _add_frobenius_decay(self) -> None:
        import torch

        from export.step_functions import frobenius_gradients

        with torch.no_grad():
            for u, v in self._pairs:
                for factor, gradient in zip((u, v), frobenius_gradients(u, v, self._DECAY), strict=True):
                    if factor.grad is not None:
                        factor.grad += gradient


def steps_per_block(inputs: BenchInputs) -> int:
    """Steps that a block of either side has."""
    return LANGUAGE_STEPS_PER_BLOCK if inputs.base else STEPS_PER_BLOCK


def _with_values(module: nn.Module, base: Path, weights: Path) -> nn.Module:
    """A language model with the base's values, dense float32 as torch computes with them, and the factors'."""
    import torch

    from edge.contracts.tensor_file import read_tensor_file
    from export.language.base_weights import dequantised

    held, factors = (read_tensor_file(path, where=path.name) for path in (base, weights))
    made = module.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            value = factors[name] if name in factors else dequantised(name, held)
            parameter.copy_(torch.from_numpy(value.copy()))
    return made


def main(job: dict[str, Any]) -> None:
    """Choose the faster layout, then run a block of as many steps as each line says and print its median as JSON."""
    import torch

    from edge.system.meter import peak_rss_bytes

    torch.set_num_threads(job["threads"])
    path, batch = Path(job["manifest"]), int(job["batch"])
    images = "chw" in path.read_text()
    layouts = [torch.contiguous_format, *([torch.channels_last] if images else [])]
    chosen, best = layouts[0], float("inf")
    base, weights = job["base"], job["weights"]
    for layout in layouts if len(layouts) > 1 else []:
        step = TorchStep(path, batch, layout)
        median = statistics.median(step.run() for _ in range(STEPS_PER_BLOCK))
        if median < best:
            chosen, best = layout, median
    step = TorchStep(path, batch, chosen, base, weights, compiled=job["compiled"])
    step.run()
    for line in sys.stdin:
        steps = int(line)
        before = time.process_time()
        median = statistics.median(step.run() for _ in range(steps))
        answer = {
            "step_ms": median,
            "cpu_ms": (time.process_time() - before) * 1e3 / steps,
            "peak_bytes": peak_rss_bytes(),
            "layout": str(chosen).removeprefix("torch."),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
