"""What a round amounts to in numbers, and what its measurements say about predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.device_scores.distribution import KEY, in_words
from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.reporting.progress import megabytes
from coordinator.rounds.federation import Federation
from coordinator.submodels.sparse_layers import DENSE, layer_forms
from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.report import TrainReport

if TYPE_CHECKING:
    from coordinator.methods.method import Method
    from coordinator.submodels.values import State


def round_metrics(updates: Sequence[RecordedUpdate], *, wall_s: float) -> dict[str, Any]:
    """Counts, the examples-weighted mean training loss, bytes and device-side memory of a round's updates."""
    reports = [update.report for update in updates]
    examples = sum(r.num_examples for r in reports)
    loss = sum(r.loss * r.num_examples for r in reports) / examples if examples else float("nan")
    return {
        "reports": len(reports),
        "examples": examples,
        "train_loss": loss,
        "bytes_up": sum(r.bytes_up for r in reports),
        "bytes_down": sum(r.bytes_down for r in reports),
        "over_budget": sum(r.over_budget for r in reports),
        "torch_loaded": any(r.torch_loaded for r in reports),
        "runtimes": dict(sorted(Counter(r.runtime for r in reports).items())),
        "forms": dict(sorted(Counter(update.assignment.form for update in updates).items())),
        "wall_s": round(wall_s, 3),
        **_energy(reports),
    }


def _energy(reports: Sequence[TrainReport]) -> dict[str, float]:
    """Processor time of all devices that say theirs, and joules of those whose boards count them."""
    seconds = [s for r in reports if (s := r.processor_s) is not None]
    joules = [j for r in reports if (j := r.energy_j) is not None]
    found = {"cpu_s": round(sum(seconds), 3)} if seconds else {}
    return found | ({"joules": round(sum(joules), 1), "joules_reports": len(joules)} if joules else {})


def forms_of_layers(federation: Federation, updates: Sequence[RecordedUpdate]) -> dict[str, dict[str, str]]:
    """Weight -> form -> devices that trained it so, of masked layers some device holds as kept entries alone.

    Nothing where a manifest was damaged since: every update of the round is there, and it is not held up for a figure.
    """
    devices: dict[str, dict[str, list[str]]] = {}
    for update in updates:
        try:
            manifest = federation.artifacts.load(update.assignment.artifact_digest).manifest
        except ArtifactCorrupt:
            return {}
        for name, form in layer_forms(manifest).items():
            devices.setdefault(name, {}).setdefault(form, []).append(update.assignment.device)
    if all(set(forms) == {DENSE} for forms in devices.values()):
        return {}
    return {n: {form: ", ".join(names) for form, names in forms.items()} for n, forms in devices.items()}


def effective_ranks(method: Method, state: State) -> dict[str, Any]:
    """``effective_rank`` of every layer the method decomposes; nothing of a method that is not asked for spectra."""
    from coordinator.methods.method import HasSpectra
    from coordinator.submodels.spectrum import effective_rank

    spectra = method.spectra(state) if isinstance(method, HasSpectra) else {}
    return {"effective_rank": {path: round(effective_rank(v), 4) for path, v in spectra.items()}} if spectra else {}


def describe_metrics(metrics: dict[str, Any], program: str) -> str:
    """One line for people."""
    what = {"stats": "statistics", EVAL: "scores"}.get(program) or f"loss {metrics['train_loss']:.4f}"
    scores = metrics.get("evaluation", {})
    accuracy = ", ".join(f"{label} {values[main_metric(values)]:.4f}" for label, values in scores.items())
    named = main_metric(next(iter(scores.values()))) if scores else ""
    runtimes = ", ".join(f"{count} {name}" for name, count in metrics["runtimes"].items())
    kinds = runtimes if len(metrics["runtimes"]) > 1 else ""
    if "levels" in metrics:
        kinds = ", ".join(f"{count} {name}" for name, count in metrics["levels"].items())
    by_kind = f" ({kinds})" if kinds else ""
    return (
        f"{metrics['reports']} reports{by_kind}, {what}, down {megabytes(metrics['bytes_down'])}, "
        f"up {megabytes(metrics['bytes_up'])}, {metrics['wall_s']:.1f} s"
        + (f", simulated {metrics['simulated_s']:.0f} s" if "simulated_s" in metrics else "")
        + (f", versions old {_ages(metrics['staleness'])}" if "staleness" in metrics else "")
        + (f", {named} {accuracy}" if accuracy else "")
        + (f", {in_words(metrics[KEY])}" if KEY in metrics else "")
        + (f", epsilon {metrics['privacy']['epsilon']:.3f}" if "privacy" in metrics else "")
    )


def main_metric(values: Mapping[str, float]) -> str:
    """The name of the first metric of an evaluated model: the one that its run is about."""
    return next(iter(values))


def summary_score(values: Mapping[str, float]) -> dict[str, Any]:
    """What ``summary.json`` says of the final model at its top: ``accuracy``, or a task's own metric and its value."""
    name = main_metric(values)
    found: dict[str, Any] = {"accuracy": values["accuracy"]} if "accuracy" in values else {}
    return found if name == "accuracy" else {**found, "metric": name, "score": values[name]}


def described_score(summary: Mapping[str, Any]) -> str:
    """The same for people."""
    name = summary.get("metric", "accuracy")
    return f"{name} {summary['score' if 'metric' in summary else 'accuracy']:.4f}"


def _ages(staleness: dict[str, int]) -> str:
    return ", ".join(f"{age}: {count}" for age, count in staleness.items())


def missing_reports(assignments: Sequence[Assignment], *, limit: int = 3) -> str:
    """Why devices of an attempt did not report, the first ``limit`` of them."""
    missing = [entry for entry in assignments if entry.state != "reported"]
    told = "; ".join(f"{entry.device} {entry.state} ({entry.reason[:300]})" for entry in missing[:limit])
    return told + (f"; and {len(missing) - limit} more" if len(missing) > limit else "")
