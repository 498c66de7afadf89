"""``apportion loadtest`` as it is run: a real broker, a real coordinator, light devices in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.loadtest.verdict import Limits
from tests.cli.conftest import Command

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here")


@pytest.mark.slow
@needs_mosquitto
def test_forty_devices_ten_of_them_in_each_of_two_rounds(command: Command, tmp_path: Path) -> None:
    outcome = command(
        "loadtest", "--devices", 40, "--participants", 10, "--rounds", 2, "--update-mb", 0.3, "--seconds", 120,
        "--processes", 2, "--max-wire", 1.2, "--keep", tmp_path, "--json",
    )  # fmt: skip
    values = outcome.line
    assert (outcome.status, values["schema"], values["ok"]) == (0, "apportion.loadtest/1", True)
    assert (values["rounds"], values["counts"]["acks"], values["counts"]["orders"]) == (2, 20, 20)
    assert values["payload_bytes"]["up"] == values["payload_bytes"]["down"] == 20 * values["update_bytes"]
    assert abs(values["update_bytes"] - 300_000) < 10_000
    shown = {entry["name"]: entry["value"] for entry in values["limits"]}
    assert 1.0 < shown["wire_over_payload"] < 1.2
    assert shown["coordinator_rss_mb"] > 100 > shown["broker_rss_mb"] > 1
    assert values["trips"]["report-ack"]["count"] == 20
    assert (tmp_path / "run" / "ledger.sqlite").is_file()


@pytest.mark.slow
@needs_mosquitto
def test_three_cuts_in_each_transfer_cost_little_and_lose_nothing(command: Command) -> None:
    outcome = command(
        "loadtest", "--devices", 2, "--participants", 2, "--rounds", 1, "--update-mb", 8, "--cuts", 3,
        "--seconds", 120, "--json",
    )  # fmt: skip
    values = outcome.line
    assert values["ok"]
    assert values["counts"]["cuts"] == 2 * 2 * 3
    assert values["counts"]["acks"] == 2
    extra = next(entry["value"] for entry in values["limits"] if entry["name"] == "cut_extra")
    # Up, at most a window of 384 KiB is on its way at each cut, of 8 MB: 3 x 4.9 %, and the protocol's 0.6.
    assert 0.0 <= extra < 0.16


@pytest.mark.slow
@needs_mosquitto
def test_devices_with_certificates_of_their_own(command: Command) -> None:
    outcome = command(
        "loadtest", "--devices", 6, "--participants", 3, "--rounds", 1, "--update-mb", 0.2, "--tls",
        "--seconds", 120, "--json",
    )  # fmt: skip
    values = outcome.line
    assert (values["ok"], values["tls"], values["counts"]["acks"]) == (True, True, 3)


@pytest.mark.slow
def test_the_embedded_broker_and_a_limit_that_does_not_hold(command: Command) -> None:
    outcome = command(
        "loadtest", "--devices", 4, "--participants", 2, "--rounds", 1, "--tiny", "--broker", "embedded",
        "--seconds", 120, "--max-rss-mb", 1, "--json",
    )  # fmt: skip
    assert outcome.status == 1
    assert outcome.error["code"] == "limit"
    assert "coordinator_rss_mb" in outcome.error["message"]


@needs_mosquitto
@pytest.mark.slow
def test_three_hundred_rounds_leave_memory_and_files_as_they_are(command: Command) -> None:
    outcome = command(
        "loadtest", "--devices", 2, "--participants", 2, "--rounds", 300, "--tiny", "--probes", 1,
        "--seconds", 300, "--json",
    )  # fmt: skip
    values = outcome.line
    assert (values["ok"], values["rounds"]) == (True, 300)
    coordinator = values["processes"]["coordinator"]
    # The least of each third: a file that is read or written at that moment is none that stays open.
    assert coordinator["open_files_growth"] <= 1
    # 300 rounds hardly leave the warm-up; docs/measurements has 10,000.
    assert coordinator["peak_rss_mb"] < 600


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--devices", "2", "--participants", "3"], "--participants"),
        (["--attach", "other"], "--attach"),
        (["--tls", "--broker", "embedded"], "--tls"),
    ],
)
def test_arguments_that_do_not_fit_are_named(command: Command, arguments: list[str], named: str) -> None:
    outcome = command("loadtest", *arguments, "--json")
    assert outcome.status == 2
    assert named in outcome.error["message"]


def test_more_devices_than_open_files_are_refused_with_the_way_out(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.loadtest.machine_limits.raise_open_files", lambda: 1024)
    outcome = command("loadtest", "--devices", 5000, "--participants", 1, "--json")
    assert outcome.status == 2
    assert "ulimit -Hn 5256" in outcome.error["message"]


def test_no_limit_is_set_unless_it_is_given() -> None:
    assert all(getattr(Limits(), name) is None for name in Limits.__dataclass_fields__)
