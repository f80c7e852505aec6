"""Tokenizers that other people's files may hold: such that never end, and published ones.

And those with words that they do not know.
"""

import json

import tokenizers

# Published with the tokenizers of Llama 3, Qwen 2, cl100k, o200k, DeepSeek, CLIP, BLOOM, XLM-R,
# DeBERTa and SuperBPE.
PUBLISHED = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"\s+$",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    " {2,}",
    r"\s{2,}|[\n\r\t]",
    r"(?=(\d{3})+(?!\d))",
    r"[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+",
]
CATASTROPHIC = [
    "(a+)+b", "(a|a)*b", "(a*)*", "(?:a|aa)+$", "([a-zA-Z]+)*$", "(.*a){20}", "(a?){50}b",
    "((a{0,100}){0,100}){0,100}b", "(x+x+)+y", "(?>(a+)+)b", "(?<=(a+)+)b", "(?:a{1,20})+b",
    "a*a*b", ".*.*=.*", r"\s*\s*\s*x", "(?=a*a*b)", r"(a*)\1b", r"\g<0>", "a+*", "(((", "[a",
    "(?i)(a|A)*[bc]", "(?i:(?:k|\u212a)*)[bc]", "(?x)(a| a)*[bc]", "(?x:(a| a)*[bc])",
    "(" * 100 + ")" * 100, "a" * 30_000,
]  # fmt: skip


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern):
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip


def template(copies, copies_in_pairs=1):
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    pair = [*[first] * copies_in_pairs, second]
    return {
        "type": "TemplateProcessing",
        "single": [first] * copies,
        "pair": pair,
        "special_tokens": {},
    }


def content(model=None, **parts):
    """A tokenizer.json of two words, with other parts; a list is a sequence."""
    names = {
        "normalizer": "normalizers",
        "pre_tokenizer": "pretokenizers",
        "post_processor": "processors",
        "decoder": "decoders",
    }
    given = {
        name: {"type": "Sequence", names[name]: part} if isinstance(part, list) else part
        for name, part in parts.items()
    }
    words_of = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    settings = {"version": "1.0", "added_tokens": [], "truncation": None, "padding": None}
    settings |= {**dict.fromkeys(names), **given, "model": words_of | (model or {})}
    return json.dumps(settings).encode()


DOUBLE, BYTES = (
    replace("a", "aa"),
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
)
BERT = {
    "type": "BertNormalizer",
    "clean_text": False,
    "handle_chinese_chars": False,
    "strip_accents": True,
    "lowercase": True,
}
META = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True}
CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
WORD_PIECE = {"type": "WordPiece", "prefix": "##", "cleanup": False}
# Parts of the syllable, which NFD takes apart.
SYLLABLES = [replace(part, "\uac01") for part in "\u1100\u1161\u11a8"]
# Its characters as bytes of "\U0001f600".
SMILES = [replace(byte, "\U0001f600") for byte in "\xf0\u0141\u013a\u0122"]
WITHOUT_END = {
    "doubled again and again": {"normalizer": [DOUBLE] * 40},
    "two rules in turn": {"normalizer": [replace("a", "bb"), replace("b", "aa")] * 20},
    "of several characters": {"normalizer": [replace("ab", "abab")] * 40},
    "a long text": {"normalizer": replace("a", "a" * 100_000)},
    "inserted everywhere": {"normalizer": [replace("", "a")] * 40},
    "a regular expression": {"normalizer": [replace(".", "xx", "Regex")] * 40},
    "one that matches nothing": {"normalizer": [replace("b*", "xx", "Regex")] * 40},
    "put before a text": {"normalizer": [{"type": "Prepend", "prepend": "a"}, *[DOUBLE] * 40]},
    "much put before a text": {"normalizer": {"type": "Prepend", "prepend": "a" * 100_000}},
    "a table": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAHh4" + "eHh4" * 1000}
    },
    "bytes as characters": {"pre_tokenizer": [BYTES] * 30},
    "copies of a text": {"post_processor": [template(10)] * 8},
    "copies in a pair": {"post_processor": template(1, 10_000)},
    "compatibility forms": {"normalizer": [replace("\u0644", "\ufdfa"), {"type": "NFKC"}] * 20},
    "decomposed syllables": {"normalizer": [*SYLLABLES, {"type": "NFD"}] * 20},
    "small letters": {"normalizer": [replace("a", "AA"), {"type": "Lowercase"}] * 40},
    "four bytes": {"normalizer": [*SMILES, BYTES] * 6},
    "decoded tokens": {"decoder": [DOUBLE] * 40},
    "decoded marks": {"decoder": [replace(" ", "__"), META] * 40},
    "decoded delimiters": {"decoder": [replace(" ", "||"), CTC] * 40},
    "spaces before tokens": {"decoder": [*[WORD_PIECE] * 900, replace(" ", "_" * 200)]},
    "an id of 32 bits": {"model": {"vocab": {"a": 2**32 - 1}}},
    "a long affix": {"model": {"continuing_subword_prefix": "#" * 1000}},
    "long words": {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
}


def with_unknown_words():
    """Tokenizers by name, each with texts that a model knows something of, and others."""
    ids = {"<unk>": 0, "\u2581": 1, "a": 2, " ": 3}
    models = tokenizers.models
    made = {
        "char": models.WordLevel(ids, unk_token="<unk>"),
        "word": models.BPE(ids, [], unk_token="<unk>", fuse_unk=True),
        "left out": models.BPE(ids, []),
        "unigram": models.Unigram([(x, -float(i)) for x, i in ids.items()], unk_id=0),
    }
    result = {}
    for kind, model in made.items():
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
        tokenizer.add_special_tokens(["[de]"])
        unknown = ["☃", "☃☃"] + ["☃ ü", "[de]☃", "☃ [de] ü"] * (kind != "left out")
        result[kind] = tokenizer, ["a", "a☃", "[de] ☃a", " "], unknown
    return result
