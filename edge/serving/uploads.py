"""Updates on their way in: offered, granted, received block by block, checked, kept, acknowledged.

An update counts when its blob is on disk and its report is kept; only then is it acknowledged. Every handler is
idempotent; whose message it is and whether it can be read is :mod:`edge.serving.dispatch`'s. What was ordered, and
where updates and reports are kept, is for an :class:`UpdateBook`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from edge.contracts.codec import build_readers
from edge.contracts.envelope import Envelope
from edge.contracts.errors import ArtifactCorrupt, FigureRejected, MessageRejected, UpdateRejected
from edge.contracts.manifest import check_digest
from edge.contracts.messages import Ack, Grant, Offer, Put
from edge.contracts.plan import BlobRef
from edge.contracts.report import TrainReport
from edge.serving.admission import UPLOADS_AT_ONCE, Admission
from edge.serving.publisher import Publisher
from edge.serving.update_check import check_report
from profiles.bounds import Name

UPLOAD_WINDOW = 3
"""Blocks on their way: what a broken connection may cost, 2 % of 20 MB. 30 Mbit/s over 100 ms still fill the link."""
UPLOAD_BLOCK_BYTES = 131_072

LOOK_BYTES = 1 << 20
UPLOAD_TRIES = 3
"""Uploads of one assignment whose bytes do not have the announced digest; the last one rejects the update."""


class Ordered(Protocol):
    """One device's part of a round."""

    @property
    def assignment_id(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def round(self) -> int: ...


class PartialUpload(Protocol):
    """An upload in progress: ``received`` bytes of the encoded ``update`` are here, from the first on without a gap.

    ``write`` appends what is the next piece. ``finish`` makes a blob of it; it is falsy when some is to come and raises
    ArtifactCorrupt for other bytes than the announced, of which nothing is kept.
    """

    update: BlobRef

    @property
    def received(self) -> int: ...
    def write(self, offset: int, data: bytes) -> int: ...
    def finish(self) -> object: ...


A = TypeVar("A", bound=Ordered)


class UpdateBook(Protocol[A]):
    """What was ordered, and what is here of it."""

    def own(self, device: str, assignment_id: str) -> A | None:
        """The assignment if it is this device's open one; else the device is told what has become of it.

        Raises:
            MessageRejected: it is another device's.
        """

    def partial(self, entry: A, update: BlobRef) -> PartialUpload:
        """Where ``update`` goes. Raises UpdateRejected when it cannot be what was ordered."""

    def has(self, digest: str) -> bool:
        """Whether an update is here as a whole."""

    def examples(self, entry: A) -> int | None:
        """How many the device said it has; None = it said no hello to this process."""

    def check(self, entry: A, digest: str, where: str) -> None:
        """Raises UpdateRejected when the update does not hold what was ordered."""

    def record(self, entry: A, report: TrainReport) -> None:
        """Keep the report of an update that counts."""

    def reject(self, entry: A, error: UpdateRejected) -> None:
        """Keep why the device gives no update."""


class UploadPlace(NamedTuple):
    """How far an upload has come, and where it ends; in bytes as they travel."""

    received: int
    size: int


class _Upload:
    """An update on its way: whose, and whether it is here as a whole, looked up when it was offered."""

    def __init__(self, device: str, partial: PartialUpload, *, is_here: bool) -> None:
        self.device = device
        self.partial = partial
        self.is_here = is_here

    @property
    def place(self) -> UploadPlace:
        size = self.partial.update.encoded_size
        return UploadPlace(size if self.is_here else self.partial.received, size)


class UploadHandler(Generic[A]):
    """Handles ``offer``, ``put`` and ``report``, one message at a time, and pieces that come by other ways.

    Args:
        at_rest: a context in which no message is handled; a partial upload has one writer.
        say: progress lines for people.
        on_point: called with the name of every point at which a crash may come.
        notify: called when an assignment's state changed.
        at_once: uploads that have their grants at the same time.
        look_bytes: after how many it is looked up whether an update is wanted still.

    Attributes:
        handlers: by message kind.
    """

    def __init__(
        self,
        book: UpdateBook[A],
        publisher: Publisher,
        say: Callable[[str], None],
        *,
        at_rest: AbstractContextManager[object] | None = None,
        on_point: Callable[[str], None] = lambda point: None,
        notify: Callable[[], None] = lambda: None,
        at_once: int = UPLOADS_AT_ONCE,
        look_bytes: int = LOOK_BYTES,
        window: int = UPLOAD_WINDOW,
    ) -> None:
        self._book = book
        self._publisher = publisher
        self._say = say
        self._at_rest = at_rest or contextlib.nullcontext()
        self._on_point = on_point
        self._notify = notify
        self._look_bytes = look_bytes
        self._window = window
        self._uploads: dict[str, _Upload] = {}
        self._admission = Admission(at_once)
        self._corrupt_uploads: dict[str, int] = {}
        self.handlers: dict[str, Callable[[str, Envelope], None]] = {
            "offer": self._offer,
            "put": self._put,
            "report": self._report,
        }

    def _offer(self, device: str, envelope: Envelope) -> None:
        offer = envelope.read(Offer)
        if self._waits(device, offer):
            return
        entry = self._book.own(device, offer.assignment_id)
        if entry is None:
            self.forget(offer.assignment_id)
            return
        check_digest(offer.update.digest, where=f"device {device}, offer")
        try:
            partial = self._book.partial(entry, offer.update)
        except UpdateRejected as error:
            self._reject(entry, error)
            return
        upload = self._keep(entry, partial)
        self._publisher.budgets.offered(device, entry.assignment_id, offer.update.encoded_size)
        if self._admission.ask(entry.assignment_id):
            self._grant(entry.assignment_id, upload)

    def _keep(self, entry: A, partial: PartialUpload) -> _Upload:
        upload = _Upload(entry.device, partial, is_here=self._book.has(partial.update.digest))
        self._uploads[entry.assignment_id] = upload
        return upload

    def _upload_of(self, device: str, assignment_id: str) -> _Upload | None:
        upload = self._uploads.get(assignment_id)
        return upload if upload is not None and upload.device == device else None

    def _waits(self, device: str, offer: Offer) -> bool:
        """Whether ``offer`` was made before and still has no place: thousands say so again every few seconds, and each
        look at what was ordered takes time from those that have one."""
        upload = self._upload_of(device, offer.assignment_id)
        is_known = upload is not None and upload.partial.update == offer.update
        is_waiting = is_known and self._admission.is_waiting(offer.assignment_id)
        return is_waiting and not self._admission.ask(offer.assignment_id)

    def _put(self, device: str, envelope: Envelope) -> None:
        put = envelope.read(Put)
        upload = self._upload_of(device, put.assignment_id)
        if upload is None or upload.partial.update.digest != put.digest:
            return  # not offered to this process: the device stalls, offers again and is told where to go on
        # Whether it is wanted still is looked up now and then: nothing counts before its report.
        if put.offset % self._look_bytes == 0 and self._book.own(device, put.assignment_id) is None:
            self.forget(put.assignment_id)
            return
        self._admission.heard(put.assignment_id)
        if not upload.is_here:
            before = upload.partial.received
            payload = upload.partial.write(put.offset, put.data) - before
            self._publisher.account.add(device, "up", "mqtt", payload=payload)
            self._on_point("mid-upload")
        self._grant(put.assignment_id, upload)

    def place(self, device: str, assignment_id: str) -> UploadPlace | None:
        """Where an upload goes on that comes by other ways than ``put``; None when it has no grant or is not wanted.

        Any thread may ask.

        Raises:
            MessageRejected: the assignment is another device's.
        """
        with self._at_rest:
            upload = self._upload_of(device, assignment_id)
            if self._book.own(device, assignment_id) is None:
                self.forget(assignment_id)
                return None
            if upload is None or self._admission.is_waiting(assignment_id):
                return None
            self._admission.heard(assignment_id)
            return upload.place

    def write(self, device: str, assignment_id: str, offset: int, data: bytes) -> int:
        """Bytes that are here after ``data``, which came over HTTPS, of an upload that had a :meth:`place`.

        Raises:
            MessageRejected: it was offered to somebody else since, or passes its size.
            StoreFull: the disk does not take it.
        """
        with self._at_rest:
            upload = self._upload_of(device, assignment_id)
            if upload is None:
                raise MessageRejected(f"upload of assignment {assignment_id[:12]} is over; offer it again")
            self._admission.heard(assignment_id)
            if not upload.is_here:
                upload.partial.write(offset, data)
                self._on_point("mid-upload")
            received = upload.place.received
        self._publisher.account.add(device, "up", "https", payload=max(0, received - offset), wire=len(data))
        return received

    def _grant(self, assignment_id: str, upload: _Upload) -> None:
        update, received = upload.partial.update, upload.place.received
        grant = Grant(assignment_id, update.digest, received, UPLOAD_BLOCK_BYTES, self._window)
        self._publisher.grant(upload.device, grant)

    def _report(self, device: str, envelope: Envelope) -> None:
        try:
            report, wrong = envelope.read(TrainReport), None
        except FigureRejected as error:
            report, wrong = None, error
        identity = envelope.read(Addressed).assignment_id if report is None else report.assignment_id
        entry = self._book.own(device, identity)
        if entry is None:
            return
        where = f"device {device}, round {entry.round}"
        try:
            if report is None:  # it would be repeated for ever
                raise UpdateRejected(f"{where}: {wrong}") from wrong
            digest = check_digest(report.update.digest, where=f"{where}, report")
            examples = self._book.examples(entry)
            if examples is None:  # it reports again, and until then says what its update may weigh
                self._publisher.call(device)
                return
            check_report(report, device=entry.device, round_index=entry.round, where=where, examples=examples)
            if not self._book.has(digest) and not self._finish_upload(entry, report.update, where):
                return
            self._book.check(entry, digest, where)
        except UpdateRejected as error:
            self._reject(entry, error)
            return
        self._on_point("blob-stored")
        self._book.record(entry, report)
        self._on_point("recorded")
        self.forget(entry.assignment_id)
        self._publisher.ack(device, Ack(entry.assignment_id, True))
        self._on_point("acknowledged")
        self._notify()

    def _finish_upload(self, entry: A, update: BlobRef, where: str) -> bool:
        """Whether the uploaded bytes are the announced ones; when not, the device is asked for them again."""
        upload = self._uploads.get(entry.assignment_id)
        if upload is None or upload.partial.update != update:
            upload = self._keep(entry, self._book.partial(entry, update))
        upload.is_here = False
        try:
            upload.is_here = bool(upload.partial.finish())
        except ArtifactCorrupt as error:
            tries = self._corrupt_uploads.get(entry.assignment_id, 0) + 1
            if tries == UPLOAD_TRIES:
                raise UpdateRejected(f"{where}: {tries} uploads and never the announced bytes: {error}") from error
            self._corrupt_uploads[entry.assignment_id] = tries
            self._say(f"{where}: {error}")
        if not upload.is_here:
            self._grant(entry.assignment_id, upload)
        return upload.is_here

    def _reject(self, entry: A, error: UpdateRejected) -> None:
        self._book.reject(entry, error)
        self._say(f"update rejected: {error}")
        self.forget(entry.assignment_id)
        self._publisher.ack(entry.device, Ack(entry.assignment_id, False, error.code, str(error)[:1000]))
        self._notify()

    def forget(self, assignment_id: str) -> None:
        """Take nothing more of an upload; whoever waited for its turn has it."""
        self._uploads.pop(assignment_id, None)
        self._corrupt_uploads.pop(assignment_id, None)
        for following in self._admission.leave(assignment_id):
            if following in self._uploads:
                self._grant(following, self._uploads[following])


class Addressed(msgspec.Struct):
    """What every message about an assignment has, whatever else it holds."""

    assignment_id: Name


build_readers(Addressed)
