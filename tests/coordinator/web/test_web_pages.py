"""The built page over HTTP: its files and no others, with strict headers on whatever is answered."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from coordinator.web import pages
from coordinator.web.headers import security_headers
from coordinator.web.pages import Pages, built_folder
from edge.contracts.errors import ConfigError
from tests.coordinator.web.served_page import ServedPage

SCRIPT = "/assets/index-B5Qt9EMX.js"


def test_page_is_at_the_root_and_where_links_lead(served: ServedPage) -> None:
    for path in ("/", "/join", "/index.html", "/join?x=1"):
        reply = served.ask(path)
        assert (reply.status, reply.body[:15]) == (200, b"<!doctype html>")
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("path", "media_type", "cache"),
    [
        (SCRIPT, "text/javascript; charset=utf-8", pages.IMMUTABLE),
        ("/assets/ort-Ab_-4567.wasm", "application/wasm", pages.IMMUTABLE),
        ("/manifest.webmanifest", "application/manifest+json", "no-cache"),
        ("/sw.js", "text/javascript; charset=utf-8", "no-cache"),
    ],
)
def test_files_have_their_media_type_and_only_hashed_names_never_change(
    served: ServedPage, path: str, media_type: str, cache: str
) -> None:
    reply = served.ask(path)
    assert reply.status == 200
    assert (reply.headers["Content-Type"], reply.headers["Cache-Control"]) == (media_type, cache)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip, deflate, br", "br"), ("gzip", "gzip"), ("br;q=0, gzip;q=0.5", "gzip"), ("identity", None), ("", None)],
)
def test_what_the_build_compressed_goes_so_to_whoever_takes_it(
    served: ServedPage, accepted: str, coding: str | None
) -> None:
    reply = served.ask(SCRIPT, Accept_Encoding=accepted)
    assert reply.headers["Content-Encoding"] == coding
    assert reply.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert reply.headers["Vary"] == "Accept-Encoding"
    if coding == "gzip":
        assert gzip.decompress(reply.body) == b"export const answer = 42;\n" * 2000


def test_page_that_a_browser_has_is_not_sent_again(served: ServedPage) -> None:
    etag = served.ask("/").headers["ETag"]
    again = served.ask("/", If_None_Match=f'"other", W/{etag}')
    assert (again.status, again.body) == (304, b"")
    assert again.headers["Content-Security-Policy"]
    coded = served.ask(SCRIPT, Accept_Encoding="gzip").headers["ETag"]
    assert served.ask(SCRIPT, Accept_Encoding="br", If_None_Match=coded).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../outside.txt",
        "/assets/../../outside.txt",
        "/%2e%2e/outside.txt",
        "/assets/%2e%2e%2f%2e%2e%2foutside.txt",
        "/assets/..%5c..%5coutside.txt",
        "//outside.txt",
        "/link.txt",
        "/notes.py",
        "/.secret.json",
        "/assets",
        "/assets/",
        "/assets/index-B5Qt9EMX.js.map",
        "/assets/index-B5Qt9EMX.js.gz",
        "/index.html/",
        "/index.html%00.js",
        "/no-such-page",
    ],
)
def test_path_that_is_no_file_of_the_build_reads_none(served: ServedPage, path: str) -> None:
    reply = served.ask(path)
    assert reply.status == 404
    assert b"outside" not in reply.body


def test_every_answer_has_the_strict_headers(served: ServedPage) -> None:
    ticket = served.tickets.path_for("phone", 60)
    asked = [("GET", path) for path in ("/", "/healthz", "/nowhere", "/v1/ca.pem", "/v1/x/y", ticket + "a" * 64)]
    asked += [("POST", "/"), ("DELETE", "/healthz"), ("GET", "/v1/claim"), ("POST", "/v1/claim-key"), ("HEAD", "/")]
    expected = security_headers("ws://127.0.0.1:9883/mqtt")
    statuses = set()
    for method, path in asked:
        reply = served.ask(path, method)
        statuses.add(reply.status)
        assert {name: reply.headers[name] for name in expected} == expected, (method, path)
        assert "Server" not in reply.headers
    assert statuses >= {200, 403, 404, 405}


def test_no_other_origin_is_let_read_or_embed(served: ServedPage) -> None:
    """No answer says that a page of another origin may read it, whatever that page asks with."""
    ticket = served.tickets.path_for("phone", 60) + "a" * 64
    for path in ("/", "/healthz", "/v1/claim-key", ticket):
        for method in ("GET", "POST", "OPTIONS"):
            asked = {"Origin": "https://evil.example", "Access_Control_Request_Method": "POST"}
            reply = served.ask(path, method, **asked)
            assert not [name for name in reply.headers if name.lower().startswith("access-control-")], (method, path)
            assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
            assert reply.headers["Referrer-Policy"] == "no-referrer"
            assert method != "OPTIONS" or reply.status >= 400


def test_policy_lets_the_page_speak_to_itself_and_its_broker_alone() -> None:
    policy = security_headers("wss://hub.lan:8884/mqtt")["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self' 'wasm-unsafe-eval'" in policy
    assert "connect-src 'self' wss://hub.lan:8884" in policy
    assert not any("unsafe-inline" in part or "*" in part for part in policy)
    assert "connect-src 'self'" in security_headers()["Content-Security-Policy"].split("; ")


def test_health_says_that_the_server_is_there(served: ServedPage) -> None:
    reply = served.ask("/healthz")
    assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


def test_page_that_is_not_built_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.web.pages.resources.files", lambda package: tmp_path)
    with pytest.raises(ConfigError, match="the page for phones is not built") as caught:
        built_folder()
    assert "make web" in caught.value.hint
    with pytest.raises(ConfigError, match=r"has no index\.html"):
        Pages(tmp_path)
