"""Paragraphs of LibreOffice's help, for bert_pretraining.py and text_classification.py.

    python examples/help_data.py        # fetches, parses, prints what there is, 20 seconds

The English pages of examples/translation_data.py, fetched as there. Two things are known of their
paragraphs, and both were set by those who wrote them: the application that a page is about, which
is its folder, and which words are what one reads on the screen, what one types, or a key.
"""

import ast
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import translation_data as data

# A paragraph of the folder "shared" is about all of them.
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
# Of a thousand pages so many are held out, for choices and for the score.
VALIDATION, TEST = 40, 100
# Packages of Python's standard library, for a trial without a network.
PACKAGES = ("asyncio", "email", "logging", "multiprocessing", "unittest", "xml")


class Paragraph(NamedTuple):
    """A paragraph and what is known of it.

    Attributes:
        words: what stands between spaces.
        kinds: of each word: "screen", "code", "key", or "" where nothing is marked.
        subject: the application, or "" if the page is about all of them.
        document: the page.
    """

    words: tuple[str, ...]
    kinds: tuple[str, ...]
    subject: str
    document: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Parts(NamedTuple):
    """Paragraphs in the order of their pages, by what they are for; a page is in one part."""

    training: list[Paragraph]
    validation: list[Paragraph]
    test: list[Paragraph]


def help_pages(folder: Path = data.FOLDER) -> list[Paragraph]:
    """All paragraphs of the help, in their order; each is at home in one page."""
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
                # Pages contain paragraphs of others, mostly of "shared", which are theirs.
                known = found.setdefault(f"{key} {text}", paragraph)
                if known.subject != subject:
                    found[f"{key} {text}"] = known._replace(subject="")
    return list(found.values())


def docstrings() -> list[Paragraph]:
    """What some packages of Python say of themselves; the names that they define are "code"."""
    root = Path(sysconfig.get_path("stdlib"))
    result = []
    for package in PACKAGES:
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
    """Paragraphs by page, as `translation_data.split` does with pairs."""
    parts = Parts([], [], [])
    for paragraph in paragraphs:
        parts[data.part_of(paragraph.document, VALIDATION, TEST)].append(paragraph)
    return parts


def once(parts: Parts) -> Parts:
    """Those of three words or more, each text once: the first time it occurs.

    A manual repeats itself: what is to be scored, or chosen by, has no text that is in training.
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
