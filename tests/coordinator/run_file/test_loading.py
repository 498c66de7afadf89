"""The run file: defaults, every problem at once with its path, and the canonical text that reads back as itself."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.cohort import LocalGroup, PlannerConfig
from coordinator.config.run_config import RunConfig, TlsFiles
from coordinator.run_file.loading import load_config, load_config_text
from edge.contracts.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "examples"

SMALL = """
[federation]
name = "fed"
rounds = 3
[model]
build = "mlp"
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 4
"""


def parse(text: str, **environ: str) -> RunConfig:
    return load_config_text(text, folder=Path("/somewhere"), environ=environ)


def problems(text: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environ)
    return caught.value.problems


def small_with(section: str, line: str) -> str:
    return (
        SMALL.replace(f"[{section}]\n", f"[{section}]\n{line}\n")
        if f"[{section}]" in SMALL
        else (f"{SMALL}\n[{section}]\n{line}\n")
    )


def test_defaults_of_a_small_file() -> None:
    config = parse(SMALL)
    assert (config.federation.seed, config.training.epochs, config.training.steps) == (0, 1, 0)
    assert (config.training.last_batch, config.evaluation.batch, config.evaluation.norm) == ("drop", 256, "static")
    assert (config.runtime.names, config.broker.url, config.cohort.min_reports) == (("onnxruntime",), "embedded", 1)


def test_four_mistakes_are_reported_together_each_with_its_path() -> None:
    text = (
        SMALL.replace("rounds = 3", "rounds = 0").replace('"mlp"', '"mpl"').replace("size = 4", 'size = "four"')
        + "[training]\nlearning-rate = 0.1\n"
    )
    found = problems(text)
    assert [p.split(":")[0] for p in found] == [
        "$.cohort.size",
        "$.federation.rounds",
        "$.model.build",
        "$.training.learning-rate",
    ]
    assert "a whole number expected, a string ('four') found" in found[0]
    assert "0 is outside 1 to 1e+06" in found[1]
    assert "'mpl' is not known, did you mean 'mlp'?; known: conv2, " in found[2]
    assert "unknown key" in found[3]


@pytest.mark.parametrize(
    ("section", "line", "expected"),
    [
        ("federation", 'nmae = "x"', "$.federation.nmae: unknown key, did you mean 'name'?"),
        ("federation", "seed = -1", "$.federation.seed: -1 is outside 0"),
        ("model", "classes = 1", "$.model.classes: 1 is outside 2"),
        ("model", 'classes = ["a", "a"]', "$.model.classes: at least two different names expected"),
        ("model", "input = [0, 8]", "$.model.input: sizes of [0, 8] must be at least 1"),
        ("model", "input = [8, 1.5]", "$.model.input[1]: whole numbers expected, a number (1.5) found"),
        ("training", "epochs = 1\nsteps = 5", "$.training.steps: give epochs or steps, not both"),
        ("training", "lr = 0", "$.training.lr: must be more than 0"),
        ("training", "lr = nan", "$.training.lr: nan is outside"),
        ("training", "lr = true", "$.training.lr: a number expected, true or false (True) found"),
        ("training", 'optimizer = "sdg"', "$.training.optimizer: 'sdg' is not known, did you mean 'sgd'?"),
        ("training", 'loss = "crossentropy"', "$.training.loss: 'crossentropy' is not known, did you mean"),
        ("training", 'last-batch = "pad"', "known: drop, keep, wrap"),
        ("training", 'optimizer = "adam"\nmomentum = 0.9', "$.training.momentum: belongs to sgd"),
        ("training", "nesterov = true", "$.training.nesterov: needs a momentum above 0"),
        ("training", "lr-final = 0.1", "$.training.lr-final: belongs to lr-schedule"),
        ("training", "last_batch = 3", "$.training.last_batch: unknown key, did you mean 'last-batch'?"),
        ("data", "alpha = 0.1", "$.data.alpha: belongs to partition"),
        ("data", 'augment = ["mixup"]', "$.data.augment: augmentation ['mixup'] is unknown, known are flip"),
        ("data", "std = [0.0]", "$.data.std: mean [0.0] and std [0.0]"),
        ("data", "std = [inf]", "$.data.std[0]: numbers expected, a number (inf) found"),
        ("cohort", "fraction = 0.5", "$.cohort.fraction: give size or fraction, not both"),
        ("cohort", "min-reports = 5", "$.cohort.min-reports: 5 is more than the 4 devices of a round"),
        ("cohort", "local = 3", "$.cohort.local: an array of tables expected ([[cohort.local]])"),
        ("cohort", "[[cohort.local]]\ncount = 0", "$.cohort.local[0].count: 0 is outside 1"),
        ("cohort", "[[cohort.local]]\ncount = 1\nbudget = 9", "$.cohort.local[0].budget: unknown key, did you mean"),
        ("planner", 'runtimes = "all"', "$.planner.runtimes: 'all' is not known"),
        ("planner", "max-step-s = -1", "$.planner.max-step-s: -1.0 is outside 0 to"),
        ("planner", "headroom = 1.5", "$.planner.headroom: 1.5 is outside 0 to 0.9"),
        ("runtime", 'name = "onnx"', "$.runtime.name: 'onnx' is not known"),
        (
            "runtime",
            'name = ["executorch", "onnxruntim"]',
            "$.runtime.name[1]: 'onnxruntim' is not known, did you mean",
        ),
        ("runtime", 'name = ["executorch", "executorch"]', "$.runtime.name[1]: 'executorch' is named twice"),
        ("runtime", "name = []", "$.runtime.name: names none; known: executorch, onnxruntime"),
        ("runtime", "name = 3", "$.runtime.name: a list of names expected, a whole number (3) found"),
        (
            "runtime",
            'name = ["executorch", "onnxruntime"]\nenvironment = "here"',
            "$.runtime.environment: is for a single runtime; write environments = { executorch =",
        ),
        (
            "runtime",
            'environments = { executorch = "e" }',
            "$.runtime.environments.executorch: unknown key; known: onnx",
        ),
        (
            "cohort",
            '[[cohort.local]]\ncount = 1\nruntime = "executorch"',
            "$.cohort.local[0].runtime: 'executorch' is not one of $.runtime.name (onnxruntime); add it there",
        ),
        (
            "cohort",
            '[[cohort.local]]\ncount = 1\nruntime = "tflite"',
            "$.cohort.local[0].runtime: 'tflite' is not known",
        ),
        ("broker", 'url = "http://x"', "$.broker.url: 'http://x' is not usable; give embedded, mosquitto, mqtt://"),
        ("broker", 'url = "mqtt://x"\ntls = true', "$.broker.tls: is given for an mqtt:// address; write mqtts://"),
        ("broker", 'tls = { ca = "ca.pem" }', "$.broker.tls: the embedded broker makes its own certificates"),
        ("broker", 'url = "mqtts://x"\ntls = { cert = "c" }', "$.broker.tls.ca: is missing"),
        ("broker", 'user = "me"', "$.broker.user: user and password-env belong together"),
        ("broker", 'identity = "id"', '$.broker.identity: certificates are for url = "mosquitto" or mqtts://'),
        ("broker", 'bulk = "https://x:1"', "$.broker.bulk: is served with a certificate of an identity; give identity"),
        ("broker", 'url = "mosquitto"\nidentity = "i"\nbulk = "x:1"', "$.broker.bulk: 'x:1' is not https://host:port"),
        ("broker", 'url = "mosquitto"\ntls = true\nidentity = "id"', "$.broker.identity: brings certificates of its"),
        ("store", "quota-mb = -1", "$.store.quota-mb: -1.0 is outside 0"),
        ("privacy", "epsilon = 1", "$.privacy.epsilon: unknown key, did you mean 'max-epsilon'?"),
        (
            "privacy",
            "noise-multiplier = 1",
            "$.privacy.noise-multiplier: is a multiple of clip-norm, and there is none",
        ),
        ("aggregation", "buffer = 3", '$.aggregation.buffer: belongs to mode = "buffered"'),
        ("defences", "quarantine-factor = 0.5", "$.defences.quarantine-factor: 0.5 sets half of all updates aside"),
        ("store", 'ledger = "mysql://x"', "$.store.ledger: 'mysql' is not usable; give postgresql://"),
        ("store", 'ledger = "postgresql://me:pw@x/d"', "$.store.ledger: leave the password out, every run keeps this"),
        (
            "store",
            'ledger = "postgresql://me@x/d?password=pw"',
            "$.store.ledger: leave the password out, every run keeps this",
        ),
        ("store", 'blobs = "folder"', "$.store.blobs: 'folder' is no address; give s3://bucket/prefix"),
        ("planer", "adapt = true", "$.planer: unknown key, did you mean 'planner'?"),
        ("evaluation", "holdout = 0", "$.evaluation.holdout: must be more than 0"),
    ],
)
def test_one_mistake_names_its_path_and_the_next_step(section: str, line: str, expected: str) -> None:
    found = problems(small_with(section, line))
    assert any(expected in problem for problem in found), found


def test_missing_everything_lists_what_is_needed() -> None:
    assert [p.split(":")[0] for p in problems("")] == [
        "$.cohort.size",
        "$.federation.name",
        "$.federation.rounds",
        "$.model.build",
        "$.method.name",
        "$.data.source",
    ]


def test_section_that_is_no_table_is_one_problem_of_that_section() -> None:
    text = "training = 3\n" + SMALL
    assert problems(text) == ("$.training: a table expected, a whole number (3) found",)


def test_text_that_is_no_toml_says_where() -> None:
    assert "line 1" in problems("[federation\n")[0]


def test_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        load_config(tmp_path / "none.toml")


def test_source_that_needs_a_folder_says_so_when_none_is_set(tmp_path: Path) -> None:
    text = SMALL.replace('"digits"', '"mnist-writers"')
    assert problems(text) == ("$.data.path: source 'mnist-writers' needs a folder; set it here or in APPORTION_DATA",)
    assert "is not a folder" in problems(text, APPORTION_DATA=str(tmp_path / "none"))[0]
    assert parse(text, APPORTION_DATA=str(tmp_path)).data.path == str(tmp_path)


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "run.toml").write_text(SMALL.replace('"digits"', '"mnist-writers"\npath = "data"'))
    assert load_config(tmp_path / "run.toml", environ={}).data.path == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "key"),
    [("lottery_ticket", "mask-file"), ("lottery_ticket", "mask_file"), ("sparse_update", "contributions")]
    + [(name, "proxy-path") for name in ("feddf", "ds_fl", "fed_et")],
)
def test_relative_paths_of_a_method_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "run.toml").write_text(SMALL.replace('"fedavg"', f'"{name}"\n{key} = "earlier/file"'))
    options = load_config(tmp_path / "run.toml", environ={}).method.options
    assert options[key] == str(tmp_path / "earlier" / "file")
    there = canonical_toml(load_config(tmp_path / "run.toml", environ={}))
    assert load_config_text(there, folder=tmp_path / "elsewhere").method.options == options  # as a run keeps it


def test_method_options_that_are_no_paths_stay_as_they_are(tmp_path: Path) -> None:
    text = SMALL.replace('"fedavg"', '"prunefl"\nselected-device = "pi-07"')
    assert load_config_text(text, folder=tmp_path).method.options == {"selected-device": "pi-07"}
    text = SMALL.replace('"fedavg"', '"sparse_update"\ncontributions = { "fc1" = 1 }')
    assert load_config_text(text, folder=tmp_path).method.options["contributions"] == {"fc1": 1}


def test_own_model_needs_input_and_classes() -> None:
    text = SMALL.replace('"mlp"', '"mine.net:make"')
    assert [p.split(":")[0] for p in problems(text)] == ["$.model.input", "$.model.classes"]
    config = parse(text.replace('make"', 'make"\ninput = [3, 8, 8]\nclasses = ["cat", "dog"]'))
    assert (config.model.input, config.model.classes) == ((3, 8, 8), ("cat", "dog"))


def test_import_path_with_odd_characters_is_not_known() -> None:
    assert "is not known" in problems(SMALL.replace('"mlp"', '"os;rm:x"'))[0]


def test_local_groups_give_the_cohort_its_size() -> None:
    groups = "[[cohort.local]]\ncount = 2\nbudget-mb = 100\n[[cohort.local]]\ncount = 6\nthreads = 2\n"
    config = parse(SMALL.replace("size = 4", "fraction = 0.5") + groups)
    assert config.cohort.local == (LocalGroup(count=2, budget_mb=100.0), LocalGroup(count=6, threads=2))
    assert (config.cohort.size, config.cohort.local_devices, config.data.devices) == (4, 8, 8)
    assert parse(SMALL.replace("size = 4", "") + groups).cohort.size == 8


def test_several_runtimes_and_the_groups_that_have_them() -> None:
    groups = '[[cohort.local]]\ncount = 2\nruntime = "onnxruntime"\n[[cohort.local]]\ncount = 1\n'
    config = parse(
        SMALL + groups + '[runtime]\nname = ["executorch", "onnxruntime"]\nenvironments = { onnxruntime = "e" }\n'
    )
    assert config.runtime.names == ("executorch", "onnxruntime")
    assert config.runtime.environments == {"onnxruntime": "/somewhere/e"}
    assert [config.runtime.of_group(group) for group in config.cohort.local] == ["onnxruntime", "executorch"]
    assert parse(canonical_toml(config)) == config


def test_environment_of_a_single_runtime() -> None:
    config = parse(SMALL + '[runtime]\nname = "executorch"\nenvironment = "e"\n')
    assert config.runtime.environments == {"executorch": "/somewhere/e"}


def test_what_a_plan_may_choose_among_is_read_and_kept_in_the_runs_file() -> None:
    lines = 'runtimes = "first"\nmicro-batches = false\nrecompute = false\nmax-step-s = 2.5\nexport-cache = "exports"'
    lines += "\nfloat16-activations = true"
    config = parse(small_with("planner", lines))
    assert config.planner == PlannerConfig(
        runtimes="first",
        micro_batches=False,
        recompute=False,
        float16_activations=True,
        max_step_s=2.5,
        export_cache="/somewhere/exports",
    )
    assert load_config_text(canonical_toml(config)) == config
    everything = parse(SMALL)
    assert (everything.planner.micro_batches, everything.planner.recompute, everything.runtime.threads) == (
        True,
        True,
        0,
    )
    assert (everything.runtime.threads_here, parse(small_with("runtime", "threads = 3")).runtime.threads_here) == (1, 3)


def test_options_of_method_and_model_pass_through() -> None:
    text = SMALL.replace('"fedavg"', '"fedavg"\nlevels = [1.0, 0.5]').replace(
        "[method]", "[model.options]\nhidden = 32\n[method]"
    )
    config = parse(text)
    assert config.method.options == {"levels": [1.0, 0.5]}
    assert config.model.options == {"hidden": 32}


def test_identity_of_a_broker_is_a_path_and_is_kept_in_the_runs_file() -> None:
    config = parse(SMALL + '[broker]\nurl = "mosquitto"\nidentity = "identity"\n')
    assert config.broker.identity == "/somewhere/identity"
    assert 'identity = "/somewhere/identity"' in canonical_toml(config)
    assert "identity" not in canonical_toml(parse(SMALL))


def test_tls_files_of_an_outside_broker() -> None:
    config = parse(SMALL + '[broker]\nurl = "mqtts://broker:8883"\ntls = { ca = "ca.pem" }\n')
    assert config.broker.tls == TlsFiles(ca="/somewhere/ca.pem")


FULL = """
[federation]
name = "fed"
seed = 9
rounds = 3
[model]
build = "mine.net:make"
input = [1, 2]
classes = ["caf\\u00e9 \\"x\\"", "tab\\there", "back\\\\slash"]
options = { depth = 2, names = ["a", "b"], nested = { on = true, rate = 1e-3 }, "odd key" = "" }
[method]
name = "fedavg"
levels = [1.0, 0.25]
note = "a = b"
[training]
steps = 7
lr = 1e-5
lr-schedule = "cosine"
lr-final = 1e-7
momentum = 0.9
nesterov = true
[data]
source = "digits"
partition = "dirichlet"
alpha = 0.3
mean = [1, 2.5]
std = [1, 3]
augment = ["flip"]
[cohort]
min-reports = 2
[[cohort.local]]
count = 2
budget-mb = 99.5
[[cohort.local]]
count = 1
[broker]
url = "mqtts://h:1"
tls = { ca = "ca.pem", cert = "c.pem", key = "k.pem" }
user = "u"
password-env = "P"
"""


@pytest.mark.parametrize("text", [SMALL, FULL], ids=["small", "full"])
def test_canonical_text_reads_back_as_the_same_configuration(text: str) -> None:
    config = parse(text)
    canonical = canonical_toml(config)
    assert parse(canonical) == config
    assert canonical_toml(parse(canonical)) == canonical


def test_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    def turned(table: dict[str, Any]) -> str:
        head, *rest = [part for part in table["text"].split("[") if part.strip()]
        return "[" + "[".join([*reversed(rest), head])

    assert canonical_toml(parse(turned({"text": SMALL}))) == canonical_toml(parse(SMALL))


@pytest.mark.parametrize("name", ["digits.toml", "mnist_writers.toml", "mixed_runtimes.toml"])
def test_examples_are_valid(name: str, tmp_path: Path) -> None:
    config = load_config(EXAMPLES / name, environ={"APPORTION_DATA": str(tmp_path)})
    assert load_config_text(canonical_toml(config), folder=tmp_path, environ={}) == config
    assert tomllib.loads((EXAMPLES / name).read_text())["federation"]["name"] == config.federation.name
