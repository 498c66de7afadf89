"""A site's profile and weights beside a device that lies: it is left out and named, the others are served."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Hello
from edge.relay import site_devices
from edge.relay.settings import RelaySettings
from edge.relay.site_devices import APART, SiteDevices, largest_weight, site_profile
from edge.relay.site_hello import site_hello
from profiles.device import DeviceProfile

SETTINGS = RelaySettings(federation="fed", device="hall", site="hall-devices", runtime="onnxruntime")
HONEST = {
    "budget_bytes": 10**9,
    "ram_bytes": 4 * 10**9,
    "storage_free_bytes": 10**10,
    "supervisor_idle_bytes": 3 * 10**7,
}


def hello(device: str, *, examples: int = 10, idle: int = 6 * 10**7, version: str = "1.2", **profile: Any) -> Hello:
    values = {**HONEST, **profile, "trainer_idle_bytes": {"onnxruntime": idle}, "device": device}
    return Hello(
        device=device,
        agent_version="0",
        profile=DeviceProfile(**values),
        runtimes={"onnxruntime": version},
        num_examples=examples,
    )


def served(*hellos: Hello) -> list[Hello]:
    devices = SiteDevices(SETTINGS)
    for each in hellos:
        devices.greet(each, 0.0)
    return devices.served(1.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"ram_bytes": 1},
        {"budget_bytes": 1},
        {"storage_free_bytes": 1},
        {"memory_limit_bytes": 1},
        {"supervisor_idle_bytes": 1 << 44},
        {"idle": 1 << 44},
    ],
    ids=lambda lie: next(iter(lie)),
)
@pytest.mark.parametrize("others", [1, 2, 5])
def test_profile_of_one_device_does_not_shut_out_its_site(
    lie: dict[str, int], others: int, caplog: pytest.LogCaptureFixture
) -> None:
    honest = [hello(f"pi-{number}", memory_limit_bytes=2 * 10**9) for number in range(others)]
    liar = hello("a-liar", **{"memory_limit_bytes": 2 * 10**9, **lie})
    with caplog.at_level(logging.WARNING):
        assert served(*honest, liar) == honest
    assert "a-liar is not served: its " in caplog.text
    said = site_hello(SETTINGS, served(*honest, liar), None, 0)
    assert said is not None
    assert (said.profile.ram_bytes, said.profile.budget_bytes) == (4 * 10**9, 10**9)


def test_lie_that_is_not_found_moves_a_limit_to_a_sixteenth_of_the_median_at_most() -> None:
    honest = [hello(f"pi-{number}") for number in range(3)]
    profile = site_profile("hall", "onnxruntime", served(*honest, hello("a", ram_bytes=4 * 10**9 // APART)))
    assert profile.ram_bytes == 4 * 10**9 // APART


def test_devices_of_different_sizes_are_served_together() -> None:
    small, large = hello("pi", ram_bytes=2 * 10**9, budget_bytes=3 * 10**8), hello("pc", ram_bytes=8 * 10**9)
    assert served(small, large) == [large, small]


def test_version_that_one_device_says_is_not_the_sites() -> None:
    honest = [hello(f"pi-{number}") for number in range(2)]
    said = site_hello(SETTINGS, served(hello("a", version="nonsense"), *honest), None, 0)
    assert said is not None
    assert said.runtimes == said.profile.runtimes == {"onnxruntime": "1.2"}


def test_examples_of_one_device_count_as_16_times_the_median_at_most() -> None:
    honest = [hello(f"pi-{number}", examples=10) for number in range(3)]
    said = site_hello(SETTINGS, served(*honest, hello("z", examples=1 << 40)), None, 0)
    assert said is not None
    assert said.num_examples == 3 * 10 + 160
    assert largest_weight([10, 10, 10, 1 << 40]) == 160


def test_names_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_devices, "MOST_DEVICES", 3)
    devices = SiteDevices(SETTINGS)
    for number in range(3):
        devices.greet(hello(f"pi-{number}"), 0.0)
    with pytest.raises(MessageRejected, match="has 3 devices already; pi-9 is not served"):
        devices.greet(hello("pi-9"), 10.0)
    devices.leave("pi-1")
    devices.greet(hello("pi-9"), 10.0)
    assert [each.device for each in devices.served(10.0)] == ["pi-0", "pi-2", "pi-9"]
    devices.greet(hello("pi-8"), 100.0)  # the others were not heard of for a minute
    assert devices.hello("pi-8") is not None
    assert len(devices._members) == 3
