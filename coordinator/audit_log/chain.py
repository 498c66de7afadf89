"""Whether the entries of an audit log are those that were written: each follows the one before, none was changed.

Whoever can write to a log can also write all of it anew. What shows that is a head that was kept elsewhere, signed:
:mod:`coordinator.audit_log.head`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from coordinator.audit_log.entry import FIRST, Entry, Event, read_line


class Checked(msgspec.Struct, frozen=True):
    """What a check of a chain came to.

    Attributes:
        count: entries that were read.
        head: digest of the last one; that of no entry where there is none.
        last: its number.
        findings: what is wrong, a line each, in the order of the entries.
        digests: number -> digest of every entry.
    """

    count: int
    head: str
    last: int
    findings: tuple[str, ...]
    digests: dict[int, str]


def appended(events: Sequence[Event], last: tuple[int, str] | None) -> list[Entry]:
    """``events`` as entries after ``last``, the number and digest of the newest one; None: there is none."""
    number, previous = last or (0, FIRST)
    entries = []
    for event in events:
        number += 1
        entries.append(Entry.of(event, number=number, at_ms=round(time.time() * 1000), previous=previous))
        previous = entries[-1].digest
    return entries


def check_entries(entries: Iterable[Entry | str]) -> Checked:
    """Hold every entry against its digest and the one before.

    Args:
        entries: in the order they are kept in; a text is a finding in the place of an entry that cannot be read.
    """
    findings: list[str] = []
    digests: dict[int, str] = {}
    count, last, head = 0, 0, FIRST
    for entry in entries:
        if isinstance(entry, str):
            findings.append(entry)
            last, head = last + 1, ""  # what follows it can be held against nothing
            continue
        count += 1
        findings += _wrong(entry, last, head)
        digests[entry.number] = entry.digest
        last, head = entry.number, entry.digest
    return Checked(count, head, last, tuple(findings), digests)


def _wrong(entry: Entry, last: int, head: str) -> Iterator[str]:
    here = f"entry {entry.number} ({entry.action})"
    if entry.number <= last:
        yield f"{here} stands behind entry {last}: the order was changed, or one is there twice"
    elif entry.number > last + 1:
        gone = f"entry {last + 1} is" if entry.number == last + 2 else f"entries {last + 1} to {entry.number - 1} are"
        yield f"{gone} missing: entry {entry.number} follows entry {last}"
    elif head and entry.previous != head:
        yield (
            f"{here} was written after another entry {last} than the one here, whose digest is "
            f"{head[:12]} and not {entry.previous[:12]}: entry {last} was replaced"
        )
    if (found := entry.computed()) != entry.digest:
        yield f"{here} was changed: its digest is {entry.digest[:12]}, what it says gives {found[:12]}"


def read_entries(lines: Iterable[bytes]) -> Iterator[Entry | str]:
    """The entries of an exported log; a text for each line that is none."""
    for number, line in enumerate(lines, start=1):
        try:
            yield read_line(line)
        except ValueError as error:
            yield f"line {number} is no entry: {error}"
