"""One order of a relay on disk: what was ordered, whose updates are in, and which of them count.

::

    <root>/<assignment id>/record            the order, the devices it was handed to, when its time is over
    <root>/<assignment id>/reports/<device>  of a device whose update is in the store, checked
    <root>/<assignment id>/refused/<device>  why a device gives none
    <root>/<assignment id>/closed            the devices whose updates are summed

Each is written whole and synced before anybody is told, so that a killed relay goes on where it was: a device that was
acknowledged is in ``reports``, and once ``closed`` is there nothing changes which updates the sum is made of.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Hello
from edge.contracts.plan import WorkOrder, assignment_id
from edge.contracts.report import TrainReport
from edge.contracts.streams import stream_seed
from edge.supervisor.assignment import order_identity
from edge.system.atomic_files import publish_file, sync

MAX_RECORD_BYTES = 1 << 20


class SiteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a restarted relay needs.

    Attributes:
        hello: as the relay last said it before it handed the order out.
        examples: of each device that the order was handed to, by id; empty before.
        accepted_at, deadline_at: by the wall clock, seconds since 1970; a deadline of 0 is none.
        bytes_down: what the order's blobs took on their way from the coordinator.
    """

    order: WorkOrder
    hello: Hello
    examples: dict[str, int]
    accepted_at: float
    deadline_at: float
    bytes_down: int = 0

    @classmethod
    def taken(cls, order: WorkOrder, hello: Hello) -> SiteRecord:
        """``order``, its time running from now."""
        now = time.time()
        ends_at = now + order.deadline_s if order.deadline_s > 0 else 0.0
        return cls(order=order, hello=hello, examples={}, accepted_at=now, deadline_at=ends_at)


@dataclass
class SiteWork:
    """The work in hand. Everything said about it here is on disk."""

    folder: Path
    record: SiteRecord
    reports: dict[str, TrainReport] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    closed: tuple[str, ...] | None = None
    _ends_at: float = float("inf")

    def __post_init__(self) -> None:
        self._count_time()

    @classmethod
    def begin(cls, root: Path, record: SiteRecord) -> SiteWork:
        """New work; what lies under its id is removed.

        Raises:
            OSError: it cannot be kept; nothing of it is left.
        """
        folder = root / record.order.assignment_id
        shutil.rmtree(folder, ignore_errors=True)
        try:
            for name in ("reports", "refused"):
                (folder / name).mkdir(parents=True)
            work = cls(folder, record)
            work.update(record)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return work

    @classmethod
    def load(cls, root: Path) -> SiteWork | None:
        """The work that was in hand, everything else below ``root`` removed."""
        root.mkdir(parents=True, exist_ok=True)
        found: SiteWork | None = None
        for folder in sorted(root.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            work = _read(folder) if found is None else None
            if work is None:
                shutil.rmtree(folder)
            else:
                found = work
        return found

    @property
    def order(self) -> WorkOrder:
        """As the coordinator gave it."""
        return self.record.order

    @property
    def is_handed_out(self) -> bool:
        """Whether the site's devices have their orders, or get them when they are heard of."""
        return bool(self.record.examples)

    @property
    def identity(self) -> str:
        """Equal for a repeated order only."""
        return order_identity(self.order)

    def open_devices(self) -> list[str]:
        """Devices that have neither reported nor refused, by id."""
        return [d for d in sorted(self.record.examples) if d not in self.reports and d not in self.refused]

    def assignment_of(self, device: str) -> str:
        """The id of the device's part: another one for every order, the same after a restart."""
        return assignment_id(self.identity, self.order.round, device, self.order.attempt)

    def device_order(self, device: str, *, site: str, deadline_s: float) -> WorkOrder:
        """The device's part of the order: the same work, in a batch order of the device's own.

        Its ``data_seed`` is the stream (the order's ``data_seed``, ``batch-order``, round, device).
        """
        order = self.order
        return msgspec.structs.replace(
            order,
            assignment_id=self.assignment_of(device),
            federation=site,
            device=device,
            data_seed=stream_seed(order.data_seed, "batch-order", order.round, device),
            deadline_s=deadline_s,
            bulk="",  # tickets of this relay, at an address of the coordinator
            upload_to="",
            summable=False,
        )

    def remaining_s(self) -> float:
        """Seconds until the coordinator's deadline; infinite when there is none."""
        return self._ends_at - time.monotonic()

    def collect_s(self, share: float, bytes_per_s: float | None) -> float:
        """Seconds the devices still have, ``share`` of the order's time without what the upload takes; or infinite.

        Args:
            bytes_per_s: of the link to the coordinator, None if not known.
        """
        if not self.record.deadline_at:
            return float("inf")
        upload_s = self.order.weights.size / bytes_per_s if bytes_per_s else 0.0
        return self.remaining_s() - (1 - share) * (self.record.deadline_at - self.record.accepted_at) - upload_s

    def update(self, record: SiteRecord) -> None:
        """Keep ``record`` in place of the one before."""
        _write(self.folder / "record", encode_msgpack(record))
        self.record = record
        self._count_time()

    def count(self, report: TrainReport) -> None:
        """Keep a device's report; its update is in the store."""
        _write(self.folder / "reports" / report.device, encode_msgpack(report))
        self.reports[report.device] = report

    def refuse(self, device: str, reason: str) -> None:
        """Keep that ``device`` gives no update."""
        _write(self.folder / "refused" / device, reason.encode())
        self.refused[device] = reason

    def close(self) -> None:
        """From now on the updates that are in are the ones that count."""
        if self.closed is None:
            closed = tuple(sorted(self.reports))
            _write(self.folder / "closed", "\n".join(closed).encode())
            self.closed = closed

    def _count_time(self) -> None:
        # The wall clock counts while no relay runs, and may jump: within a process the monotonic one counts.
        left = self.record.deadline_at - time.time() if self.record.deadline_at else float("inf")
        self._ends_at = time.monotonic() + left

    def forget(self) -> None:
        """Remove it; the record goes first."""
        (self.folder / "record").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(folder: Path) -> SiteWork | None:
    try:
        record = decode_msgpack((folder / "record").read_bytes(), SiteRecord, limit=MAX_RECORD_BYTES)
        if record.order.assignment_id != folder.name:
            return None
        work = SiteWork(folder, record)
        for path in (folder / "reports").glob("*"):
            if path.name in record.examples:
                work.reports[path.name] = decode_msgpack(path.read_bytes(), TrainReport, limit=MAX_RECORD_BYTES)
        for path in (folder / "refused").glob("*"):
            if path.name in record.examples:
                work.refused[path.name] = path.read_text(encoding="utf-8", errors="replace")
        closed = folder / "closed"
        if closed.exists():
            work.closed = tuple(closed.read_text(encoding="ascii").split())
    except (OSError, MessageRejected):
        return None
    return work


def _write(path: Path, data: bytes) -> None:
    # Temporary names begin with a character that no device id does.
    temporary = path.with_name(f"_{hashlib.sha256(path.name.encode()).hexdigest()[:16]}")
    with temporary.open("wb") as file:
        file.write(data)
        sync(file)
    publish_file(temporary, path)
