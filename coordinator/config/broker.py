"""The ``[broker]`` table, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coordinator.config.run_config import BrokerConfig, TlsFiles
from coordinator.config.table_reader import REQUIRED, TableReader, absolute
from edge.contracts.errors import ConfigError

_PORT = r":[0-9]{1,5}"
_HERE = r"(?:localhost|127\.0\.0\.1|\[::1\])"
_HOST = r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
_WEB = re.compile(rf"https://{_HOST}{_PORT}|http://{_HERE}{_PORT}")
_WEB_SOCKET = re.compile(rf"(?:wss://{_HOST}{_PORT}|ws://{_HERE}{_PORT})(?:/[A-Za-z0-9._~/-]*)?")


def is_web_socket(url: str) -> bool:
    """Whether ``url`` is ``wss://host:port[/path]``, or ``ws://`` on this machine."""
    return bool(_WEB_SOCKET.fullmatch(url))


def read_broker(table: TableReader, folder: Path) -> BrokerConfig:
    """The table's values."""
    url = table.text("url", BrokerConfig().url)
    started_here = url in ("embedded", "mosquitto")
    if not started_here and not url.startswith(("mqtt://", "mqtts://")):
        table.problem("url", f"'{url}' is not usable; give embedded, mosquitto, mqtt://host:port or mqtts://host:port")
    elif not started_here:
        from edge.transport.broker_address import parse_broker

        try:
            parse_broker(url)
        except ConfigError as error:
            for problem in error.problems:
                table.problem("url", problem.removeprefix("--broker: "))
    tls: bool | TlsFiles
    if isinstance(table.raw("tls"), Mapping):
        files = table.table("tls")
        names = {
            key: absolute(files.text(key, "" if key != "ca" else REQUIRED), folder)
            for key in TlsFiles.__struct_fields__
        }
        files.finish()
        tls = TlsFiles(**names)
        if started_here:
            table.problem("tls", f"the {url} broker makes its own certificates; give true or false")
        if bool(tls.cert) != bool(tls.key):
            table.problem("tls", "cert and key belong together; give both or neither")
    else:
        tls = table.flag("tls", False)
    if tls is not False and url.startswith("mqtt://"):
        table.problem("tls", "is given for an mqtt:// address; write mqtts://")
    broker = BrokerConfig(
        url=url,
        tls=tls,
        user=table.text("user", ""),
        password_env=table.text("password-env", ""),
        identity=absolute(table.text("identity", ""), folder),
        bulk=table.text("bulk", ""),
        web=table.text("web", ""),
        web_certificate=absolute(table.text("web-certificate", ""), folder),
        web_key=absolute(table.text("web-key", ""), folder),
        web_socket=table.text("web-socket", ""),
        folder=absolute(table.text("folder", ""), folder),
        address_connections=table.integer("address-connections", 0, low=0, high=512),
    )
    if broker.bulk and not re.fullmatch(r"https://[A-Za-z0-9.-]+:[0-9]{1,5}", broker.bulk):
        table.problem("bulk", f"'{broker.bulk}' is not https://host:port")
    elif broker.bulk and not broker.identity:
        table.problem("bulk", "is served with a certificate of an identity; give identity too")
    _check_web(table, broker, started_here)
    is_known_to_broker = url == "mosquitto" or url.startswith("mqtts://")
    if broker.identity and not is_known_to_broker and not (url == "embedded" and broker.web):
        table.problem("identity", f'certificates are for url = "mosquitto" or mqtts://host:port, not for {url}')
    if broker.identity and (tls is not False or broker.user):
        table.problem("identity", "brings certificates of its own; leave out tls, user and password-env")
    if bool(broker.user) != bool(broker.password_env):
        table.problem("user", "user and password-env belong together; give both or neither")
    return broker


def _check_web(table: TableReader, broker: BrokerConfig, started_here: bool) -> None:
    web, sockets = broker.web, broker.web_socket
    if bool(broker.web_certificate) != bool(broker.web_key):
        table.problem("web-certificate", "web-certificate and web-key belong together; give both or neither")
    elif broker.web_certificate and not web.startswith("https://"):
        table.problem("web-certificate", 'is for a page over TLS; give web = "https://host:port" too')
    if not web:
        if sockets:
            table.problem("web-socket", "is for browsers, and there is no page for them; give web too")
        if broker.folder:
            table.problem("folder", "is where browsers are made known, and there is no page for them; give web too")
        return
    if not _WEB.fullmatch(web):
        table.problem("web", f"'{web}' is not https://host:port (http:// for localhost and 127.0.0.1 alone)")
    elif web == broker.bulk:
        table.problem("web", f"'{web}' is the address of bulk too; give them different ports")
    if not broker.identity:
        table.problem("web", "browsers join with tokens of an identity; give identity too (apportion ca init)")
    if started_here and sockets:
        table.problem("web-socket", f"the {broker.url} broker that the run starts opens its own; leave it out")
    elif started_here and broker.folder:
        table.problem("folder", f"the {broker.url} broker that the run starts has its own; leave it out")
    elif not started_here and not sockets:
        table.problem("web-socket", f"is missing; browsers cannot use {broker.url}: give the broker's wss://host:port")
    elif sockets and not is_web_socket(sockets):
        table.problem("web-socket", f"'{sockets}' is not wss://host:port[/path] (ws:// for localhost alone)")
    elif sockets.startswith("ws://") and web.startswith("https://"):
        table.problem("web-socket", f"a page at https:// must not speak to '{sockets}'; give the broker's wss://")
