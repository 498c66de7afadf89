"""Both doors of the kit's broker: passed, cut, and held shut."""

from __future__ import annotations

import queue
import time
from urllib.parse import urlsplit

import pytest
from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from coordinator.conformance.site import Site, open_site

pytestmark = pytest.mark.slow

SIZE = 290_000


def wait_until(client: Client, is_connected: bool) -> None:
    deadline = time.monotonic() + 10
    while client.is_connected() != is_connected:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def through(site: Site, url: str, is_web: bool) -> None:
    """Connect at ``url``, get a large message of one's own back, lose the connection and make it again."""
    got: queue.Queue[bytes] = queue.Queue()
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id="somebody",
        protocol=MQTTv311,
        transport="websockets" if is_web else "tcp",
    )
    client.username_pw_set(site.connection.user, site.connection.password)
    client.on_message = lambda client, data, message: got.put(message.payload)
    client.on_connect = lambda client, *rest: client.subscribe("here", 1)
    client.reconnect_delay_set(1, 1)
    parts = urlsplit(url)
    client.connect(parts.hostname or "", parts.port or 0)
    client.loop_start()
    try:
        wait_until(client, True)
        client.publish("here", bytes(SIZE), qos=1)
        assert len(got.get(timeout=10)) == SIZE
        site.close()
        assert site.cut() == 1
        wait_until(client, False)
        site.open()
        wait_until(client, True)
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.broker
@pytest.mark.parametrize("broker", ["mosquitto", "embedded"])
def test_both_doors_pass_large_messages_and_can_be_cut(broker: str) -> None:
    with open_site(runtime="onnxruntime", tls=False, broker=broker) as site:
        through(site, site.connection.url, is_web=False)
        through(site, site.connection.web_socket_url, is_web=True)
