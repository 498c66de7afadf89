"""Nothing that a terminal obeys comes out of logs, error messages and tables."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from edge.__main__ import main
from edge.system.printable import PrintableFormatter, escape_last_resort, printable

HOSTILE = "pi\x1b[2J\x07\r\n2026-11-23 INFO all is well\x9b\u202e"


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def logged(form: str, *arguments: object, exc_info: bool = False) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PrintableFormatter(form))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning(*arguments, exc_info=exc_info)  # type: ignore[arg-type]
    return out.getvalue()


def test_log_record_is_one_line_without_control_characters() -> None:
    text = logged("%(levelname)s %(message)s", "device %s says %s", HOSTILE, HOSTILE)
    assert text.count("\n") == 1
    assert is_plain(text)
    assert "\\x1b[2J" in text
    assert text.startswith("WARNING device pi")


def test_traceback_keeps_its_lines_and_no_control_characters() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        text = logged("%(message)s", "it failed", exc_info=True)
    assert is_plain(text)
    assert text.count("\n") > 3


def test_what_is_logged_without_a_configuration_is_plain_too(capsys: pytest.CaptureFixture[str]) -> None:
    escape_last_resort()
    assert logging.lastResort is not None
    record = logging.LogRecord("apportion.coordinator", logging.WARNING, "", 0, "%s", (HOSTILE,), None)
    assert is_plain(logging.lastResort.format(record))


@pytest.mark.parametrize("verb", ["resume", "fsck", "run", "verify"])
def test_error_message_of_a_command_is_plain(verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([verb, str(tmp_path / HOSTILE.replace("/", ""))]) != 0
    told = capsys.readouterr()
    assert is_plain(told.err)
    assert is_plain(told.out)
    assert told.err


def test_run_file_with_control_characters_is_refused_in_plain_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text('[federation]\nname = "a\\u001b[2Jb"\nrounds = "\\u0007"\n')
    assert main(["run", str(tmp_path / "run.toml")]) == 2
    told = capsys.readouterr().err
    assert "$.federation" in told
    assert is_plain(told)


def test_printable_leaves_what_can_be_read() -> None:
    assert printable("Gerät 7 – ok") == "Gerät 7 – ok"
    assert is_plain(printable(HOSTILE))
