"""The table of docs/hardware: that of the files there, without those that were changed or cannot be true."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hardware_table import BEGIN, END, NONE_YET, accepted, main, table
from edge.sharing.measurement import shared_measurement
from edge.sharing.signed_file import file_text, signed
from tests.edge.sharing.example import profile, row


def test_the_page_has_the_table_of_the_files_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def write(folder: Path, name: str, **changes: object) -> Path:
    path = folder / name
    shared = shared_measurement(profile(), [row(**changes), row(threads=4, step_ms_p50=80.0, step_ms_p95=95.0)])
    path.write_text(file_text(signed(shared)))
    return path


def test_files_become_rows_and_others_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Hardware\n{BEGIN}\n{NONE_YET}\n{END}\nafter\n")
    write(tmp_path, "a-good.json")
    tampered = write(tmp_path, "b-tampered.json", cpu_share=0.5)
    tampered.write_text(tampered.read_text().replace("210.123", "21.0123"))
    write(tmp_path, "c-too-fast.json", step_ms_p50=0.001)
    (tmp_path / "d-copy.json").write_bytes((tmp_path / "a-good.json").read_bytes())
    write(tmp_path, "e-busy.json", cpu_share=0.5)
    assert main([], page=page, folder=tmp_path) == 1
    told = capsys.readouterr()
    assert told.out == f"2 files in the table of {page}, 3 refused\n"
    lines = told.err.splitlines()
    assert lines[0] == "refused: b-tampered.json: the signature does not fit; it was changed since it was written"
    assert lines[1].startswith("refused: c-too-fast.json: rows[0] (resnet20, batch 8, 1 threads): ")
    assert lines[2] == "refused: d-copy.json: the same measurement as a-good.json"
    text = page.read_text()
    assert text.startswith("# Hardware\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| Raspberry Pi 4" in text
    assert "| 210 ms, 80 with 4 threads, 72 MB | [2025-11-24](shared/a-good.json) |" in text
    assert "| 210* ms, 80 with 4 threads, 72 MB | [2025-11-24](shared/e-busy.json) |" in text
    (
        (tmp_path / "b-tampered.json").unlink(),
        (tmp_path / "c-too-fast.json").unlink(),
        (tmp_path / "d-copy.json").unlink(),
    )
    assert main(["--check"], page=page, folder=tmp_path) == 0
    (tmp_path / "e-busy.json").unlink()
    assert main(["--check"], page=page, folder=tmp_path) == 1


def test_words_of_others_stay_in_their_cell(tmp_path: Path) -> None:
    shared = shared_measurement(
        profile(board="", cpu_model="x | y <img src=x>\n# head", cores=profile().cores), [row()]
    )
    (tmp_path / "odd.json").write_text(file_text(signed(shared)))
    files, refused = accepted(tmp_path)
    assert refused == []
    text = table(files)
    assert "<" not in text
    assert len(text.splitlines()) == 3
    assert len({line.count("|") for line in text.splitlines()}) == 1
