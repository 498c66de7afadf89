"""A comparison as one HTML page."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.reporting.comparison.comparison import Comparison
from coordinator.reporting.comparison.groups import Group, score_at
from coordinator.reporting.comparison.words import difference_table, result_table
from coordinator.reporting.markup import counted, paragraph, sentences, table
from coordinator.reporting.page import page
from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.subject import RoundFacts

MOST_COLUMNS = 5
"""With more configurations each is a row of the results."""


def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
    groups, runs = len(comparison.groups), len(comparison.subjects)
    title = " beside ".join(group.name for group in comparison.groups) if groups <= 3 else f"{groups} configurations"
    lede = f"{counted(runs, 'run')} of {counted(groups, 'configuration')}, compared by {comparison.metric}"
    heads, rows = result_table(comparison)
    if groups <= MOST_COLUMNS:
        heads, *rows = (list(column) for column in zip(heads, *rows, strict=True))
    told = (
        f"Of a configuration that ran with several seeds, a figure is the mean, then the range. {_target(comparison)}"
    )
    sections = {
        "Before you compare": sentences(comparison.objections),
        "What differs": _differences(comparison),
        "Results": table(heads, rows) + paragraph(told, kind="what"),
        "Curves": _curves(comparison),
        "Runs": _runs(comparison),
    }
    return page(title, lede, "", sections)


def _target(comparison: Comparison) -> str:
    if comparison.target is None:
        return ""
    return (
        f'"To {comparison.target:.4g}" is what it took until the global model first had that {comparison.metric}, at '
        "the rounds at which it was evaluated."
    )


def _curves(comparison: Comparison) -> str:
    metric = comparison.metric
    scores = [_series(group, score_at(metric)) for group in comparison.groups]
    losses = [_series(group, lambda entry: entry.loss) for group in comparison.groups]
    drawn = [
        line_plot(scores, caption=f"{metric} of the global model, by round", y_title=metric, target=comparison.target),
        line_plot(
            [_by_bytes(group, metric) for group in comparison.groups],
            caption=f"{metric} of the global model, by what was sent",
            y_title=metric,
            x_title="MB (10⁶ bytes), both ways",
            target=comparison.target,
        ),
        line_plot(losses, caption="mean training loss, by round", y_title="loss", may_log=True),
    ]
    if not any(drawn):
        return ""
    has_bands = any(len(group.subjects) > 1 for group in comparison.groups)
    told = "The dashed line is the score that the table is about." if comparison.target is not None else ""
    told += " A line with a band is the mean of several seeds, the band their range." if has_bands else ""
    return f'<div class="charts">{"".join(drawn)}</div>' + paragraph(told.strip(), kind="what")


def _series(group: Group, value: Callable[[RoundFacts], float | None]) -> Series:
    curve = group.curve(value)
    band = [(float(n), s.lowest, s.highest) for n, s in curve] if len(group.subjects) > 1 else ()
    return Series(group.name, [(float(n), s.mean) for n, s in curve], band)


def _by_bytes(group: Group, metric: str) -> Series:
    """The same by the mean of bytes sent until then."""
    sent: dict[int, list[int]] = {}
    for subject in group.subjects:
        total = 0
        for entry in subject.rounds:
            total += entry.bytes_up + entry.bytes_down
            sent.setdefault(entry.number, []).append(total)
    points = [(sum(sent[n]) / len(sent[n]) / 1e6, s.mean) for n, s in group.curve(score_at(metric))]
    return Series(group.name, points)


def _differences(comparison: Comparison) -> str:
    if not comparison.differing:
        return paragraph("Nothing but the seed: the runs are of one configuration.", kind="what")
    heads, rows = difference_table(comparison)
    more = len(comparison.differing) - len(rows)
    told = f"{more} further settings differ; they are in the run files." if more > 0 else ""
    return table(heads, rows, texts=heads) + paragraph(told, kind="what")


def _runs(comparison: Comparison) -> str:
    rows = [
        (
            s.folder,
            group.name,
            str(s.seed),
            f"{len(s.rounds)} of {s.rounds_asked}",
            "not scored" if s.score is None else f"{s.score:.4f}",
            "simulated" if s.is_simulated else "devices",
        )
        for group in comparison.groups
        for s in group.subjects
    ]
    heads = ("run", "configuration", "seed", "rounds", comparison.metric, "ran on")
    return table(heads, rows, texts=("configuration", "ran on"))
