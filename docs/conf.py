"""The book: the pages below docs/ as one static site with search, that works from a folder (``make book``).

A reader's browser fetches nothing from elsewhere: fonts, styles and scripts are files of the site.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.book import pages  # noqa: E402
from edge.contracts.release import RELEASE  # noqa: E402

project = "Apportion"
version = release = RELEASE
copyright = "the Apportion authors, Apache-2.0"
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nitpicky = True
# Types in signatures are of the standard library and of other packages, whose books are elsewhere.
nitpick_ignore_regex = [("py:.*", ".*")]
# Code with "..." in it is shown without colours.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 4
# Two hyphens begin an option; they are no dash.
smartquotes = False
myst_enable_extensions = ["attrs_inline"]

autodoc_mock_imports = ["torch", "onnx", "onnxruntime", "sklearn"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"Apportion {RELEASE}"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sphinx = False


def _source(_: Sphinx, page: str, source: list[str]) -> None:
    source[0] = pages.finished(page, source[0])


def setup(app: Sphinx) -> None:
    """Writes what the pages take from the code, and puts it into them."""
    pages.write_files(ROOT / "build")
    app.connect("source-read", _source)
