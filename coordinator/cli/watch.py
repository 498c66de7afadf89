"""``apportion watch RUN_DIR|URL``: the dashboard of a run, under way or finished, in a browser."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from coordinator.cli.command import parse_problem, verb

EXAMPLE = "Example: apportion watch runs/first --open"

LOOPBACK_URL = "http://127.0.0.1"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("watch", epilog=EXAMPLE)(watch)


@verb("watch")
def watch(
    where: Annotated[
        str, typer.Argument(metavar="RUN_DIR|URL", help="the directory of the run, or the address of an open dashboard")
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="of this machine; 0: a free one")] = 0,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST", help="the name or address to serve at, in place of 127.0.0.1")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="a further name it is reached by, behind a reverse proxy"),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="without a token: nobody can pause or stop")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="open it in this machine's browser")] = False,
    duration_s: Annotated[
        float, typer.Option("--duration-s", min=0.0, help="end after so many seconds; 0: at Ctrl-C")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line on stdout at the end")] = False,
) -> dict[str, Any]:
    """Show a run in the browser: devices, rounds, memory, the model as a map, scores, bytes, events; after it, too."""
    if "://" in where:
        return _open_other(where)
    with served(Path(where), port=port, listen=listen, hosts=host or (), read_only=read_only) as (address, link):
        _tell(address, link, listen, is_json=as_json)
        if open_page:
            webbrowser.open(link)
        threading.Event().wait(duration_s or None)
    return {"run_dir": where, "address": address}


@contextlib.contextmanager
def served(
    run_dir: Path,
    *,
    port: int = 0,
    listen: str = "127.0.0.1",
    hosts: tuple[str, ...] | list[str] = (),
    read_only: bool = False,
) -> Iterator[tuple[str, str]]:
    """The dashboard of the run in ``run_dir``, served while the context is open.

    Returns:
        Its address, and the address with the token: the page reads it there and keeps it to itself.

    Raises:
        ConfigError: no run is there; LedgerError: its ledger cannot be read; BrokerUnreachable: the port is taken.
    """
    from coordinator.dashboard.app import dashboard
    from coordinator.dashboard.board import Board
    from coordinator.history.history import History
    from coordinator.web.server import WebServer

    token = "" if read_only else secrets.token_urlsafe(24)
    shown = f"[{listen}]" if ":" in listen else listen
    with History.of(run_dir) as history:
        board = Board(history)
        with board.following():
            app = dashboard(board, history.open_ledger, token, hosts=[listen, *hosts])
            server = WebServer(
                f"http://{shown}:{port}",
                app,
                what="the dashboard",
                hint="free the port, or give another: --port",
            )
            with server:
                yield server.address, server.address + (f"/#token={token}" if token else "/")


def _tell(address: str, link: str, listen: str, *, is_json: bool) -> None:
    from coordinator.web.connections import LOOPBACK

    file = sys.stderr if is_json else sys.stdout
    if listen not in LOOPBACK:
        print(
            f"warning: everyone who reaches {address} can read this run, the token crosses the network in the clear; "
            "serve it on 127.0.0.1 behind a reverse proxy with TLS, or through ssh -L (docs/dashboard.md)",
            file=sys.stderr,
        )
    token = link.partition("#token=")[2]
    print(f"dashboard: {address}", file=file)
    print(f"token: {token}" if token else "read-only: no token", file=file)
    if token:
        print(f"both in one address: {link}", file=file)
    print("end it with Ctrl-C; the run goes on", file=file, flush=True)


def _open_other(url: str) -> dict[str, Any]:
    """Opens a dashboard that another command serves, once it has answered.

    Raises:
        ConfigError: nothing answers there, or something else does.
    """
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme not in ("http", "https"):
        raise parse_problem("URL", f"{url}: http:// or https:// expected")
    try:
        with urllib.request.urlopen(f"{address}/api/state", timeout=10.0) as answer:
            run = json.load(answer)["run"]
    except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
        raise parse_problem(
            "URL", f"no dashboard answers at {address} ({error}); open one with: apportion watch RUN_DIR"
        ) from error
    print(f"{address}: run {run['name']}, {run['state']}, {run['rounds_committed']} rounds committed")
    if not webbrowser.open(url):
        print(f"no browser could be opened here; open {address} in one", file=sys.stderr)
    return {"address": address, "run": run["name"]}
