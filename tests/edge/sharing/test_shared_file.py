"""A shared file: what is in it, that a changed one is refused by name, and what cannot be true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge.sharing.measurement import SharedMeasurement, shared_measurement
from edge.sharing.plausibility import implausible
from edge.sharing.signed_file import FileRefused, file_text, read_shared, signed
from tests.edge.sharing.example import profile, row


@pytest.fixture
def shared() -> SharedMeasurement:
    return shared_measurement(profile(), [row(), row(threads=4, step_ms_p50=80.0, step_ms_p95=95.0)])


@pytest.fixture
def path(shared: SharedMeasurement, tmp_path: Path) -> Path:
    written = tmp_path / "pi.json"
    written.write_text(file_text(signed(shared)))
    return written


def changed(path: Path, *keys: Any, to: Any) -> Path:
    values = json.loads(path.read_text())
    inner = values
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(values))
    return path


def test_what_is_shared_is_rounded_and_reads_back(shared: SharedMeasurement, path: Path) -> None:
    assert read_shared(path).measurement == shared
    assert (shared.measured_on, shared.device.known_as, shared.device.kernel) == ("2025-11-24", "pi-4-4gb", "Linux 6.6")
    assert shared.device.ram_bytes % (16 << 20) == 0
    assert (shared.rows[0].step_ms_p50, shared.rows[0].hottest_c) == (210.123, 62.5)
    assert "kitchen-pi" not in path.read_text()
    assert list(implausible(shared, today="2025-12-01")) == []


def test_the_file_is_the_same_for_another_layout_of_its_json(path: Path) -> None:
    before = read_shared(path)
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert read_shared(path) == before


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("measurement", "rows", 0, "step_ms_p50"), 10.0),
        (("measurement", "rows", 1, "peak_bytes"), 1 << 20),
        (("measurement", "device", "board"), "Raspberry Pi 5 Model B"),
        (("measurement", "measured_on"), "2025-11-25"),
        (("public_key",), "0" * 64),
        (("signature",), "0" * 128),
    ],
)
def test_a_changed_file_is_refused_by_name(path: Path, keys: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(FileRefused, match=r"pi\.json: the signature does not fit; it was changed"):
        read_shared(changed(path, *keys, to=value))


@pytest.mark.parametrize(
    ("keys", "value", "why"),
    [
        (("measurement", "device", "hostname"), "kitchen-pi", "unknown field `hostname`"),
        (("measurement", "rows", 0, "note"), "hello", "unknown field `note`"),
        (("measurement", "rows", 0, "threads"), 0, r"`int` >= 1.*threads"),
        (("measurement", "rows"), [], "length >= 1"),
        (("signature",), "abc", r"regex.*signature"),
        (("schema",), "apportion.shared-measurement/9", "this release reads"),
    ],
)
def test_a_file_with_other_fields_or_values_is_refused(path: Path, keys: tuple[Any, ...], value: Any, why: str) -> None:
    with pytest.raises(FileRefused, match=rf"pi\.json: .*{why}"):
        read_shared(changed(path, *keys, to=value))


def test_no_file_and_no_json_are_refused(tmp_path: Path) -> None:
    for name, data in (("gone.json", None), ("text.json", b"hello"), ("long.json", b" " * ((1 << 20) + 1))):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(FileRefused, match=name):
            read_shared(tmp_path / name)


def test_two_files_of_one_measurement_have_different_keys(shared: SharedMeasurement) -> None:
    assert signed(shared).public_key != signed(shared).public_key


def test_nothing_measured_is_nothing_to_share() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        shared_measurement(profile(), [row(outcome="killed"), row(outcome="failed")])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step_ms_p50": 0.001, "step_ms_p95": 0.001}, "faster than any device"),
        ({"step_ms_p50": 300.0}, "rising"),
        ({"peak_bytes": 8 << 30}, "more than the memory of the device"),
        ({"idle_bytes": 80 << 20}, "idle_bytes"),
        ({"threads": 8}, "8 threads on 4 cores"),
        ({"runtime": "magic"}, "runtime 'magic' is not known"),
        ({"runtime_version": "new"}, "is no version"),
        ({"heat_c": (20.0, 400.0)}, "hottest_c is 400"),
        ({"steps": 1}, "1 steps"),
        ({"cpu_share": 3.0}, "more than a thread has"),
    ],
)
def test_what_no_device_can_do_is_told(changes: dict[str, Any], why: str) -> None:
    problems = list(implausible(shared_measurement(profile(), [row(**changes)]), today="2025-12-01"))
    assert any(why in problem for problem in problems), problems


def test_a_day_to_come_and_a_setting_twice_are_told(shared: SharedMeasurement) -> None:
    twice = msgspec.structs.replace(shared, rows=(shared.rows[0], shared.rows[0]))
    assert list(implausible(twice, today="2025-11-20")) == [
        "measured_on is 2025-11-24: not between 2025-01-01 and 2025-11-20",
        "rows[1]: the same setting twice",
    ]
