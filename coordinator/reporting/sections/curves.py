"""How well the model did, round by round: score of the global model and of every capacity level, training loss."""

from __future__ import annotations

from coordinator.reporting.markup import paragraph
from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.subject import GLOBAL, Subject, model_title


def curves(subject: Subject) -> str:
    """Both plots; empty before the first round."""
    metric = subject.metric
    scores = _scores(subject, metric)
    losses = [Series("training loss", [(r.number, r.loss) for r in subject.rounds if r.loss is not None])]
    drawn = [
        line_plot(scores, caption=f"{metric} on held-out data, by round", y_title=metric),
        line_plot(losses, caption="mean training loss on the devices, by round", y_title="loss", may_log=True),
    ]
    if not any(drawn):
        return ""
    every = subject.table("evaluation").get("every") or subject.rounds_asked
    when = "every round" if every == 1 else f"every {every} rounds and the last one"
    told = (
        f"The model is scored after {when}, on data that no device has. Levels are the submodels that smaller devices "
        "hold."
        if drawn[0]
        else "The model has not been scored yet."
    )
    lost = sum(r.loss is None for r in subject.rounds)
    more = f" In {lost} rounds the loss was no number." if lost else ""
    return f'<div class="charts">{"".join(drawn)}</div>' + paragraph(told + more, kind="what")


def _scores(subject: Subject, metric: str) -> list[Series]:
    """A line for each evaluated model; models with the same scores share one, which has both names."""
    found: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for label in subject.evaluated_models:
        found.setdefault(tuple(subject.curve(label, metric)), []).append(label)
    return [
        Series(", ".join(model_title(label) for label in labels), points, is_main=GLOBAL in labels)
        for points, labels in found.items()
    ]
