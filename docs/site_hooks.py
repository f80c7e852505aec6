"""What `mkdocs build` does with pages and docstrings that are written to be read as they are, too.

Names of the public interface in backticks become links to the reference. Links to files outside
docs/ must lead to a file, or a strict build fails; on the site, which has no sources, they lead to
the repository where mkdocs.yml has a `repo_url`, those to a package to its page of the reference,
and the others become plain text.
"""

import ast
import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PACKAGES = ("text", "layers", "models", "training", "generation", "export", "runtime")
REFERENCES = {f"keras_tfm/{package}": f"api/{package}.md" for package in PACKAGES} | {
    "keras_tfm/plots.py": "api/plots.md",
    "keras_tfm/cli": "api/command_line.md",
}
LINK = r"(?<!!)\[(?P<shown>[^\]]+)\]\((?P<target>[^)]+)\)"
ANCHOR = r'<a href="(?P<target>[^"]+)">(?P<shown>.*?)</a>'
_log = logging.getLogger("mkdocs.hooks.site")


def public_names() -> dict[str, str]:
    """ "Greedy", "generation.Greedy" -> its path; none that two packages have."""
    paths: dict[str, set[str]] = {}
    for package in PACKAGES:
        tree = ast.parse((ROOT / "keras_tfm" / package / "__init__.py").read_text())
        (listed,) = (x.value for x in tree.body if isinstance(x, ast.Assign))
        for name in ast.literal_eval(listed):
            path = f"keras_tfm.{package}.{name}"
            if name == "attention":  # which is a module as well
                path += ".attention"
            # "generate" alone may be a signature, "attention" the thing itself.
            plain = [name] if name != name.lower() or "_" in name else []
            for short in (*plain, f"{package}.{name}", f"keras_tfm.{package}.{name}"):
                paths.setdefault(short, set()).add(path)
    return {short: found.pop() for short, found in paths.items() if len(found) == 1}


NAMES = public_names()


def with_links(text: str) -> str:
    """`Greedy()` -> [`Greedy()`][keras_tfm.generation.Greedy], but not in a heading or a link."""

    def link(match: re.Match[str]) -> str:
        path = NAMES.get(match["name"] or "")
        return match[0] if path is None else f"[{match[0]}][{path}]"

    return re.sub(rf"^#.*$|{LINK}|`(?P<name>[\w.]+)(?:\([^`]*\))?`", link, text, flags=re.M)


def outside(fences: str, change: Callable[[str], str], text: str) -> str:
    """`text`, changed but for what `fences` matches."""
    parts = re.split(f"({fences})", text, flags=re.M | re.S)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


class Docstrings(griffe.Extension):
    """Prepares every docstring for griffe's reader of Google style."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for thing in everything(pkg):
            if thing.docstring:
                thing.docstring.value = prepared(thing.docstring.value)


def everything(thing: griffe.Object) -> Iterator[griffe.Object]:
    yield thing
    for member in thing.members.values():
        if isinstance(member, griffe.Object):
            yield from everything(member)


def prepared(text: str) -> str:
    text = re.sub(r"^Call arguments:$", "Other Parameters: Call arguments:", text, flags=re.M)
    text = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\g<0>](https://arxiv.org/abs/\1)", text)
    # In fences: to Markdown ">>>" is a quotation.
    text = re.sub(
        r"^>>> (?:.+\n?)+", lambda x: f"```pycon\n{x[0].rstrip()}\n```\n", text, flags=re.M
    )
    return outside(r"^```.*?^```$", with_links, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    def elsewhere(match: re.Match[str]) -> str:
        return _elsewhere(match, page, config, files)

    markdown = re.sub(ANCHOR, elsewhere, markdown)
    fences = r"^```.*?^```$|^<pre>.*?</pre>$|^::: .*?$"
    markdown = outside(fences, lambda text: re.sub(LINK, elsewhere, text), markdown)
    return outside(fences, with_links, markdown)


def _elsewhere(match: re.Match[str], page: Any, config: Any, files: Any) -> str:
    """A link as the site needs it."""
    target, _, fragment = match["target"].partition("#")
    html = match[0].startswith("<a")
    here = posixpath.dirname(page.file.src_uri)
    path = posixpath.normpath(posixpath.join("docs", here, target))
    inside = path.startswith("docs/")
    if "://" in target or not target or (inside and not html):
        return match[0]
    if not (ROOT / path).exists():
        _log.warning("%s: no such file: %s", page.file.src_uri, target)
        return match["shown"]
    package = "/".join(path.split("/")[:2])
    uri = path.removeprefix("docs/") if inside else REFERENCES.get(package)
    if uri is not None:
        file = files.get_file_from_path(uri)
        url = file.url_relative_to(page.file) if html else posixpath.relpath(uri, here or ".")
    elif config.repo_url:
        url = f"{config.repo_url.rstrip('/')}/blob/main/{path}"
    else:
        return match["shown"]
    url += f"#{fragment}" if fragment else ""
    return f'<a href="{url}">{match["shown"]}</a>' if html else f"[{match['shown']}]({url})"
