"""Opening trackers, their errors, and what a run with them has in common with one without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.simulate import begin
from coordinator.cli.tracking_findings import tracking_findings
from coordinator.config.canonical import canonical_toml
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.tracking import TRACKERS
from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.record import TrackingRecord
from coordinator.tracking.tracked_run import TrackedRun, settings_of
from coordinator.tracking.tracker import Place, Tracker
from edge.contracts.errors import ConfigError
from tests.coordinator.simulation.small_simulation import TEXT
from tests.coordinator.tracking import site

HEARD: list[object] = []


class Listens(Tracker):
    """Keeps every event."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        HEARD.append(place.remembered)
        place.remember("own-name")

    def take(self, event: object) -> None:  # type: ignore[override]
        HEARD.append(event)


class NeedsMore(Tracker):
    """Of a package that is not there."""

    @classmethod
    def require(cls) -> None:
        raise ImportError("No module named 'more'", name="more")


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setitem(TRACKERS, "listens", f"{__name__}:Listens")
    monkeypatch.setitem(TRACKERS, "needs-more", f"{__name__}:NeedsMore")
    HEARD.clear()
    return HEARD


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """The directory of a run that was stopped after two of three rounds and went on, and what a tracker heard."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    HEARD.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRACKERS, "listens", f"{__name__}:Listens")
        site.run_twice(site.tracked_config('["listens"]'), run_dir, after=2)
    return run_dir, [*HEARD]


def test_a_stopped_run_is_heard_of_once_and_goes_on_under_its_name(stopped: tuple[Path, list[object]]) -> None:
    run_dir, listening = stopped
    names = [heard for heard in listening if isinstance(heard, str)]
    assert names == ["", "own-name"]
    rounds = [heard for heard in listening if isinstance(heard, RoundCommitted)]
    assert [event.step for event in rounds] == [1, 2, 3]
    found = site.lines(run_dir)
    for event in rounds:
        line = found[event.step]
        assert {key: line[key] for key in event.entry} == json.loads(json.dumps(event.entry))
        assert [span.name for span in event.spans][:2] == ["round", "plan"]
        assert sum(span.name == "assignment" for span in event.spans) == 4
        assert sum(span.name == "cut" for span in event.spans) == 4
    begun = [heard for heard in listening if isinstance(heard, RunStarted)]
    assert [event.done for event in begun] == [0, 2]
    last = [heard for heard in listening if isinstance(heard, RunEnded)]
    assert [event.outcome for event in last] == ["stopped", "finished"]
    assert [path.name for path in last[1].files] == ["summary.json", "final.safetensors"]
    assert last[1].summary["rounds"] == 3
    reports = [heard for heard in listening if isinstance(heard, DeviceReported)]
    assert len(reports) == 12
    assert TrackingRecord(run_dir).rounds("listens") == 3


def test_a_round_that_a_tracker_missed_comes_when_the_run_goes_on(tmp_path: Path, listening: list[object]) -> None:
    config = site.tracked_config('["listens"]')
    TrackingRecord(tmp_path).has("listens", 1)
    tracked = TrackedRun(config, tmp_path, lambda text: None)
    tracked.started([{"round": 0, "program": "train"}, {"round": 1, "program": "train", "train_loss": 0.5}])
    tracked.close("finished")
    assert [event.step for event in listening if isinstance(event, RoundCommitted)] == [2]


def test_spans_of_a_round_lie_in_one_another(stopped: tuple[Path, list[object]]) -> None:
    for event in (heard for heard in stopped[1] if isinstance(heard, RoundCommitted)):
        by_name = {span.name: span for span in event.spans}
        assert {"round", "plan", "publish", "collect", "aggregate", "commit", "cut", "assignment"} <= by_name.keys()
        for span in event.spans:
            assert span.began_s <= span.ended_s
            if span.inside:
                outer = by_name[span.inside]
                assert outer.began_s - 0.002 <= span.began_s
                assert span.ended_s <= outer.ended_s + 0.002


def test_figures_of_devices_are_of_the_first_so_many(tmp_path: Path, listening: list[object]) -> None:
    tracked = TrackedRun(site.tracked_config('["listens"]', devices="2"), tmp_path, lambda text: None)
    tracked.started([])
    for name in ("a", "b", "c", "a"):
        tracked.reported(site.reported(name))
    tracked.close("finished")
    assert [heard.device for heard in listening if isinstance(heard, DeviceReported)] == ["a", "b", "a"]


def test_a_missing_package_names_the_extra(tmp_path: Path, listening: list[object]) -> None:
    config = site.tracked_config('["needs-more"]')
    with pytest.raises(ConfigError, match=r"'needs-more' needs a package that is not installed here.*'more'") as raised:
        simulate(config, tmp_path, begin(config, tmp_path), SimulationOptions(quiet=True))
    assert raised.value.hint == "pip install 'apportion[tracking]', or leave 'needs-more' out"


def test_problems_of_the_table_are_told_together() -> None:
    table = """[tracking]
to = ["tensorbord", "prometheus"]
mlflow-uri = "https://user:secret@host"
prometheus-address = "here"
logs = "yaml"
"""
    with pytest.raises(ConfigError) as raised:
        load_config_text(TEXT + table)
    text = str(raised.value)
    assert "$.tracking.to[0]: 'tensorbord' is not known, did you mean 'tensorboard'" in text
    assert '$.tracking.mlflow-uri: belongs to "mlflow"' in text
    assert "$.tracking.mlflow-uri: leave the password out" in text
    assert '$.tracking.prometheus-address: "here" is no HOST:PORT' in text
    assert "$.tracking.logs: 'yaml' is not known" in text
    assert "secret" not in text


def test_a_table_reads_back_as_it_was() -> None:
    config = site.tracked_config('["mlflow", "wandb"]', mlflow_uri='"https://mlflow.example.com"', wandb_dir='"/tmp/w"')
    assert load_config_text(canonical_toml(config)) == config
    assert "[tracking]" not in canonical_toml(load_config_text(TEXT))
    assert settings_of(config)["tracking.mlflow-uri"] == "https://mlflow.example.com"
    assert settings_of(config)["federation.rounds"] == "3"


def test_doctor_names_the_tracker_that_is_not_installed(listening: list[object]) -> None:
    findings = tracking_findings(site.tracked_config('["listens", "needs-more"]'))
    assert [(finding.name, finding.state) for finding in findings] == [
        ("tracking to listens", "ok"),
        ("tracking to needs-more", "fail"),
    ]
    assert "apportion[tracking]" in findings[1].fix
