"""The kernels on emulated aarch64: this machine's bits, few misses of the boards' caches, few instructions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edge.contracts.errors import DeviceRefused
from edge.runtimes.executorch.build import wheel_folder
from tests.arm.boards import FLAGS
from tests.arm.kernel_costs import CACHES, LIKE_ARM, Convolution, build, instructions, misses, program_of
from tests.arm.userland import COMPILER, EMULATOR, Unavailable, Userland

pytestmark = [pytest.mark.slow, pytest.mark.runtime]

PARTS = ("forward", "input", "weights")
SIZES = ((4, 32, 16), (4, 16, 32), (8, 8, 64))
"""Images, their size and channels: the three widths of ResNet-20."""
MOST_MISSES = {"forward": 0.8, "input": 0.8, "weights": 1.5}
MOST_INSTRUCTIONS = {"forward": 43.0, "input": 43.0, "weights": 46.0}
"""Of an inner loop there are 35: 24 multiply-adds, 7 to 9 loads, the rest counts."""
MOST_IN_TILES = 28.0
"""Of 32 channels and more: 16 of 36 products are left, beside what turns pixels into tiles and back."""
LEFT = 24 * 16 / 36


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The executorch package of this machine."""
    try:
        return wheel_folder()
    except DeviceRefused as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def like_arm(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of this machine with aarch64's accesses to memory."""
    try:
        return build(tmp_path_factory.mktemp("like-arm") / "kernels", wheel, compiler="g++", flags=LIKE_ARM)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def here(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for this very machine."""
    try:
        return build(tmp_path_factory.mktemp("here") / "kernels", wheel, compiler="g++", flags=["-march=native"])
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def emulated(userland: Userland, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Words that follow an emulator's name, and end in the program for the boards."""
    package = userland.packages / "executorch"
    if not package.is_dir():
        pytest.skip("executorch is not installed here: pip install 'apportion[executorch]'")
    try:
        program = tmp_path_factory.mktemp("boards") / "kernels"
        build(program, package, compiler=COMPILER, flags=[FLAGS])
    except Unavailable as reason:
        pytest.skip(str(reason))
    return ["-cpu", "cortex-a53", "-L", str(userland.root), str(program)]


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_products_are_the_bits_of_this_machine(here: Path, emulated: list[str]) -> None:
    expected = said_by(str(here), "products").splitlines()
    found = said_by(EMULATOR, *emulated, "products").splitlines()
    assert len(expected) == 512
    assert len(set(expected)) == 512
    assert found == expected


@pytest.mark.parametrize("part", PARTS)
def test_convolutions_are_the_bits_of_this_machine(here: Path, emulated: list[str], part: str) -> None:
    for images, size, channels in ((2, 9, 7), (2, 8, 24), (1, 16, 32), (4, 8, 64)):
        words = Convolution(part, images, size, channels).words(1)
        assert said_by(EMULATOR, *emulated, *words) == said_by(str(here), *words), words


@pytest.mark.parametrize("core", CACHES)
@pytest.mark.parametrize("part", PARTS)
def test_first_level_cache_is_seldom_missed(like_arm: Path, part: str, core: str, tmp_path: Path) -> None:
    for shape in SIZES:
        try:
            found = misses(like_arm, Convolution(part, *shape), CACHES[core], tmp_path)
        except Unavailable as reason:
            pytest.skip(str(reason))
        print(f"{core}, {part}, {shape}: {found:.2f} misses per 24 multiply-adds of a vector")
        assert 0 < found <= MOST_MISSES[part]


@pytest.mark.parametrize("part", PARTS)
def test_few_instructions_surround_a_multiply_add(emulated: list[str], part: str, tmp_path: Path) -> None:
    for images, size, channels in SIZES:
        work = Convolution(part, images // 2, size, channels)
        try:
            found = instructions([program_of("qemu-aarch64"), *emulated], work, tmp_path)
        except Unavailable as reason:
            pytest.skip(str(reason))
        print(f"{part}, {size} x {size} x {channels}: {found:.1f} instructions per 24 multiply-adds of a vector")
        assert LEFT < found <= (MOST_IN_TILES if channels >= 32 else MOST_INSTRUCTIONS[part])
