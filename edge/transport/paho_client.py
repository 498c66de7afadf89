"""paho's MQTT client, imported without what it needs for proxies only.

paho imports ``urllib.request`` for the proxy of a SOCKS connection, and that brings ``http.client`` and ``email``:
1.7 MB of a supervisor that has no use for them (measured). Here it is loaded when paho first asks for something in it.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import urllib
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["mqtt", "send_at_once"]

_DEFERRED = "urllib.request"


class _Deferred(ModuleType):
    """Stands for a module of the same name until an attribute of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def _import_paho() -> ModuleType:
    if _DEFERRED in sys.modules:
        return import_module("paho.mqtt.client")
    stand_in = _Deferred(_DEFERRED)
    # paho finds it by its import, and later as an attribute of its package; everybody else imports the real one.
    sys.modules[_DEFERRED] = stand_in
    urllib.request = stand_in  # type: ignore[attr-defined]
    try:
        return import_module("paho.mqtt.client")
    finally:
        if sys.modules.get(_DEFERRED) is stand_in:
            del sys.modules[_DEFERRED]


if TYPE_CHECKING:
    import paho.mqtt.client as mqtt
else:
    mqtt = _import_paho()


def send_at_once(opened: Any) -> None:
    """Small packets do not wait for the acknowledgement of others: 40 ms an answer otherwise (measured, loopback)."""
    with contextlib.suppress(OSError, AttributeError):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
