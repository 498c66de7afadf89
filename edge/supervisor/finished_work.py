"""Assignments that are trained but not yet acknowledged, kept on disk so that a killed agent does not train them again.

Order of writing: the update, synced and renamed; then the record that names it. A folder without a record is garbage.
What rounding took from an update lies beside it and counts once the update does: it takes its predecessor's place when
the coordinator has accepted the report, and is forgotten with the assignment otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.errors import MessageRejected
from edge.contracts.plan import WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.topics import check_name
from edge.system.atomic_files import publish_file, sync

MAX_RECORD_BYTES = 1 << 20


class FinishedRecord(msgspec.Struct, frozen=True):
    """A finished assignment: its order, and the report that still has to be acknowledged."""

    order: WorkOrder
    report: TrainReport


class FinishedWork:
    """The finished assignments below ``folder``, one sub-folder each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def update_path(self, assignment_id: str) -> Path:
        """Where the encoded update of the assignment lies; its folder exists."""
        folder = self._folder / check_name(assignment_id, what="assignment id")
        folder.mkdir(exist_ok=True)
        return folder / "update"

    def new_update_path(self, assignment_id: str) -> Path:
        """Where a trainer writes the update of the assignment before :meth:`save`."""
        return self.update_path(assignment_id).with_name("update.tmp")

    def left_over_path(self, order: WorkOrder) -> Path:
        """Where that lies which rounding took from accepted updates of the same federation and cut, if there is any."""
        cut = hashlib.sha256(f"{order.federation}\n{order.cut_digest}".encode()).hexdigest()
        return self._folder.parent / "left-over" / cut

    def new_left_over_path(self, order: WorkOrder) -> Path | None:
        """Where a trainer writes it for ``order`` before :meth:`save`; None where none is kept."""
        if order.precision == "fp32" or not order.cut_digest:
            return None
        return self.update_path(order.assignment_id).with_name("left-over")

    def save(self, record: FinishedRecord) -> None:
        """Keep ``record`` and the update file that lies at :meth:`new_update_path`."""
        written = self.new_update_path(record.order.assignment_id)
        with written.open("rb+") as file:
            sync(file)
        left_over = self.new_left_over_path(record.order)
        if left_over is not None and left_over.exists():
            with left_over.open("rb+") as file:
                sync(file)
        path = self.update_path(record.order.assignment_id)
        publish_file(written, path)
        temporary = path.with_name("record.tmp")
        with temporary.open("wb") as file:
            file.write(encode_msgpack(record))
            sync(file)
        publish_file(temporary, path.with_name("record"))

    def settle(self, order: WorkOrder, *, is_accepted: bool) -> None:
        """Remove the assignment; where its update counts, what rounding took from it is added to the next one."""
        made, path = self.new_left_over_path(order), self.left_over_path(order)
        if is_accepted and made is not None and made.exists():
            path.parent.mkdir(exist_ok=True)
            for other in path.parent.iterdir():
                if other != path:  # of cuts that this device no longer has
                    other.unlink()
            publish_file(made, path)
        self.forget(order.assignment_id)

    def forget(self, assignment_id: str) -> None:
        """Remove the assignment; the record goes first."""
        path = self.update_path(assignment_id)
        path.with_name("record").unlink(missing_ok=True)
        shutil.rmtree(path.parent)

    def load(self) -> FinishedRecord | None:
        """The newest finished assignment, everything else below the folder removed."""
        newest: FinishedRecord | None = None
        for path in sorted(self._folder.iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True):
            record = self._read(path)
            if record is None or newest is not None:
                shutil.rmtree(path) if path.is_dir() else os.unlink(path)
            else:
                newest = record
        return newest

    def _read(self, folder: Path) -> FinishedRecord | None:
        try:
            data = (folder / "record").read_bytes()
            record = decode_msgpack(data, FinishedRecord, limit=MAX_RECORD_BYTES)
            size = (folder / "update").stat().st_size
        except (OSError, MessageRejected):
            return None
        # The same name guards forget(): a record moved to another folder would remove the wrong one.
        is_whole = record.order.assignment_id == folder.name and size == record.report.update.encoded_size
        return record if is_whole else None
