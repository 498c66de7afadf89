"""What tests of language models' files share: models in the classes of ``transformers``."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest

from tests.coordinator.language.public_models import PublicModels


@pytest.fixture(scope="session")
def public() -> PublicModels:
    """Tiny public models; skips where ``transformers`` is not installed."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'apportion[models]'")
    return PublicModels()


@pytest.fixture(scope="session")
def peft(public: PublicModels) -> Any:
    """The package, which takes seconds to import; skips where it is not installed."""
    if find_spec("peft") is None:
        pytest.skip("peft is not installed: pip install peft")
    return importlib.import_module("peft")
