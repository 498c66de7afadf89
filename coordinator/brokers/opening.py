"""The broker of a run: started here (:mod:`coordinator.brokers.process`) or somewhere else by URL."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from coordinator.brokers.mosquitto import WebSocketListener
from coordinator.brokers.process import BrokerAddress, BrokerProcess
from coordinator.config.run_config import BrokerConfig, TlsFiles
from edge.contracts.errors import ApportionError, BrokerUnreachable, ConfigError

__all__ = ["BrokerAddress", "BrokerProcess", "open_broker"]


@contextlib.contextmanager
def open_broker(
    config: BrokerConfig,
    folder: Path,
    *,
    federation: str = "",
    environ: Mapping[str, str] = os.environ,
    web_socket: WebSocketListener | None = None,
) -> Iterator[BrokerAddress]:
    """The address of the broker that ``config`` names, running while the context is open.

    Args:
        federation: whose coordinator connects; needed where ``config`` names an identity.
        web_socket: where a broker that is started here listens for browsers; one elsewhere has ``config.web_socket``.

    Raises:
        BrokerUnreachable: it cannot be started here.
        ConfigError: a password variable that is not set.
        IdentityRefused: the identity has no certificate that this broker would let in.
    """
    if config.identity:
        with _open_with_identity(config, folder, federation, web_socket) as address:
            yield address
        return
    user, password = config.user, ""
    if config.password_env:
        password = environ.get(config.password_env, "")
        if not password:
            raise ConfigError([f"$.broker.password-env: the environment has no {config.password_env}; set it"])
    if config.url not in ("embedded", "mosquitto"):
        files = config.tls if isinstance(config.tls, TlsFiles) else TlsFiles(ca="")
        yield BrokerAddress(
            kind="external",
            url=config.url,
            user=user,
            password=password,
            ca_file=_path(files.ca),
            certificate_file=_path(files.cert),
            key_file=_path(files.key),
        )
        return
    process = BrokerProcess(config.url, folder, tls=bool(config.tls), user=user, password=password)
    with process, BrokerKeeper(process):
        yield process.address


@contextlib.contextmanager
def _open_with_identity(
    config: BrokerConfig, folder: Path, federation: str, web_socket: WebSocketListener | None
) -> Iterator[BrokerAddress]:
    from coordinator.brokers.broker_files import coordinator_files

    identity = Path(config.identity)
    if config.url == "embedded":
        process = BrokerProcess(config.url, folder, identity=identity, web_socket=web_socket)
        with process, BrokerKeeper(process):
            yield process.address
        return
    is_ours = config.url == "mosquitto"
    own = coordinator_files(identity, federation, issue=is_ours)
    with contextlib.ExitStack() as stack:
        if is_ours:
            process = BrokerProcess(config.url, folder, identity=identity, web_socket=web_socket)
            address = stack.enter_context(process).address
            stack.enter_context(BrokerKeeper(process))
        else:
            address = BrokerAddress(kind="external", url=config.url, web_socket=config.web_socket)
        yield replace(address, ca_file=own.ca, certificate_file=own.certificate, key_file=own.key, identity=identity)


def _path(name: str) -> Path | None:
    return Path(name) if name else None


log = logging.getLogger("apportion.broker")
LOOK_S = 0.5
"""How often it is looked at; both sides wait at least a second before they connect again."""


class BrokerKeeper:
    """Looks after ``broker`` while the context is open, which is within the broker's own.

    One thread does all of it and stays until the end: to the kernel it is the parent of the brokers it starts, and they
    end with it.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="broker keeper", daemon=True)

    def __enter__(self) -> BrokerKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self._broker.name_cut_off()
            except (ApportionError, OSError) as error:
                log.warning("whom the broker cut off cannot be told now: %s", error)
            try:
                status = self._broker.revive()
            except (BrokerUnreachable, OSError) as error:
                log.warning("the broker ended and does not start; it is tried again: %s", error)
                continue
            if status is not None:
                log.warning("the broker ended with status %d and was started again", status)
