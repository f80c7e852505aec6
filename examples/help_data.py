"""Paragraphs of LibreOffice's help, for bert_pretraining.py and text_classification.py.

    python examples/help_data.py        # downloads, parses, prints statistics; 20 seconds

The English pages of examples/translation_data.py. Their paragraphs have two kinds of labels, both
set by the authors: the application that a page is about (its folder), and which words are screen
texts, typed input, or keys.
"""

import ast
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import translation_data as data

# A paragraph of the folder "shared" is about all applications.
APPLICATIONS = {
    "sbasic": "Basic",
    "scalc": "Calc",
    "schart": "Chart",
    "sdatabase": "Base",
    "sdraw": "Draw",
    "simpress": "Impress",
    "smath": "Math",
    "swriter": "Writer",
}
KINDS = {
    "emph": "screen",
    "menuitem": "screen",
    "widget": "screen",
    "literal": "code",
    "input": "code",
    "keycode": "key",
}
# The number of pages per thousand that are held out for validation and for the test.
VALIDATION, TEST = 40, 100
# Packages of Python's standard library, for a test run without a network.
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
PACKAGES = ("asyncio", "email", "logging", "multiprocessing", "unittest", "xml")


class Paragraph(NamedTuple):
    """A paragraph and its labels.

    Attributes:
        words: the words, separated by spaces in the text.
        kinds: for each word "screen", "code", "key", or "" if it is not marked.
        subject: str, the application, or "" if the page is about all of them.
        document: str, the page.
    """

    words: tuple[str, ...]
    kinds: tuple[str, ...]
    subject: str
    document: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Parts(NamedTuple):
    """Paragraphs for training, validation and test, in page order; a page is in one part only."""

    training: list[Paragraph]
    validation: list[Paragraph]
    test: list[Paragraph]


def help_pages(folder: Path = data.FOLDER) -> list[Paragraph]:
    """All paragraphs of the help in page order; each belongs to one page."""
    found: dict[str, Paragraph] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = data.unpacked("en-US", Path(temporary), folder)
        for page in sorted(root.rglob("*.html")):
            document = page.relative_to(root).as_posix()
            subject = APPLICATIONS.get(document.partition("/")[0], "")
            for key, (text, classes) in data.paragraphs(page).items():
                if not text:
                    continue
                kinds = tuple(KINDS.get(name, "") for name in classes)
                paragraph = Paragraph(tuple(text.split()), kinds, subject, document)
                # Pages include paragraphs of other pages, mostly of "shared": skip these.
                known = found.setdefault(f"{key} {text}", paragraph)
                if known.subject != subject:
                    found[f"{key} {text}"] = known._replace(subject="")
    return list(found.values())


def docstrings(
    root: Path = STANDARD_LIBRARY, packages: Sequence[str] = PACKAGES
) -> list[Paragraph]:
    """Docstrings of some Python packages as paragraphs; the names that they define are "code"."""
    result = []
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            defined = [node for node in ast.walk(tree) if isinstance(node, Documented)]
            names = {node.name for node in defined} | {
                node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)
            }
            for node in (tree, *defined):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    words = tuple(paragraph.split())
                    kinds = tuple(
                        "code" if word.strip("'`.,:;()") in names else "" for word in words
                    )
                    if words:
                        document = path.relative_to(root).as_posix()
                        result.append(Paragraph(words, kinds, package, document))
    return result


Documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def split(paragraphs: list[Paragraph]) -> Parts:
    """Splits paragraphs by page, as `translation_data.split` does with pairs."""
    parts = Parts([], [], [])
    for paragraph in paragraphs:
        parts[data.part_of(paragraph.document, VALIDATION, TEST)].append(paragraph)
    return parts


def once(parts: Parts) -> Parts:
    """Paragraphs with three or more words; of equal texts only the first.

    A manual repeats itself. After this, no text of validation or test is in training.
    """
    seen: set[str] = set()
    result = Parts([], [], [])
    for part, kept in zip(parts, result, strict=True):
        for paragraph in part:
            if len(paragraph.words) >= 3 and paragraph.text not in seen:
                seen.add(paragraph.text)
                kept.append(paragraph)
    return result


def main() -> None:
    parts = split(help_pages())
    for title, some in (("all", parts), ("once", once(parts))):
        for name, part in zip(some._fields, some, strict=True):
            pages = len({paragraph.document for paragraph in part})
            words = sum(len(paragraph.words) for paragraph in part)
            print(f"{title}, {name}: {len(part):,} paragraphs, {words:,} words, {pages:,} pages")
            print("   ", Counter(paragraph.subject for paragraph in part).most_common())
            print(
                "   ", Counter(kind for paragraph in part for kind in paragraph.kinds).most_common()
            )
    for paragraph in parts.test[::800]:
        print(paragraph)


if __name__ == "__main__":
    main()
