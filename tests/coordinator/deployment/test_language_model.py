"""The final state of a language model's run as files, what they are measured by, and what writes on a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from coordinator.cli import fleet_deployment
from coordinator.config.run_config import RunConfig
from coordinator.deployment.language_model import FinalModel, deploy_language
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import State
from edge.commands.generate import generate_command
from edge.contracts.errors import ArtifactCorrupt, ConfigError, DataError, ParityError
from edge.contracts.language import LanguageManifest
from edge.inference.writer import Choice, Writer
from export.language.causal_model import CausalModel
from tests.edge.language.tiny_tokenizer import write_tokenizer
from tests.language_models import TINY, run_text

CONFIG = load_config_text(run_text(rounds=2, base="int8"))


def state(seed: int = 0, size: float = 0.3) -> State:
    draw, tensors = np.random.default_rng(seed), {}
    for path, (outputs, inputs) in TINY.linears(1).items():
        tensors[f"{path}.u"] = draw.normal(0, size, (outputs, 2)).astype(np.float32)
        tensors[f"{path}.v"] = draw.normal(0, size, (2, inputs)).astype(np.float32)
    return State(tensors, round=2)


def torch_model(config: RunConfig = CONFIG) -> CausalModel:
    module = CausalModel(TINY, "float32").eval()
    values = FinalModel(config, state(), None).values()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in values})
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deployed") / "model"
    found = deploy_language(CONFIG, state(), out, max_drop=0.02)
    assert found["factors"] == 4
    assert found["max_error"] <= 1e-5
    assert 0 < found["positions"] <= 2048
    assert found["perplexity"] == pytest.approx(found["torch_perplexity"], rel=1e-5)
    return out


def test_what_is_written_is_what_torch_would_write(folder: Path) -> None:
    writer, module = Writer(folder), torch_model()
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]
    written = list(writer.write(text, count=7, choice=Choice()))
    expected = list(text)
    with torch.no_grad():
        for _ in range(7):
            expected.append(int(module(torch.tensor([expected]))[0, :, -1].argmax()))
    assert written == expected[17:]
    assert writer.manifest == LanguageManifest.from_bytes((folder / "language.json").read_bytes())


def test_draws_repeat_with_their_seed_and_keep_to_the_most_probable(folder: Path) -> None:
    writer = Writer(folder)
    drawn = [list(writer.write([3], count=20, choice=Choice(2.0, 1.0, seed))) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(writer.write([3], count=20, choice=Choice(2.0, 1e-9))) == list(
        writer.write([3], count=20, choice=Choice())
    )
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1]))
    picked = np.bincount([Choice(1.0, 0.69).pick(logits, number) for number in range(400)], minlength=4) / 400
    assert picked[0] == pytest.approx(0.5 / 0.7, abs=0.07)
    assert picked[2:].tolist() == [0, 0]


def test_int8_is_measured_and_refused_above_what_it_may_cost(tmp_path: Path) -> None:
    found = deploy_language(CONFIG, state(), tmp_path / "a", precision="int8", max_drop=0.5)
    assert found["perplexity"] != found["torch_perplexity"]
    assert found["perplexity"] == pytest.approx(found["torch_perplexity"], rel=0.1)
    with pytest.raises(ParityError, match="in int8 the perplexity on 640 held-out positions is"):
        deploy_language(CONFIG, state(size=20.0), tmp_path / "b", precision="int8", max_drop=0.0)
    assert not (tmp_path / "b").exists()


def test_the_verb_writes_text_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = msgspec.structs.replace(TINY, vocabulary=262)
    parts = {**CONFIG.model.options, "architecture": {**CONFIG.model.options["architecture"], "vocabulary": 262}}
    config = msgspec.structs.replace(
        CONFIG,
        model=msgspec.structs.replace(CONFIG.model, options=parts),
        data=msgspec.structs.replace(CONFIG.data, source=""),
    )
    assert FinalModel(config, state(), None).source.architecture == wide
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", vocabulary=262)
    found = deploy_language(config, state(), tmp_path / "model", max_drop=0.0, tokenizer=tokenizer)
    assert found["positions"] == 0
    assert generate_command([str(tmp_path / "model"), "--prompt", "the cat", "--count", "5", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["text"].startswith("the cat")
    assert len(line["tokens"]) <= 5
    with pytest.raises(DataError, match=r"its 262 symbols are more than the model's 30"):
        deploy_language(CONFIG, state(), tmp_path / "other", max_drop=0.0, tokenizer=tokenizer)


def test_a_device_writes_without_torch(folder: Path) -> None:
    code = (
        "import sys; from edge.__main__ import main\n"
        "assert main(['generate', sys.argv[1], '--tokens', '1,2', '--count', '3']) == 0\n"
        "assert not {'torch', 'tokenizers', 'onnx', 'coordinator', 'export'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().split(",")) == 3


def test_folders_of_other_packages_are_written(tmp_path: Path) -> None:
    found = deploy_language(CONFIG, state(), tmp_path / "whole", format="transformers", max_drop=0.0)
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "whole").iterdir())
    found = deploy_language(CONFIG, state(), tmp_path / "adapter", format="peft", max_drop=0.0)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == found["base"] == str(tmp_path / "adapter" / "base")
    assert (tmp_path / "adapter" / "base" / "config.json").is_file()
    pytest.importorskip("gguf", reason="gguf is not installed: pip install 'apportion[gguf]'")
    found = deploy_language(CONFIG, state(), tmp_path / "file", format="gguf", precision="int8", max_drop=0.0)
    assert found["tokenizer"] == "no tokenizer.json was given"
    assert (tmp_path / "file" / "model.gguf").stat().st_size == found["bytes"]


def test_bad_arguments_and_damaged_files_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'pte' is not known of language models; known: onnx, transformers, peft, gguf"
    ):
        deploy_language(CONFIG, state(), tmp_path / "x", format="pte", max_drop=0.0)
    with pytest.raises(ConfigError, match="--int8: peft folders hold float32"):
        deploy_language(CONFIG, state(), tmp_path / "x", format="peft", precision="int8", max_drop=0.0)
    writer = Writer(folder)
    for symbols, count, message in (
        ([], 1, "no symbols in it"),
        ([30], 1, "30 to 30; the model has symbols 0 to 29"),
        ([1, 2], 23, "23 after 2 symbols; the model holds 24 together"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(writer.write(symbols, count=count, choice=Choice()))
    with pytest.raises(ConfigError, match="has no tokenizer, it takes symbols alone"):
        _ = writer.tokenizer
    with pytest.raises(ConfigError, match="--temperature: -1 is no number from 0"):
        Choice(-1)
    with pytest.raises(ConfigError, match="no language model there"):
        Writer(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    with (copy / "model.onnx.data").open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx\.data has digest"):
        Writer(copy)


def test_additions_are_deployed_where_a_format_has_them_and_refused_with_the_reason(tmp_path: Path) -> None:
    for kind in ("adapter", "prefix", "prompt"):
        text = run_text(method=kind, options="levels = [3]")
        config = load_config_text(text.replace('level = "4"\n', "").replace('level = "2"\n', ""))
        method = build_method(kind, dense_module(config), config.method.options)
        made = State(method.init().tensors, round=1)
        if kind == "adapter":
            for format in ("onnx", "peft"):
                with pytest.raises(
                    ConfigError, match=f"'{format}' has no place for bottleneck adapters: with an activation"
                ):
                    deploy_language(config, made, tmp_path / kind, format=format, max_drop=0.0)
            continue
        with pytest.raises(ConfigError, match=f"'gguf' holds a model's weights, and a {kind} is none of them"):
            deploy_language(config, made, tmp_path / kind, format="gguf", max_drop=0.0)
        found = deploy_language(config, made, tmp_path / kind, format="peft", max_drop=0.0)
        assert (found["additions"], found["base"]) == (kind, str(tmp_path / kind / "base"))
        written = json.loads((tmp_path / kind / "adapter_config.json").read_text())
        assert (written["peft_type"], written["num_virtual_tokens"]) == (f"{kind.upper()}_TUNING", 3)
        assert not (tmp_path / "adapter").exists()


def test_the_fleet_is_sent_none_and_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_deployment, "final_model", lambda run_dir, allow_code: (CONFIG, state()))
    with pytest.raises(ConfigError, match=r"language:custom is a language model, .*; write it with --out DIR and copy"):
        fleet_deployment.sent_to_fleet(tmp_path, fleet_deployment.FleetOptions())
