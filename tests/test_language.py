"""Plain English: phrases that readers do not search for, and the field's words for them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Folders and files without these phrases; add a folder here once its texts are revised.
REVISED = [
    "keras_tfm/arguments.py",
    "keras_tfm/checkpoints",
    "keras_tfm/distributed",
    "keras_tfm/generation",
    "keras_tfm/layers",
    "keras_tfm/models",
    "keras_tfm/plots.py",
    "keras_tfm/text",
    "keras_tfm/training",
    "keras_tfm/cli",
    "keras_tfm/export",
    "keras_tfm/runtime",
    "keras_tfm/keras_internals.py",
    "keras_tfm/trainer_internals.py",
    "README.md",
    "docs",
    "export",
    "examples/web/README.md",
    "benchmarks",
    "examples/bert_pretraining.py",
    "examples/dates.py",
    "examples/dates_data.py",
    "examples/help_data.py",
    "examples/integration.py",
    "examples/integration_data.py",
    "examples/multi_worker",
    "examples/names.py",
    "examples/progress.py",
    "examples/symbolic.py",
    "examples/text_classification.py",
    "examples/translation.py",
    "examples/translation_data.py",
    "examples/word2vec.py",
    "examples/word2vec_data.py",
    "examples/word_problems.py",
    "examples/word_problems_data.py",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
]
# Regular expressions, in which a space also matches a line break inside a comment or docstring.
PHRASES = {
    r"beginnings?": "hypothesis, start or prompt",
    r"rooms?": "capacity, cache length or space",
    r"filled (up )?with": "padded with",
    r"so (many|few|often)": "n, up to n, or the number of",
    r"asks? (a|the) scope": "reads the DecodingScope",
    r"where (it|they|(the )?(tokens|queries|keys|columns)) (and \w+ )?stands?": "position",
    r"(is|are|was|were|be) fed": "input, token or step",
    r"(is|was|were) asked for": "required, requested or supported",
    r"ends? on a device": "on-device, mobile or LiteRT (TFLite)",
    r"loops? outside( it| the file)?": "decoding loop on the host",
    r"goe?s? on from": "continues",
    r"if need be": "if necessary",
    r"in silence": "silently",
    r"real positions?": "True = token, False = padding",
    r"(is|are|be) no numbers?": "NaN",
    r"made again": "recreated",
    r"(not|be) told apart": "no measurable difference",
    r"process(es)? of (its|their) own": "a separate process",
    r"given up": "dropped or pruned",
    r"as good as equal": "nearly equal, tied",
}
EXPRESSIONS = {
    re.compile(rf"\b{phrase}\b".replace(" ", r"[\s#]+"), re.IGNORECASE): instead
    for phrase, instead in PHRASES.items()
}


def files(name):
    path = ROOT / name
    return [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")])


def complaints(text, name):
    """A line for each phrase in a text: file, line, what to write instead."""
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: write {instead!r}, "
        f"not {' '.join(found[0].split())!r}"
        for expression, instead in EXPRESSIONS.items()
        for found in expression.finditer(text)
    ]


@pytest.mark.default
@pytest.mark.parametrize("name", REVISED)
def test_plain_english(name):
    found = []
    assert files(name)
    for path in files(name):
        found += complaints(path.read_text(encoding="utf-8"), path.relative_to(ROOT))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("One of a beam's four beginnings.", "hypothesis"),
        ("Caches begin with room for 32 positions.", "capacity"),
        ("Rows are filled up with 0.", "padded"),
        ("Nodes of which so many run.", "number"),
        ("A layer asks the scope.", "reads"),
        ("# positions: where the tokens\n# stand", "position"),
        ("The tokens that are fed next.", "input"),
        ("More rows than were asked for.", "requested"),
        ("Layers that end on a device.", "on-device"),
        ("The loop outside is in Python.", "host"),
    ],
)
def test_phrases_are_found(text, instead):
    (found,) = complaints(text, "text")
    assert instead in found and found.startswith("text:1: ")


@pytest.mark.parametrize(
    "text",
    ["A feed-forward network has mushrooms.", "The broom of its own.", "so much", "a fed model"],
)
def test_other_words_are_not_found(text):
    assert complaints(text, "text") == []
