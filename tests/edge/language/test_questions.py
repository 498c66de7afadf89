"""Questions with choices: lines and their errors, windows, and which choice has the higher score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge.contracts.errors import DataError
from edge.language.questions import SUMS, ChoiceWindows, choice_sums, choice_windows, no_windows, read_questions
from edge.language.tokenizer import Tokenizer
from edge.training.local_data import read_local_data
from tests.edge.language.tiny_tokenizer import write_tokenizer

GOOD = {"prompt": "the cat sat", "choices": [" on the mat", " the"], "answer": 0}


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_an_answer_is_a_number_or_the_text_of_a_choice(tmp_path: Path) -> None:
    by_text = {**GOOD, "answer": " the"}
    found = list(read_questions(written(tmp_path / "q.jsonl", GOOD, "", by_text)))
    assert [question.answer for question in found] == [0, 1]
    assert found[1].where == f"{tmp_path / 'q.jsonl'}, line 3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "is a list"),
        ({"prompt": "a", "choices": ["b", "c"]}, "answer is missing"),
        ({**GOOD, "prompt": 3}, "prompt is 3; a text expected"),
        ({**GOOD, "choices": ["one"]}, r"choices is \[\"one\"\]; a list of at least two"),
        ({**GOOD, "choices": ["a", ""]}, r"choices\[1\] is \"\""),
        ({**GOOD, "choices": ["a", "a"]}, r"choices\[1\] is \"a\", as choices\[0\]"),
        ({**GOOD, "answer": 2}, "answer is 2; the text of a choice or its number, 0 to 1, expected"),
        ({**GOOD, "answer": True}, "answer is true"),
        ({**GOOD, "answer": "B"}, 'answer is "B"'),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, line: object, message: str) -> None:
    path = written(tmp_path / "q.jsonl", GOOD, line)
    with pytest.raises(DataError, match=rf"q\.jsonl, line 2: {message}"):
        list(read_questions(path))


def test_only_the_symbols_of_a_choice_count(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer.json"))
    empty = {"prompt": "", "choices": ["the", "dog"], "answer": 1}
    found = choice_windows(written(tmp_path / "q.jsonl", GOOD, empty), tokenizer, 8)
    assert len(found) == 2
    assert found.question.tolist() == [0, 0, 1, 1]
    assert found.is_right.tolist() == [True, False, False, True]
    texts = [("the cat sat", " on the mat"), ("the cat sat", " the"), ("", "the"), ("", "dog")]
    for row, (prompt, choice) in enumerate(texts):
        before = tokenizer.encode(prompt) or [tokenizer.end]
        symbols = tokenizer.encode(choice)
        counted = found.y[row] != -100
        assert found.y[row][counted].tolist() == symbols
        whole = [*before, *symbols][-9:]
        assert found.x[row][: len(whole) - 1].tolist() == whole[:-1]
        assert counted.nonzero()[0].tolist() == list(range(len(whole) - 1 - len(symbols), len(whole) - 1))


def test_a_long_prompt_loses_its_beginning_and_a_long_choice_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer.json"))
    long = {"prompt": "the cat sat on the mat and the dog", "choices": [" the", " dog"], "answer": 0}
    found = choice_windows(written(tmp_path / "q.jsonl", long), tokenizer, 4)
    whole = tokenizer.encode(long["prompt"]) + tokenizer.encode(" the")  # type: ignore[arg-type]
    assert found.x[0].tolist() == whole[-5:-1]
    with pytest.raises(DataError, match=r"line 1: choices\[0\] has \d+ symbols, a window 1 to 2; shorten it"):
        choice_windows(written(tmp_path / "q.jsonl", {**long, "choices": ["xxxxxx", "a"]}), tokenizer, 2)
    with pytest.raises(DataError, match="holds no question"):
        choice_windows(written(tmp_path / "q.jsonl", ""), tokenizer, 2)


def test_sums_count_the_likeliest_choice_by_its_sum_and_by_its_mean() -> None:
    # Symbols of the choices: 1, 3; 2, 2; 1, 1.
    y = np.full((6, 4), -100, np.int32)
    for row, symbols in enumerate((1, 3, 2, 2, 1, 1)):
        y[row, :symbols] = 7
    right = np.array([False, True, True, False, True, False])
    windows = ChoiceWindows("", y, y, np.array([0, 0, 1, 1, 2, 2], np.int32), right)
    # The first is right by its mean alone: 3/3 < 2/1; the second is wrong by both; equal ones are the first.
    entropy = np.array([2.0, 3.0, 5.0, 4.0, 1.0, 1.0])
    assert choice_sums(windows, entropy) == dict(zip(SUMS, (3.0, 1.0, 2.0), strict=True))
    assert choice_sums(no_windows(), np.zeros(0)) == dict.fromkeys(SUMS, 0.0)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_devices_questions_are_read_beside_its_text_and_not_trained_on(tmp_path: Path, is_kept: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    tokenizer = Tokenizer(write_tokenizer(folder / "tokenizer.json"))
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\nlength = 8\nchoices = "q.jsonl"\n')
    (folder / "a.txt").write_text("the cat sat on the mat")
    written(folder / "q.jsonl", GOOD)
    data = read_local_data(str(folder), tmp_path / "kept" if is_kept else None)
    expected = choice_windows(folder / "q.jsonl", tokenizer, 8)
    assert data.choices is not None
    assert data.choices.where == str(folder / "q.jsonl")
    for name in ("x", "y", "question", "is_right"):
        assert np.array_equal(getattr(data.choices, name), getattr(expected, name))
    assert np.asarray(data.x)[data.y != -100].tolist() == tokenizer.encode("the cat sat on the mat")
    written(folder / "q.jsonl", {**GOOD, "answer": 9})
    with pytest.raises(DataError, match=r"q\.jsonl, line 1: answer is 9"):
        read_local_data(str(folder), tmp_path / "kept" if is_kept else None)
