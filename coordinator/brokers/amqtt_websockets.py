"""The embedded broker's door for browsers: WebSockets, a password for each device, its own topics and no others.

amqtt believes a client before it has seen its password: it ends the session of whoever has the same client id, takes a
last will for any topic, and reads packets of any size. So these connections are let in here, before amqtt's own steps.
The users come from a password file as Mosquitto's, which is read again on SIGHUP.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import io
import random
import ssl
from pathlib import Path
from typing import Any

from amqtt.adapters import WebSocketsReader, WebSocketsWriter
from amqtt.broker import Broker
from amqtt.contexts import Action, ListenerConfig, ListenerType
from amqtt.errors import AMQTTError, MQTTError, NoDataError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.session import Session
from websockets.exceptions import ConnectionClosed

from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.topics import PREFIX

MAX_STRANGERS = 128
"""Connections that have not said who they are yet."""
CONNECT_TIMEOUT_S = 10.0
"""How long a connection may take to say who it is."""
MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + 1024
_NOBODYS = "$7$101$AAAAAAAAAAAAAAAA$" + base64.b64encode(bytes(64)).decode()


class BrowserUsers:
    """The users in a Mosquitto password file (PBKDF2 with SHA-512)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hashes: dict[str, str] = {}
        self.read()

    def read(self) -> set[str]:
        """Read the file again; users that are gone from it, or have another password."""
        lines = self._path.read_text(encoding="utf-8").splitlines()
        found = dict(line.split(":", 1) for line in lines)
        changed = {user for user, known in self._hashes.items() if found.get(user) != known}
        self._hashes = found
        return changed

    def lets_in(self, user: str, password: str) -> bool:
        """Whether that is the user's password."""
        _, _, rounds, salt, wanted = self._hashes.get(user, _NOBODYS).split("$")
        given = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt), int(rounds))
        return hmac.compare_digest(given, base64.b64decode(wanted)) and user in self._hashes


def is_own_topic(device: str, topic: str, action: Action) -> bool:
    """Whether a browser device may publish to, receive from or subscribe to ``topic``, which may be a filter."""
    levels = topic.split("/")
    if "/".join(levels[:2]) != PREFIX or len(levels) < 5:
        return False
    if action == Action.PUBLISH:
        return levels[3:5] == ["up", device]
    return levels[3] == "all" or levels[3:5] == ["dn", device]


class BoundedReader(WebSocketsReader):  # type: ignore[misc]
    """Reads packets of at most :data:`MAX_PACKET_BYTES`; ends with its connection.

    amqtt's own goes on with the last message, again and again, when a connection closes in the middle of a packet.
    """

    _has_ended = False

    async def _feed_buffer(self, n: int = 1) -> None:
        buffer = bytearray(self._stream.read())  # type: ignore[has-type]
        if n > MAX_PACKET_BYTES and not self._has_ended:
            self._has_ended = True
            await self._protocol.close(1009)
        while len(buffer) < n and not self._has_ended:
            try:
                message = await self._protocol.recv()
            except ConnectionClosed:
                self._has_ended = True
            else:
                buffer.extend(message.encode() if isinstance(message, str) else message)
        self._stream = io.BytesIO(b"" if self._has_ended and len(buffer) < n else buffer)


class BrowserBroker(Broker):  # type: ignore[misc]
    """amqtt's broker with browsers at its WebSocket listener; ``users`` is None where it has none."""

    def __init__(self, config: dict[str, Any], users: BrowserUsers | None = None) -> None:
        super().__init__(config)
        self._users = users
        self._browsers: dict[str, tuple[Session, WebSocketsWriter]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._strangers: dict[str, set[Any]] = {}

    def reload(self) -> None:
        """Read the users again; a connection of one that is gone, or has another password, ends."""
        if self._users is not None:
            for user in self._users.read():
                self._end(user)

    async def ws_connected(self, websocket: Any, listener_name: str) -> None:
        """Serve a connection; where too many have not said who they are, one of the address that has most of them ends.

        amqtt would have all others wait for a place.
        """
        address = str((websocket.remote_address or ("",))[0])
        if sum(map(len, self._strangers.values())) >= MAX_STRANGERS:
            most = max(self._strangers.values(), key=len)
            displaced = random.choice(tuple(most))
            most.discard(displaced)
            displaced.transport.abort()
        own = self._strangers.setdefault(address, set())
        own.add(websocket)
        try:
            await self._client_connected(listener_name, BoundedReader(websocket), WebSocketsWriter(websocket))
        finally:
            self._is_known(address, websocket)

    def _is_known(self, address: str, websocket: Any) -> None:
        own = self._strangers.get(address, set())
        own.discard(websocket)
        if not own:
            self._strangers.pop(address, None)

    async def retain_message(self, source_session: Any, *args: Any, **options: Any) -> None:
        """Keep no message for later subscribers: nothing here needs one, and there could be any number of them."""

    async def _initialize_client_session(
        self, reader: Any, writer: Any, remote_address: str, remote_port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        if not isinstance(writer, WebSocketsWriter):
            return await super()._initialize_client_session(reader, writer, remote_address, remote_port)  # type: ignore[no-any-return]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                handler, session = await BrokerProtocolHandler.init_from_connect(reader, writer, self.plugins_manager)
        except (TimeoutError, AMQTTError, MQTTError, NoDataError) as error:
            await writer.close()
            raise MQTTError(f"no fit CONNECT from {remote_address}: {error!r}") from error
        user = session.username or ""
        if self._users is None or not self._users.lets_in(user, session.password or ""):
            await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
            await writer.close()
            raise MQTTError(f"a browser at {remote_address} gave no known user and password")
        self._is_known(remote_address, writer._protocol)
        self._end(user)  # a second connection of a device takes the place of its first
        # The client id is ours: of the same one, the older session ends.
        session.client_id, session.clean_session, session.parent = f"browser/{user}", True, 0
        session.keep_alive = int(session.keep_alive * 1.5)  # MQTT 3.1.1, section 3.1.2.10
        session.browser = user
        if session.will_flag and not is_own_topic(user, session.will_topic or "", Action.PUBLISH):
            session.will_flag = False
        session.will_retain = False
        self._browsers[user] = (session, writer)
        await self._delete_session(session.client_id)
        return handler, session

    async def _authenticate(self, session: Session, listener: ListenerConfig) -> bool:
        if listener.type == ListenerType.WS:
            return _device(session) is not None
        return bool(await super()._authenticate(session, listener))

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        device = _device(session)
        if device is None:
            return bool(await super()._topic_filtering(session, topic, action))
        known = self._browsers.get(device)
        return known is not None and known[0] is session and is_own_topic(device, topic, action)

    def _end(self, user: str) -> None:
        """From here on the user's connection has no topics; it closes as soon as it can."""
        session, writer = self._browsers.pop(user, (None, None))
        if session is None or writer is None:
            return
        session.will_flag = False
        task = asyncio.get_running_loop().create_task(_close(writer))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @staticmethod
    def _create_ssl_context(listener: ListenerConfig) -> ssl.SSLContext:
        context = Broker._create_ssl_context(listener)
        context.verify_mode = ssl.CERT_NONE  # amqtt asks for a certificate: a browser would ask its user for one
        assert isinstance(context, ssl.SSLContext)
        return context


def _device(session: Session | None) -> str | None:
    """The browser device of a session; None for any other."""
    return getattr(session, "browser", None)


async def _close(writer: WebSocketsWriter) -> None:
    with contextlib.suppress(OSError, ConnectionClosed):
        await writer.close()
