"""The keys that Home Assistant documents for a device's discovery message, and a check of one by them.

Source: home-assistant.io, MQTT ("Device discovery payload", "Supported shared options", "Adding information about the
origin"), MQTT sensor, MQTT switch, and the sensor entity's device classes with their units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ROOT = {
    "device": Mapping,
    "origin": Mapping,
    "components": Mapping,
    "availability": list,
    "availability_topic": str,
    "availability_mode": str,
    "availability_template": str,
    "payload_available": str,
    "payload_not_available": str,
    "state_topic": str,
    "command_topic": str,
    "qos": int,
    "encoding": str,
}
DEVICE = {
    "configuration_url": str,
    "connections": list,
    "hw_version": str,
    "identifiers": list,
    "manufacturer": str,
    "model": str,
    "model_id": str,
    "name": str,
    "serial_number": str,
    "suggested_area": str,
    "sw_version": str,
    "via_device": str,
}
ORIGIN = {"name": str, "sw_version": str, "support_url": str}
AVAILABILITY = {"topic": str, "payload_available": str, "payload_not_available": str, "value_template": str}
ENTITY = {
    "platform": str,
    "name": str,
    "unique_id": str,
    "default_entity_id": str,
    "enabled_by_default": bool,
    "entity_category": str,
    "entity_picture": str,
    "icon": str,
    "device_class": str,
    "json_attributes_template": str,
    "json_attributes_topic": str,
    "state_topic": str,
    "value_template": str,
    "qos": int,
    "encoding": str,
}
PLATFORMS: dict[str, dict[str, type]] = {
    "sensor": {
        **ENTITY,
        "expire_after": int,
        "force_update": bool,
        "last_reset_value_template": str,
        "options": list,
        "state_class": str,
        "suggested_display_precision": int,
        "unit_of_measurement": str,
    },
    "switch": {
        **ENTITY,
        "command_topic": str,
        "command_template": str,
        "optimistic": bool,
        "payload_off": str,
        "payload_on": str,
        "retain": bool,
        "state_off": str,
        "state_on": str,
    },
}
UNITS = {
    "temperature": {"°C", "°F", "K"},
    "battery": {"%"},
    "data_size": {"bit", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"},
    "enum": {None},
}
"""Of the device classes of a sensor that are used here."""


def check_discovery(topic: str, message: Mapping[str, Any]) -> None:
    """Check topic and message of a device's discovery; raises AssertionError naming what is not as documented."""
    found = re.fullmatch(r"homeassistant/device/(?:[a-zA-Z0-9_-]+/)?[a-zA-Z0-9_-]+/config", topic)
    assert found, f"topic {topic}: <prefix>/device/[<node_id>/]<object_id>/config, ids of [a-zA-Z0-9_-]"
    _check(message, ROOT, "message")
    assert {"device", "origin", "components"} <= message.keys(), "device, origin and components are required"
    _check(message["device"], DEVICE, "device")
    assert message["device"].get("identifiers") or message["device"].get("connections"), "a device needs an identifier"
    _check(message["origin"], ORIGIN, "origin")
    assert message["origin"]["name"], "an origin needs its name"
    for entry in message.get("availability", []):
        _check(entry, AVAILABILITY, "availability")
        assert entry["topic"]
    assert message.get("qos", 0) in (0, 1, 2)
    identities = [entity["unique_id"] for entity in message["components"].values()]
    assert len(set(identities)) == len(identities), "every entity has a unique_id of its own"
    for name, entity in message["components"].items():
        _check_entity(name, entity, message)


def _check_entity(name: str, entity: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    assert entity.get("platform") in PLATFORMS, f"{name}: platform {entity.get('platform')!r}"
    _check(entity, PLATFORMS[entity["platform"]], name)
    assert entity.get("entity_category") in (None, "config", "diagnostic"), name
    assert re.fullmatch(r"mdi:[a-z0-9-]+", entity.get("icon", "mdi:x")), name
    if entity["platform"] == "switch":
        assert entity.get("command_topic") or message.get("command_topic"), f"{name}: a switch needs a command_topic"
        return
    assert entity.get("state_topic") or message.get("state_topic"), f"{name}: a sensor needs a state_topic"
    kind = entity.get("device_class")
    assert kind is None or kind in UNITS, f"{name}: device_class {kind!r}"
    if kind is not None:
        assert entity.get("unit_of_measurement") in UNITS[kind], f"{name}: unit of {kind}"
    if kind == "enum":
        assert entity.get("options"), f"{name}: an enum needs options"
        assert "state_class" not in entity, f"{name}: an enum has no state_class"
    else:
        assert "options" not in entity, f"{name}: options belong to an enum"
    assert entity.get("state_class") in (None, "measurement", "total", "total_increasing", "measurement_angle"), name


def _check(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    assert isinstance(given, Mapping), f"{where} is a map"
    for key, value in given.items():
        assert key in known, f"{where}: {key} is not documented"
        assert isinstance(value, known[key]), f"{where}: {key} is {value!r}"
        assert known[key] is not int or not isinstance(value, bool), f"{where}: {key} is {value!r}"
