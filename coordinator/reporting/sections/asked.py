"""What was asked for: the run file in words."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.methods import LANGUAGE_METHODS, METHODS
from coordinator.reporting.markup import counted, listed, sentences
from coordinator.reporting.subject import Subject


def asked(subject: Subject) -> str:
    """Model, method with its paper, data, training, devices and what goes beyond the usual, a sentence each."""
    if not subject.config:
        return ""
    return sentences(
        (*_goal(subject), _data(subject), _training(subject), _devices(subject), *_extras(subject), _end(subject))
    )


def method_words(name: str) -> tuple[str, str]:
    """What a method does in a sentence, and its paper; both empty for one of the user's own.

    They are read from the first lines of the method's file, without importing it.
    """
    module = (METHODS.get(name) or LANGUAGE_METHODS.get(name, "")).partition(":")[0]
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        return "", ""
    text = " ".join((ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "").split())
    first, _, rest = text.partition(". ")
    source = re.search(r"Source: (.*)", rest)
    return first.replace("``", "").rstrip("."), "" if source is None else source[1].rstrip(".")


def _goal(subject: Subject) -> Iterator[str]:
    model, task = subject.table("model"), subject.table("task")
    shape = " x ".join(str(n) for n in model.get("input", ()))
    classes = model.get("classes", ())
    size = classes if isinstance(classes, int) else len(classes)
    details = [f"input {shape}" if shape else "", counted(size, "output" if task else "class", "classes")]
    told = ", ".join(detail for detail in details if detail and not detail.startswith("0 "))
    goal = f" for the task {task['name']}" if task.get("name") else ""
    yield f"Train the model {subject.model}{f' ({told})' if told else ''}{goal}."
    words, source = method_words(subject.method)
    options = {k: v for k, v in subject.table("method").items() if k != "name" and v not in ("", [], {})}
    with_options = f", with {_settings(options)}" if options else ""
    yield f"Method: {words or subject.method}{with_options}."
    yield f"Paper: {source}." if source else ""


def _data(subject: Subject) -> str:
    data = subject.table("data")
    source = data.get("source", "")
    if not source:
        return "The devices bring their own data."
    how = {"iid": "evenly, at random", "dirichlet": f"by Dirichlet({data.get('alpha', '?')}), unevenly by class"}
    partition = str(data.get("partition", ""))
    dealt = f", dealt {how.get(partition, f'as {partition}')}" if partition else ""
    shares = f" to {counted(int(data['devices']), 'device')}" if data.get("devices") else ""
    return f"Data: {source}{dealt}{shares}."


def _training(subject: Subject) -> str:
    t = subject.table("training")
    if not t:
        return ""
    work = counted(int(t["steps"]), "step") if t.get("steps") else counted(int(t.get("epochs", 1)), "epoch")
    falls = {"cosine": f"falling to {t.get('lr-final')} along a cosine", "constant": "constant"}
    schedule = str(t.get("lr-schedule", "constant"))
    parts = [
        f"{t.get('optimizer', 'sgd')} with learning rate {t.get('lr')}, {falls.get(schedule, f'schedule {schedule}')}",
        f"momentum {t['momentum']}" if t.get("momentum") else "",
        f"weight decay {t['weight-decay']}" if t.get("weight-decay") else "",
        f"FedProx with mu {t['proximal-mu']}" if t.get("proximal-mu") else "",
        "SCAFFOLD" if t.get("scaffold") else "",
    ]
    told = ", ".join(part for part in parts if part)
    return f"In each round a device trains for {work} in batches of {t.get('batch')}: {told}."


def _devices(subject: Subject) -> str:
    cohort = subject.table("cohort")
    groups = [
        f"{counted(int(group['count']), 'device')} with "
        + (f"{group['budget-mb']:g} MB" if group.get("budget-mb") else "no memory limit")
        for group in cohort.get("local", ())
    ]
    told = f": {listed(groups)}" if groups else ""
    return (
        f"A round asks {counted(int(cohort.get('size', 0)), 'device')}, needs "
        f"{counted(int(cohort.get('min-reports', 1)), 'report')} and waits {cohort.get('deadline-s', 0):g} s at most"
        f"{told}."
    )


def _extras(subject: Subject) -> Iterator[str]:
    aggregation, privacy, updates = (subject.table(name) for name in ("aggregation", "privacy", "updates"))
    if aggregation.get("rule", "mean") != "mean":
        yield f"Updates are combined by {aggregation['rule']} in place of the weighted mean."
    if aggregation.get("mode") == "buffered":
        yield "Updates are summed as they arrive, without waiting for the slowest (buffered)."
    if subject.table("server-optimizer").get("name"):
        yield f"Server optimizer: {subject.table('server-optimizer')['name']}."
    if subject.table("defences").get("quarantine-factor"):
        yield "Updates that are unlike the others are set aside before they count."
    if privacy.get("clip-norm"):
        yield f"Updates are clipped to norm {privacy['clip-norm']:g}."
    if privacy.get("noise-multiplier"):
        yield f"Noise of {privacy['noise-multiplier']:g} times that norm is added (differential privacy)."
    if privacy.get("secure-aggregation"):
        yield "Secure aggregation: the coordinator sees the sum of masked updates only."
    if updates.get("precision", "fp32") != "fp32":
        yield f"Updates are sent as {updates['precision']} differences."
    if subject.table("personal").get("layers"):
        yield f"Layers that stay on each device: {listed(subject.table('personal')['layers'])}."


def _end(subject: Subject) -> str:
    federation = subject.table("federation")
    patience = federation.get("patience")
    early = f", or end after {counted(patience, 'evaluation')} without a better one" if patience else ""
    return f"Train for {counted(subject.rounds_asked, 'round')}{early}; seed {subject.seed}."


def _settings(options: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        return "[" + ", ".join(str(v) for v in value) + "]" if isinstance(value, list) else str(value)

    return ", ".join(f"{key} = {shown(value)}" for key, value in options.items())
