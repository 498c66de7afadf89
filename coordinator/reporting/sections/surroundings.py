"""What the run ran on and with."""

from __future__ import annotations

from collections import Counter

from coordinator.reporting.markup import paragraph, table
from coordinator.reporting.subject import Subject


def surroundings(subject: Subject) -> str:
    """Releases and processor of the coordinator, kinds of devices."""
    rows = [(f"coordinator: {name}", value) for name, value in subject.environment.items()]
    boards = Counter(d.board for d in subject.devices if d.board and d.reports)
    runtimes = Counter(d.runtime for d in subject.devices if d.runtime and d.reports)
    rows += [(f"devices: {board}", str(count)) for board, count in boards.most_common(12)]
    rows += [(f"runtime: {name}", f"{count} devices") for name, count in runtimes.most_common()]
    if not rows:
        return paragraph("It is written at the end of a run.", kind="what")
    return table(("what", "which"), rows, texts=("which",))
