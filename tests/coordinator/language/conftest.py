"""What tests of language models' files share: models in the classes of ``transformers``."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.coordinator.language.public_models import PublicModels


@pytest.fixture(scope="session")
def public() -> PublicModels:
    """Tiny public models; skips where ``transformers`` is not installed."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'apportion[models]'")
    _hide_a_torchvision_for_another_torch()
    return PublicModels()


def _hide_a_torchvision_for_another_torch() -> None:
    """Let ``transformers`` see none where it cannot be imported: it takes any that is installed for a sound one."""
    try:
        importlib.import_module("torchvision")
    except Exception:  # of whatever kind its registration fails with
        sys.modules["torchvision"] = None  # type: ignore[assignment]


@pytest.fixture(scope="session")
def peft(public: PublicModels) -> Any:
    """The package, which takes seconds to import; skips where it is not installed."""
    if find_spec("peft") is None:
        pytest.skip("peft is not installed: pip install peft")
    return importlib.import_module("peft")
