"""Transformers whose images are enlarged inside: what they compute, and sizes that do not divide."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coordinator.models.catalog import build_model
from coordinator.models.deit import ClassTokenTransformer
from edge.contracts.errors import ConfigError


def test_enlarged_image_is_the_nearest_neighbours() -> None:
    torch.manual_seed(0)
    small = ClassTokenTransformer((3, 4, 4), 4, 8, 1, 2, 5, enlarge=3)
    large = ClassTokenTransformer((3, 12, 12), 4, 8, 1, 2, 5)
    large.load_state_dict(small.state_dict())
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(small(x), large(F.interpolate(x, scale_factor=3, mode="nearest")))


def test_small_images_get_the_tensors_of_a_base_at_224() -> None:
    small = build_model("vit_small", input_shape=(3, 32, 32), enlarge=7)
    assert tuple(small.position.shape) == (1, 197, 384)
    assert sum(p.numel() for p in small.parameters()) == 21_669_514


@pytest.mark.parametrize(("enlarge", "words"), [(0, "enlarge: 0 given"), (3, "3 times enlarged")])
def test_sizes_that_do_not_divide_are_refused(enlarge: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_model("vit_small", input_shape=(3, 32, 40), enlarge=enlarge)
