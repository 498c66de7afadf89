"""``report.html`` of a run: its sections in one page."""

from __future__ import annotations

from coordinator.reporting.markup import counted, duration, facts, size
from coordinator.reporting.page import page
from coordinator.reporting.sections import SECTIONS
from coordinator.reporting.subject import Subject


def report(subject: Subject) -> str:
    """The page as text; of an unfinished run as far as it is."""
    kind = "simulated devices" if subject.is_simulated else "devices"
    trained = sum(1 for d in subject.devices if d.reports)
    lede = (
        f"{subject.model} under {subject.method}: {counted(len(subject.rounds), 'round')} on "
        f"{trained:,} {kind if trained != 1 else kind.removesuffix('s')}"
    )
    sections = {title: section(subject) for title, section in SECTIONS.items()}
    return page(subject.name, lede, facts(_facts(subject)), sections, is_so_far=not subject.is_finished)


def _facts(subject: Subject) -> list[tuple[str, str]]:
    levels = {d.level for d in subject.devices if d.reports and d.level}
    over = sum(r.over_budget for r in subject.rounds)
    found = [
        (subject.metric, "not scored yet" if subject.score is None else f"{subject.score:.4f}"),
        ("rounds", f"{len(subject.rounds)} of {subject.rounds_asked}"),
        ("devices that trained", f"{sum(1 for d in subject.devices if d.reports)} of {len(subject.devices)}"),
        ("capacity levels used", str(len(levels))),
        ("wall time", duration(subject.wall_s)),
        ("sent to devices", size(subject.bytes_down)),
        ("sent by devices", size(subject.bytes_up)),
    ]
    return found if subject.is_simulated else [*found, ("reports over budget", str(over))]
