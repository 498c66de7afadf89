"""Thousands of light devices against a real coordinator and a real broker: how much one machine bears.

A light device (:mod:`coordinator.loadtest.light_device`) speaks the wire protocol in full and trains nothing: its
update is the received weights with small seeded noise. What it reports about training is zeros.
"""

from __future__ import annotations
