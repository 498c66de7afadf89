"""What runs in the child processes of a measurement; needs NumPy and the runtime, and no torch.

``python -m edge.measuring.child WORD ...``: ``about RUNTIME`` says its release; ``inputs FOLDER OUT BATCH KEPT`` writes
weights and examples for an artifact; ``steps ...`` is a trainer that carries out two orders on them, the first to warm
up, so that what is measured is what an agent's trainer takes: data, weights, steps and the update. Each prints a line
of JSON.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.errors import ApportionError, DeviceRefused
from edge.contracts.packing import MASK
from edge.contracts.tensors import TensorSpec
from edge.measuring.watch import accept_limit
from edge.system.cached_libraries import read_libraries_anew
from edge.system.meter import peak_rss_bytes, percentile
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder

WARM_UP_STEPS = 3
LEAST_STEPS = 3
EXAMPLE_BATCHES = 2
WEIGHTS, DATA, UPDATE = "weights.safetensors", "data.npz", "update"


def about(name: str) -> dict[str, Any]:
    """Release of the runtime and the most threads it uses (0: as many as ordered)."""
    from edge.runtimes import runtime, traits_of

    return {"version": runtime(name).version(), "max_threads": traits_of(name).max_threads}


def write_inputs(folder: Path, out: Path, batch: int, kept: Mapping[str, int]) -> dict[str, Any]:
    """Files in ``out`` for an artifact: weights and masks (the self-test's) and random examples.

    Args:
        kept: masked weight -> entries that its mask keeps, spread evenly; others keep all that there is room for.
    """
    import numpy as np

    from edge.contracts.streams import self_test_value
    from edge.contracts.tensor_file import encode_tensors
    from edge.contracts.tensors import concrete_shape

    manifest, _ = read_artifact_folder(folder)
    sent = {
        spec.name: self_test_value(spec, manifest.self_test.seed, batch, high=2)
        for spec in manifest.specs("parameter", "frozen", "buffer")
    }
    # A dense step under a mask takes as long whatever it keeps; one that holds kept entries alone has room for so many.
    masks = {
        spec.name: self_test_value(_keeping(spec, kept), manifest.self_test.seed, batch)
        for spec in manifest.specs("grad_mask")
    }
    (out / WEIGHTS).write_bytes(encode_tensors(sent | masks))
    draw = np.random.default_rng(0)
    count, spec = batch * EXAMPLE_BATCHES, manifest.input
    shape = (count, *spec.shape)
    is_tokens = spec.dtype != "float32"
    x = draw.integers(0, spec.vocabulary, shape) if is_tokens else draw.standard_normal(shape).astype(np.float32)
    target = next(tensor for tensor in manifest.tensors if tensor.role == "target")
    y = draw.integers(0, len(manifest.classes), (count, *concrete_shape(target, batch=count)[1:]))
    np.savez(out / DATA, x=x, y=y)
    return {}


def _keeping(spec: TensorSpec, kept: Mapping[str, int]) -> TensorSpec:
    """The mask with room for so many entries, which the self-test's value then keeps."""
    count = kept.get(spec.name.removesuffix(MASK))
    return spec if count is None else msgspec.structs.replace(spec, capacity=count)


class _Replies(io.BytesIO):
    """What a trainer says, and how much processor time it took between saying that one step and another was done."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[tuple[float, float]] = []

    def flush(self) -> None:
        """A message is complete."""
        self._said.append((time.perf_counter(), time.process_time()))

    def forget(self) -> None:
        """Empty, and the clock at its start."""
        self.seek(0)
        self.truncate()
        self._said.clear()

    def between(self) -> list[tuple[float, float]]:
        """(seconds, processor seconds) from each step's end to the next one's; the last message is the update's."""
        said = self._said[:-1]
        return [(end - begin, after - before) for (begin, before), (end, after) in itertools.pairwise(said)]


def measure(folder: Path, inputs: Path, batch: int, threads: int, steps: int, seconds: float) -> dict[str, Any]:
    """Time and memory of the artifact's steps in this process."""
    from edge.runtimes import runtime, traits_of
    from edge.supervisor.trainer_messages import Describe, Described, Failed, Ready, Trained, read_reply
    from edge.trainer import Trainer

    manifest, paths = read_artifact_folder(folder)
    replies = _Replies()
    read_libraries_anew(traits_of(manifest.runtime).module)
    trainer = Trainer(runtime(manifest.runtime), replies)

    def said(kind: type) -> Any:
        replies.seek(0)
        while (reply := read_reply(replies)) is not None:
            if isinstance(reply, Failed) or (isinstance(reply, Described) and reply.error):
                raise DeviceRefused(reply.reason if isinstance(reply, Failed) else reply.error)
            if isinstance(reply, kind):
                replies.forget()
                return reply
        raise DeviceRefused(f"the trainer gave no {kind.__name__}")

    trainer.ready()
    ready = said(Ready)
    trainer.answer(Describe(str(inputs / DATA)))
    said(Described)
    trainer.answer(_request(folder, manifest, paths, inputs, batch, threads, WARM_UP_STEPS))
    first = said(Trained)
    affordable = int(1000 * seconds / max(first.step_ms_p50, 1e-3)) if seconds else steps
    trainer.answer(_request(folder, manifest, paths, inputs, batch, threads, max(LEAST_STEPS, min(steps, affordable))))
    between = replies.between()
    done = said(Trained)
    share = sum(used for _, used in between) / max(1e-9, sum(passed for passed, _ in between)) / done.threads
    return {
        "runtime_version": ready.version,
        "threads": done.threads,
        "steps": done.steps,
        "step_ms_p50": round(done.step_ms_p50, 3),
        "step_ms_p95": round(done.step_ms_p95, 3),
        "idle_bytes": done.idle_bytes,
        "peak_bytes": peak_rss_bytes(),
        "cpu_share": round(share, 3),
        "cpu_ms_p50": round(1000 * percentile([used for _, used in between], 0.5), 3),
    }


def _request(
    folder: Path, manifest: Any, paths: dict[str, Path], inputs: Path, batch: int, threads: int, steps: int
) -> Any:
    from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
    from edge.supervisor.trainer_messages import Train

    data = (folder / MANIFEST_NAME).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    order = WorkOrder(
        assignment_id=assignment_id("profile", steps, "here", 0),
        federation="profile",
        device="here",
        round=0,
        attempt=0,
        artifact=BlobRef(digest, len(data), "raw", len(data)),
        weights=BlobRef(digest, 0, "raw", 0),
        schedule=Schedule(steps=steps),
        batch=batch,
        last_batch="drop",
        data_seed=0,
        hyper=manifest.self_test.hyper,
        upload=tuple(spec.name for spec in manifest.specs("parameter", "buffer")),
        threads=threads,
    )
    return Train(
        order=order,
        manifest=str(folder / MANIFEST_NAME),
        files={name: str(path) for name, path in paths.items()},
        weights=str(inputs / WEIGHTS),
        data=str(inputs / DATA),
        update=str(inputs / UPDATE),
        threads=threads,
        progress_s=0.0,  # a message after every step, which the clock of _Replies hears
    )


def main(arguments: list[str]) -> int:
    """Do what the first word says; the last two are a memory limit in bytes (0: none) and the parent's process id."""
    word, *words, limit, parent = arguments
    accept_limit(int(limit))
    read_libraries_anew("numpy")
    from edge.trainer import follow_parent

    follow_parent(int(parent))
    if word == "about":
        found = about(words[0])
    elif word == "inputs":
        found = write_inputs(Path(words[0]), Path(words[1]), int(words[2]), json.loads(words[3]))
    else:
        batch, threads, steps = (int(text) for text in words[2:5])
        found = measure(Path(words[0]), Path(words[1]), batch, threads, steps, float(words[5]))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ApportionError as problem:
        print(f"{problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
