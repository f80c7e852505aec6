"""Data of examples/translation.py: paragraphs of LibreOffice's help in English and German.

    python examples/translation_data.py        # downloads, aligns, prints statistics; 20 seconds

The help is in the packages libreoffice-help-en-us and libreoffice-help-de of Debian and Ubuntu
(MPL-2.0, 5 MB), which `apt-get download` fetches without root. Its pages are HTML, and a paragraph
has the same id in every language, so no alignment is needed. Texts are stored in artifacts/ and
never committed.

Other pairs can be used too: a file with lines `source<TAB>target`, and optionally a third column
with the name of the document.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("artifacts/translation")
PACKAGES = {"en-US": "libreoffice-help-en-us", "de": "libreoffice-help-de"}
PARAGRAPH = re.compile(r"(par|hd)_id[0-9N_]*")
# The number of documents per thousand that are held out for validation and for the test.
VALIDATION, TEST = 20, 50


class Pair(NamedTuple):
    """A paragraph in two languages, and its document."""

    source: str
    target: str
    document: str


class Parts(NamedTuple):
    """Pairs for training, validation and test; each document is in one part only."""

    training: list[Pair]
    validation: list[Pair]
    test: list[Pair]


class Paragraph(NamedTuple):
    """The text of a paragraph, and the kind of each word.

    Attributes:
        text: str, with single spaces.
        kinds: for each word of the text, the class of its first character in the page: "emph",
            "menuitem", "literal", "input", "keycode", "widget", or "".
    """

    text: str
    kinds: tuple[str, ...]


class _Paragraphs(HTMLParser):
    """Each paragraph and heading of a page, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Paragraph] = {}
        self._id = ""
        self._tag = ""
        self._pieces: list[tuple[str, str]] = []  # text and its class
        self._spans: list[str] = []  # the classes of the open spans

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        if not self._id and PARAGRAPH.fullmatch(given.get("id") or ""):
            self._id, self._tag, self._pieces, self._spans = given["id"], tag, [], []
        elif self._id and tag == "br":
            self._pieces.append((" ", ""))
        elif self._id and tag == "span":
            self._spans.append(given.get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        if self._spans and tag == "span":
            self._spans.pop()
        elif self._id and tag == self._tag:
            self.found.setdefault(self._id, self._paragraph())
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id and "MAC" not in self._spans:
            self._pieces.append((data, next((kind for kind in self._spans[::-1] if kind), "")))

    def _paragraph(self) -> Paragraph:
        text = "".join(piece for piece, _ in self._pieces)
        kinds = [kind for piece, kind in self._pieces for _ in piece]
        words = [(word.group(), kinds[word.start()]) for word in re.finditer(r"\S+", text)]
        return Paragraph(" ".join(word for word, _ in words), tuple(kind for _, kind in words))


def fetch(folder: Path = FOLDER) -> Path:
    """The file of aligned pairs, created if missing: `source<TAB>target<TAB>document`."""
    path = folder / "pairs.tsv"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory() as temporary:
        roots = [unpacked(language, Path(temporary), folder) for language in PACKAGES]
        lines = ["\t".join(pair) + "\n" for pair in aligned(*roots)]
    unfinished = path.with_suffix(".part")
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.rename(path)
    return path


def unpacked(language: str, temporary: Path, folder: Path = FOLDER) -> Path:
    """A folder in `temporary` with the pages of a language; downloads the package to `folder`."""
    package = PACKAGES[language]
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(
                f"{tool} is needed to fetch the help texts and is not here: without Debian's "
                "packages there is --smoke, and for the translator --pairs"
            )
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True)
    archive = next(folder.glob(f"{package}_*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive, temporary / package], check=True)
    return temporary / package / "usr/share/libreoffice/help" / language / "text"


def aligned(source: Path, target: Path) -> list[Pair]:
    """The paragraphs that are in both folders; untranslated ones are left out."""
    pairs = []
    for page in sorted(source.rglob("*.html")):
        document = page.relative_to(source).as_posix()
        if not (target / document).exists():
            continue
        ours, theirs = paragraphs(page), paragraphs(target / document)
        for key, paragraph in ours.items():
            text, other = paragraph.text, theirs[key].text if key in theirs else ""
            if text and other and text != other:
                pairs.append(Pair(text, other, document))
    return pairs


def paragraphs(page: Path) -> dict[str, Paragraph]:
    """Each paragraph and heading of a page, by its id."""
    parser = _Paragraphs()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.found


def read(path: Path) -> list[Pair]:
    """Reads a file of lines `source<TAB>target`, with the document as an optional third column."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        columns = [" ".join(column.split()) for column in line.split("\t")]
        if len(columns) not in (2, 3) or not all(columns):
            raise ValueError(
                f"{path}, line {number}: expected source<TAB>target or "
                f"source<TAB>target<TAB>document, got {line[:60]!r}"
            )
        # Without documents the source is used: equal sources are then in the same part.
        pairs.append(Pair(columns[0], columns[1], columns[-1 if len(columns) == 3 else 0]))
    return pairs


def names() -> list[Pair]:
    """Names of countries, languages and currencies in English and German, from Babel's CLDR.

    Two thousand pairs for a test run without a network.
    """
    from babel import Locale

    english, german = Locale("en"), Locale("de")
    pairs = []
    for kind in ("territories", "languages", "scripts", "currencies"):
        ours, theirs = getattr(english, kind), getattr(german, kind)
        pairs += [
            Pair(ours[code], theirs[code], f"{kind}/{code}") for code in ours if code in theirs
        ]
    return pairs


def split(pairs: Iterable[Pair]) -> Parts:
    """Splits pairs by document, with a hash of its name, so that new pairs do not move others.

    A pair that occurs several times is kept once in each part.
    """
    parts = Parts([], [], [])
    for pair in dict.fromkeys(pairs):
        parts[part_of(pair.document)].append(pair)
    return Parts(*(_once(part) for part in parts))


def part_of(document: str, validation: int = VALIDATION, test: int = TEST) -> int:
    """An index of `Parts`: 0 = training, 1 = validation, 2 = test."""
    digest = hashlib.sha256(document.encode()).digest()
    place = int.from_bytes(digest[:8], "big") % 1000
    return 2 if place < test else 1 if place < test + validation else 0


def _once(pairs: list[Pair]) -> list[Pair]:
    return list({(pair.source, pair.target): pair for pair in pairs}.values())


def main() -> None:
    pairs = read(fetch())
    parts = split(pairs)
    documents = len({pair.document for pair in pairs})
    print(f"{len(pairs):,} pairs in {documents:,} documents")
    seen = {pair.source for pair in parts.training}
    for name, part in zip(parts._fields, parts, strict=True):
        documents = len({pair.document for pair in part})
        print(f"{name}: {len(part):,} different pairs in {documents:,} documents")
        if part is not parts.training:
            known = sum(pair.source in seen for pair in part)
            print(f"    of which {known:,} have a source that is also in training")
    for pair in parts.test[:: max(1, len(parts.test) // 5)]:
        print(pair)


if __name__ == "__main__":
    main()
