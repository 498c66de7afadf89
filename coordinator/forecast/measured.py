"""What one coordinator and one broker take for a device, as the load test measured it.

x86-64 (AMD EPYC, Zen 5), two cores, Mosquitto 2.0 on loopback, 10,000 connections, 1,000 of them in a round of 1 MB:
docs/measurements/2026-11-22-load.md. docs/forecast.md holds the figures against another setting, on another processor.
"""

from __future__ import annotations

START_CPU_S = 8.0
"""The coordinator's processor time before its first round: what it imports, an export and its check."""

HELLO_CPU_S = 0.0002
"""The coordinator's processor time of a device's arrival."""

HEARTBEAT_CPU_S = 0.0001
"""Of one heartbeat."""

PARTICIPANT_CPU_S = 0.004
"""Of one participant's order, report and acknowledgement, in a large round."""

MEGABYTE_CPU_S = 0.012
"""Of 1 MB sent and 1 MB received, checked, stored and summed."""

COORDINATOR_MB = 450.0
"""Memory of a coordinator with torch and the exporter, before its first device; MB of 2^20."""

DEVICE_KB = 3.5
"""Of the coordinator's memory for each device that is there, KB of 2^10."""

BROKER_MB = 8.0
"""The broker's memory without a connection, and what is on its way through it."""

IDLE_CONNECTION_KB = {False: 3.1, True: 26.7}
"""Of the broker's memory for each connection; with TLS: True."""

BROKER_HELLO_CPU_S = {False: 0.0002, True: 0.0021}
"""Of the broker's processor time for each connection that is made."""

BROKER_MEGABYTE_CPU_S = 0.0015
"""Of the broker's processor time for 1 MB that passes it: 6 to 8 s for 4 GB."""

WIRE = 1.007
"""Bytes through a device's socket over bytes of weights and updates."""

LARGEST_FLEET = 10_000
"""Connections with which one coordinator and one broker were measured; more is another measurement."""

BUSY = 0.6
"""Share of a core up to which a coordinator is planned: answers of the control lane stay under a second below it."""
