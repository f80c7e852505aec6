"""Texts in, vectors out: sentence embeddings of a Keras model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.generation.interface import Interface, interface_of
from keras_tfm.generation.tokenizers.texts import padded_rows
from keras_tfm.generation.tokenizers.tokenizer_forms import by_input, check_tokenizer, form_of
from keras_tfm.models.identity import head_of, identity_of
from keras_tfm.runtime.tasks.embedding import first_dimensions, prompt_text

# Lengths are rounded up to a multiple of it, so that few graphs serve all texts.
_STEP = 16


def embed(
    model: keras.Model,
    texts: str | Sequence[str],
    tokenizer: Any,
    prompt: str | None = None,
    dimensions: int | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Sentence embeddings (B, D) of texts, float32; (D,) for a single text.

    As `runtime.Model.embed` of an exported file. Texts are sorted by length, and padded in batches.
    What is padding follows from the number of a text's tokens: a padding token at its end is a
    token. Texts of more than `max_seq_length` tokens, if the head has one, are truncated.

    Args:
        model: `keras.Model` with the head `models.sentence_embedding`.
        texts: str, or list of B.
        tokenizer: as in `generate`.
        prompt: str, name of a prompt of the head, whose text is put before each text. Default: the
            head's default prompt, if it has one.
        dimensions: int, only the first numbers of each vector, scaled to length 1 again if the head
            normalises: for models trained so (Matryoshka embeddings, arXiv:2205.13147). Default: D.
        batch_size: int, the most texts in a batch.

    Raises:
        TypeError: texts that are not str; a tokenizer of an unknown kind.
        ValueError: no texts; a text without tokens; the model has no such head, no such prompt or
            fewer dimensions; the tokenizer does not fit the model.

    Example:

    >>> from tokenizers import Tokenizer, pre_tokenizers
    >>> from tokenizers.models import WordLevel
    >>> from keras_tfm import generation, models
    >>> words = {word: i for i, word in enumerate(["[PAD]", "query", ":", "a", "cat", "dog"])}
    >>> tokenizer = Tokenizer(WordLevel(words, unk_token="[PAD]"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    >>> model = models.sentence_embedding(
    ...     models.bert(6, **sizes, segments=False), prompts={"query": "query: "}
    ... )
    >>> generation.embed(model, ["a cat", "dog"], tokenizer, prompt="query", dimensions=4).shape
    (2, 4)
    """
    if isinstance(texts, str):
        return embed(model, [texts], tokenizer, prompt, dimensions, batch_size)[0]
    if not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
        raise TypeError(f"expected a text (str) or a list of texts, got {type(texts).__name__}")
    if not texts:
        raise ValueError("got no texts")
    check_integer("batch_size", batch_size)
    head = head_of(model)
    if head is None or head.kind != "sentence_embedding":
        raise ValueError(
            f"{model.name} has no sentence embeddings: expected a model with the head "
            f"'sentence_embedding', got {head and head.kind!r}"
        )
    prefix = prompt_text(model.name, head.arguments, prompt)
    interface = interface_of(model)
    (name, given), *others = by_input(model, tokenizer).items()
    if others:
        names = [name, *(other for other, _ in others)]
        raise ValueError(f"{model.name} must have one input of ids for texts, got {names}")
    form = form_of(name, given)
    read = form.read(f"tokenizer{form.ending}")
    check_tokenizer(model, name, read, None, ())
    length = head.arguments.get("max_seq_length")
    encoded = [
        read.encode_typed(prefix + x) if length is None else read.encode_start(prefix + x, length)
        for x in texts
    ]
    limit = length or identity_of(model).arguments.get("max_length")
    order = sorted(range(len(texts)), key=lambda i: -len(encoded[i][0]))
    vectors: dict[int, np.ndarray] = {}
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        inputs = _inputs(
            interface, name, [texts[i] for i in numbers], [encoded[i] for i in numbers], limit
        )
        found = model.predict_on_batch(interface.arrange(inputs))
        vectors.update(zip(numbers, np.asarray(found, "float32"), strict=True))
    result = np.stack([vectors[i] for i in range(len(texts))])
    return first_dimensions(result, dimensions, bool(head.arguments.get("normalize", True)))


def _inputs(
    interface: Interface,
    name: str,
    texts: list[str],
    encoded: list[tuple[list[int], list[int]]],
    limit: int | None,
) -> dict[str, np.ndarray]:
    """The inputs of a batch.

    `encoded`: the ids and segments of each text, the longest first; `limit`: the most tokens that
    the model takes, None: unknown.
    """
    longest, known = len(encoded[0][0]), interface.inputs[name]
    width = longest
    if limit is not None and known.masked_id is not None:
        width = max(longest, min(limit, -(-longest // _STEP) * _STEP))
    ids = padded_rows(known, texts, [row for row, _ in encoded], width)
    inputs = {name: ids}
    for other, x in interface.inputs.items():
        if x.follows_tokens:
            inputs[other] = np.zeros_like(ids)
            for i, (row, types) in enumerate(encoded):
                inputs[other][i, : len(row)] = 1 if x.segments_of is None else types
    return inputs
