"""Data of examples/dates.py: a date as people write it, and the same date in ISO 8601.

    python examples/dates_data.py          # prints statistics and checks the data, 10 seconds

The formats are those of the CLDR in Babel: full, long, medium and short of every locale, its
skeletons with year, month and day, and ISO 8601. If a locale has "E, d MMM y" but does not list
"E, d MMMM y" or "EEEE, d MMM y", the name is widened, as specified in Unicode TS 35. Small human
variations are added: see `Style`.

- Dates are from 1950-01-01 to 2049-12-31; a year with two digits is the one in this range.
- Babel 2.16 and 2.18 differ in a few names and formats, and so do tokenizers made with them.
- An example names its locale ("en_US": 03/04/26 is March 4), or "any" if the text is unambiguous:
  a month name that means the same month in all locales ("lis" is November in Poland, October in
  Croatia), or year, month, day in this order with a four-digit year.
- No text is ambiguous. `check_unambiguous` parses texts without the generator and without the
  weekday, so the best possible score on both test sets is 100 %.
- `test_dates`: a tenth of all days, which are in no training example, in training formats.
- `test_formats`: about 8 % of the formats, which are in no training example, on the days of
  `test_dates`. So the two sets differ in one respect only, and no test pair is in training.
  A format is held out for all locales of a language, together with all formats that differ from it
  only by variations ("d/M/yy", "dd/MM/y"). Another language may have the same format (Danish,
  Norwegian). The order of its fields, its names and its characters always occur in other formats of
  its locale: only their combination is new.
"""

import functools
import hashlib
import random
import re
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import islice
from typing import NamedTuple

import numpy as np
from babel import Locale
from babel.dates import format_date, format_skeleton, tokenize_pattern
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

# With a region if the language has several locales; "de" is CLDR's default for German.
LOCALES = (
    *("ar_EG", "bg", "cs", "da", "de", "el", "en_GB", "en_US", "es", "es_MX", "fi"),
    *("fr", "fr_CA", "he", "hi", "hr", "hu", "id", "it", "ja", "ko", "nb", "nl"),
    *("pl", "pt_BR", "pt_PT", "ro", "ru", "sv", "tr", "uk", "vi", "zh"),
)
ANY = "any"
FIRST, LAST = date(1950, 1, 1), date(2049, 12, 31)
SOURCE_LENGTH = 40  # tag and characters; `check_length` compares it with the longest text
TARGET_LENGTH = 12  # start, ten characters, end

# Written before a date that does not start with its weekday.
LEADS = {
    "cs": "dne",
    "da": "den",
    "de": "am",
    "en": "on",
    "es": "el",
    "fr": "le",
    "id": "tanggal",
    "it": "il",
    "nb": "den",
    "nl": "op",
    "pl": "dnia",
    "ro": "pe",
    "sv": "den",
    "vi": "ngày",
}
ENDINGS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
ORDINALS = {
    "en": {day: f"{day}{ENDINGS.get(day, 'th')}" for day in range(1, 32)},
    "fr": {day: "1er" if day == 1 else str(day) for day in range(1, 32)},
}
YEAR_WORDS = (" \N{CYRILLIC SMALL LETTER GHE}.", " \N{CYRILLIC SMALL LETTER ER}.")

NUMBERS = {width: {n: f"{n:0{width}}" for n in range(1, 32)} for width in (1, 2)}
YEARS = {
    4: {year: str(year) for year in range(FIRST.year, LAST.year + 1)},
    2: {year: f"{year % 100:02}" for year in range(FIRST.year, LAST.year + 1)},
}


@dataclass(frozen=True)
class Example:
    text: str
    tag: str
    iso: str


class Day(NamedTuple):
    iso: str
    values: dict[str, int]  # by the field's symbol: y, M, d and E, Monday = 0


class Field(NamedTuple):
    """Year, month, day or weekday (symbols y, M, d, E), and the text of each value."""

    symbol: str
    table: Mapping[int, str]
    named: bool = False
    wide: bool = False


@dataclass(frozen=True, eq=False)
class Format:
    """A date format of a locale; `name` is CLDR's name, `parts` are the parts of its pattern."""

    tag: str
    name: str
    pattern: str
    parts: tuple[str | Field, ...]

    @property
    def language(self) -> str:
        return self.tag.partition("_")[0]

    @property
    def fields(self) -> dict[str, Field]:
        return {part.symbol: part for part in self.parts if isinstance(part, Field)}

    @property
    def order(self) -> str:
        return "".join(symbol for symbol in self.fields if symbol != "E")

    @property
    def month_by_name(self) -> bool:
        return self.fields["M"].named

    @property
    def kind(self) -> str:
        """The pattern without what variations change; formats of one kind are held out together."""
        named = self.month_by_name
        text = self.language
        for part in self.parts:
            if isinstance(part, Field):
                text += f" {part.symbol}{part.named:d}{part.wide:d} "
            elif part not in YEAR_WORDS:
                text += re.sub(r"[\s,،.]" if named else r"[\s,،]", "", part)
        return text.rstrip(" .")


class Style(NamedTuple):
    """The variations of one text; with the defaults it is Babel's text."""

    digits: int = 0  # of the day and the month; 0: as in the pattern
    year_digits: int = 0
    lead: bool = False  # "le 3 janv. 1999"
    ordinal: bool = False  # "March 5th", "1er mars"
    commas: bool = True
    dots: bool = True  # of abbreviations and ordinal numbers; those between digits stay
    accents: bool = True  # Latin and Greek
    year_word: bool = True  # Russian, Ukrainian, Bulgarian
    spaces: bool = True  # "5. 3. 2026", "5.3.2026"


AS_IN_BABEL = Style()


def tidy(text: str) -> str:
    """Replaces spaces, dashes, apostrophes and digits by plain ones; composed letters (NFC)."""
    return unicodedata.normalize("NFC", text.translate(PLAIN_CHARACTERS))


def normalise(text: str) -> str:
    """The text that the model sees: tidy, in compatibility form (NFKC), in lower case.

    Both Turkish letters i become "i", so that "Kasım" equals "KASIM", and "Nisan" equals "NİSAN"
    and "NISAN": without the language, the lower case of a capital I is ambiguous.
    """
    return NORMALIZER.normalize_str(text)


PLAIN_CHARACTERS: dict[int, str | None] = {
    **dict.fromkeys(map(ord, "\u200e\u200f\u061c\u2066\u2067\u2068\u2069"), None),
    **dict.fromkeys(range(0x202A, 0x202F), None),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f"), " "),
    **dict.fromkeys(range(0x2010, 0x2016), "-"),
    **dict.fromkeys(map(ord, "\u2212"), "-"),
    # Also the Ukrainian apostrophe and the Hebrew geresh, which are typed so.
    **dict.fromkeys(map(ord, "\u2018\u2019\u02bc\u05f3"), "'"),
    # Arabic, Persian and Devanagari digits: Babel writes 0 to 9, people may not.
    **{zero + n: str(n) for zero in (0x660, 0x6F0, 0x966) for n in range(10)},
}


def _normalizer() -> normalizers.Normalizer:
    """`normalise` in the form of the tokenizer in the exported file."""
    replaced = defaultdict(str)
    for code, plain in PLAIN_CHARACTERS.items():
        replaced[plain or ""] += chr(code)
    return normalizers.Sequence(
        [
            *(normalizers.Replace(Regex(f"[{few}]"), plain) for plain, few in replaced.items()),
            normalizers.NFKC(),
            normalizers.Replace("İ", "i"),
            # Lowercase takes each letter by itself, and a sigma depends on what is after it.
            normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς"),
            normalizers.Lowercase(),
            normalizers.NFKC(),
            normalizers.Replace("\N{LATIN SMALL LETTER DOTLESS I}", "i"),
            normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
            normalizers.Strip(),
        ]
    )


NORMALIZER = _normalizer()


@functools.lru_cache(100_000)
def without_accents(text: str) -> str:
    """Removes marks of Latin and Greek letters; й and и are different letters and are kept."""
    kept = ""
    for char in unicodedata.normalize("NFD", text):
        if not ("\u0300" <= char <= "\u036f" and kept and kept[-1] < "\u0400"):
            kept += char
    return unicodedata.normalize("NFC", kept)


def stable_hash(text: str) -> int:
    """A hash that is the same on every machine and in every run, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


# --- Formats -----------------------------------------------------------------------------------


def _field(locale: Locale, symbol: str, width: int) -> Field:
    if symbol == "y":
        return Field("y", YEARS[2 if width == 2 else 4])
    if symbol == "d" or (symbol in "ML" and width <= 2):
        return Field("d" if symbol == "d" else "M", NUMBERS[width])
    context = "format" if symbol in "ME" else "stand-alone"
    names = (locale.months if symbol in "ML" else locale.days)[context]
    wide, short = (
        {key: tidy(name) for key, name in names[length].items()}
        for length in ("wide", "abbreviated")
    )
    table = wide if width == 4 else short
    return Field("M" if symbol in "ML" else "E", table, named=True, wide=table == wide)


def _format(tag: str, name: str, pattern: str) -> Format:
    parts: list[str | Field] = []
    for _, value in tokenize_pattern(pattern):
        if isinstance(value, tuple):
            parts.append(_field(Locale.parse(tag), *value))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += tidy(value)
        else:
            parts.append(tidy(value))
    return Format(tag, name, pattern, tuple(parts))


def _patterns(tag: str) -> dict[str, str]:
    """The locale's patterns by their CLDR name, or by the widened skeleton."""
    locale = Locale.parse(tag)
    lengths = ("full", "long", "medium", "short")
    patterns = {name: locale.date_formats[name].pattern for name in lengths}
    skeletons = {
        name: format.pattern
        for name, format in sorted(locale.datetime_skeletons.items())
        # "ddd" is an ordinal day, 3rd: Babel has the patterns since 2.19, but not the texts.
        if set("yMd") <= set(name) <= set("yMdEc") and "ddd" not in name
    }
    patterns |= skeletons
    for name, pattern in skeletons.items():
        for letters in ("M", "E", "ME"):
            if (wider := _widen(name, letters)) not in skeletons:
                patterns[wider] = _widen(pattern, letters)
    return {**patterns, "iso": "y-MM-dd"}


def _widen(pattern: str, letters: str) -> str:
    """Replaces abbreviated months (M) or weekdays (E) in a pattern by full names."""
    short = {"M": "(?<!M)MMM(?!M)", "E": "(?<!E)E{1,3}(?!E)"}
    for letter in letters:
        pattern = re.sub(short[letter], 4 * letter, pattern)
    return pattern


@functools.cache
def formats() -> tuple[Format, ...]:
    """All formats of all locales, without duplicate patterns of a locale."""
    found = []
    for tag in LOCALES:
        first_names: dict[str, str] = {}
        for name, pattern in _patterns(tag).items():
            first_names.setdefault(pattern, name)
        found += [_format(tag, name, pattern) for pattern, name in first_names.items()]
    return tuple(found)


@functools.cache
def held_out_formats() -> tuple[Format, ...]:
    """About 8 % of the formats, chosen by kind with a stable hash, if the rest covers them."""
    kinds = defaultdict(list)
    for format in formats():
        kinds[format.kind].append(format)
    held: list[Format] = []
    for kind in sorted(kinds, key=stable_hash):
        rest = [f for f in formats() if f not in held and f.kind != kind]
        if all(_taught_by(format, rest) for format in kinds[kind]):
            held += kinds[kind]
        if len(held) >= 0.08 * len(formats()):
            break
    return tuple(held)


@functools.cache
def training_formats() -> tuple[Format, ...]:
    return tuple(format for format in formats() if format not in held_out_formats())


def _taught_by(format: Format, rest: Iterable[Format]) -> bool:
    """Whether other formats of the locale have the order, names and characters of a format."""
    same = [other for other in rest if other.tag == format.tag and other.name != "iso"]
    named = [field for field in format.fields.values() if field.named]
    return (
        format.name != "iso"
        and (format.order, format.month_by_name) in {(o.order, o.month_by_name) for o in same}
        and all(any(field in other.fields.values() for other in same) for field in named)
        and _characters([format]) <= _characters(same)
    )


def _characters(some: Iterable[Format]) -> set[str]:
    """All characters that texts in these formats can have after `normalise`."""
    pieces = set()
    for format in some:
        pieces |= {LEADS.get(format.language, ""), *ORDINALS.get(format.language, {}).values()}
        for part in format.parts:
            written = (part,) if isinstance(part, str) else part.table.values()
            pieces |= {*written, *map(without_accents, written)}
    return {char for piece in pieces for char in normalise(piece)} | set(" 0123456789")


# --- Writing -----------------------------------------------------------------------------------


@functools.cache
def _month_readings() -> dict[str, set[tuple[int, bool]]]:
    """For every month name of all locales: its months, and whether the year comes first."""
    readings = defaultdict(set)
    for format in formats():
        if format.month_by_name:
            for number, name in format.fields["M"].table.items():
                readings[_month_key(name)].add((number, format.order.startswith("y")))
    return readings


def _month_key(name: str) -> str:
    return without_accents(normalise(name)).replace(".", "")


@functools.cache
def _tagless_months(format: Format, year_digits: int) -> frozenset[int]:
    """The months in which the format needs no language tag."""
    if not format.month_by_name:
        return frozenset(range(1, 13) if format.order == "yMd" and year_digits == 4 else ())
    tagless = set()
    for number, name in format.fields["M"].table.items():
        readings = _month_readings()[_month_key(name)]
        # "26 jan 05" is 2026 in Hungarian and 2005 in English: a two-digit year needs the order.
        if len({reading[0] for reading in readings}) == 1 and (
            year_digits == 4 or len(readings) == 1
        ):
            tagless.add(number)
    return frozenset(tagless)


@functools.cache
def _styled(format: Format, style: Style) -> tuple[tuple[str | Field, ...], frozenset[int]]:
    """The parts of a format in a style, and the months in which it needs no language tag."""
    parts = [_styled_part(part, format, style) for part in format.parts]
    if not style.dots and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip(".")
    starts_with_weekday = isinstance(parts[0], Field) and parts[0].symbol == "E"
    if style.lead and format.language in LEADS and not starts_with_weekday:
        parts.insert(0, LEADS[format.language] + " ")
    year_digits = style.year_digits or (2 if format.fields["y"].table is YEARS[2] else 4)
    return tuple(parts), _tagless_months(format, year_digits)


def _styled_part(part: str | Field, format: Format, style: Style) -> str | Field:
    if isinstance(part, str):
        if part in YEAR_WORDS and not style.year_word:
            return ""
        if not style.commas:
            part = part.replace(",", "").replace("،", "")
        if not style.dots and format.month_by_name:
            part = part.replace(".", "")
        if not style.spaces and not format.month_by_name and part == ". ":
            part = "."
        return part if style.accents else without_accents(part)
    table = part.table
    if part.symbol == "y":
        table = YEARS.get(style.year_digits, table)
    elif not part.named:
        table = NUMBERS.get(style.digits, table)
    if part.symbol == "d" and style.ordinal and format.month_by_name:
        table = ORDINALS.get(format.language, table)
    if part.named:
        edits: list[Callable[[str], str]] = [] if style.accents else [without_accents]
        if not style.dots:
            edits.append(lambda name: name.replace(".", ""))
        for edit in edits:
            table = {key: edit(name) for key, name in table.items()}
    return part._replace(table=table)


def write(format: Format, day: Day, style: Style = AS_IN_BABEL) -> str:
    parts, _ = _styled(format, style)
    values = day.values
    return "".join([p if isinstance(p, str) else p.table[values[p.symbol]] for p in parts])


def _random_style(format: Format, chance: random.Random) -> Style:
    draw = chance.random
    if format.name == "iso":
        return Style(lead=draw() < 0.1)
    return Style(
        digits=chance.choices((0, 1, 2), (70, 15, 15))[0],
        year_digits=chance.choices((0, 2, 4), (75, 15, 10))[0],
        lead=draw() < 0.1,
        ordinal=draw() < 0.2,
        commas=draw() > 0.15,
        dots=draw() > 0.15,
        accents=draw() > 0.08,
        year_word=draw() > 0.4,
        spaces=draw() > 0.2,
    )


def random_example(format: Format, day: Day, chance: random.Random) -> Example:
    """The day in a random style and letter case; without the tag in half the cases, if possible."""
    style = _random_style(format, chance)
    text = write(format, day, style)
    case = chance.random()
    if case < 0.25:
        text = text.lower() if case < 0.17 else text.upper()
    _, tagless = _styled(format, style)
    tag = ANY if chance.random() < 0.5 and day.values["M"] in tagless else format.tag
    return Example(text, tag, day.iso)


@functools.cache
def _days(held_out: bool) -> tuple[Day, ...]:
    every = (FIRST + timedelta(n) for n in range((LAST - FIRST).days + 1))
    return tuple(
        Day(day.isoformat(), {"y": day.year, "M": day.month, "d": day.day, "E": day.weekday()})
        for day in every
        if (stable_hash(day.isoformat()) % 10 == 0) == held_out
    )


def _examples(seed: int, days: Sequence[Day], choices: Iterable[Format]) -> Iterator[Example]:
    """Endless examples: the locale, one of its formats and the day are drawn uniformly."""
    chance = random.Random(seed)
    by_tag = defaultdict(list)
    for format in choices:
        by_tag[format.tag].append(format)
    tags = list(by_tag)
    while True:
        format = chance.choice(by_tag[chance.choice(tags)])
        yield random_example(format, chance.choice(days), chance)


def training_examples(count: int, seed: int = 0) -> list[Example]:
    """Training days in training formats."""
    return list(islice(_examples(seed, _days(held_out=False), training_formats()), count))


def test_dates(count: int = 2000, seed: int = 1001) -> list[Example]:
    """Held-out days in training formats."""
    return list(islice(_examples(seed, _days(held_out=True), training_formats()), count))


def test_formats(count: int = 1000, seed: int = 1002) -> list[Example]:
    """Held-out days in held-out formats.

    Left out are texts that also fit a trained format of their tag: German May is "Mai" both in
    "d. MMM y" and in "d. MMMM y".
    """
    drawn = _examples(seed, _days(held_out=True), held_out_formats())
    trained = training_formats()
    new = (example for example in drawn if not _fitting(example.text, example.tag, trained))
    return list(islice(new, count))


# pytest must not collect them where a test imports them.
test_dates.__test__ = test_formats.__test__ = False  # type: ignore[attr-defined]


# --- Encoding ----------------------------------------------------------------------------------


PADDING, UNKNOWN = 0, 1
START, END = 1, 2  # of the target


@functools.cache
def source_tokenizer() -> Tokenizer:
    """The tokenizer of a language tag, such as "[de]", and the characters of the normalised text.

    Its ids are padding (0), unknown (1), "[any]", a tag for every locale, and the characters of the
    training formats.
    """
    tags = [f"[{tag}]" for tag in (ANY, *LOCALES)]
    characters = sorted(_characters(training_formats()))
    tokenizer = _of_characters(["<padding>", "<unknown>", *tags, *characters], "<unknown>")
    tokenizer.add_special_tokens(tags)
    tokenizer.normalizer = NORMALIZER
    return tokenizer


@functools.cache
def target_tokenizer() -> Tokenizer:
    """The tokenizer of targets: start, the ten characters of an ISO date, end; padding is 0."""
    special = ["<padding>", "<start>", "<end>"]
    tokenizer = _of_characters([*special, *"-0123456789"], "<padding>")
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", START), ("<end>", END)]
    )
    return tokenizer


def _of_characters(tokens: Sequence[str], unknown: str) -> Tokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def question(text: str, tag: str = ANY) -> str:
    """A text with its tag, the input of the source tokenizer."""
    if tag != ANY and tag not in LOCALES:
        raise ValueError(f"Expected tag to be one of {(ANY, *LOCALES)}, received {tag!r}.")
    return f"[{tag}]{text}"


def arrays(
    examples: Sequence[Example], length: int = SOURCE_LENGTH
) -> tuple[np.ndarray, np.ndarray]:
    """Source (N, length) and target (N, 12), int32, padded with 0."""
    questions = [question(example.text, example.tag) for example in examples]
    sources = [row.ids for row in source_tokenizer().encode_batch(questions)]
    targets = [row.ids for row in target_tokenizer().encode_batch([x.iso for x in examples])]
    longest = max(range(len(sources)), key=lambda i: len(sources[i]))
    if len(sources[longest]) > length:
        raise ValueError(
            f"Expected at most {length - 1} characters, received {len(sources[longest]) - 1}: "
            f"{examples[longest].text!r}."
        )
    return padded(sources, length), padded(targets, TARGET_LENGTH)


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Rows of ids as an array (N, length), int32."""
    result = np.full((len(rows), length), PADDING, "int32")
    for i, row in enumerate(rows):
        result[i, : len(row)] = row
    return result


# --- Checks ------------------------------------------------------------------------------------


def check_against_babel(days_per_format: int = 40, seed: int = 0) -> int:
    """Compares every format in the plain style with Babel; returns the number of comparisons."""
    chance = random.Random(seed)
    days = _days(held_out=False)
    every_month = [day for day in days if day.values["y"] == 2026 and day.values["d"] == 2]
    compared = 0
    for format in formats():
        locale = Locale.parse(format.tag)
        for day in [*every_month, *chance.sample(days, days_per_format)]:
            when = date.fromisoformat(day.iso)
            if format.name in locale.date_formats:
                expected = format_date(when, format.name, locale)
            elif format.name in locale.datetime_skeletons:
                expected = format_skeleton(format.name, when, fuzzy=False, locale=locale)
            else:
                expected = format_date(when, format.pattern, locale)
            received = write(format, day)
            if received != tidy(expected):
                raise AssertionError(
                    f"{format.tag} {format.name}: expected {expected!r}, received {received!r}."
                )
            compared += 1
    return compared


def readings(text: str, tag: str = ANY) -> set[str]:
    """All dates that the text can mean, with regular expressions made from the patterns.

    It shares only the patterns and the names with the generator, accepts more than the generator
    writes (any dot, comma or space dropped or added), and ignores the weekday.
    """
    found = set()
    for format, match in _fitting(text, tag, formats()):
        year, month = int(match["y"]), match["M"]
        if len(match["y"]) == 2:
            year = (year - FIRST.year) % 100 + FIRST.year  # 50..99 -> 19.., 00..49 -> 20..
        if format.month_by_name:
            months = {_month_key(name): n for n, name in format.fields["M"].table.items()}
            month = months[month.replace(".", "")]
        try:
            when = date(year, int(month), int(match["d"]))
        except ValueError:  # no such day
            continue
        if FIRST <= when <= LAST:
            found.add(when.isoformat())
    return found


def _fitting(text: str, tag: str, some: Iterable[Format]) -> list[tuple[Format, re.Match[str]]]:
    """The formats of the tag's locale (for "any", of all locales) that match the text."""
    text = without_accents(normalise(text))
    candidates = (format for format in some if tag in (ANY, format.tag))
    matches = ((format, _expression(format).fullmatch(text)) for format in candidates)
    return [(format, match) for format, match in matches if match]


@functools.cache
def _expression(format: Format) -> re.Pattern[str]:
    ordinal = "(?:st|nd|rd|th|er)?" if format.month_by_name else ""
    lead = LEADS.get(format.language)
    expression = f"(?:{without_accents(lead)} )?" if lead else ""
    for index, part in enumerate(format.parts):
        if isinstance(part, Field):
            expression += {
                "y": r"(?P<y>\d{4})" if format.name == "iso" else r"(?P<y>\d{4}|\d{2})",
                "M": f"(?P<M>{_any_name(part.table)})" if part.named else r"(?P<M>\d{1,2})",
                "d": rf"(?P<d>\d{{1,2}}){ordinal}",
                "E": f"(?:{_any_name(part.table)})" if part.named else "",
            }[part.symbol]
        elif part in YEAR_WORDS:
            expression += rf"(?:{re.escape(part[:-1])}\.?)?"
        elif re.fullmatch(r"[\s.,،]+", part):
            expression += r"[\s.,،]" + ("*" if index == len(format.parts) - 1 else "+")
        else:
            plain = without_accents(normalise(f"|{part}|"))[1:-1]
            expression += "".join(
                r"[\s.,،]*" if char in " .,،" else re.escape(char) for char in plain
            )
    return re.compile(expression)


def _any_name(table: Mapping[int, str]) -> str:
    names = {re.escape(without_accents(normalise(name))) for name in table.values()}
    return "|".join(sorted(names)).replace(r"\.", r"\.?")


def check_unambiguous(examples: Iterable[Example]) -> int:
    """Whether each text has one reading, its own, given its tag; returns how many were read."""
    count = 0
    for example in examples:
        if (found := readings(example.text, example.tag)) != {example.iso}:
            raise AssertionError(f"{example}: expected that reading only, received {found}.")
        count += 1
    return count


def longest_source() -> tuple[int, str]:
    """The longest source that any format, day and style makes, with the tag, and its text."""

    def normalised_length(text: str) -> int:
        return len(normalise(text))

    fullest = Style(digits=2, year_digits=4, lead=True)
    texts = []
    for format in formats():
        for style in (fullest, fullest._replace(ordinal=True)):
            parts, _ = _styled(format, style)
            texts.append(
                "".join(
                    part
                    if isinstance(part, str)
                    else max(part.table.values(), key=normalised_length)
                    for part in parts
                )
            )
    longest = max(texts, key=normalised_length)
    return normalised_length(longest) + 1, longest


def check_length() -> None:
    if longest_source()[0] > SOURCE_LENGTH:
        raise AssertionError(f"Expected at most {SOURCE_LENGTH}, received {longest_source()}.")


def main() -> None:
    held = held_out_formats()
    print("locale  formats  held out")
    for tag in LOCALES:
        patterns = "   ".join(format.pattern for format in held if format.tag == tag)
        print(f"{tag:7} {sum(format.tag == tag for format in formats()):7}  {patterns}")
    languages = len({format.language for format in formats()})
    trained_days, held_days = len(_days(held_out=False)), len(_days(held_out=True))
    source, target = source_tokenizer().get_vocab_size(), target_tokenizer().get_vocab_size()
    check_length()
    print(f"\n{languages} languages, {len(LOCALES)} locales")
    print(f"{len(formats())} formats, {len(held)} held out")
    print(f"{trained_days + held_days} days, {held_days} held out")
    print(f"{source} source tokens, {target} target tokens")
    print("longest source with its tag: {} tokens, {!r}".format(*longest_source()))

    start = time.perf_counter()
    examples = training_examples(150_000)
    print(f"\n150,000 training examples in {time.perf_counter() - start:.1f} s, such as")
    for tag in ("en_US", "fr", "el", "ja", ANY):
        for example in [example for example in examples if example.tag == tag][:10]:
            print(f"  {example.tag:6} {example.iso}  {example.text}")
    print(f"{check_against_babel()} texts are as Babel writes them")
    drawn = [*examples[:20_000], *test_dates(), *test_formats()]
    print(f"{check_unambiguous(drawn)} texts read back have one reading, the right one")


if __name__ == "__main__":
    main()
