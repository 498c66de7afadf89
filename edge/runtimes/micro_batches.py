"""A step whose batch goes through the graph in equal parts: less memory, and the gradients of the whole batch.

The artifact then has a program ``accumulate``: the loss of one micro-batch as its share of the whole batch's, and its
gradients added to the tensors ``<name>#gradient``. ``train`` takes no examples: it moves the parameters by those sums,
which the session sets back to zero. Inside a session a sum has one value, read and written in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest, Program
from edge.contracts.tensors import BATCH, GRADIENT_SUM

if TYPE_CHECKING:
    import numpy as np

    from edge.runtimes.base import Session

ACCUMULATE = "accumulate"
TRAIN = "train"


def step_programs(manifest: ArtifactManifest, program: str) -> tuple[Program, ...]:
    """The programs that one step of ``program`` runs, in order."""
    described = manifest.program(program)
    if manifest.micro_batches == 1 or program != TRAIN:
        return (described,)
    return (manifest.program(ACCUMULATE), described)


def run_step(
    session: Session, manifest: ArtifactManifest, program: str, feeds: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """One step of ``program`` on the whole batch in ``feeds``; its loss and metrics are the whole batch's.

    Raises:
        DeviceRefused: as :meth:`edge.runtimes.base.Session.run`, or a batch that has no equal parts.
    """
    if len(step_programs(manifest, program)) == 1:
        return session.run(program, feeds)
    batched = [spec.name for spec in manifest.tensors if spec.shape[:1] == (BATCH,) and spec.name in feeds]
    values: dict[str, float] = {}
    for part in micro_batches(feeds, batched, manifest.micro_batches):
        for name, value in session.run(ACCUMULATE, part).items():
            values[name] = values.get(name, 0.0) + value
    session.run(program, feeds)
    return values


def micro_batches(feeds: Mapping[str, np.ndarray], batched: list[str], count: int) -> Iterator[dict[str, np.ndarray]]:
    """``feeds`` ``count`` times, with consecutive equal parts (views) of the values named in ``batched``.

    Raises:
        DeviceRefused: a batch that has no equal parts.
    """
    for name in batched:
        if len(feeds[name]) % count:
            raise DeviceRefused(
                f"the artifact takes a batch in {count} equal parts, this one has {len(feeds[name])} examples; "
                "order last-batch drop or wrap"
            )
    for i in range(count):
        part = dict(feeds)
        for name in batched:
            size = len(feeds[name]) // count
            part[name] = feeds[name][i * size : (i + 1) * size]
        yield part


def gradient_sum(name: str) -> str:
    """Name of the sum of the gradients of parameter ``name`` over the micro-batches so far."""
    return name + GRADIENT_SUM
