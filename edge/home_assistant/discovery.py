"""The discovery message by which Home Assistant knows a device: one for all its entities, by the documented keys.

Source: Home Assistant, MQTT integration, "Device discovery payload" (2024.11 and later), and the pages of the MQTT
sensor and switch.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, get_args

from edge.contracts.messages import AgentState
from edge.contracts.release import RELEASE
from profiles.device import DeviceProfile

PREFIX = "homeassistant"
"""Where Home Assistant looks for discovery messages, unless its owner has changed it."""

ON, OFF = "ON", "OFF"
ONLINE, OFFLINE = "online", "offline"
BIRTH = f"{PREFIX}/status"
"""Home Assistant says ``online`` here when it has started."""


@dataclass(frozen=True)
class Topics:
    """A device's topics at its owner's broker."""

    device_id: str

    @property
    def discovery(self) -> str:
        """Retained: what the device is."""
        return f"{PREFIX}/device/{self.device_id}/config"

    @property
    def state(self) -> str:
        """Retained: its values as one JSON object."""
        return f"{self.device_id}/state"

    @property
    def availability(self) -> str:
        """Retained: ``online``, or by the last will ``offline``."""
        return f"{self.device_id}/availability"

    @property
    def command(self) -> str:
        """``ON`` and ``OFF`` for the switch."""
        return f"{self.device_id}/take-part/set"


def device_id(federation: str, device: str) -> str:
    """An id that topics and Home Assistant take (letters, digits, ``_`` and ``-``), another for every pair."""
    words = re.sub(r"[^a-zA-Z0-9_-]", "_", f"apportion_{device}")
    return f"{words}_{hashlib.sha256(f'{federation}/{device}'.encode()).hexdigest()[:8]}"


def discovery(federation: str, profile: DeviceProfile) -> dict[str, Any]:
    """The message; entities for what the device can read only.

    Args:
        profile: with ``device`` as its id in the federation.
    """
    own = device_id(federation, profile.device)
    topics = Topics(own)
    components: dict[str, dict[str, Any]] = {
        "take_part": {
            "platform": "switch",
            "name": "Take part",
            "icon": "mdi:school",
            "command_topic": topics.command,
            "value_template": "{{ value_json.take_part }}",
            "payload_on": ON,
            "payload_off": OFF,
            "optimistic": False,
        },
        "state": {
            "platform": "sensor",
            "name": "State",
            "icon": "mdi:progress-clock",
            "device_class": "enum",
            "options": list(get_args(AgentState)),
            "value_template": "{{ value_json.state }}",
        },
        "waits_for": {
            "platform": "sensor",
            "name": "Waits for",
            "icon": "mdi:timer-sand",
            "value_template": "{{ value_json.waits_for }}",
        },
        "last_round": {
            "platform": "sensor",
            "name": "Last round",
            "icon": "mdi:counter",
            "value_template": "{{ value_json.last_round }}",
        },
    }
    if profile.budget_bytes:
        components["budget"] = {
            "platform": "sensor",
            "name": "Memory budget",
            "device_class": "data_size",
            "unit_of_measurement": "MiB",
            "entity_category": "diagnostic",
            "value_template": "{{ value_json.budget_mib }}",
        }
    if profile.temperature_c is not None:
        components["temperature"] = {
            "platform": "sensor",
            "name": "Temperature",
            "device_class": "temperature",
            "state_class": "measurement",
            "unit_of_measurement": "°C",
            "value_template": "{{ value_json.temperature_c }}",
        }
    if profile.battery_percent is not None:
        components["battery"] = {
            "platform": "sensor",
            "name": "Battery",
            "device_class": "battery",
            "state_class": "measurement",
            "unit_of_measurement": "%",
            "value_template": "{{ value_json.battery_percent }}",
        }
    return {
        "device": {
            "identifiers": [own],
            "name": f"{profile.device} ({federation})",
            "manufacturer": "Apportion",
            "model": profile.board or profile.cpu_model or "device",
            "sw_version": RELEASE,
        },
        "origin": {"name": "apportion", "sw_version": RELEASE},
        "availability": [{"topic": topics.availability, "payload_available": ONLINE, "payload_not_available": OFFLINE}],
        "state_topic": topics.state,
        "qos": 1,
        "components": {name: {**entity, "unique_id": f"{own}_{name}"} for name, entity in components.items()},
    }
