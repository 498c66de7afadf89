"""``/metrics``, as Prometheus' own parser reads it."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.tracking.prometheus import Prometheus
from edge.contracts.errors import ConfigError
from tests.coordinator.tracking import site

BOARD = Path("examples/grafana/apportion.json")


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(site.place(tmp_path, prometheus_address="127.0.0.1:0"))
    yield made
    made.close()


def scraped(port: int) -> dict[tuple[str, str], float]:
    """(name, labels in words) -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_those_of_the_rounds(tracker: Prometheus, tmp_path: Path) -> None:
    for event in (site.started(tmp_path), site.reported(), site.committed(1), site.committed(2)):
        tracker.take(event)
    found = scraped(tracker.port)
    assert found["apportion_rounds_done", ""] == 2
    assert found["apportion_rounds_planned", ""] == 3
    assert found["apportion_rounds_total", "program=train"] == 2
    assert found["apportion_round_duration_seconds_sum", ""] == 7.0
    assert found["apportion_train_loss", ""] == 0.75
    assert found["apportion_evaluation", "metric=accuracy,model=server"] == 0.5
    assert found["apportion_transferred_bytes_total", "direction=up"] == 2000
    assert found["apportion_transferred_bytes_total", "direction=down"] == 8000
    assert found["apportion_assignments_unanswered_total", "reason=over-budget"] == 4
    assert found["apportion_stage_seconds", "stage=collect"] == 2.0
    assert found["apportion_device_step_seconds", "device=pi-07"] == 0.25
    assert found["apportion_device_peak_bytes", "device=pi-07"] == 50e6
    assert found["apportion_device_battery_ratio", "device=pi-07"] == 0.4


def test_rounds_of_an_earlier_process_are_shown_and_not_counted(tracker: Prometheus, tmp_path: Path) -> None:
    tracker.take(site.started(tmp_path, done=1))
    tracker.take(site.committed(1, spans=()))
    found = scraped(tracker.port)
    assert found["apportion_train_loss", ""] == 0.75
    assert found["apportion_rounds_done", ""] == 1
    assert found["apportion_reports_total", ""] == 0


def test_a_port_that_is_taken_is_named(tracker: Prometheus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"prometheus-address: 127.0.0.1:{tracker.port} cannot be served at"):
        Prometheus(site.place(tmp_path, prometheus_address=f"127.0.0.1:{tracker.port}"))


def test_names_follow_the_conventions(tracker: Prometheus) -> None:
    for family in tracker.registry.collect():
        assert re.fullmatch(r"apportion_[a-z_]+", family.name)
        assert family.documentation
        assert not re.search(r"_(ms|mb|percent|minutes)$", family.name), "base units only"


def test_every_expression_of_the_board_names_metrics_that_are_served(tracker: Prometheus, tmp_path: Path) -> None:
    for event in (site.started(tmp_path), site.reported(), site.committed(1)):
        tracker.take(event)
    served = {name for name, _ in scraped(tracker.port)}
    board = json.loads(BOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    expressions += [entry["query"]["query"] for entry in board["templating"]["list"] if entry["type"] == "query"]
    assert len(expressions) >= 12
    for expression in expressions:
        named = set(re.findall(r"apportion_[a-z_]+", expression))
        assert named, expression
        assert named <= served, expression
