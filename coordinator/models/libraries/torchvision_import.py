"""torchvision where its compiled operators do not fit the torch that is installed, such as a CPU build of torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_SHAPE_RULES = "torchvision._meta_registrations"


def prepare_torchvision() -> None:
    """Let torchvision be imported without its compiled operators; nothing is changed where they load.

    Without them its import ends at the rules for their shapes. The operators belong to detection (boxes, deformed
    convolutions); no model for classification calls one, so the rules are left out. timm and transformers import
    torchvision for their data loading.
    Source: measured with torchvision 0.28.0 beside torch 2.13.0 for CPUs.
    """
    if "torchvision" in sys.modules or _SHAPE_RULES in sys.modules:
        return
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _operators_load(Path(found.origin).parent):
        return
    sys.modules[_SHAPE_RULES] = ModuleType(_SHAPE_RULES)


def _operators_load(folder: Path) -> bool:
    import torch

    files = sorted([*folder.glob("_C*.so"), *folder.glob("_C*.pyd")])
    try:
        for path in files:
            torch.ops.load_library(str(path))
    except (ImportError, OSError):
        return False
    return bool(files)
