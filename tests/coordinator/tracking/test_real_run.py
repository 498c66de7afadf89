"""A run with agents and a broker, as Prometheus scrapes it while it goes on and a collector gets its trace."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from coordinator.tracking import opentelemetry
from tests.apportion.small_federation import small
from tests.coordinator.tracking import site

pytestmark = [pytest.mark.slow, pytest.mark.broker]


def test_agents_and_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(opentelemetry, "OTLPSpanExporter", lambda: exporter)
    scraped: dict[str, float] = {}
    address: list[str] = []

    def on_round(row: Mapping[str, Any]) -> None:
        if not address:
            text = capfd.readouterr().err
            address.append(next(word for word in text.split() if word.endswith("/metrics")))
        with urllib.request.urlopen(address[0], timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        for family in families:
            for sample in family.samples:
                if not set(sample.labels) - {"direction", "program"}:
                    scraped["/".join([sample.name, *sample.labels.values()])] = sample.value

    tracking = {"to": ["prometheus", "opentelemetry"], "prometheus-address": "127.0.0.1:0"}
    small(tracking=tracking, devices=2).run(tmp_path / "run", on_round=on_round)
    lines = site.lines(tmp_path / "run")
    # What was scraped after the last round's callback is of the rounds before it, at least.
    assert scraped["apportion_rounds_planned"] == 2
    assert scraped["apportion_rounds_done"] in (1, 2)
    done = int(scraped["apportion_rounds_done"])
    assert scraped["apportion_train_loss"] == lines[done]["train_loss"]
    assert scraped["apportion_transferred_bytes_total/up"] == sum(
        lines[step]["bytes_up"] for step in range(1, done + 1)
    )
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    inside = {(span.name, names[span.parent.span_id]) for span in spans if span.parent}
    assert {
        ("round", "run"),
        ("cut", "plan"),
        ("export", "plan"),
        ("assignment", "collect"),
        ("commit", "round"),
    } <= inside
    assigned = [span for span in spans if span.name == "assignment"]
    assert len(assigned) == 4
    assert {span.attributes["apportion.state"] for span in assigned} == {"reported"}
    for span in spans:
        assert span.start_time <= span.end_time
