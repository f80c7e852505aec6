"""Real lines in ten languages, and vocabularies that are trained on them."""

import functools
import gettext
import hashlib
import importlib.util
import io
import json
from pathlib import Path

import pytest

LANGUAGES = ("ar", "de", "el", "hi", "ja", "ko", "ru", "th", "tr", "vi")


@functools.cache
def lines(count=2000):
    """Texts of Django's catalogues, as many of each language: sentences, formats, line ends."""
    spec = importlib.util.find_spec("django")
    if spec is None:
        pytest.skip("Django's catalogues are not installed")
    root = Path(spec.submodule_search_locations[0])
    result = []
    for language in LANGUAGES:
        texts = set()
        for file in root.glob(f"**/locale/{language}/LC_MESSAGES/django.mo"):
            with file.open("rb") as opened:
                catalog = gettext.GNUTranslations(opened)._catalog
            texts |= {x for key, x in catalog.items() if key and len(x) >= 12}
        ordered = sorted(texts, key=lambda x: hashlib.md5(x.encode()).digest())
        result += ordered[: count // len(LANGUAGES)]
    assert len(result) == count
    return result


@functools.cache
def word_pieces(size=4000):
    """The pieces of a WordPiece vocabulary, with BERT's special tokens first."""
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator(lines(), vocab_size=size, show_progress=False)
    ids = trained.get_vocab()
    return sorted(ids, key=ids.get)


@functools.cache
def byte_pairs(*special, size=2000):
    """The vocabulary and the merges of a byte-level BPE, with these special tokens first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(lines(), trainer)
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [" ".join(pair) for pair in model["merges"]]


def sentence_pieces(texts=None, size=3000, **options):
    """The bytes of a SentencePiece model of these texts."""
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines() if texts is None else texts),
        model_writer=content,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return content.getvalue()
