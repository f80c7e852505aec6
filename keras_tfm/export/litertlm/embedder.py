"""Exports a model of embeddings to a .litertlm file, for LiteRT-LM's `EmbeddingEngine`.

The engine turns a text into ids, puts `bos_token` before and `eos_token` behind them, looks up a
vector for each id in the section EMBEDDER, and runs the shortest signature `encoder_<N>` of the
section TEXT_ENCODER with them, with vectors of id 0 as padding. Nothing tells that signature the
length of the text. So here the vector of an id is the id itself, as a number, and the encoder holds
the whole model: what comes after the last id that is not 0 is padding.

Example:

>>> from keras_tfm import models
>>> from keras_tfm.export.litertlm.embedder import is_embedder
>>> encoder = models.bert(30, dim=8, num_layers=1, num_heads=2, max_length=16, segments=False)
>>> is_embedder(models.sentence_embedding(encoder)), is_embedder(encoder)
(True, False)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.composites import mark_rms_norms
from keras_tfm.export.litertlm.lookup import check_size, convert_lookup, ids_of
from keras_tfm.export.litertlm.package import write_embedder
from keras_tfm.export.member import Member, store_tokenizers
from keras_tfm.export.pipeline import ONLY, Report, convert_members, write_file
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.signatures.make import full_pass, make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import Argument, Function, Signature, Tensors, for_edge
from keras_tfm.export.verification.checks import EXACT, check
from keras_tfm.export.verification.verify import Verification, VerificationError, verify
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.tokenizers.tokenizer_forms import Form, by_input, form_of
from keras_tfm.runtime.decoding.special_ids import REAL_PAD
from keras_tfm.runtime.inspection.subprocesses import run_module
from keras_tfm.runtime.model import load
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer

_PREFIX = "encoder_"
# The input of a signature: (1, N, 1).
_VECTORS = "embeddings"
# What the engine does with a text that is too long for every signature.
_STRATEGIES = ("TRUNCATE", "CHUNK_AND_AVERAGE")


def is_embedder(model: keras.Model) -> bool:
    """Whether a model takes one text as ids and returns one vector, not scores of classes."""
    head = getattr(model, "head", None)
    inputs = interface_of(model).inputs.values()
    texts = [x for x in inputs if not x.follows_tokens]
    return (
        (head is None or head.kind == "sentence_embedding")
        and len(texts) == 1
        and texts[0].takes_ids
        and len(model.outputs) == 1
        and len(model.outputs[0].shape) == 2
    )


class Frame(NamedTuple):
    """The special tokens around a text; None: none."""

    start: int | None
    end: int | None


def frame_of(tokenizer: Tokenizer) -> Frame:
    """The tokens that a tokenizer puts around a text.

    Raises:
        ValueError: they are more than one before, or more than one behind.
    """
    # Of a character that every tokenizer knows, if as its unknown token.
    inner, whole = tokenizer.encode_more("a"), tokenizer.encode("a")
    for before in range(len(whole) - len(inner) + 1):
        behind = whole[before + len(inner) :]
        if whole[before : before + len(inner)] == inner and before <= 1 and len(behind) <= 1:
            return Frame(whole[0] if before else None, behind[0] if behind else None)
    raise ValueError(
        "LiteRT-LM puts at most one token before a text and one behind it, but the tokenizer "
        f"makes {whole} of the ids {inner}"
    )


def export_embedder(
    model: keras.Model,
    path: Path,
    tokenizer: object,
    quantized: Quantization,
    source_length: int | Sequence[int] | None,
    tolerance: float | None,
    is_verified: bool,
    overwrite: bool,
    dequantized: Sequence[str],
) -> Report:
    """Writes the file; the arguments are those of `export_litertlm`, checked."""
    request = Request(model, ["predict"], source_length=source_length)
    name = _tokens_of(model)
    check_size(interface_of(model).inputs[name].vocabulary_size)
    store_tokenizers(request, tokenizer, None)  # raises unless it fits the model
    form = _without_lengths(form_of(name, by_input(model, tokenizer)[name]))
    reader = form.read(f"tokenizer{form.ending}")
    frame = frame_of(reader)
    signatures = make_signatures(request)
    encoders = [_encoder(model, x) for x in signatures]
    member = Member(model, request, [*signatures, *encoders])
    converted = convert_members({ONLY: member}, quantized, [mark_rms_norms])
    # The file is verified by the signatures that take ids, which the engine does not know.
    packed = converted.with_signatures([x.name for x in encoders])

    def package(model_path: Path) -> Path:
        new = model_path.with_name("new.litertlm")
        lookup = model_path.with_name("lookup.tflite")
        lookup.write_bytes(convert_lookup(1))
        write_embedder(new, model_path, lookup, form, start_id=frame.start, end_id=frame.end)
        return new

    def compare(new: Path, folder: Path) -> Verification:
        inside = folder / "verified.tflite"
        converted.with_signatures([x.name for x in signatures]).save(inside)
        verification = verify(model, inside, None, tolerance)
        lengths = [x.inputs[name].spec.shape[1] for x in signatures]
        _compare_engine(model, new, inside, verification, reader, frame, lengths)
        return verification

    return write_file(
        path,
        overwrite,
        packed,
        package=package,
        verify=compare if is_verified else None,
        dequantized=dequantized,
    )


def _tokens_of(model: keras.Model) -> str:
    """The input of ids that a tokenizer writes."""
    inputs = interface_of(model).inputs
    return next(name for name, x in inputs.items() if not x.follows_tokens)


def _without_lengths(form: Form) -> Form:
    """A tokenizer that neither truncates nor pads, as LiteRT-LM does after it."""
    if form.ending != ".json":
        return form
    from tokenizers import Tokenizer as Json

    tokenizer = Json.from_str(form.content.decode())
    if tokenizer.truncation is None and tokenizer.padding is None:
        return form
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return form._replace(content=tokenizer.to_str().encode())


def _encoder(model: keras.Model, signature: Signature) -> Signature:
    """The signature with numbers (1, N, 1) instead of ids (1, N)."""
    name = _tokens_of(model)
    length = signature.inputs[name].spec.shape[1]
    spec = tf.TensorSpec((1, length, 1), "float32")
    return Signature(
        f"{_PREFIX}{length}",
        "predict",
        for_edge(_of_numbers(model, name)),
        {_VECTORS: Argument(spec)},
    )


def _of_numbers(model: keras.Model, name: str) -> Function:
    """The function of an encoder: ids as numbers, with zeros behind them -> outputs by name."""
    inputs, run = interface_of(model).inputs, full_pass(model)
    tokens = inputs[name]

    def encode(given: Tensors) -> Tensors:
        ids = ids_of(given[_VECTORS])
        places = tf.range(ids.shape[1])[tf.newaxis]
        last = tf.reduce_max(tf.where(ids != 0, places, -1), axis=-1, keepdims=True)
        is_real = places <= last
        if tokens.padding is not None:  # the padding id may be a token, too
            ids = tf.where(is_real & (ids == tokens.pad_id), REAL_PAD, ids)
        values = {name: tf.where(is_real, ids, tokens.pad_id or 0)}
        for key, x in inputs.items():
            if x.mask_of is not None:
                values[key] = tf.cast(is_real, x.spec.dtype)
            elif x.segments_of is not None:
                values[key] = tf.zeros_like(ids)
        return run(values)

    return encode


def _compare_engine(
    model: keras.Model,
    path: Path,
    inside: Path,
    verification: Verification,
    tokenizer: Tokenizer,
    frame: Frame,
    lengths: Sequence[int],
) -> None:
    """Compares the stock engine's vectors with the file's and the model's; adds a row of checks.

    Raises:
        VerificationError: something differs.
        RuntimeError: the engine cannot run the file.
    """
    from keras_tfm.export.litertlm.verification import texts_of_lengths

    longest = lengths[-1]
    around = [x is not None for x in frame]
    wanted = sorted({1, *(n + step for n in lengths for step in (-1, 0)), 2 * longest + 1})
    texts = texts_of_lengths(tokenizer, tokenizer.encode, [n for n in wanted if n > sum(around)])
    questions = [
        {"text": text, "strategy": strategy}
        for text, ids in texts
        for strategy in (_STRATEGIES if len(ids) > longest else _STRATEGIES[:1])
    ]
    ids_of = dict(texts)
    found = run_module(
        "running LiteRT-LM",
        "keras_tfm.runtime.inspection.litertlm_process",
        str(path),
        given={"embeddings": questions},
    )["embeddings"]
    errors, scale, ms = [], [], []
    with load(inside) as file:
        by_file = _in_parts(
            lambda ids: next(iter(file.predict(_rows(model, ids, lengths)).values()))[0]
        )
        by_model = _in_parts(lambda ids: _of_model(model, ids, lengths))
        for question, answer in zip(questions, found, strict=True):
            parts = _parts(ids_of[question["text"]], longest, question["strategy"], frame)
            vector = np.array(answer["vector"], "float32")
            same, exact = by_file(parts), by_model(parts)
            size = max(float(np.sqrt(np.mean(np.square(exact)))), 1e-6)
            if vector.shape != same.shape or not np.abs(vector - same).max() <= 10 * EXACT * size:
                verification.checks[-1].ms = answer["ms"]
                raise VerificationError(
                    f"the file differs from {model.name}: LiteRT-LM embeds a text of "
                    f"{len(ids_of[question['text']])} tokens ({question['strategy']}) as "
                    f"{vector[:3]}..., expected {same[:3]}...",
                    verification,
                )
            errors.append(vector - exact)
            scale.append(exact)
            ms.append(answer["ms"])
    row = check("LiteRT-LM", len(questions), errors, scale, [], ms)
    row.tolerance = max(x.tolerance for x in verification.checks)
    verification.checks.append(row)
    if verification.failures:
        raise VerificationError(
            f"the file differs from {model.name}: {verification.failures[0]}", verification
        )


def _in_parts(
    embed: Callable[[list[int]], np.ndarray],
) -> Callable[[list[list[int]]], np.ndarray]:
    """The mean of the vectors of the parts of a text."""
    return lambda parts: np.mean([embed(ids) for ids in parts], axis=0)


def _parts(ids: list[int], longest: int, strategy: str, frame: Frame) -> list[list[int]]:
    """What the engine embeds of a text of these ids, special tokens included."""
    if len(ids) <= longest:
        return [ids]
    if strategy == "CHUNK_AND_AVERAGE":
        return [ids[start : start + longest] for start in range(0, len(ids), longest)]
    return [ids[:longest] if frame.end is None else [*ids[: longest - 1], frame.end]]


def _rows(model: keras.Model, ids: list[int], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs (1, N) of a text, padded to the shortest signature that it fits."""
    length = next(n for n in lengths if n >= len(ids))
    is_real = np.arange(length)[np.newaxis] < len(ids)
    inputs = interface_of(model).inputs
    tokens = inputs[_tokens_of(model)]
    pad_id = tokens.pad_id or 0
    row = np.full((1, length), pad_id, "int32")
    row[0, : len(ids)] = ids
    if tokens.padding is not None:
        row[is_real & (row == pad_id)] = REAL_PAD
    result = {}
    for name, x in inputs.items():
        dtype = x.spec.dtype
        if x.segments_of is not None:
            result[name] = np.zeros((1, length), dtype)
        else:
            result[name] = row if x.mask_of is None else is_real.astype(dtype)
    return result


def _of_model(model: keras.Model, ids: list[int], lengths: Sequence[int]) -> np.ndarray:
    """The model's vector of a text."""
    outputs = full_pass(model)(
        {name: tf.constant(x) for name, x in _rows(model, ids, lengths).items()}
    )
    return np.asarray(next(iter(outputs.values())))[0]
