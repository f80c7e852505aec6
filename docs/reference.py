"""Writes the entries of the reference, docs/api/*.md, from the docstrings.

pip install -e ".[checkpoints,cli,plots]"
python docs/reference.py

A page is Markdown, written by hand but for its entries. An entry stands between two comments, of
which the first names the object and, for a class, the methods to describe:

    <!-- keras_tfm.generation.Generator: __call__, stream -->
    <!-- end -->

A line `::: keras_tfm.package.Name` is a new entry, and this script replaces it.

The pages are committed, so that they can be read on a code host too; tests/test_docs.py fails if
one is out of date.
"""

import ast
import functools
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

API = Path(__file__).parent / "api"
ENTRY = re.compile(
    r"^<!-- (?P<path>keras_tfm[\w.]+)(?:: (?P<members>[\w, ]+))? -->\n.*?^<!-- end -->$",
    re.M | re.S,
)
SECTIONS = {
    "Args": "Arguments",
    "Call arguments": "Call arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Raises": "Raises",
}
WIDTH = 88


def main() -> None:
    for path in API.glob("*.md"):
        text = path.read_text()
        entries = re.sub(r"^::: (keras_tfm.+)$", r"<!-- \1 -->\n<!-- end -->", text, flags=re.M)
        if entries != text:
            path.write_text(entries)
    for path in pages():
        text = written(path)
        if text != path.read_text():
            path.write_text(text)
            print(path)


def pages() -> list[Path]:
    """The pages that have entries."""
    return [path for path in sorted(API.glob("*.md")) if ENTRY.search(path.read_text())]


def written(page: Path) -> str:
    """The text of a page with its entries as the docstrings are now."""
    link = linked(page.name)

    def entry(match: re.Match[str]) -> str:
        members = [x for x in re.split(r",\s*", match["members"] or "") if x]
        text = "\n\n".join(entry_of(match["path"], members, link))
        return f"{match[0].splitlines()[0]}\n\n{text}\n\n<!-- end -->"

    return ENTRY.sub(entry, page.read_text())


# --- names and links


def anchors() -> dict[str, tuple[str, str]]:
    """Path of an object -> the page that describes it, and the anchor on that page."""
    found = {}
    for page in pages():
        for match in ENTRY.finditer(page.read_text()):
            name = match["path"].split(".")[-1]
            found[match["path"]] = page.name, slug(name)
    return found


def slug(heading: str) -> str:
    """The anchor that code hosts and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def public_names() -> dict[str, tuple[str, str]]:
    """ "Greedy", "generation.Greedy" -> page and anchor; no name that two packages have."""
    names: dict[str, set[tuple[str, str]]] = {}
    for path, place in anchors().items():
        parts = path.split(".")
        name, package = parts[-1], parts[1]
        # "generate" alone may be a signature, "attention" the thing itself.
        plain = [name] if name != name.lower() or "_" in name else []
        for short in (*plain, f"{package}.{name}", f"keras_tfm.{package}.{name}"):
            names.setdefault(short, set()).add(place)
    return {short: places.pop() for short, places in names.items() if len(places) == 1}


LINK = r"(?<!!)\[(?P<shown>[^\]]+)\]\((?P<target>[^)]+)\)"


def linked(page: str, folder: str = "") -> Callable[[str], str]:
    """A function that makes links of the public names in backticks, but not in headings and links.

    Args:
        page: the page on which the text stands; names that it describes itself are linked too.
        folder: from the text's folder to docs/api.
    """

    names = public_names()

    def link(match: re.Match[str]) -> str:
        if match["name"] not in names:
            return match[0]
        target, anchor = names[match["name"]]
        return f"[{match[0]}]({'' if target == page else folder + target}#{anchor})"

    pattern = rf"^#.*$|{LINK}|`(?P<name>[\w.]+)(?:\([^`]*\))?`"
    return lambda text: outside(
        r"^ *```.*?^ *```$", lambda plain: re.sub(pattern, link, plain, flags=re.M), text
    )


def outside(fences: str, change: Callable[[str], str], text: str) -> str:
    """`text`, changed except for what `fences` matches."""
    parts = re.split(f"({fences})", text, flags=re.M | re.S)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


# --- an entry


def resolved(path: str) -> Any:
    module, found = "keras_tfm", importlib.import_module("keras_tfm")
    for name in path.split(".")[1:]:
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
        module, found = f"{module}.{name}", getattr(found, name)
    return found


def entry_of(path: str, members: list[str], link: Callable[[str], str]) -> Iterator[str]:
    """The paragraphs of an entry."""
    thing = resolved(path)
    name = path.split(".")[-1]
    yield f"### {name}"
    if not typing.is_typeddict(thing):
        yield signature(thing, path)
    yield link(described(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        for base in thing.__mro__[1:]:
            inherited = arguments_section(base, path)
            if inherited:
                yield link(f"Arguments of `{base.__name__}`, its base class:")
                yield link(described(inherited).split("\n\n", 1)[1])
    for member in members:
        found = inspect.getattr_static(thing, member)
        yield f"#### {name}.{member}"
        if isinstance(found, (property, functools.cached_property)):
            yield "A property."
        else:
            yield signature(getattr(thing, member), f"{name}.{member}")
        yield link(described(inspect.getdoc(found) or ""))


def arguments_section(base: type, path: str) -> str | None:
    """The arguments that a base class documents, where that class has no entry of its own."""
    mine = base.__module__.startswith("keras_tfm.") and "__doc__" in vars(base)
    package = ".".join(path.split(".")[:2])
    if not mine or hasattr(importlib.import_module(package), base.__name__):
        return None
    section = re.search(r"^Args:\n(?:(?: .*)?\n)+", inspect.getdoc(base) + "\n", re.M)
    return section and section[0]


def signature(thing: Any, path: str) -> str:
    """The signature as it stands in the source, without `self`."""
    function, name = thing, path
    if inspect.isclass(thing):
        # A class that hands all its arguments on has the signature of its base class.
        made = (vars(base).get("__init__") for base in thing.__mro__[:-1])
        own = (x for x in made if x and "args" not in inspect.signature(x).parameters)
        function = next(own, thing)
        if not getattr(function, "__module__", "").startswith("keras_tfm"):
            function = thing
    kind = getattr(function, "arguments_class", None)
    try:
        if kind is not None:
            raise TypeError("the arguments are those of a dataclass")
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        arguments = list(source_arguments(tree.args))
        returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    except (OSError, TypeError, AssertionError):  # a dataclass, a named tuple
        arguments = [str(x) for x in inspect.signature(function).parameters.values()]
        arguments = [re.sub(r"keras_tfm\.[\w.]+\.(\w+)", r"\1", x) for x in arguments]
        returns = ""
    if kind is not None:
        types = annotations_of(kind)
        arguments = [
            f"{x.name}: {types[x.name]}" + ("" if x.default is x.empty else f" = {x.default!r}")
            for x in inspect.signature(function).parameters.values()
        ]
        returns = " -> Model"
    if inspect.isclass(thing):
        returns = ""
    arguments = [re.sub(r"'([^'\"]*)'", r'"\1"', argument) for argument in arguments]
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) > WIDTH:
        inner = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{name}(\n{inner}){returns}"
    return f"```python\n{line}\n```"


def annotations_of(kind: type) -> dict[str, str]:
    """The types of a dataclass's fields, as they stand in the source."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        for x in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
                found[x.target.id] = ast.unparse(x.annotation)
    return found


def source_arguments(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield source_argument(argument, default)
    if arguments.vararg:
        yield "*" + source_argument(arguments.vararg, None)
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield source_argument(argument, default)
    if arguments.kwarg:
        yield "**" + source_argument(arguments.kwarg, None)


def source_argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is None:
        return text if default is None else f"{text}={ast.unparse(default)}"
    text += f": {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


# --- a docstring in Google's style as Markdown


def described(docstring: str) -> str:
    """A docstring as Markdown: sections as lists, examples in fences."""
    blocks = re.split(rf"^({'|'.join(SECTIONS)}):\n((?:(?: .*)?\n)+)", docstring + "\n", flags=re.M)
    parts = [prose(blocks[0])]
    for title, body, rest in zip(blocks[1::3], blocks[2::3], blocks[3::3], strict=True):
        body = textwrap.dedent(body)
        parts += [f"**{SECTIONS[title]}**"]
        parts += [prose(body) if title == "Returns" else section(body), prose(rest)]
    papers = r"arXiv:(\d{4}\.\d{4,5}|[a-z-]+/\d{7})"
    return re.sub(
        papers,
        r"[\g<0>](https://arxiv.org/abs/\1)",
        "\n\n".join(part for part in parts if part),
    )


def section(body: str) -> str:
    """`name: text` with indented continuation -> a list; anything else as prose."""
    name = r"\*{0,2}`?[A-Za-z_]\w*`?"
    entry = re.compile(rf"^(?P<names>{name}(?:, {name})*): (?P<text>.*(?:\n(?: .*)?)*)", re.M)
    found = list(entry.finditer(body))
    if not found or body[: found[0].start()].strip():
        return prose(body)
    lines = []
    for match in found:
        first, _, more = match["text"].strip().partition("\n")
        names = ", ".join(f"`{x.strip('`')}`" for x in match["names"].split(", "))
        lines.append(f"- {names}: {first}")
        lines += [textwrap.indent(textwrap.dedent(more), "  ").rstrip()] if more else []
    return "\n".join(lines)


def prose(text: str) -> str:
    """Examples in fences."""
    text = re.sub(r"^Example:$", "**Example**", text, flags=re.M)
    text = re.sub(
        r"^>>> (?:.+\n?)+", lambda x: f"```pycon\n{x[0].rstrip()}\n```\n", text, flags=re.M
    )
    return text.strip()


if __name__ == "__main__":
    main()
