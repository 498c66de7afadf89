"""Messages, topics and names from outside: the answer is a value or one of our errors, never anything else."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, seal, unseal
from edge.contracts.errors import (
    ApportionError,
    MessageRejected,
    UnsupportedVersion,
)
from edge.contracts.manifest import check_digest
from edge.contracts.messages import BODIES as BODY_TYPES
from edge.contracts.messages import Heartbeat
from tests.contracts.golden_files import message_bytes
from tests.contracts.samples import BODIES

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", BODIES)
def test_message_cut_at_any_byte_is_rejected(kind: str) -> None:
    data = message_bytes(kind)
    for length in range(len(data)):
        with pytest.raises(MessageRejected):
            unseal(data[:length]).read(BODY_TYPES[kind])


def test_message_over_the_limit_is_not_parsed() -> None:
    data = message_bytes("accept") + b"\0" * MAX_MESSAGE_BYTES
    with pytest.raises(
        MessageRejected, match=f"{len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}; it was not"
    ):
        unseal(data)


def test_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(MessageRejected, match=r"'put' of \d+ bytes is over 300000; send it as blocks"):
        seal("put", b"x" * MAX_MESSAGE_BYTES)


@pytest.mark.parametrize("version", [0, 2, 2**40])
def test_message_of_another_version_is_refused_by_its_own_code(version: int) -> None:
    data = encode_msgpack({"v": version, "id": "1", "kind": "accept", "sent_at": 0.0, "body": {}})
    with pytest.raises(UnsupportedVersion, match=f"message version {version}, this release speaks 1") as caught:
        unseal(data)
    assert caught.value.code == "unsupported-version"


def test_version_is_checked_before_the_rest_is_understood() -> None:
    with pytest.raises(UnsupportedVersion):
        unseal(encode_msgpack({"v": 2, "entirely": "different"}))


def test_message_without_a_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="message version 0"):
        unseal(encode_msgpack({"id": "1", "kind": "accept", "sent_at": 0.0, "body": {}}))


def test_unknown_fields_are_ignored_in_envelope_and_body() -> None:
    body = {"state": "idle", "novelty": [1, {"a": None}], "step": 3}
    data = encode_msgpack({"v": 1, "id": "1", "kind": "heartbeat", "sent_at": 0.5, "body": body, "trace": "x" * 100})
    assert unseal(data).read(Heartbeat) == Heartbeat(state="idle", step=3)


@pytest.mark.parametrize(
    "body",
    [{"state": "sleeping"}, {"state": "idle", "step": "3"}, {"step": 3}, {"state": "idle", "step": 1.5}, [], None, 7],
)
def test_body_of_another_shape_is_rejected(body: Any) -> None:
    data = encode_msgpack({"v": 1, "id": "1", "kind": "heartbeat", "sent_at": 0.5, "body": body})
    with pytest.raises(MessageRejected, match="Heartbeat of"):
        unseal(data).read(Heartbeat)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep = b"\x91" * 100_000 + b"\x01"
    head = encode_msgpack({"v": 1, "id": "1", "kind": "heartbeat", "sent_at": 0.5})
    data = bytes([head[0] + 1]) + head[1:] + encode_msgpack("body") + deep
    with pytest.raises(MessageRejected):
        unseal(data).read(Heartbeat)


@pytest.mark.slow
@FUZZ
@given(st.binary(max_size=400))
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
def test_random_bytes_never_escape_as_another_error(data: bytes) -> None:
    for kind in ("hello", "order", "report"):
        with contextlib.suppress(ApportionError):
            unseal(data).read(BODY_TYPES[kind])


@FUZZ
@given(st.sampled_from(sorted(BODIES)), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
def test_changed_bytes_of_a_message_never_escape_as_another_error(kind: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(message_bytes(kind))
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(ApportionError):
        unseal(bytes(data)).read(BODY_TYPES[kind])


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "+",
        "a+b",
        "#",
        "a#",
        "../a",
        "a..b",
        ".a",
        "-a",
        "a b",
        "a\n",
        "a\0",
        "é",
        "a" * 65,
        "$SYS",
        "a\\b",
        "％",
    ],
)
def test_device_id_that_would_not_be_one_topic_level_is_refused(name: str) -> None:
    with pytest.raises(MessageRejected, match="device"):
        topics.check_name(name, what="device")


@pytest.mark.parametrize("name", ["pi-07", "a", "A.b_c-9", "a" * 64])
def test_ordinary_device_id_passes(name: str) -> None:
    assert topics.check_name(name, what="device") == name


@pytest.mark.parametrize(
    "topic",
    [
        "apportion/v1/fed/up/pi-07",
        "apportion/v1/fed/up/pi-07/hello/more",
        "apportion/v1/fed/dn/pi-07/hello",
        "apportion/v2/fed/up/pi-07/hello",
        "apportion/v1/fed/up/../hello",
        "apportion/v1/fed/up/a+b/hello",
        "",
        "/" * 1000,
    ],
)
def test_topic_that_is_not_a_devices_is_refused(topic: str) -> None:
    with pytest.raises(MessageRejected):
        topics.parse_up(topic)


def test_topics_have_at_most_seven_slashes_and_parse_back() -> None:
    topic = topics.up("fed", "pi-07", "hello")
    assert topics.parse_up(topic) == ("fed", "pi-07", "hello")
    assert max(t.count("/") for t in (topic, topics.down("f", "d", "k"), topics.everyone("f", "k"))) <= 7


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "a" * 64 + "\n", "../" + "a" * 61, "g" * 64])
def test_digest_that_could_name_another_file_is_refused(digest: str) -> None:
    with pytest.raises(MessageRejected, match="64 lower-case hex digits"):
        check_digest(digest, where="here")


def test_every_error_has_a_code_of_its_own_and_a_documented_exit() -> None:
    def below(kind: type[ApportionError]) -> list[type[ApportionError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    ours = [kind for kind in below(ApportionError) if kind.__module__ == "edge.contracts.errors"]
    assert len({kind.code for kind in ours}) == len(ours)
    assert {kind.exit_code for kind in ours} == {1, 2, 3, 4}
    tree = __import__("edge.contracts.errors", fromlist=["errors"]).__doc__
    assert all(kind.__name__ in tree for kind in ours)


def test_every_kind_is_described_in_the_table_of_messages() -> None:
    table = __import__("edge.contracts.messages", fromlist=["messages"]).__doc__
    rows = [line.split()[0] for line in table.splitlines() if re.match(r"[a-z]+ +(dev|co|both) ", line)]
    assert set(BODY_TYPES) <= set(rows)
