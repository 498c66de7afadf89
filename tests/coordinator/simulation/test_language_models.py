"""Language models in simulated rounds: factors travel, the base once, and every method learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from coordinator.exporting.base_file import base_size, computing_module
from coordinator.exporting.cut_exporter import dense_module
from coordinator.exporting.run_choices import run_choices
from coordinator.exporting.task_metric import check_metric
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import apply_cut
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError
from edge.contracts.tensor_file import decode_tensors
from edge.language.tokenizer import Tokenizer
from tests.coordinator.simulation.small_simulation import TEXT, final_bytes, simulated
from tests.edge.language.tiny_tokenizer import write_tokenizer
from tests.language_models import run_text


def perplexities(run_dir: Path) -> list[float]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["evaluation"]["server"]["perplexity"] for line in lines]


@pytest.mark.slow
def test_a_round_sends_the_base_once_and_factors_back(tmp_path: Path) -> None:
    config = load_config_text(run_text(rounds=2))
    summary = simulated(config, tmp_path / "run")
    base = base_size(config, dense_module(config))
    assert base is not None
    rows = {row["device"]: row for row in summary["device_table"]}
    for row in rows.values():
        assert base.size < row["bytes_down"] < base.size + 2.2 * row["bytes_up"]
    # Of rank 4: u and v of two projections in two blocks, float32, in two rounds; and a header of each file.
    factors = 2 * 2 * 4 * 4 * ((48 + 16) + (16 + 16))
    assert factors < rows["device-00"]["bytes_up"] < factors + 2 * 1000
    assert all(name.endswith((".u", ".v")) for name in decode_tensors(final_bytes(tmp_path / "run"), where="final"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedlora", "flora", "ffa_lora"])
@pytest.mark.parametrize("base", ["int8", "float32"])
def test_every_method_learns_and_repeats_its_bits(tmp_path: Path, method: str, base: str) -> None:
    config = load_config_text(run_text(method=method, rounds=3, base=base))
    for name in ("first", "again"):
        simulated(config, tmp_path / name)
    assert final_bytes(tmp_path / "first") == final_bytes(tmp_path / "again")
    reached = perplexities(tmp_path / "first")
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] < reached[0] - 0.4


@pytest.mark.slow
def test_questions_are_scored_as_torch_does_once_by_any_number_of_workers(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.mkdir()
    write_tokenizer(asked / "tokenizer.json")
    (asked / "data.toml").write_text('tokenizer = "tokenizer.json"\n')
    texts = [("abc", ["d", "ef"]), ("b", ["c", "x", "yz"]), ("xy", ["z", "ab"]), ("", ["q", "rs"])]
    lines = [{"prompt": p, "choices": c, "answer": 0} for p, c in texts]
    (asked / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = run_text(rounds=1, base="float32").replace("vocabulary = 30", "vocabulary = 300")
    text = text.replace("[evaluation]", f'[evaluation]\nbatch = 16\nchoices = "{asked / "questions.jsonl"}"')
    config = load_config_text(text)
    found = []
    for workers in (1, 2):
        simulated(config, tmp_path / f"by-{workers}", workers=workers)
        line = (tmp_path / f"by-{workers}" / "metrics.jsonl").read_text().splitlines()[-1]
        found.append(json.loads(line)["evaluation"]["server"])
    assert found[0] == found[1]

    state = State(decode_tensors(final_bytes(tmp_path / "by-1"), where="final"))
    model = method_of_run(config, dense_module(config)).eval_models(state)["server"]
    module = apply_cut(computing_module(config), model.cut, model.tensors)
    tokenizer, hits = Tokenizer(asked / "tokenizer.json"), {"choice_accuracy": 0, "choice_mean_accuracy": 0}
    for prompt, choices in texts:
        before = tokenizer.encode(prompt) or [0]
        scores = []
        for choice in choices:
            symbols = tokenizer.encode(choice)
            with torch.no_grad():
                likelihood = module(torch.tensor([before + symbols[:-1]])).log_softmax(1)[0]
            scores.append(sum(float(likelihood[s, len(before) - 1 + i]) for i, s in enumerate(symbols)))
        means = [score / len(tokenizer.encode(choice)) for score, choice in zip(scores, choices, strict=True)]
        hits["choice_accuracy"] += scores[0] == max(scores)
        hits["choice_mean_accuracy"] += means[0] == max(means)
    assert {name: found[0][name] * len(texts) for name in hits} == hits


def test_questions_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "a", "choices": ["b", "c"], "answer": 0}')
    named = f'[evaluation]\nchoices = "{tmp_path / "q.jsonl"}"'
    config = load_config_text(run_text().replace("[evaluation]", named))
    with pytest.raises(
        ConfigError, match=r"\$\.evaluation\.choices: .*q\.jsonl is text, and the model has no tokenizer"
    ):
        run_choices(config)
    with pytest.raises(ConfigError, match=r"\$\.evaluation\.choices: .*nothing\.jsonl is no \.jsonl file"):
        load_config_text(run_text().replace("[evaluation]", '[evaluation]\nchoices = "nothing.jsonl"'))
    with pytest.raises(ConfigError, match=r"\$\.evaluation\.choices: questions are for language models, mlp is none"):
        load_config_text(TEXT.replace("[evaluation]", named))
    best = run_text().replace('name = "words"', 'name = "words"\nmetric = "choice_accuracy"\nkeep-best = true')
    with pytest.raises(
        ConfigError, match=r"'choice_accuracy' is of questions; name their file: \$\.evaluation\.choices"
    ):
        check_metric(load_config_text(best), dense_module(config))
