"""A policy file is read whole or refused with each key and value that is wrong, and is told in plain English."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.__main__ import main
from edge.contracts.errors import ConfigError
from edge.policy.plain_words import sentences
from edge.policy.policy_file import SitePolicy, load_policy

WHOLE = """
federations = ["demo"]

[methods]
allow = ["fedavg", "heterofl"]
deny = ["feddf"]

[runtimes]
allow = ["onnxruntime"]

[bytes]
download-per-round-mb = 50
download-per-day-mb = 200
upload-per-round-mb = 10.5
upload-per-day-mb = 50

[memory]
max-mb = 160

[disk]
features-mb = 250

[rounds]
hours = ["22:00-06:00", "12:00-13:00"]
per-day = 20

[orders]
require-signed = true
labels = false

[privacy]
require-secure-aggregation = true
min-cohort = 5
require-clipping = true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_whole_file_is_told_in_plain_sentences(tmp_path: Path) -> None:
    assert list(sentences(load_policy(written(tmp_path, WHOLE)))) == [
        "It works for these federations only: demo.",
        "These methods only: fedavg, heterofl; never these methods: feddf.",
        "These runtimes only: onnxruntime.",
        "It downloads at most 50 MB a round and 200 MB a day.",
        "It uploads at most 10.5 MB a round and 50 MB a day.",
        "Training takes at most 160 MB of memory, agent and trainer together.",
        "What a model makes of its examples takes at most 250 MB of its disk.",
        "It takes orders between 22:00-06:00 or 12:00-13:00 by its own clock.",
        "It takes at most 20 orders a day.",
        "Orders must be signed by a key that the owner gave with --trust.",
        "It never tells which classes its examples are of.",
        "Its updates leave it masked only (secure aggregation).",
        "A masked update is summed with those of 4 other devices at least.",
        "Its updates leave it masked and clipped only.",
    ]


def test_empty_file_allows_everything_and_says_so(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, ""))
    assert policy == SitePolicy()
    assert list(sentences(policy)) == [
        "It works for any federation.",
        "Any method may be asked for.",
        "Any runtime may be asked for.",
        "It downloads and uploads as much as it is asked to.",
        "It takes orders at any hour.",
        "Its updates may be asked for one by one, not masked.",
    ]


def test_zero_megabytes_of_features_are_none(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, "[disk]\nfeatures-mb = 0"))
    assert policy.disk.features_bytes == 0
    assert "It keeps on disk nothing that a model makes of its examples." in sentences(policy)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[metods]\nallow = []", r"\$.metods = {'allow': \[\]}: there is no such rule; known: bytes, disk"),
        ("[bytes]\nupload-per-week-mb = 3", r"\$.bytes.upload-per-week-mb = 3: there is no such rule; known: download"),
        ('[methods]\nallow = "fedavg"', r"\$.methods.allow = 'fedavg': Expected `array \| null`, got `str`"),
        ("[bytes]\nupload-per-day-mb = -1", r"\$.bytes.upload-per-day-mb = -1.0: a number of megabytes above 0"),
        ("[memory]\nmax-mb = inf", r"\$.memory.max-mb = inf: a number of megabytes above 0"),
        ("[disk]\nfeatures-mb = -1", r"\$.disk.features-mb = -1.0: a number of megabytes, at least 0, is wanted"),
        ('[rounds]\nhours = ["22-06"]', r"\$.rounds.hours\[0\]: '22-06' is no time of day"),
        ("[rounds]\ncpu-seconds-per-day = 0", r"\$.rounds.cpu-seconds-per-day = 0.0: a number of seconds above 0"),
        ("[rounds]\nper-day = 0", r"\$.rounds.per-day = 0: at least 1 is wanted"),
        ("[privacy]\nmin-cohort = 1", r"\$.privacy.min-cohort = 1: 0 \(any\) or at least 2"),
        ("[privacy]\nmin-cohort = 2.5", r"\$.privacy.min-cohort = 2.5: Expected `int`, got `float`"),
        ('[methods]\nallow = ["a"]\ndeny = ["a"]', r"\$.methods: everything that allow = \[\"a\"\] names is denied"),
        ("[rounds", r"cannot be read: Expected '\]'"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_policy(written(tmp_path, text))
    assert str(tmp_path / "policy.toml") in str(caught.value)


def test_all_unknown_keys_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(written(tmp_path, "noise = 1\n[rounds]\nhour = []\n"))
    assert [problem.partition(": ")[2].partition(" = ")[0] for problem in caught.value.problems] == [
        "$.noise",
        "$.rounds.hour",
    ]


@pytest.mark.parametrize("verb", ["agent", "relay"])
def test_policy_check_prints_what_is_allowed_and_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert main([verb, "--policy-check", str(written(tmp_path, "[rounds]\nper-day = 2"))]) == 0
    assert "It takes at most 2 orders a day.\n" in capsys.readouterr().out
    assert main([verb, "--policy-check", str(written(tmp_path, "[round]"))]) == 2
    assert "$.round = {}: there is no such rule" in capsys.readouterr().err


def test_agent_that_cannot_keep_to_its_policy_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'federations = ["other"]\n[runtimes]\ndeny = ["onnxruntime"]\n[orders]\nrequire-signed = true\n'
    arguments = ["--broker", "mqtt://127.0.0.1:9", "--federation", "demo", "--device", "pi", "--data", "x"]
    status = main(["agent", *arguments, "--store", str(tmp_path), "--policy", str(written(tmp_path, text))])
    error = capsys.readouterr().err
    assert status == 2
    assert "$.federations = ['other']: --federation demo is not one" in error
    assert '$.runtimes.deny: ["onnxruntime"]: --runtime onnxruntime may not be used' in error
    assert "$.orders.require-signed = true: give --trust" in error
