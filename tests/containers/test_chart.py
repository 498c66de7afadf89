"""The Helm chart: by Helm's own linter, its values' schema, and what it has in common with the other files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from coordinator.run_file.loading import load_config_text
from tests.containers.builder import FILES
from tests.containers.helm import Helm, fetch_helm
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.debian13.host import prepare

CHART = FILES / "chart"
ERROR = 3


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        return fetch_helm(prepare(), tmp_path_factory.mktemp("helm"))
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_chart_brings_the_same_script_as_the_compose_file() -> None:
    assert (CHART / "prepare.sh").read_bytes() == (FILES / "prepare.sh").read_bytes()


def test_run_of_the_values_is_a_run_file(tmp_path: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (tmp_path / "test").mkdir()
    config = load_config_text(values["run"].replace("/srv/data", str(tmp_path)))
    assert config.federation.name == values["federation"]


@pytest.mark.slow
def test_linter_finds_no_fault(helm: Helm) -> None:
    assert [found for found in helm.lint(CHART) if found["Severity"] > 1] == []


def change(old: str, new: str) -> Callable[[Path], None]:
    """Writes ``new`` for ``old`` in a file."""

    def apply(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return apply


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "broken"),
    [
        ("templates/coordinator.yaml", change("{{ .Values.image }}", "{{ .Values.images.first }}")),
        ("templates/coordinator.yaml", change("      restartPolicy: OnFailure\n", "     restartPolicy: OnFailure\n")),
        ("values.yaml", change("size: 10Gi", "size: much")),
        ("values.yaml", change('ledger: ""', "ledger: postgresql://me:secret@db/apportion")),
        ("values.yaml", change("names: []", "name: []")),
    ],
    ids=["unknown value", "not YAML", "no size", "password in an address", "unknown key"],
)
def test_linter_finds_what_is_broken(helm: Helm, tmp_path: Path, file: str, broken: Callable[[Path], None]) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    broken(chart / file)
    assert max(found["Severity"] for found in helm.lint(chart)) == ERROR
