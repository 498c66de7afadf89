"""The reference of the Python package: a directive of autodoc for each public name, none copied by hand."""

from __future__ import annotations

import apportion

_VALUES = ("BatchTensor", "Dataset", "InferenceManifest", "LocalDevices", "Predictor", "Train")
"""Classes of other packages, which are shown with what they hold."""
_ERRORS = ("ApportionError", "ConfigError")


def markdown() -> str:
    """The reference as a page's text: a section for each kind of name."""
    functions = [name for name in apportion.__all__ if name.islower()]
    classes = [name for name in apportion.__all__ if name not in (*functions, *_VALUES, *_ERRORS)]
    return "\n".join(
        [
            *_section("Classes", classes, "autoclass", ":members:"),
            *_section("Functions", functions, "autofunction", ""),
            *_section("Values", _VALUES, "autoclass", ":members:"),
            *_section("Errors", _ERRORS, "autoexception", ""),
        ]
    )


def _section(title: str, names: list[str] | tuple[str, ...], directive: str, option: str) -> list[str]:
    lines = [f"## {title}", ""]
    for name in names:
        lines += [f"### `{name}`", "", "```{eval-rst}", f".. {directive}:: apportion.{name}"]
        lines += [f"   {option}"] if option else []
        lines += ["```", ""]
    return lines
