"""Blocks per second through a broker on this machine: publisher -> broker -> subscriber, paho clients, window 4.

    python -m benchmarks.broker_throughput [--megabytes 200] [--kinds embedded mosquitto amqtt-as-it-is]

Prints MB/s by block size and QoS, and the broker's CPU-seconds per GB. ``amqtt-as-it-is`` is the embedded broker
without :class:`coordinator.brokers.amqtt.BlockBroker`'s changes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from coordinator.brokers.opening import BrokerAddress, BrokerProcess

BLOCK_KIB = (64, 128, 256)
WINDOW = 4


def connect(address: BrokerAddress, name: str) -> mqtt.Client:
    """A connected client whose network loop runs in a thread."""
    parts, ready = urlsplit(address.url), threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv311)
    client.username_pw_set(address.user, address.password)
    client.on_connect = lambda *_: ready.set()
    client.connect(parts.hostname or "", parts.port or 0)
    client.loop_start()
    if not ready.wait(10.0):
        raise TimeoutError(f"no answer from {address}")
    return client


def throughput(address: BrokerAddress, block_kib: int, qos: int, total_bytes: int) -> float:
    """MB/s of ``total_bytes`` in blocks, at most :data:`WINDOW` of them unanswered."""
    publisher, subscriber = connect(address, "publisher"), connect(address, "subscriber")
    count = total_bytes // (block_kib * 1024)
    window, subscribed, received = threading.Semaphore(WINDOW), threading.Event(), [0]

    def on_message(*_: object) -> None:
        received[0] += 1
        window.release()

    subscriber.on_message = on_message
    subscriber.on_subscribe = lambda *_: subscribed.set()
    subscriber.subscribe("blocks/#", qos)
    subscribed.wait(10.0)
    block, started = os.urandom(block_kib * 1024), time.perf_counter()
    for _ in range(count):
        if not window.acquire(timeout=10.0):
            break
        publisher.publish("blocks/x", block, qos)
    while received[0] < count and time.perf_counter() - started < 60:
        time.sleep(0.001)
    seconds = time.perf_counter() - started
    for client in (publisher, subscriber):
        client.disconnect()
        client.loop_stop()
    if received[0] != count:
        raise TimeoutError(f"{received[0]} of {count} blocks arrived")
    return count * block_kib * 1024 / 1e6 / seconds


def measure(address: BrokerAddress, pid: int, total_bytes: int) -> dict[str, object]:
    """The figures of one broker."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    rates = {
        f"qos{qos}_{kib}kib_mb_s": round(throughput(address, kib, qos, total_bytes), 1)
        for qos in (0, 1)
        for kib in BLOCK_KIB
    }
    after = process.cpu_times()
    cpu_s = after.user - before.user + after.system - before.system
    relayed_gb = total_bytes * 2 * len(BLOCK_KIB) / 1e9
    return {**rates, "cpu_s_per_gb": round(cpu_s / relayed_gb, 2), "rss_mb": round(process.memory_info().rss / 1e6)}


def amqtt_as_it_is(total_bytes: int) -> dict[str, object]:
    """The figures of amqtt's own Broker class with the same configuration."""
    port, code = 18_830, (
        "import asyncio, json, sys\nfrom amqtt.broker import Broker\n"
        "from coordinator.brokers.amqtt import broker_config\n"
        "async def serve():\n    broker = Broker(broker_config(json.loads(sys.argv[1])))\n    await broker.start()\n"
        "    print('ready', flush=True)\n    await asyncio.sleep(600)\nasyncio.run(serve())\n"
    )  # fmt: skip
    settings = json.dumps({"port": port, "user": "u", "password": "p"})
    with subprocess.Popen([sys.executable, "-c", code, settings], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            address = BrokerAddress(kind="amqtt", url=f"mqtt://127.0.0.1:{port}", user="u", password="p")
            return measure(address, process.pid, total_bytes)
        finally:
            process.kill()


def main() -> None:
    """Measures and prints one JSON line per broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200, help="bytes relayed per figure")
    parser.add_argument("--kinds", nargs="+", default=["embedded", "mosquitto", "amqtt-as-it-is"])
    options = parser.parse_args()
    for kind in options.kinds:
        if kind == "amqtt-as-it-is":
            figures = amqtt_as_it_is(options.megabytes * 1_000_000)
        else:
            with tempfile.TemporaryDirectory() as folder, BrokerProcess(kind, Path(folder)) as broker:
                figures = measure(broker.address, broker.pid, options.megabytes * 1_000_000)
        print(json.dumps({"broker": kind, **figures}), flush=True)


if __name__ == "__main__":
    main()
