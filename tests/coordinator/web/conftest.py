"""A small page as a build leaves it, and servers on the loopback."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.identity.authority import Authority
from coordinator.web.app import web_application
from coordinator.web.blobs import Blobs
from coordinator.web.pages import Pages
from coordinator.web.server import WebServer
from coordinator.web.tickets import Tickets
from tests.coordinator.web.served_page import SOCKET, ServedPage


@pytest.fixture(scope="session")
def built_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page, some of it compressed, and what is no part of one."""
    folder = tmp_path_factory.mktemp("site") / "dist"
    (folder / "assets").mkdir(parents=True)
    script = b"export const answer = 42;\n" * 2000
    files = {
        "index.html": b"<!doctype html><title>Apportion</title>",
        "sw.js": b"self.skipWaiting()",
        "manifest.webmanifest": b"{}",
        "assets/index-B5Qt9EMX.js": script,
        "assets/index-B5Qt9EMX.js.gz": gzip.compress(script),
        "assets/index-B5Qt9EMX.js.br": b"not really brotli",
        "assets/ort-Ab_-4567.wasm": b"\0asm",
        "assets/index-B5Qt9EMX.js.map": b"{}",
        "notes.py": b"print()",
        ".secret.json": b"{}",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder.parent / "outside.txt").write_text("outside")
    (folder / "link.txt").symlink_to(folder.parent / "outside.txt")
    return folder


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an authority."""
    folder = tmp_path_factory.mktemp("authority") / "identity"
    Authority.create(folder).close()
    return folder


@pytest.fixture(scope="module")
def served(built_page: Path, identity: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """The whole application over plain HTTP, as on this machine alone."""
    store, tickets = BlobStore(tmp_path_factory.mktemp("store") / "blobs"), Tickets()
    blobs = Blobs(store, tickets)
    told: list[str] = []
    handler = ClaimHandler(identity, federation="fed", web_socket=SOCKET, on_claimed=told.append)
    app = web_application(Pages(built_page), handler, web_socket=SOCKET, blobs=blobs)
    with WebServer("http://127.0.0.1:0", app) as server:
        yield ServedPage(server.address, store, tickets, blobs, told)
