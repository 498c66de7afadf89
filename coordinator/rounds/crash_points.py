"""The named points of a run at which it may be killed, each with what is on disk there.

Code passes a point by calling ``on_point(name)``, see :class:`coordinator.rounds.federation.Federation`; tests end the
process there and hold that a resumed run loses nothing and counts nothing twice. A point that is not listed here
raises, so the list is whole: whoever kills at every one of :data:`POINTS` has killed wherever something changes on
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["round", "upload", "commit", "release"]


@dataclass(frozen=True)
class Point:
    """One point.

    Attributes:
        name: as given to ``on_point``; a point that is passed for every update of a sum has ``-<number>`` behind it.
        on_disk: what a process that is killed here leaves.
        modes: of ``[aggregation]`` that pass it in every run.
        numbered: passed as ``<name>-0``, ``<name>-1``, ...
    """

    name: str
    part: Part
    on_disk: str
    modes: tuple[str, ...] = ("synchronous", "buffered")
    numbered: bool = False


_POINTS = (
    Point("before-plan", "round", "nothing of the attempt; artifacts and weights it was to use are blobs"),
    Point("planned", "round", "the attempt and its assignments; nothing was sent"),
    Point("published", "round", "the attempt is published; orders may be with the broker"),
    Point("collecting", "round", "the attempt is collecting; any of its assignments may be answered"),
    Point("before-orders", "round", "weights of further orders of an open version are blobs", modes=("buffered",)),
    Point("ordered", "round", "further assignments of an open version; not sent", modes=("buffered",)),
    Point("mid-upload", "upload", "a block of an update in its partial file, not granted"),
    Point("blob-stored", "upload", "an update's blob, whole and checked; no row, so it does not count yet"),
    Point("recorded", "upload", "an update's row: it counts; the device was not told"),
    Point("acknowledged", "upload", "an update's row; its acknowledgement may be with the broker"),
    Point("aggregating", "commit", "which updates are summed; nothing of the sum"),
    Point("aggregated", "commit", "as at aggregating: the sum is in memory only", numbered=True),
    Point("before-commit", "commit", "the new model's blob and its row; the round does not name it yet"),
    Point("committed", "commit", "the committed round; blobs that only earlier rounds used are still there"),
    Point("releasing", "release", "no rows of blobs nobody needs; their files are garbage"),
    Point("released", "release", "the committed round, and what it and later rounds need"),
)

POINTS: Mapping[str, Point] = {point.name: point for point in _POINTS}
"""Every point by its name, in the order a round passes them."""


def point_of(name: str) -> Point:
    """The point that ``on_point(name)`` is.

    Raises:
        ValueError: none; the message lists them.
    """
    point = POINTS.get(name)
    if point is not None and not point.numbered:
        return point
    stem, _, number = name.rpartition("-")
    point = POINTS.get(stem)
    if point is None or not point.numbered or not number.isdigit():
        known = ", ".join(f"{p.name}-<number>" if p.numbered else p.name for p in _POINTS)
        raise ValueError(
            f"'{name}' is no point of a run; one of {known}, or a new line in coordinator/rounds/crash_points.py"
        )
    return point


def known_only(on_point: Callable[[str], None]) -> Callable[[str], None]:
    """``on_point``, raising ValueError for a name that is no point's."""

    def passed(name: str) -> None:
        point_of(name)
        on_point(name)

    return passed
