"""Run files that extend another: what is merged, what is replaced, and chains that cannot be followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.run_file.loading import load_config, load_config_text
from edge.contracts.errors import ConfigError

BASE = """
[federation]
name = "base"
rounds = 3
[model]
build = "mlp"
[method]
name = "fedhm"
levels = [1, 2]
[data]
source = "digits"
[cohort]
size = 2
[[cohort.local]]
count = 2
level = 1
[[cohort.local]]
count = 2
level = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE, encoding="utf-8")
    return tmp_path


def test_tables_are_merged_and_lists_of_tables_replaced(folder: Path) -> None:
    text = 'extends = "base.toml"\n[federation]\nname = "other"\n[[cohort.local]]\ncount = 5\nlevel = 2\n'
    config = load_config_text(text, folder=folder)
    assert (config.federation.name, config.federation.rounds) == ("other", 3)
    assert [(group.count, group.level) for group in config.cohort.local] == [(5, "2")]
    assert config.method.options == {"levels": [1, 2]}


def test_what_a_run_writes_down_stands_alone(folder: Path) -> None:
    (folder / "own.toml").write_text('extends = "base.toml"\n[federation]\nrounds = 9\n', encoding="utf-8")
    config = load_config(folder / "own.toml")
    assert "extends" not in canonical_toml(config)
    assert load_config_text(canonical_toml(config), folder=folder / "elsewhere") == config


def test_a_base_may_have_a_base_in_another_folder(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "middle.toml").write_text('extends = "../base.toml"\n[federation]\nrounds = 4\n', "utf-8")
    config = load_config_text('extends = "inner/middle.toml"\n[federation]\nname = "top"\n', folder=folder)
    assert (config.federation.name, config.federation.rounds) == ("top", 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('extends = "none.toml"\n', ["$.extends", "none.toml", "cannot be read"]),
        ("extends = 3\n", ["$.extends", "3", "path of another run file"]),
        ('extends = "loop.toml"\n', ["$.extends", "loop.toml -> loop.toml", "itself"]),
        ('extends = "broken.toml"\n', ["broken.toml", "not TOML"]),
    ],
)
def test_a_base_that_cannot_be_used_says_which_and_why(folder: Path, text: str, words: list[str]) -> None:
    (folder / "loop.toml").write_text('extends = "loop.toml"\n', encoding="utf-8")
    (folder / "broken.toml").write_text("[federation\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config_text(text, folder=folder)
    for word in words:
        assert word in " ".join(caught.value.problems)
