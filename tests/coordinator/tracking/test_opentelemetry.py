"""The trace of a run, as OpenTelemetry's in-memory exporter has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinator.tracking.opentelemetry import OpenTelemetry
from tests.coordinator.tracking import site


def test_spans_are_in_one_another_with_the_times_of_the_round(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracker = OpenTelemetry(site.place(tmp_path), exporter)
    for event in (site.started(tmp_path), site.committed(1), site.ended()):
        tracker.take(event)
    spans = exporter.get_finished_spans()
    by_name = {span.name: span for span in spans}
    parents = {span.context.span_id: span.name for span in spans}
    inside = {name: parents[span.parent.span_id] if span.parent else "" for name, span in by_name.items()}
    assert inside == {
        "run": "",
        "round": "run",
        "plan": "round",
        "collect": "round",
        "aggregate": "round",
        "commit": "round",
        "cut": "plan",
        "export": "plan",
        "assignment": "collect",
    }
    assert (by_name["collect"].start_time, by_name["collect"].end_time) == (1001 * 10**9, 1003 * 10**9)
    assert (by_name["run"].start_time, by_name["run"].end_time) == (1000 * 10**9, 1005 * 10**9)
    assert by_name["assignment"].attributes["apportion.device"] == "pi-07"
    assert by_name["run"].resource.attributes["service.name"] == "small"
    tracker.close()


def test_a_resumed_run_goes_on_in_the_same_trace(tmp_path: Path) -> None:
    kept: list[str] = []
    exporter = InMemorySpanExporter()
    first = OpenTelemetry(replace(site.place(tmp_path), remember=kept.append), exporter)
    first.take(site.started(tmp_path))
    first.take(site.ended())
    second = OpenTelemetry(replace(site.place(tmp_path), remembered=kept[0], remember=kept.append), exporter)
    second.take(site.started(tmp_path, done=1))
    second.take(site.committed(2))
    second.take(site.ended())
    runs = [span for span in exporter.get_finished_spans() if span.name == "run"]
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    assert runs[1].parent.span_id == runs[0].context.span_id
    assert len(kept) == 1
