"""The discovery message by its documented keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from edge.home_assistant.discovery import Topics, device_id, discovery
from profiles.device import DeviceProfile
from tests.edge.home_assistant.documented_keys import check_discovery

PROFILE = DeviceProfile(
    device="pi-07", budget_bytes=160 << 20, temperature_c=51.0, battery_percent=80.0, board="Raspberry Pi 4"
)
TOPIC = Topics(device_id("demo", "pi-07")).discovery


def test_message_is_as_documented() -> None:
    message = discovery("demo", PROFILE)
    check_discovery(TOPIC, message)
    assert list(message["components"]) == [
        "take_part",
        "state",
        "waits_for",
        "last_round",
        "budget",
        "temperature",
        "battery",
    ]
    assert message["device"]["model"] == "Raspberry Pi 4"


def test_what_a_device_cannot_read_is_no_entity() -> None:
    message = discovery("demo", DeviceProfile(device="pi-07"))
    check_discovery(TOPIC, message)
    assert list(message["components"]) == ["take_part", "state", "waits_for", "last_round"]


def test_ids_are_for_topics_and_differ_for_devices_that_look_alike() -> None:
    ids = {device_id("demo", name) for name in ("pi.07", "pi_07", "pi-07", "größer")} | {device_id("other", "pi-07")}
    assert len(ids) == 5
    for found in ids:
        check_discovery(Topics(found).discovery, discovery("demo", PROFILE))


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("components", "budget", "unit"), "MiB", "unit is not documented"),
        (("components", "budget", "unit_of_measurement"), "%", "unit of data_size"),
        (("components", "take_part", "options"), ["ON"], "options is not documented"),
        (("components", "state", "state_class"), "measurement", "an enum has no state_class"),
        (("components", "state", "unique_id"), "same", None),
        (("device", "mac"), "00:00", "mac is not documented"),
        (("qos",), True, "qos is True"),
    ],
)
def test_the_check_finds_what_is_not_as_documented(path: tuple[str, ...], value: Any, why: str | None) -> None:
    message = copy.deepcopy(discovery("demo", PROFILE))
    inner: Any = message
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if why is None:
        message["components"]["budget"]["unique_id"] = value
        why = "unique_id of its own"
    with pytest.raises(AssertionError, match=why):
        check_discovery(TOPIC, message)
