"""Assignments that are trained but not yet acknowledged, kept on disk so that a killed agent does not train them again.

Order of writing: the update, synced; then the record that names it. A folder without a record is garbage. A disk that
takes one of them only later costs nothing but the time in which a killed agent would have to train again.
What rounding took from an update lies beside it and counts once the update does: it takes its predecessor's place when
the coordinator has accepted the report, and is forgotten with the assignment otherwise.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.errors import ApportionError, MessageRejected, StoreFull
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.topics import check_name
from edge.releases.own_tensors import kept_at, tuned_at
from edge.supervisor import control_variates
from edge.system.atomic_files import publish_file, sync, write_whole
from edge.transfer.artifact_store import CHUNK_BYTES, check_encoded

log = logging.getLogger("apportion.agent")

MAX_RECORD_BYTES = 1 << 20
SAVE_AGAIN_S = 5.0
"""Between tries to keep finished work on a disk that does not take it."""


class FinishedRecord(msgspec.Struct, frozen=True):
    """A finished assignment: its order, and the report that still has to be acknowledged."""

    order: WorkOrder
    report: TrainReport


class FinishedWork:
    """The finished assignments below ``folder``, one sub-folder each.

    Attributes:
        problem: what the disk does not take, in a sentence; empty: nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: set[Path] = set()
        self._unsaved: FinishedRecord | None = None
        self._save_at = 0.0
        self.problem = self._told = ""
        folder.mkdir(parents=True, exist_ok=True)

    def update_path(self, assignment_id: str) -> Path:
        """Where the encoded update of the assignment lies; its folder exists.

        Raises:
            StoreFull: the disk has no room for the folder.
        """
        path = self._path(assignment_id)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreFull(f"{path.parent}: cannot be made ({error.strerror or error}); free disk space") from error
        return path

    def new_update_path(self, assignment_id: str) -> Path:
        """Where a trainer writes the update of the assignment before :meth:`save`: it lies there from then on."""
        return self.update_path(assignment_id)

    def left_over_path(self, order: WorkOrder) -> Path:
        """Where that lies which rounding took from accepted updates of the same federation and cut, if there is any."""
        cut = hashlib.sha256(f"{order.federation}\n{order.cut_digest}".encode()).hexdigest()
        return self._folder.parent / "left-over" / cut

    def new_left_over_path(self, order: WorkOrder) -> Path | None:
        """Where a trainer writes it for ``order`` before :meth:`save`; None where none is kept."""
        made = self._new_left_over(order)
        if made is not None:
            self.update_path(order.assignment_id)
        return made

    def _new_left_over(self, order: WorkOrder) -> Path | None:
        if order.precision == "fp32" or not order.cut_digest:
            return None
        return self._path(order.assignment_id).with_name("left-over")

    def personal_path(self, order: WorkOrder) -> Path:
        """Where the device's own layers for the run of ``order`` lie, if it has any."""
        return kept_at(self._folder.parent, order)

    def new_personal_path(self, order: WorkOrder) -> Path | None:
        """Where a trainer writes them for ``order`` before :meth:`save`; None where it names none."""
        made = self._new_personal(order)
        if made is not None:
            self.update_path(order.assignment_id)
        return made

    def _new_personal(self, order: WorkOrder) -> Path | None:
        is_kept = order.own_layers and self._new_tuned(order) is None  # a fine-tuning has its own file, if it helps
        return self._path(order.assignment_id).with_name("personal") if is_kept else None

    def new_tuned_path(self, order: WorkOrder) -> Path | None:
        """Where a trainer writes what it keeps of a fine-tuning before :meth:`save`; None where ``order`` is none."""
        made = self._new_tuned(order)
        if made is not None:
            self.update_path(order.assignment_id)
            made.unlink(missing_ok=True)  # of a training that was cut short: this one may not help
        return made

    def _new_tuned(self, order: WorkOrder) -> Path | None:
        is_tuning = order.held_out_share is not None and bool(order.held_out_share.tuned)
        return self._path(order.assignment_id).with_name("tuned") if is_tuning else None

    def variates_path(self, order: WorkOrder) -> Path | None:
        """Where the control variates lie that ``order`` goes on from, if the device has them; None where it names none.

        Raises:
            MessageRejected: it names no assignment.
        """
        return control_variates.kept_at(self._folder.parent, order, order.variates_of) if order.variates_of else None

    def new_variates_path(self, order: WorkOrder) -> Path | None:
        """Where a trainer writes those that ``order`` leaves before :meth:`save`; None where it has none."""
        made = self._new_variates(order)
        if made is not None:
            self.update_path(order.assignment_id)
        return made

    def _new_variates(self, order: WorkOrder) -> Path | None:
        is_training = any(turn.program.startswith("train") for turn in order.schedule.turns)
        return self._path(order.assignment_id).with_name("variates") if order.keeps_variates and is_training else None

    def _path(self, assignment_id: str) -> Path:
        return self._folder / check_name(assignment_id, what="assignment id") / "update"

    def keep(self, record: FinishedRecord) -> None:
        """As :meth:`save`, now, or by :meth:`tick` once the disk takes it: what matters is that it can be sent."""
        try:
            self.save(record)
            self._unsaved, self.problem = None, ""
        except (OSError, ApportionError) as error:
            self._unsaved, self._save_at = record, time.monotonic() + SAVE_AGAIN_S
            self.problem = f"the finished update is not kept on disk yet: {error}"[:500]
            log.warning("assignment %s: %s", record.order.assignment_id[:12], self.problem)

    def tick(self, now: float) -> None:
        """Try again what the disk did not take, when it is time."""
        if self._unsaved is not None and now >= self._save_at:
            self.keep(self._unsaved)

    def take_news(self) -> bool:
        """Whether the disk began or ceased to take what is written since the last call."""
        is_news, self._told = bool(self.problem) != bool(self._told), self.problem
        return is_news

    def save(self, record: FinishedRecord) -> None:
        """Keep ``record`` and the update file that lies at :meth:`new_update_path`; may be repeated until it succeeds.

        Raises:
            OSError: the disk does not take it. The update lies where it lay, and can be sent.
            ArtifactCorrupt: what the disk has left of the update is not the update.
        """
        path = self.update_path(record.order.assignment_id)
        left_over = self._new_left_over(record.order)
        if left_over is not None and left_over.exists():
            try:
                _sync_file(left_over)
            except OSError:
                left_over.unlink()  # no more than a little accuracy
        for own in (self._new_personal(record.order), self._new_tuned(record.order)):
            if own is not None and own.exists():
                _sync_file(own)
        variates = self._new_variates(record.order)
        if variates is not None and variates.exists():
            self._keep_variates(variates, record.order)
        self._make_durable(path, record.report.update)
        write_whole(path.with_name("record"), encode_msgpack(record))

    def _keep_variates(self, made: Path, order: WorkOrder) -> None:
        """Whether the update counts a later order says; until then there are two."""
        _sync_file(made)
        path = control_variates.kept_at(self._folder.parent, order, order.assignment_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_file(made, path)
        control_variates.remove_others(self._folder.parent, order)

    def _make_durable(self, path: Path, update: BlobRef) -> None:
        if path not in self._failed:
            self._failed.add(path)
            _sync_file(path)
        else:
            # A sync that failed is not tried again: what is readable yet is held against its digest and written anew.
            copy = path.with_name("update.tmp")
            copy.unlink(missing_ok=True)
            try:
                with path.open("rb") as source, copy.open("xb") as file:
                    shutil.copyfileobj(source, file, CHUNK_BYTES)
                    sync(file)
                check_encoded(copy, update)
                publish_file(copy, path)
            finally:
                copy.unlink(missing_ok=True)
        self._failed.discard(path)

    def settle(self, order: WorkOrder, *, is_accepted: bool) -> None:
        """Remove the assignment; where its update counts, what rounding took from it is added to the next one."""
        tuned = tuned_at(self._folder.parent, order)
        for new, path in ((self._new_personal(order), self.personal_path(order)), (self._new_tuned(order), tuned)):
            if not is_accepted or new is None:
                continue
            try:
                if new.exists():
                    path.parent.mkdir(exist_ok=True)
                    publish_file(new, path)
                elif path == tuned:
                    path.unlink(missing_ok=True)  # the fine-tuning did not help: the device has the common model
            except OSError as error:
                log.warning("what this round trained for this device alone is lost, what was there is kept: %s", error)
        made, path = self._new_left_over(order), self.left_over_path(order)
        if is_accepted and made is not None and made.exists():
            try:
                path.parent.mkdir(exist_ok=True)
                for other in path.parent.iterdir():
                    if other != path:  # of cuts that this device no longer has
                        other.unlink()
                publish_file(made, path)
            except OSError as error:
                log.warning("what rounding left over is lost: %s", error)  # no more than a little accuracy
        self.forget(order.assignment_id)

    def forget(self, assignment_id: str) -> None:
        """Remove the assignment; the record goes first."""
        path = self._path(assignment_id)
        path.with_name("record").unlink(missing_ok=True)
        self._failed.discard(path)
        self._unsaved, self.problem = None, ""
        if path.parent.exists():
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


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        sync(file)
