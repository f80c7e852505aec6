"""Sizes of models before and after `checkpoints.trim_vocabulary`, with random weights.

    python benchmarks/trim_vocabulary.py  # needs Django, whose catalogues are texts in 90 languages

A Unigram tokenizer for a model of the sizes of T5 small, and a byte-level BPE for one of those of
Gemma 3 270M, are trained on these catalogues. Both are trimmed to 2,000 texts: lines of the
documentation of Python's standard library, and German ones of the catalogues. Each text must have
the same tokens afterwards, and the same logits.
"""

import gettext
import hashlib
import importlib
import importlib.util
import io
import json
import pydoc
import tempfile
from pathlib import Path

import numpy as np
from keras import ops

from keras_tfm import checkpoints, models
from keras_tfm.models.decoders.gemma import SIZES as GEMMA
from keras_tfm.models.encoder_decoders.t5 import SIZES as T5

COUNT = 2000
MODULES = ("argparse", "ast", "asyncio", "datetime", "decimal", "email", "logging", "socket")


def catalogue_lines(language: str = "*") -> list[str]:
    """The texts of Django's catalogues, in one language or in all."""
    spec = importlib.util.find_spec("django")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("Django is not installed: pip install django")
    texts = set()
    for file in Path(spec.submodule_search_locations[0]).glob(
        f"**/locale/{language}/LC_MESSAGES/django.mo"
    ):
        with file.open("rb") as opened:
            translations = gettext.GNUTranslations(opened)
        texts |= {x for x in vars(translations)["_catalog"].values() if len(x) >= 12}
    return in_random_order(texts)


def english_lines() -> list[str]:
    """Lines of the documentation of the standard library."""
    pages = (pydoc.plaintext.document(importlib.import_module(x)) for x in MODULES)
    lines = {x.strip() for page in pages for x in page.splitlines()}
    return in_random_order({x for x in lines if len(x) > 30})


def in_random_order(texts: set[str]) -> list[str]:
    """The same order in every run."""
    return sorted(texts, key=lambda x: hashlib.md5(x.encode()).digest())


def unigrams(lines: list[str], size: int):
    """A tokenizer like T5's."""
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=content, vocab_size=size, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "spiece.model").write_bytes(content.getvalue())
        Path(folder, "config.json").write_text(json.dumps({"model_type": "t5"}))
        return checkpoints.load_tokenizer(folder)


def byte_pairs(lines: list[str], size: int):
    """A byte-level BPE."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "<eos>", "<bos>"], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def megabytes(model) -> float:
    """Of the weights, in float32."""
    return 4e-6 * model.count_params()


def compare(title: str, model, tokenizer, texts: list[str]) -> None:
    """Trims a model, compares tokens and logits, and prints a row of the table."""
    trimmed = checkpoints.trim_vocabulary(model, tokenizer, texts)
    new = {old: i for i, old in enumerate(trimmed.kept)}
    largest = 0.0
    for i, text in enumerate(texts):
        before, after = tokenizer.encode(text), trimmed.tokenizer.encode(text)
        assert after.tokens == before.tokens, text
        assert after.ids == [new[x] for x in before.ids], text
        if i % (COUNT // 4) == 0:
            a, b = (
                one({"source": np.array([ids]), "target": np.array([ids])})
                if isinstance(one.input, dict)
                else one(np.array([ids]))
                for one, ids in ((model, before.ids[:32]), (trimmed.model, after.ids[:32]))
            )
            a = ops.convert_to_numpy(a)[..., trimmed.kept]
            largest = max(largest, np.abs(a - ops.convert_to_numpy(b)).max() / np.abs(a).max())
    rows = model.arguments["vocabulary_size"]
    print(
        f"| {title} | {rows:,} | {len(trimmed.kept):,} | {megabytes(model):,.1f} | "
        f"{megabytes(trimmed.model):,.1f} | {len(texts):,} | {largest:.1g} |",
        flush=True,
    )


def main() -> None:
    lines, german = catalogue_lines(), catalogue_lines("de")
    texts = [*english_lines()[: COUNT - 500], *german[:500]]
    print(f"{len(lines):,} texts to train the tokenizers")
    print("| model | ids | kept | MB | MB trimmed | texts of the same tokens | difference |")
    print("|---|---|---|---|---|---|---|", flush=True)
    tokenizer = unigrams(lines, 32000)
    model = models.t5(32128, **T5["small"])
    compare("T5 small", model, tokenizer, texts)
    tokenizer = byte_pairs([*lines, *english_lines()], 60000)
    model = models.gemma(262144, **GEMMA["gemma3-270m"])
    compare("Gemma 3 270M", model, tokenizer, texts)


if __name__ == "__main__":
    main()
