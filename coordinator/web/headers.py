"""Headers on every answer of the web server: what the page may load and do, and who may embed or read it."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PERMISSIONS = (
    "accelerometer=(self), camera=(self), gyroscope=(self), magnetometer=(self), screen-wake-lock=(self), "
    "display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"
)
"""Sensors and the camera record training examples, which stay on the phone; the page uses nothing else."""


def security_headers(web_socket: str = "") -> dict[str, str]:
    """Header -> value, for a page whose broker is at ``web_socket`` (``wss://host:port[/path]``; empty: none).

    There is no Strict-Transport-Security: a browser that has seen it cannot be told to trust a certificate of an
    authority that it does not know yet, which is how the first page is reached on many local networks.
    """
    parts = urlsplit(web_socket)
    broker = f" {parts.scheme}://{parts.netloc}" if web_socket else ""
    policy = {
        "default-src": "'none'",
        "script-src": "'self' 'wasm-unsafe-eval'",
        "style-src": "'self'",
        "img-src": "'self' blob: data:",
        "media-src": "blob: mediastream:",
        "connect-src": f"'self'{broker}",
        "worker-src": "'self'",
        "manifest-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        # Both: without them the page is not cross-origin isolated, and wasm has one thread.
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Embedder-Policy": "require-corp",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Permissions-Policy": PERMISSIONS,
    }


class WithHeaders:
    """``app``, with ``headers`` on whatever it answers, errors too."""

    def __init__(self, app: ASGIApp, headers: dict[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)
