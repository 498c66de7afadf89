"""Sockets that connect to a server again and again.

``python -m tests.coordinator.web.reconnecting FROM PORT COUNT tls|websocket``: each begins a TLS handshake, or opens a
WebSocket, holds its connection, and comes back when it is ended. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

FIRST = {
    "tls": bytes.fromhex("160301020001"),
    "websocket": b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
}


async def reconnect(source: str, port: int, first: bytes) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            writer.write(first)
            while await reader.read(4096):
                pass
            writer.close()
        await asyncio.sleep(0.001)


async def main() -> None:
    source, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tasks = [asyncio.create_task(reconnect(source, port, FIRST[sys.argv[4]])) for _ in range(count)]
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
