"""Whom Mosquitto cut off, read from what it writes down."""

from __future__ import annotations

from pathlib import Path

from coordinator.brokers.mosquitto_log import KEPT_BYTES, LIMIT_BYTES, MosquittoLog

CUT_OFF = b"1795478300: Bad socket read/write on client %s: Unknown error.\n"
HARMLESS = (
    b"1795478300: New client connected from 127.0.0.1:5 as honest (p2, c1, k60).\n"
    b"1795478300: Client honest closed its connection.\n"
    b"1795478300: Bad socket read/write on client honest: Connection reset by peer.\n"
    b"1795478300: Client honest has exceeded timeout, disconnecting.\n"
    b"1795478300: Client honest disconnected, not authorised.\n"
)


def test_who_was_cut_off_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_bytes(CUT_OFF % b"of-an-earlier-run")
    log = MosquittoLog(path)
    with path.open("ab") as file:
        file.write(HARMLESS + 2 * (CUT_OFF % b"mallory") + b"1: Client eve disconnected due to protocol error.\n1: Cli")
    assert log.cut_off() == {"mallory": 2, "eve": 1}
    assert not log.cut_off()
    with path.open("ab") as file:
        file.write(b"ent eve disconnected due to oversize packet.\n")
    assert log.cut_off() == {"eve": 1}


def test_a_flood_of_lines_does_not_grow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log = MosquittoLog(path)
    counted = 0
    with path.open("ab", buffering=0) as broker:  # as the broker has it: open, and appending
        for _ in range(8):
            broker.write((CUT_OFF % b"mallory") * (LIMIT_BYTES // 4 // len(CUT_OFF)))
            counted += log.cut_off()["mallory"]
            assert path.stat().st_size < 2 * LIMIT_BYTES
        broker.write(CUT_OFF % b"last")
    assert counted == 8 * (LIMIT_BYTES // 4 // len(CUT_OFF))
    assert log.cut_off() == {"last": 1}
    assert path.read_bytes().count(b"cut") >= 1
    assert path.stat().st_size > KEPT_BYTES
