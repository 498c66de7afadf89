"""One update and one report that stand for a site: the mean of its devices' updates, and what they measured.

The sum is made in float64, device by device in the order of their ids, from files that stay until it is acknowledged:
made again after a crash it has the same bits. Memory is one float64 copy of the update and one device's file.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import read_header, read_tensor_file
from edge.contracts.tensors import TensorSpec
from edge.relay.site_devices import largest_weight
from edge.relay.site_work import SiteWork
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from edge.transfer.artifact_store import ArtifactStore
from profiles.bounds import MOST_EXAMPLES

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("apportion.relay")


def make_update(work: SiteWork, store: ArtifactStore, finished: FinishedWork) -> TrainReport:
    """The report of the updates that count; their mean is kept with it in ``finished``.

    Raises:
        ArtifactCorrupt: one of them is not what it was when it was acknowledged.
    """
    from edge.training.update_file import write_update

    encoding = work.order.encoding
    counted = [work.reports[device] for device in work.closed or ()]
    weights = weights_of(work)
    mean = mean_update([(store.verify(report.update.digest), weights[report.device]) for report in counted])
    store.reserve(sum(value.nbytes for value in mean.values()))
    path = finished.new_update_path(work.order.assignment_id)
    digest, size, encoded_size = write_update(path, mean, encoding)
    report = site_report(work, BlobRef(digest, size, encoding, encoded_size))
    finished.save(FinishedRecord(work.order, report))
    return report


def weights_of(work: SiteWork) -> dict[str, int]:
    """Examples that each device's update stands for; one that says many times more than its site weighs less."""
    limit = largest_weight(work.record.examples.values())
    weights = {}
    for device in work.closed or ():
        said = work.reports[device].num_examples
        weights[device] = min(limit, said)
        if said > limit:
            log.warning("%s says %d examples: its update weighs %d, 16 times its site's median", device, said, limit)
    return weights


def upload_specs(order: WorkOrder, weights: Path) -> list[TensorSpec]:
    """What the update of a device must hold: the tensors of ``order.upload`` as they are in the weights it came with.

    Raises:
        ArtifactCorrupt: the weights cannot be read.
        KeyError: the order asks for a tensor that was not sent: a sum that devices begin themselves.
    """
    import mmap

    where = f"weights of round {order.round}"
    try:
        with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            with memoryview(mapped) as data:
                header, _ = read_header(data, where=where)
    except OSError as error:
        raise ArtifactCorrupt(f"{where}: {error}; fetch them again") from error
    return [TensorSpec(name, header[name][1], header[name][0], "parameter") for name in order.upload]  # type: ignore[arg-type]


def mean_update(updates: Sequence[tuple[Path, int]]) -> dict[str, np.ndarray]:
    """The mean of the tensor files, each weighted by its examples, in their dtypes; whole numbers are rounded.

    Args:
        updates: (file, examples) in the order of summation; all hold the same names, shapes and dtypes.
    """
    import numpy as np

    total = sum(examples for _, examples in updates)
    sums: dict[str, np.ndarray] = {}
    dtypes: dict[str, np.dtype] = {}
    for path, examples in updates:
        for name, value in read_tensor_file(path, where=path.name[:12]).items():
            dtypes[name] = value.dtype
            if name in sums:
                sums[name] += value.astype(np.float64) * examples
            else:
                sums[name] = np.asarray(np.multiply(value, examples, dtype=np.float64))
    means = {}
    for name in sorted(sums):
        mean = sums.pop(name) / total
        means[name] = (np.rint(mean) if dtypes[name].kind in "iu" else mean).astype(dtypes[name])
    return means


def site_report(work: SiteWork, update: BlobRef) -> TrainReport:
    """What the coordinator is told of the devices that count: the largest memory, the median time, the mean loss."""
    counted = [work.reports[device] for device in work.closed or ()]
    largest = max(counted, key=lambda report: report.trainer_peak_bytes + report.supervisor_peak_bytes)
    warmest = [report.temperature_c for report in counted if report.temperature_c is not None]
    charges = [report.battery_percent for report in counted if report.battery_percent is not None]
    weights = weights_of(work)
    names = set.intersection(*(set(report.metrics) for report in counted))
    return TrainReport(
        assignment_id=work.order.assignment_id,
        device=work.order.device,
        round=work.order.round,
        num_examples=min(MOST_EXAMPLES, sum(weights.values())),
        steps=max(report.steps for report in counted),
        loss=_mean(weights, {report.device: report.loss for report in counted}),
        metrics={n: _mean(weights, {report.device: report.metrics[n] for report in counted}) for n in sorted(names)},
        step_ms_p50=statistics.median(report.step_ms_p50 for report in counted),
        step_ms_p95=max(report.step_ms_p95 for report in counted),
        trainer_peak_bytes=largest.trainer_peak_bytes,
        supervisor_peak_bytes=largest.supervisor_peak_bytes,
        trainer_idle_bytes=max(report.trainer_idle_bytes for report in counted),
        budget_bytes=largest.budget_bytes,
        over_budget=any(report.over_budget for report in counted),
        torch_loaded=any(report.torch_loaded for report in counted),
        runtime=largest.runtime,
        bytes_down=work.record.bytes_down,
        bytes_up=update.encoded_size,
        update=update,
        wall_s=max(0.0, time.time() - work.record.accepted_at),
        temperature_c=max(warmest, default=None),
        battery_percent=min(charges, default=None),
        threads=max(report.threads for report in counted),
        site_devices=len(counted),
        cpu_s=_sum(report.processor_s for report in counted),
        joules=_sum(report.energy_j for report in counted),
    )


def _sum(values: Iterable[float | None]) -> float | msgspec.UnsetType:
    """Of those that are said; unset where none is."""
    said = [value for value in values if value is not None]
    return math.fsum(said) if said else msgspec.UNSET


def _mean(weights: Mapping[str, int], values: Mapping[str, float]) -> float:
    return sum(values[device] * weight for device, weight in weights.items()) / sum(weights.values())
