"""Tags and clusters in a simulation: who takes part, whose model is whose, interruptions, bad settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import METHODS
from coordinator.rounds import round as engine
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.clusters import clusters_refused_by
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError
from edge.contracts.tensor_file import read_tensor_file
from tests.conformance.method_runs import CASES, run_config
from tests.coordinator.simulation.small_simulation import changed, simulated

TEXT = """
[federation]
name = "tagged"
seed = 4
rounds = 3
[model]
build = "mlp"
options = { hidden = [6] }
[method]
name = "fedavg"
[training]
batch = 64
lr = 0.2
[data]
source = "digits"
partition = "dirichlet"
alpha = 0.5
scale = 0.0625
[evaluation]
every = 1
[cohort]
size = 4
# tags
[[cohort.local]]
count = 2
tags = ["site-1", "north"]
[[cohort.local]]
count = 2
tags = ["south"]
"""
CLUSTERS = '\n[clusters]\nby = "tag"\ntags = ["north", "south"]\n'
EACH, HEADS = f'{CLUSTERS}layers = ["*"]\n', f'{CLUSTERS}layers = ["fc2.*"]\n'


def model(run_dir: Path, name: str = "final") -> dict[str, np.ndarray]:
    found = read_tensor_file(run_dir / "checkpoints" / f"{name}.safetensors", where=name)
    return {tensor: np.array(value) for tensor, value in found.items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    return [name for name in one if np.array_equal(one[name], other[name])]


def test_model_of_a_cluster_is_that_of_a_federation_of_its_devices(tmp_path: Path) -> None:
    """Bit for bit, with ``[cohort] tags`` that let no others take part."""
    simulated(load_config_text(TEXT + EACH), tmp_path / "clusters")
    for tag in ("north", "south"):
        alone = TEXT.replace("size = 4\n# tags", f'size = 2\ntags = ["{tag}"]')
        simulated(load_config_text(alone), tmp_path / tag)
        theirs = model(tmp_path / tag)
        assert same(model(tmp_path / "clusters", f"final-{tag}"), theirs) == list(theirs)
    assert not same(model(tmp_path / "clusters", "final-north"), model(tmp_path / "clusters", "final-south"))
    rounds = [json.loads(line) for line in (tmp_path / "clusters" / "metrics.jsonl").read_text().splitlines()]
    found = [entry["clusters"] for entry in rounds if entry.get("clusters")]
    assert len(found) == 3
    assert {tag: values["devices"] for tag, values in found[-1].items()} == {"north": 2, "south": 2}


def test_layers_that_are_not_named_are_one_for_all(tmp_path: Path) -> None:
    simulated(load_config_text(TEXT + HEADS), tmp_path / "run")
    whole, north, south = (model(tmp_path / "run", name) for name in ("final", "final-north", "final-south"))
    assert same(north, south) == same(whole, north) == ["fc1.bias", "fc1.weight"]


class Stopped(Exception):
    """The simulation was stopped by the test."""


def test_interrupted_simulation_ends_with_the_same_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(load_config_text(TEXT + HEADS), cohort={"size": 2})  # now and then a cluster has no device
    simulated(config, tmp_path / "whole")
    commit, done = engine.commit, 0

    def stopping(*arguments: Any) -> State:
        nonlocal done
        state = commit(*arguments)
        done += 1
        if done == 2:
            raise Stopped
        return state

    with monkeypatch.context() as patched:
        patched.setattr(engine, "commit", stopping)
        with pytest.raises(Stopped):
            simulated(config, tmp_path / "parts")
    simulated(config, tmp_path / "parts")
    for name in ("final", "final-north", "final-south"):
        assert same(model(tmp_path / "whole", name), model(tmp_path / "parts", name)) == list(model(tmp_path / "whole"))


def test_goes_with_cuts_in_width(tmp_path: Path) -> None:
    text = (TEXT + HEADS).replace('name = "fedavg"', 'name = "heterofl"\nlevels = [1, 0.5]')
    text = text.replace('tags = ["south"]', 'tags = ["south"]\nlevel = 0.5')
    config = changed(load_config_text(text), federation={"rounds": 2})
    simulated(config, tmp_path / "run")
    before = {name: value.numpy() for name, value in dense_module(config).state_dict().items()}
    south = model(tmp_path / "run", "final-south")
    # The whole width is trained in the north alone: the south's columns beyond its half are still the first ones.
    assert np.array_equal(south["fc2.weight"][:, 3:], before["fc2.weight"][:, 3:])
    assert not np.array_equal(south["fc2.weight"][:, :3], before["fc2.weight"][:, :3])
    assert not np.array_equal(model(tmp_path / "run", "final-north")["fc2.weight"][:, 3:], before["fc2.weight"][:, 3:])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[clusters]\nby = "loss"\ntags = ["north", "south"]\nlayers = ["*"]', r"\$\.clusters\.by: .*loss"),
        ('[clusters]\ntags = ["north"]\nlayers = ["*"]', r"\$\.clusters\.tags: name two tags or more"),
        ('[clusters]\ntags = ["north", "south"]', r"\$\.clusters\.layers: name one pattern or more"),
        ('[clusters]\ntags = ["north", "no/rth"]\nlayers = ["*"]', r"tag 'no/rth' is not usable"),
        ('[clusters]\ntags = ["north", "north"]\nlayers = ["*"]', r"names one twice"),
        ('[clusters]\ntags = ["north", "west"]\nlayers = ["*"]', r"no \[\[cohort\.local\]\] group has the tag 'west'"),
        (f'{HEADS}[server-optimizer]\nname = "fedadam"', r"\$\.clusters: \$\.server-optimizer steps from one model"),
        (f'{HEADS}[personal]\nlayers = ["fc1.*"]', r"\$\.clusters: \$\.personal\.layers are of one device each"),
        (f'{HEADS}[aggregation]\nmode = "buffered"', r'\$\.clusters: \$\.aggregation\.mode = "buffered" moves updates'),
        (
            f"{HEADS}[privacy]\nsecure-aggregation = true",
            r"\$\.clusters: \$\.privacy\.secure-aggregation gives one",
        ),
        (
            f'{HEADS}[aggregation]\nrule = "median"',
            r"\$\.clusters: \$\.aggregation\.rule 'median' needs so many devices",
        ),
        (f"{HEADS}[privacy]\nclip-norm = 1.0", r"\$\.clusters: \$\.privacy\.clip-norm measures"),
        (f"{HEADS}[store]\nshards = 2", r"\$\.clusters: are not told to several coordinators, and \$\.store\.shards"),
    ],
)
def test_impossible_settings_are_told(lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(f"{TEXT}\n{lines}\n")


def test_tags_that_no_local_device_has_are_told() -> None:
    with pytest.raises(ConfigError, match=r"\$\.cohort\.tags: no \[\[cohort\.local\]\] group has one of east"):
        load_config_text(TEXT.replace("# tags", 'tags = ["east"]'))


def test_patterns_are_held_against_the_model() -> None:
    config = load_config_text(f'{TEXT}{CLUSTERS}layers = ["head.*"]\n')
    with pytest.raises(ConfigError, match=r"\$\.clusters\.layers\[0\]: no tensor is named 'head\.\*'; the last ones"):
        method_of_run(config, dense_module(config))


REFUSED = [name for name in sorted(METHODS) if clusters_refused_by(name)]


@pytest.mark.parametrize("name", REFUSED)
def test_method_whose_next_model_is_no_mean_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    text = canonical_toml(run_config(CASES[name], tmp_path)) + EACH
    with pytest.raises(ConfigError) as caught:
        load_config_text(text)
    assert f"$.clusters: method {name}: {clusters_refused_by(name)}" in str(caught.value)


def test_methods_that_allow_it() -> None:
    """The list of docs/methods.md."""
    assert sorted({*METHODS} - {*REFUSED}) == [
        *("adapter", "fedavg", "federated_dropout", "fedrolex", "fjord", "heterofl", "origdrop", "prefix", "prompt"),
        *("small_model", "sparse_update", "split_mix"),
    ]


def test_table_and_tags_are_not_written_where_they_are_not_asked() -> None:
    config = load_config_text(TEXT + HEADS)
    assert load_config_text(canonical_toml(config)) == config
    plain = TEXT.replace('tags = ["south"]', "").replace('tags = ["site-1", "north"]', "")
    assert not {"clusters", "tags ="} & {*canonical_toml(load_config_text(plain)).split()}
    assert "tags" not in canonical_toml(load_config_text(plain))
