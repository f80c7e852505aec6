"""The documentation as a site: Sphinx with MyST, which reads the pages as they are, and Furo.

The pages are written to be read on a code host. Here names of the public interface in backticks
become links to the reference, and links to files outside docs/ lead to the repository.
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from reference import LINK, linked, outside  # noqa: E402

REPOSITORY = "https://github.com/keras-tfm/keras-tfm/blob/main"
ANCHOR = r'<a href="(?P<target>[^"]+)">(?P<shown>.*?)</a>'
_log = logging.getLogger("keras_tfm.docs")

# The order of the pages, by caption.
CONTENTS = {
    "Start": ["first-model", "cookbook", "on-device", "microcontrollers", "gallery"],
    "Guides": [
        "data",
        "images",
        "drawing",
        "speech",
        "proteins",
        "mathematics",
        "layers",
        "masks",
        "own-layers",
        "training",
        "quantization-aware-training",
        "distribution",
        "sharding",
        "generation",
        "export",
        "litertlm",
        "chat",
        "control-tokens",
        "huggingface",
    ],
    "Migrating": ["from-kerashub", "from-transformers-tf"],
    "Help": [
        "troubleshooting",
        "questions",
        "matrix",
        "how-it-works",
        "architecture",
        "add-a-family",
    ],
    "Reference": [
        "api/layers",
        "api/models",
        "api/text",
        "api/training",
        "api/generation",
        "api/checkpoints",
        "api/export",
        "api/runtime",
        "api/web",
        "api/plots",
        "api/command_line",
    ],
}

project = "keras_tfm"
author = "the keras_tfm developers"
language = "en"
root_doc = "README"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
# `Example` and others are bold lines, not headings, so levels may be skipped.
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_title = "keras_tfm"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_last_updated_fmt = ""
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepare)
    app.connect("build-finished", add_index)


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """The text of a page as the site needs it."""
    folder = posixpath.dirname(page)

    def elsewhere(match: re.Match[str]) -> str:
        return _elsewhere(match, page, folder)

    fences = r"^ *```.*?^ *```$|^<!-- .*?-->$"
    text = re.sub(ANCHOR, elsewhere, source[0])
    text = outside(fences, lambda plain: re.sub(LINK, elsewhere, plain), text)
    # The reference has its links already.
    if folder != "api":
        text = outside(r"^<pre>.*?</pre>$", linked("", "api/"), text)
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            listed = "\n".join(pages)
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
    source[0] = text


def _elsewhere(match: re.Match[str], page: str, folder: str) -> str:
    """A link; one to a file outside docs/ leads to the repository."""
    target, _, fragment = match["target"].partition("#")
    if "://" in target or not target:
        return match[0]
    path = posixpath.normpath(posixpath.join("docs", folder, target))
    if not (ROOT / path).exists():
        _log.warning("no such file: %s", path, location=page)
    html = match[0].startswith("<a")
    if path.startswith("docs/") and not path.endswith(".py"):
        if not html:
            return match[0]
        url = posixpath.relpath(path.removesuffix(".md") + ".html", posixpath.join("docs", folder))
    else:
        url = f"{REPOSITORY}/{path}"
    url += f"#{fragment}" if fragment else ""
    return f'<a href="{url}">{match["shown"]}</a>' if html else f"[{match['shown']}]({url})"


def add_index(app: Sphinx, exception: Any) -> None:
    """The first page under the name that browsers and servers look for."""
    if exception is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))
