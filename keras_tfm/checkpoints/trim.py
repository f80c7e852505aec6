"""Trims the vocabulary of a model and its tokenizer to the tokens of given texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.round_trip import place_image
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import Tokenizer
from keras_tfm.checkpoints.tokenizers.trim_tokenizer import TokenizerParts
from keras_tfm.generation.interface import interface_of
from keras_tfm.models import Model
from keras_tfm.models.encoder_decoders.whisper import SAMPLES_PER_POSITION
from keras_tfm.models.identity import identity_of
from keras_tfm.models.quantization.state import is_quantized
from keras_tfm.models.resize import select_ids, special_ids

# Relative to the largest output: sums in another order.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class TrimmedVocabulary:
    """What `trim_vocabulary` returns.

    Attributes:
        model: `keras_tfm.Model` with a row for each kept id.
        tokenizer: tokenizer, or list of tokenizers, with these ids.
        kept: list of int, the old ids of the new ids 0, 1, ..., ascending.

    Example:

    >>> from keras_tfm.checkpoints import TrimmedVocabulary
    >>> TrimmedVocabulary(None, None, kept=[0, 1, 4]).new_id([4, 0])
    [2, 0]
    """

    model: Model
    tokenizer: Tokenizer
    kept: list[int]

    @overload
    def new_id(self, old: int) -> int: ...

    @overload
    def new_id(self, old: Sequence[int]) -> list[int]: ...

    def new_id(self, old: int | Sequence[int]) -> int | list[int]:
        """The new id of an old one, or those of a list, such as an `end_id`.

        Raises:
            ValueError: the id was not kept.
        """
        new = {x: i for i, x in enumerate(self.kept)}
        ids = [old] if isinstance(old, int) else list(old)
        missing = [x for x in ids if x not in new]
        if missing:
            raise ValueError(f"expected an id that was kept, got {missing[0]}")
        return new[old] if isinstance(old, int) else [new[x] for x in ids]


def trim_vocabulary(
    model: keras.Model,
    tokenizer: Tokenizer | Sequence[Tokenizer],
    texts: Iterable[str] = (),
    ids: Iterable[int] = (),
) -> TrimmedVocabulary:
    """Copies a model and its tokenizer without the tokens that given texts do not need.

    For a model of few languages, or of one subject: the tables of a multilingual model are most of
    its size. A text of kept tokens is written with the same tokens as before, and the model
    computes the same logits for them. Other texts are written with more and shorter tokens, with
    bytes, or with the unknown token. A model that generates can only generate kept tokens, so let
    `texts` be many, and of all kinds: prompts with their chat template, and answers.

    Always kept: special tokens, tokens of single bytes, tokens of the model's arguments (`pad_id`,
    `end_id`, ...), and those of which BPE builds kept ones. Added tokens that are not special, such
    as Gemma's runs of spaces, and rows without a token are kept if `texts` or `ids` have them.

    Args:
        model: `keras_tfm.Model` of a builder of `keras_tfm.models` that has token ids, with or
            without a head or LoRA adapters. It is not changed. The rounding of
            `enable_quantization`, or of a quantized checkpoint, stays.
        tokenizer: `tokenizers.Tokenizer` of BPE, WordPiece, Unigram or WordLevel, as
            `load_tokenizer` returns; or a list of several with the same ids, such as those of
            Marian's sources and targets.
        texts: iterable of str, texts whose tokens are kept.
        ids: iterable of int, further ids that are kept, such as those of languages.

    Returns:
        `TrimmedVocabulary`: `model` (with new ids in `model.arguments`), `tokenizer`, `kept`, and
        `new_id(old)`. `tokenizer.save("folder/tokenizer.json")` beside `save_huggingface`, or
        `export_tflite(model, ..., tokenizer=tokenizer)`.

    Raises:
        TypeError: a tokenizer is not of the package `tokenizers`; a text is not a str.
        ValueError: neither texts nor ids; an id is not in the vocabulary; a model without a
            vocabulary of texts, with one for sources and one for targets, quantized by Keras, or
            with a head that compares ids, as BART's classifiers do.

    Example:

    >>> from tokenizers import Tokenizer, models as tokenizer_models, pre_tokenizers
    >>> from keras_tfm import checkpoints, models
    >>> words = {"<unk>": 0, "a": 1, "red": 2, "green": 3, "fox": 4}
    >>> tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="<unk>"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> model = models.gpt(5, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> trimmed = checkpoints.trim_vocabulary(model, tokenizer, ["a fox"])
    >>> trimmed.kept, trimmed.tokenizer.encode("a red fox").ids
    ([0, 1, 4], [1, 0, 2])
    >>> trimmed.model.output.shape
    (None, None, 3)
    """
    if is_quantized(model):
        raise ValueError(f"{model.name} is quantized: trim the model of floats first")
    is_one = not isinstance(tokenizer, list | tuple)
    parts = [TokenizerParts(x) for x in ([tokenizer] if is_one else tokenizer)]
    special = special_ids(model)  # raises if there is no vocabulary
    size = identity_of(model).arguments["vocabulary_size"]
    kept = set(_check_ids(ids, size))
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not kept and not texts:
        raise ValueError("texts or ids must name tokens to keep, got neither")
    for one in special.values():
        kept.update(one)
    for part in parts:
        largest = max(part.ids.values(), default=-1)
        if largest >= size:
            raise ValueError(
                f"the tokenizer has {largest + 1} ids and {model.name} {size}: expected at most as "
                "many as the model"
            )
        kept |= part.special_ids() | part.ids_of(texts)
    for part in parts:
        kept |= part.closure(kept)
    order = sorted(kept)
    trimmed = [part.trim(order) for part in parts]
    small = select_ids(model, order)
    _check_equal(model, small, order)
    return TrimmedVocabulary(small, trimmed[0] if is_one else trimmed, order)


def _check_ids(ids: Iterable[int], size: int) -> list[int]:
    result = [int(x) for x in np.asarray(list(ids), "int64").reshape(-1)]
    outside = [x for x in result if not 0 <= x < size]
    if outside:
        raise ValueError(f"ids must be from 0 to {size - 1}, got {outside[0]}")
    return result


def _check_equal(model: keras.Model, small: Model, kept: list[int]) -> None:
    """Raises if outputs for random kept tokens differ, with padding, ends of texts and images."""
    size, arguments = identity_of(model).arguments["vocabulary_size"], small.arguments
    length = min(8, arguments.get("max_length") or 8)
    rng = np.random.default_rng(0)
    old, new = dict[str, Any](), dict[str, Any]()
    for name, x in interface_of(model).inputs.items():
        shape = [3, *(length if x is None else x for x in x.spec.shape[1:])]
        if x.takes_ids and x.vocabulary_size == size:
            ids = rng.integers(0, len(kept), shape)
            end_id, pad_id = arguments.get("end_id"), arguments.get("pad_id")
            if isinstance(end_id, int):
                ids[:, -1] = ids[0, length // 2] = end_id
            if pad_id is not None and pad_id >= 0:
                ids[0, length // 2 + 1 :] = pad_id
            if x.placeholder is not None:
                ids = place_image(small, ids)
            old[name], new[name] = np.asarray(kept, "int32")[ids], ids.astype("int32")
        elif "int" in x.spec.dtype:
            old[name] = new[name] = np.zeros(shape, "int32")
        else:
            if x.audio is not None:
                shape = [3, max(SAMPLES_PER_POSITION, 2 * x.audio.shortest)]  # some frames
            old[name] = new[name] = rng.uniform(size=shape).astype("float32")

    def run(one: keras.Model, values: dict[str, Any]) -> list[np.ndarray]:
        inputs = keras.tree.map_structure(lambda x: values[x.name], one.input)
        outputs = keras.tree.flatten(one(inputs, training=False))
        return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in outputs]

    half = any("16" in str(x.dtype) for x in model.outputs)
    for a, b in zip(run(model, old), run(small, new), strict=True):
        if a.shape != b.shape:
            a = a[..., kept]
        difference = float(np.abs(a - b).max(initial=0.0))
        if not difference <= (0.05 if half else _TOLERANCE) * max(1.0, float(np.abs(a).max())):
            raise ValueError(
                f"{model.name} cannot be trimmed: its outputs for kept tokens would differ by "
                f"{difference:.2g}, so it compares ids, as the classifiers of BART do: trim the "
                "model without a head"
            )
