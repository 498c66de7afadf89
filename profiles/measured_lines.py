"""What was measured on a device and fitted: a file ``measured.json`` in its agent's store, which its hello carries.

``apportion profile`` writes it, on the device or for it; the agent reads it again whenever it changes.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from profiles.device import DeviceProfile, MemoryLine, StepLine
from profiles.stored_profile import ProfileUnusable, write_whole

log = logging.getLogger("apportion.profile")

SCHEMA = "apportion.measured-lines/1"
FILE_NAME = "measured.json"
MAX_BYTES = 1 << 16


class MeasuredLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one device, fields as in :class:`~profiles.device.DeviceProfile`."""

    schema: str = SCHEMA
    memory_lines: dict[str, MemoryLine] = {}
    step_lines: dict[str, tuple[StepLine, ...]] = {}

    def merged_into(self, older: MeasuredLines) -> MeasuredLines:
        """Both, a runtime's newer lines in place of its older ones."""
        return MeasuredLines(
            memory_lines={**older.memory_lines, **self.memory_lines},
            step_lines={**older.step_lines, **self.step_lines},
        )

    def put_into(self, profile: DeviceProfile) -> DeviceProfile:
        """``profile`` with these lines, and its own for runtimes that these say nothing of."""
        told = [name for name in ("memory_lines", "step_lines") if getattr(self, name)]
        return msgspec.structs.replace(
            profile,
            sources={**profile.sources, **dict.fromkeys(told, FILE_NAME)},
            memory_lines={**profile.memory_lines, **self.memory_lines},
            step_lines={**profile.step_lines, **self.step_lines},
        )


NOTHING = MeasuredLines()


def write_measured_lines(folder: Path, lines: MeasuredLines) -> Path:
    """The file in ``folder`` that now holds ``lines``, and what it held of other runtimes; a broken one is replaced.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    try:
        older = read_measured_lines(folder)
    except ProfileUnusable:
        older = NOTHING
    data = msgspec.json.format(msgspec.json.encode(lines.merged_into(older), order="deterministic"), indent=2) + b"\n"
    return write_whole(folder / FILE_NAME, data)


def read_measured_lines(folder: Path) -> MeasuredLines:
    """What ``folder`` has; nothing when it has no such file.

    Raises:
        ProfileUnusable: there is one and it cannot be read as one.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise ProfileUnusable(f"{path}: {error.strerror}; measure the device again") from error
    try:
        found = msgspec.json.decode(data, type=MeasuredLines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileUnusable(f"{path}: {error}; measure the device again") from error
    if len(data) > MAX_BYTES or found.schema != SCHEMA:
        raise ProfileUnusable(f"{path}: not a file of {SCHEMA!r}; measure the device again, or upgrade the agent")
    return found


class WatchedLines:
    """The lines in a store's folder, read again when the file has changed; a broken file counts as none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._lines = NOTHING

    def now(self) -> MeasuredLines:
        """The lines as they are on the disk."""
        try:
            told = (self._folder / FILE_NAME).stat()
            seen = (told.st_mtime_ns, told.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen, self._lines = seen, NOTHING
            try:
                self._lines = read_measured_lines(self._folder)
            except ProfileUnusable as error:
                log.warning("%s", error)
        return self._lines
