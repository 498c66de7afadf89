"""Text folders of a device: documents, completions, what is kept of them, and clear reasons."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DataError
from edge.contracts.manifest import InputSpec
from edge.language.tokenizer import Tokenizer
from edge.runtimes import runtime
from edge.supervisor.trainer_messages import Describe, Described, read_reply
from edge.trainer import Trainer
from edge.training.batches import fit_input
from edge.training.local_data import LocalData, read_local_data
from tests.edge.language.tiny_tokenizer import write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_tokenizer(folder / "tokenizer.json")
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\n')
    return folder


def read(folder: Path, kept: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    data = read_local_data(str(folder), kept)
    assert isinstance(data, LocalData)
    assert isinstance(data.x, np.ndarray)
    return data.x, data.y


def test_files_are_packed_with_their_ends_between(folder: Path) -> None:
    (folder / "b.txt").write_text("the dog")
    (folder / "a.txt").write_text("the cat sat")
    (folder / "c.jsonl").write_text('{"text": "on the mat"}\n\n{"text": ""}\n')
    tokenizer = Tokenizer(folder / "tokenizer.json")
    stream = [s for text in ("the cat sat", "the dog", "on the mat") for s in (*tokenizer.encode(text), 0)]
    x, y = read(folder)
    counted = y != -100
    assert x.shape[1] == 8
    assert x[counted].tolist() == stream[:-1]
    assert y[counted].tolist() == stream[1:]


def test_a_tokenizer_of_another_model_is_refused_before_a_step(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_text("the cat sat on the mat")
    size = Tokenizer(folder / "tokenizer.json").size
    for kept in (None, tmp_path / "symbols"):
        data = read_local_data(str(folder), kept)
        spec = InputSpec(layout="tokens", shape=(8,), dtype="int64", vocabulary=size)
        assert fit_input(data, spec).shape[1:] == (8,)
        for vocabulary, message in (
            (size - 1, "are more than the model's"),
            (50257, "the model 50257: it is another's"),
        ):
            with pytest.raises(DataError, match=message):
                fit_input(data, msgspec.structs.replace(spec, vocabulary=vocabulary))


def test_a_completion_alone_counts_and_each_line_is_padded(folder: Path) -> None:
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 30\npadded = true\n')
    lines = [{"prompt": "the cat ", "completion": "sat on"}, {"prompt": "and ", "completion": "the mat"}]
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = Tokenizer(folder / "tokenizer.json")
    x, y = read(folder)
    assert len(x) == 2
    for row, targets, line in zip(x, y, lines, strict=True):
        prompt, completion = tokenizer.encode(line["prompt"]), tokenizer.encode(line["completion"])
        assert row[: len(prompt) + len(completion)].tolist() == prompt + completion
        assert targets[targets != -100].tolist() == [*completion, 0]
        assert (targets[: len(prompt) - 1] == -100).all()
        assert targets[len(prompt) - 1] == completion[0]


def test_kept_symbols_are_mapped_made_by_a_child_and_made_anew_when_the_text_is_another(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "a.txt").write_text("the cat sat on the mat\n" * 40)
    kept = tmp_path / "symbols"
    x, y = read(folder, kept)
    assert isinstance(x, np.memmap)
    assert all((one == other).all() for one, other in zip((x, y), read(folder), strict=True))
    first = sorted(kept.iterdir())
    assert len(first) == 3
    before = first[0].stat().st_mtime_ns
    read(folder, kept)
    assert first[0].stat().st_mtime_ns == before
    (folder / "a.txt").write_text("the dog")
    read(folder, kept)
    assert len(list(kept.iterdir())) == 3
    assert not first[0].exists()


def test_a_child_says_what_failed(folder: Path, tmp_path: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "the"}\n{"prompt": "the"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl: line 2 has \['prompt'\]; text, or prompt and completion expected"):
        read(folder, tmp_path / "symbols")


def test_bad_folders_say_what_to_do(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no \.txt or \.jsonl file is there"):
        read(folder)
    (folder / "a.jsonl").write_text("not json\n")
    with pytest.raises(DataError, match="line 1 is no JSON"):
        read(folder)
    (folder / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="no text that counts is in them"):
        read(folder)
    (folder / "data.toml").write_text("length = 8\n")
    with pytest.raises(DataError, match="is read with a tokenizer, and the run brings none; name its file"):
        read(folder)
    (folder / "data.toml").write_text("padded = true\n")
    (folder / "a.jsonl").rename(folder / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: is read with a tokenizer, and the run brings none"):
        read(folder)


def test_a_trainer_keeps_the_symbols_where_its_supervisor_says(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_text("the cat sat on the mat\n" * 9)
    out, kept = io.BytesIO(), tmp_path / "symbols"
    Trainer(runtime("onnxruntime"), out).answer(Describe(str(folder), str(kept)))
    out.seek(0)
    described = read_reply(out)
    assert isinstance(described, Described)
    assert (described.error, described.num_examples) == ("", len(read(folder)[0]))
    assert len(list(kept.iterdir())) == 3
