"""Texts read with the tokenizer that an order brings: the owner's own file, none at all, and another one."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import DataError
from edge.language.tokenizer import Tokenizer
from edge.runtimes import runtime
from edge.supervisor.trainer_messages import Describe, Described, read_reply
from edge.trainer import Trainer
from edge.training.local_data import read_local_data
from edge.training.sources.language import RunText
from tests.edge.language.tiny_tokenizer import write_tokenizer

SENTENCE = "the cat sat on the mat and the dog sat on the cat"


@pytest.fixture
def run(tmp_path: Path) -> RunText:
    return RunText(write_tokenizer(tmp_path / "blob"), 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text(SENTENCE)
    return folder


def symbols(folder: Path, run: RunText | None) -> list[int]:
    data = read_local_data(str(folder), None, run)
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape[1:] == (8,)
    return [int(symbol) for symbol in data.x[data.y != -100]]


def test_texts_alone_are_enough(folder: Path, run: RunText) -> None:
    assert symbols(folder, run) == Tokenizer(run.tokenizer).encode(SENTENCE)
    (folder / "a.txt").rename(folder / "a.jsonl")
    (folder / "a.jsonl").write_text(f'{{"text": "{SENTENCE}"}}\n')
    assert symbols(folder, run) == Tokenizer(run.tokenizer).encode(SENTENCE)


def test_the_owners_own_is_used_where_it_is_the_same_file(
    folder: Path, run: RunText, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "tokenizer.json").write_bytes(run.tokenizer.read_bytes())
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\n')
    assert symbols(folder, run) == symbols(folder, None)
    assert caplog.records == []


def test_another_one_is_passed_over_and_said(folder: Path, run: RunText, caplog: pytest.LogCaptureFixture) -> None:
    write_tokenizer(folder / "tokenizer.json", text="zyx wvu zyx wvu zyx\n")
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\n')
    with caplog.at_level(logging.WARNING):
        assert symbols(folder, run) == Tokenizer(run.tokenizer).encode(SENTENCE) != symbols(folder, None)
    (record,) = caplog.records
    assert f"{folder / 'tokenizer.json'}: digest" in record.getMessage()
    assert "the run's is used" in record.getMessage()


def test_arrays_and_tables_are_read_as_before(folder: Path, run: RunText) -> None:
    np.savez(folder / "part.npz", x=np.ones((3, 8), np.int64), y=np.ones((3, 8), np.int64))
    assert len(read_local_data(str(folder), None, run)) == 3


def test_before_an_order_documents_are_counted(folder: Path) -> None:
    (folder / "b.jsonl").write_text('{"text": "the"}\n{"text": "cat"}\n')
    out = io.BytesIO()
    Trainer(runtime("onnxruntime"), out).answer(Describe(str(folder)))
    out.seek(0)
    described = read_reply(out)
    assert isinstance(described, Described)
    assert (described.error, described.num_examples) == ("", 3)
    with pytest.raises(DataError, match=r"a\.txt: is read with a tokenizer, and the run brings none"):
        read_local_data(str(folder))
