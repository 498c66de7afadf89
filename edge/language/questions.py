"""Questions with choices, and which of them a model holds for the likeliest.

A choice is scored by the summed log-likelihood of its symbols behind the prompt, or by their mean. The highest score is
the model's answer; of equal ones the first. Source: Brown et al., Language models are few-shot learners, section 2.4.
"""

# Dims: N choices of all questions, T positions of a window.

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge.contracts.errors import DataError
from edge.language.tokenizer import Tokenizer
from edge.language.windows import IGNORED

QUESTIONS, HITS, MEAN_HITS = "questions", "choice_hits", "choice_mean_hits"
"""Sums over questions: how many, and how many are right by the sum and by the mean per symbol."""
SUMS = (QUESTIONS, HITS, MEAN_HITS)
_FORM = '{"prompt": "...", "choices": ["...", "..."], "answer": 0} expected'


class Question(NamedTuple):
    """A line of a file.

    Attributes:
        where: file and line, for messages.
        answer: place of the right choice.
    """

    where: str
    prompt: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class ChoiceWindows:
    """Every choice of every question as a window of its own; those of a question follow each other.

    Attributes:
        where: their file, for messages.
        x: symbols of prompt and choice, int32 [N, T], filled up at the end.
        y: what follows each, int32 [N, T]; -100 for all but the symbols of the choice.
        question: number of the question, int32 [N], rising.
        is_right: whether the choice is the answer, bool [N].
    """

    where: str
    x: np.ndarray
    y: np.ndarray
    question: np.ndarray
    is_right: np.ndarray

    def __len__(self) -> int:
        """Questions."""
        return int(self.question[-1]) + 1 if len(self.question) else 0


def no_windows() -> ChoiceWindows:
    """Those of no question."""
    empty = np.empty((0, 0), np.int32)
    return ChoiceWindows("", empty, empty, np.empty(0, np.int32), np.empty(0, np.bool_))


def read_questions(path: Path) -> Iterator[Question]:
    """The questions of a ``.jsonl`` file, one object a line.

    Raises:
        DataError: a file that cannot be read, or a line that is no question; file, line and field are named.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _question(f"{path}, line {number}", line)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give questions in UTF-8, one object a line") from error


def _question(where: str, line: str) -> Question:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is no JSON ({error}); {_FORM}") from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: is a {type(found).__name__}; {_FORM}")
    if missing := [name for name in ("prompt", "choices", "answer") if name not in found]:
        raise DataError(f"{where}: {missing[0]} is missing; {_FORM}")
    prompt, choices = found["prompt"], found["choices"]
    if not isinstance(prompt, str):
        raise DataError(f"{where}: prompt is {_shown(prompt)}; a text expected")
    if not isinstance(choices, list) or len(choices) < 2:
        raise DataError(f"{where}: choices is {_shown(choices)}; a list of at least two texts expected")
    for place, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise DataError(f"{where}: choices[{place}] is {_shown(choice)}; a text that is not empty expected")
        if choice in choices[:place]:
            raise DataError(
                f"{where}: choices[{place}] is {_shown(choice)}, as choices[{choices.index(choice)}]; give each once"
            )
    return Question(where, prompt, tuple(choices), _answer(where, found["answer"], choices))


def _answer(where: str, answer: Any, choices: list[str]) -> int:
    """Place of the right choice, which is given as a number from 0 or as its text."""
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise DataError(
        f"{where}: answer is {_shown(answer)}; the text of a choice or its number, 0 to {len(choices) - 1}, expected"
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def choice_windows(path: Path, tokenizer: Tokenizer, length: int) -> ChoiceWindows:
    """The questions in the file ``path`` as windows of ``length`` symbols.

    Prompt and choice become symbols each by itself, as prompts and completions do in training. A prompt that is too
    long loses its beginning. A text begins as the tokenizer says; an empty prompt with the end of a document before it.

    Raises:
        DataError: as :func:`read_questions`; also a choice that is longer than a window, or no question at all.
    """
    rows, targets, numbers, right = [], [], [], []
    for number, question in enumerate(read_questions(path)):
        prompt = [*tokenizer.begins, *tokenizer.encode(question.prompt)]
        if not prompt:
            if tokenizer.end is None:
                raise DataError(f"{question.where}: prompt gives no symbols, and the tokenizer has none before a text")
            prompt = [tokenizer.end]
        for place, choice in enumerate(question.choices):
            symbols = tokenizer.encode(choice)
            if not 1 <= len(symbols) <= length:
                raise DataError(
                    f"{question.where}: choices[{place}] has {len(symbols)} symbols, a window 1 to {length}; shorten it"
                )
            kept = prompt[-(length + 1 - len(symbols)) :]
            whole = np.asarray([*kept, *symbols], np.int32)
            x, y = np.full(length, tokenizer.end or 0, np.int32), np.full(length, IGNORED, np.int32)
            x[: len(whole) - 1], y[len(kept) - 1 : len(whole) - 1] = whole[:-1], whole[len(kept) :]
            rows.append(x)
            targets.append(y)
            numbers.append(number)
            right.append(place == question.answer)
    if not rows:
        raise DataError(f"{path}: holds no question; {_FORM}")
    return ChoiceWindows(
        str(path), np.stack(rows), np.stack(targets), np.asarray(numbers, np.int32), np.asarray(right, np.bool_)
    )


def choice_sums(windows: ChoiceWindows, entropy: np.ndarray) -> dict[str, float]:
    """The :data:`SUMS` over all questions.

    Args:
        entropy: summed cross-entropy of the symbols of each choice, [N]: its log-likelihood, negated.
    """
    symbols = (windows.y != IGNORED).sum(1)
    hits = [
        sum(bool(windows.is_right[rows][costs[rows].argmin()]) for rows in _rows(windows))
        for costs in (entropy, entropy / symbols)
    ]
    return dict(zip(SUMS, (float(len(windows)), *map(float, hits)), strict=True))


def _rows(windows: ChoiceWindows) -> Iterator[slice]:
    """The choices of each question."""
    borders = np.flatnonzero(np.diff(windows.question, prepend=-1, append=len(windows)))
    for first, last in itertools.pairwise(borders):
        yield slice(int(first), int(last))
