"""Privacy: what was spent, round by round, and what that means."""

from __future__ import annotations

from coordinator.reporting.markup import sentences
from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.subject import Subject


def privacy(subject: Subject) -> str:
    """Epsilon by round and in all; one sentence where the run asked for none."""
    asked = subject.table("privacy")
    spent = [r for r in subject.rounds if r.epsilon is not None]
    lines = []
    if asked.get("secure-aggregation"):
        lines.append("Secure aggregation: the coordinator saw sums of masked updates, never one device's update.")
    if spent:
        last = spent[-1]
        lines.append(
            f"All rounds together spent epsilon {last.epsilon:.3f} at delta {last.delta:g}: the smaller epsilon is, "
            "the less the model can tell about any one device's data."
        )
        if limit := asked.get("max-epsilon"):
            lines.append(f"The run file allows {limit:g}; the run ends before it spends more.")
        if asked.get("reproducible"):
            lines.append(
                "The noise came from the run's seed: whoever knows the seed can take it off. It protects nothing."
            )
    else:
        lines.append("No noise was added to updates: this run gives no differential privacy.")
    plot = line_plot(
        [Series("epsilon", [(r.number, r.epsilon or 0.0) for r in spent])],
        caption="epsilon spent by all rounds so far",
        y_title="epsilon",
        from_zero=True,
    )
    return (f'<div class="charts">{plot}</div>' if plot else "") + sentences(lines)
