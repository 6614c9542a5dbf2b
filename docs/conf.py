"""How the documentation is built: Sphinx, with pages in Markdown (MyST). ``make docs``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The tree that this file is in, not one that is installed; and the pages that are made of it.
sys.path[:0] = [str(HERE.parent), str(HERE)]

import reference_pages  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from fencegate import __version__  # noqa: E402

project = "fencegate"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["examples"]
suppress_warnings = ["myst.header"]  # a page that includes one section of a DESIGN.md begins where it begins
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"fencegate {__version__}"
html_show_sourcelink = html_show_copyright = False


def write_reference(app: Sphinx) -> None:
    """Write the pages that are made of the program itself, before Sphinx looks which pages there are."""
    reference_pages.write(Path(app.srcdir) / "generated")


LINK = re.compile(r"\[(?P<text>[^][]*)\]\((?P<to>[^():#\s]+)\)")
PAGES = {
    "fencegate/election/DESIGN.md": "design/election.md",
    "fencegate/gateway/DESIGN.md": "design/gateway.md",
    "fencegate/store/DESIGN.md": "design/store.md",
    "tests/model/README.md": "design/model.md",
}
"""Files of the project that are pages here."""


def mend_links(app: Sphinx, included: Path, _: str, content: list[str]) -> None:
    """Make the links of an included file those of the page that includes it; what has no page becomes its text."""
    came_from = (HERE / included).resolve().parent
    goes_to = (HERE / app.env.docname).parent

    def mended(link: re.Match[str]) -> str:
        target = (came_from / link["to"]).resolve()
        page = PAGES.get(os.path.relpath(target, HERE.parent))
        if page is not None:
            target = HERE / page
        elif not target.is_file() or (target.suffix == ".md" and HERE not in target.parents):
            return link["text"]
        return f"[{link['text']}]({os.path.relpath(target, goes_to)})"

    content[0] = LINK.sub(mended, content[0])


def examples_are_code(_: Sphinx, __: str, ___: str, ____: object, _____: object, lines: list[str]) -> None:
    """An indented block below a line that ends with a colon is an example: code to Sphinx, as it is to a reader."""
    for number in range(len(lines) - 2):
        here, gap, below = lines[number : number + 3]
        if re.search(r"(?<!:):$", here) and not gap and below.startswith("    "):
            lines[number] += ":"


def without_what_is_private(
    _: Sphinx, __: str, ___: str, ____: object, _____: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A parameter whose name begins with an underscore is nobody's to give."""
    return (re.sub(r", _\w+(:[^,=]*)?( ?= ?[^,)]*)?", "", signature) if signature else signature), returns


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_reference)
    app.connect("include-read", mend_links)
    app.connect("autodoc-process-docstring", examples_are_code)
    app.connect("autodoc-process-signature", without_what_is_private)
