"""Steps of language models give the same losses on emulated boards: the same graphs over the same mapped base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.training.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.language.architecture import Precision
from export.training_step import Optimizer
from tests.arm.boards import EmulatedDevice
from tests.export.language.models import small_cut, step_of

pytestmark = [pytest.mark.slow, pytest.mark.runtime]

EQUAL = 1e-5
FAMILIES = {"gpt2": "layer norm, learned positions", "llama": "RMSNorm, rotary positions, gated feed-forward"}
PRECISIONS: tuple[Precision, ...] = ("int8", "int4")
STEPS = 3


@pytest.fixture(scope="session")
def language_artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifact folders by family and precision, two blocks 64 wide, trained with Adam."""
    folders = {}
    for family in FAMILIES:
        for precision in PRECISIONS:
            module = small_cut(family, precision)
            folder = tmp_path_factory.mktemp("language") / f"{family} {precision}"
            export_artifact(module, step_of(module, optimizer=Optimizer(kind="adam")), folder)
            folders[f"{family} {precision}"] = folder
    return folders


def test_a_language_model_gives_the_losses_of_the_exporting_machine(
    device: EmulatedDevice, language_artifacts: dict[str, Path]
) -> None:
    script = Path(__file__).with_name("first_losses.py")
    said = json.loads(device.run(str(script), *map(str, language_artifacts.values())))
    assert said["torch"] is False
    for name, folder in language_artifacts.items():
        manifest, _ = read_artifact_folder(folder)
        here, there = manifest.self_test.losses, said["losses"][str(folder)]
        errors = [abs(a - b) / abs(b) for a, b in zip(there, here, strict=True)]
        print(f"{device.board.processor} {name}: {there}, off by {max(errors):.1e}")
        assert len(here) == len(set(here)) == STEPS, "a step that trains nothing would repeat its loss"
        assert max(errors) <= EQUAL, f"{name}: {there} on the device, {here} here"
