"""A device in Home Assistant, by a connection of its own to its owner's broker, which is never the federation's.

paho's thread connects, for ever and quietly, and hears the switch; the agent's thread asks and tells. A broker that is
away costs the agent nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from paho.mqtt.enums import CallbackAPIVersion

from edge.home_assistant.discovery import BIRTH, OFF, OFFLINE, ON, ONLINE, Topics, device_id, discovery
from edge.home_assistant.home import Home, Status
from edge.home_assistant.kept import Kept, read_kept, write_kept
from edge.transport.broker_address import BrokerAddress
from edge.transport.mqtt import tls_context
from edge.transport.paho_client import mqtt
from profiles.device import DeviceProfile

log = logging.getLogger("apportion.home")

EVERY_S = 30.0
"""Heat and charge are read and told this often; what the agent does at once."""

KEEPALIVE_S = 30
DENIED = "the owner has switched this device off in Home Assistant; ask again later"


class HomeAssistantLink(Home):
    """One device.

    Args:
        folder: of the agent's store.
        profile: probes the device.
    """

    def __init__(
        self, address: BrokerAddress, *, federation: str, folder: Path, profile: Callable[[], DeviceProfile]
    ) -> None:
        self._address = address
        self._federation = federation
        self._folder = folder
        self._probe = profile
        self._profile = profile()
        self._topics = Topics(device_id(federation, self._profile.device))
        self._kept = read_kept(folder)
        self._lock = threading.Lock()
        self._is_switched_off = False
        self._status = Status("idle")
        self._told: bytes = b""
        self._read_at = float("-inf")
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=self._topics.device_id, protocol=mqtt.MQTTv311, clean_session=True
        )
        self._client.max_queued_messages_set(64)
        self._client.reconnect_delay_set(1, 60)
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        self._client.will_set(self._topics.availability, OFFLINE, qos=1, retain=True)
        self._client.on_connect = self._connected
        self._client.on_connect_fail = self._not_connected
        self._is_told_away = False
        self._client.on_message = self._heard

    def begin(self) -> None:
        """Connect, now or whenever the broker is there.

        Raises:
            ConfigError: the authority's file cannot be read.
        """
        if self._address.tls:
            self._client.tls_set_context(tls_context(self._address))
        self._client.connect_async(self._address.host, self._address.port, keepalive=KEEPALIVE_S)
        self._client.loop_start()

    def denial(self) -> str:
        """As :meth:`Home.denial`: while the switch is off."""
        return "" if self._kept.take_part else DENIED

    def tick(self, now: float, status: Status) -> bool:
        """As :meth:`Home.tick`: tells what has changed; whether the switch was turned off since the last call."""
        if now - self._read_at >= EVERY_S:
            self._read_at, self._profile = now, self._probe()
        with self._lock:
            self._status = status
            is_off, self._is_switched_off = self._is_switched_off, False
        self._tell()
        return is_off and not self._kept.take_part

    def took_part(self, round_number: int) -> None:
        """As :meth:`Home.took_part`."""
        self._keep(last_round=round_number)

    def close(self) -> None:
        """As :meth:`Home.close`: the device is shown as away."""
        if self._client.is_connected():
            sent = self._client.publish(self._topics.availability, OFFLINE, qos=1, retain=True)
            try:
                sent.wait_for_publish(1.0)
            except (RuntimeError, ValueError):
                log.info("Home Assistant was not told that the agent ends")
        self._client.disconnect()
        self._client.loop_stop()
        # paho leaves the pair of sockets that wakes its thread to its finalizer.
        self._client._reset_sockets(sockpair_only=True)

    def values(self) -> dict[str, Any]:
        """What the entities show."""
        kept, profile, status = self._kept, self._profile, self._status
        return {
            "take_part": ON if kept.take_part else OFF,
            "state": status.state,
            "waits_for": (status.waits_for or ("" if kept.take_part else "the switch"))[:255],
            "last_round": kept.last_round,
            "round": status.round or None,
            "budget_mib": round(profile.budget_bytes / 2**20, 1) if profile.budget_bytes else None,
            "temperature_c": profile.temperature_c,
            "battery_percent": profile.battery_percent,
        }

    # in paho's thread

    def _connected(self, client: mqtt.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:
        if code.is_failure:
            log.warning("the broker of Home Assistant at %s refuses the device: %s", self._address, code)
            return
        client.subscribe([(self._topics.command, 1), (BIRTH, 1)])
        self._introduce()

    def _not_connected(self, client: mqtt.Client, data: Any) -> None:
        if not self._is_told_away:
            self._is_told_away = True
            log.warning("the broker of Home Assistant at %s does not answer; it is tried again", self._address)

    def _heard(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        if message.topic == BIRTH:
            if message.payload == ONLINE.encode():
                self._introduce()
            return
        if message.payload not in (ON.encode(), OFF.encode()):
            log.warning("%s: %r is neither ON nor OFF", message.topic, message.payload[:20])
            return
        is_on = message.payload == ON.encode()
        log.info("switched %s in Home Assistant", "on" if is_on else "off")
        if not is_on:
            with self._lock:
                self._is_switched_off = True
        self._keep(take_part=is_on)
        self._tell()

    def _introduce(self) -> None:
        message = msgspec.json.encode(discovery(self._federation, self._profile))
        self._client.publish(self._topics.discovery, message, qos=1, retain=True)
        self._client.publish(self._topics.availability, ONLINE, qos=1, retain=True)
        self._tell(again=True)

    # in both

    def _keep(self, **changes: Any) -> None:
        with self._lock:
            kept: Kept = msgspec.structs.replace(self._kept, **changes)
            if kept != self._kept:
                write_kept(self._folder, kept)
                self._kept = kept

    def _tell(self, *, again: bool = False) -> None:
        with self._lock:
            values = msgspec.json.encode(self.values())
            if (values == self._told and not again) or not self._client.is_connected():
                return
            self._told = values
            self._client.publish(self._topics.state, values, qos=1, retain=True)
