"""Signatures that take strings: a tokenizer before the model, and a detokenizer after it."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_tfm.export.signatures.signature import Argument, Signature, Tensors
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.preparation import end_ids_of
from keras_tfm.runtime.decoding.special_ids import REAL_PAD

# From strings to ids, which may be ragged; a detokenizer is the other way round.
Tokenizer = Callable[[tf.Tensor], tf.Tensor | tf.RaggedTensor]

TEXT = "_text"
# Operators of tensorflow-text that were tested in LiteRT, with their kernels linked. Others are
# refused.
LITERT_OPERATORS = {
    "FastWordpieceTokenizeWithOffsets",
    "RaggedTensorToTensor",
    "TFText>FastSentencepieceDetokenize",
    "TFText>FastSentencepieceTokenize",
    "TFText>FastWordpieceDetokenize",
}


def check_tokenizers(
    model: keras.Model, names: Sequence[str], tokenizer: object, detokenizer: object
) -> dict[str, Tokenizer]:
    """The tokenizers by input, checked against the vocabularies of the model.

    Args:
        model: functional `keras.Model`.
        names: the requested signatures.
        tokenizer: one for all inputs of ids, or a dictionary by input; optional.
        detokenizer: a detokenizer, or None; an error without a text signature.

    Raises:
        ValueError: text signatures without a tokenizer or the reverse, a tokenizer for an input
            that does not take ids, or more ids in the tokenizer than in the model.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"signatures must be different, got {list(names)}")
    of_text = [name for name in names if name.endswith(TEXT)]
    if not of_text:
        if tokenizer is not None or detokenizer is not None:
            raise ValueError(
                'a tokenizer needs the signature "generate_text" or "predict_text", '
                f"got {list(names)}"
            )
        return {}
    if tokenizer is None:
        raise ValueError(f"the signatures {of_text} need a tokenizer, got None")
    inputs = interface_of(model).inputs
    ids = [name for name, x in inputs.items() if x.takes_ids]
    if isinstance(tokenizer, dict):
        unknown = [name for name in tokenizer if name not in ids]
        if unknown or not tokenizer:
            raise ValueError(
                f"tokenizers are for the inputs of ids (B, S) {ids}, got {list(tokenizer)}"
            )
        tokenizers = dict(tokenizer)
    else:
        own = [name for name in ids if not inputs[name].follows_tokens]
        tokenizers = dict.fromkeys(own, tokenizer)
        if not ids:
            raise ValueError(f"{model.name} has no input of ids (B, S) for a tokenizer")
    for name, one in tokenizers.items():
        if not callable(one):
            raise TypeError(
                f"the tokenizer of input {name!r} must be callable, got {type(one).__name__}"
            )
        size, taken = _vocabulary_size(one), inputs[name].vocabulary_size
        if size is not None and taken is not None and size > taken:
            raise ValueError(
                f"the tokenizer of input {name!r} has {size} ids, "
                f"but the model's embedding takes {taken}"
            )
    return tokenizers


def add_text_signatures(
    model: keras.Model,
    made: Sequence[Signature],
    names: Sequence[str],
    tokenizers: dict[str, Tokenizer],
    detokenizer: object,
    target: str | None,
) -> list[Signature]:
    """The signatures `names`, in this order: from `made`, or text signatures that wrap those."""
    by_name = {signature.name: signature for signature in made}
    result = []
    for name in names:
        if name.removesuffix(TEXT) not in by_name:
            raise ValueError(f"{name} needs one source_length and prompt_length, got several")
        base = by_name[name.removesuffix(TEXT)]
        if name == base.name:
            result.append(base)
            continue
        here = {key: tokenizers[key] for key in base.inputs if key in tokenizers}
        if not here:
            raise ValueError(
                f"{name} needs a tokenizer for one of its inputs {list(base.inputs)}, "
                f"got {list(tokenizers)}"
            )
        back: Tokenizer | None = None
        if base.name == "generate":
            stepped = interface_of(model).find_target(target)
            owner = tokenizers.get(stepped) or next(iter(here.values()))
            known = detokenizer or getattr(owner, "detokenize", None)
            if not callable(known):
                raise ValueError(
                    f"{name} needs a detokenizer: {type(owner).__name__} has no detokenize"
                )
            back = known
        result.append(_text_signature(name, base, here, back))
    return result


def _text_signature(
    name: str, base: Signature, tokenizers: dict[str, Tokenizer], detokenizer: Tokenizer | None
) -> Signature:
    def run(inputs: Tensors) -> Tensors:
        values = {
            key: _ids_of(key, x, tokenizers[key], base) if key in tokenizers else x
            for key, x in inputs.items()
        }
        # Traced once: both signatures share the graph.
        outputs = base.traced(**{base.parameters[key]: x for key, x in values.items()})
        if detokenizer is None:
            return outputs
        return {"text": _text_of(outputs["tokens"], detokenizer, base.settings["end_id"])}

    inputs = {
        key: Argument(tf.TensorSpec(x.spec.shape[:1], tf.string)) if key in tokenizers else x
        for key, x in base.inputs.items()
    }
    return Signature(name, base.role, run, inputs, is_of_text=True)


def _vocabulary_size(tokenizer: object) -> int | None:
    size = getattr(tokenizer, "vocabulary_size", None)
    with tf.init_scope():  # Keras reads it from a table, which in a graph returns a tensor
        return int(size() if callable(size) else size) if size is not None else None


def _ids_of(name: str, strings: tf.Tensor, tokenizer: Tokenizer, signature: Signature) -> tf.Tensor:
    """Ids (B, S), padded to at least one column: a softmax over no keys is undefined."""
    argument = signature.inputs[name]
    assert argument.input is not None  # checked by `check_tokenizers`
    spec, pad_id = argument.spec, argument.input.pad_id
    ids, length = tokenizer(strings), spec.shape[1]
    if isinstance(ids, tf.RaggedTensor):
        if length is None and not argument.is_padded:
            raise ValueError(
                f"the tokenizer of input {name!r} returns ragged rows, which are padded with "
                f"{pad_id}, but the model does not mask padding (no mask_zero or mask_id)"
            )
        rows, ids = ids, ids.to_tensor(pad_id)
    else:
        rows = None
    if ids.shape.rank != 2 or not ids.dtype.is_integer:
        raise ValueError(
            f"the tokenizer of input {name!r} must return integer ids (B, S), "
            f"got {ids.dtype.name} of shape {ids.shape}"
        )
    columns = tf.shape(ids)[1]
    # Before the ids are used: otherwise the embedding's error may come first.
    with tf.control_dependencies(_assertions(name, ids, tokenizer, signature)):
        missing = tf.maximum((1 if length is None else length) - columns, 0)
        if rows is not None and argument.input.padding not in (None, "by_id"):
            is_token = tf.sequence_mask(rows.row_lengths(), columns)
            real = tf.constant(REAL_PAD, ids.dtype)
            ids = tf.where(is_token & tf.equal(ids, tf.cast(pad_id, ids.dtype)), real, ids)
        ids = tf.pad(ids, [(0, 0), (0, missing)], constant_values=tf.cast(pad_id, ids.dtype))
    ids = tf.cast(ids, spec.dtype)
    if spec.shape.is_fully_defined():
        return tf.reshape(ids, spec.shape)  # LiteRT has no assertions: too many ids fail here
    return tf.ensure_shape(ids, spec.shape)


def _assertions(
    name: str, ids: tf.Tensor, tokenizer: Tokenizer, signature: Signature
) -> list[tf.Operation]:
    """Checks that depend on the ids, and run in the SavedModel."""
    argument = signature.inputs[name]
    size = None if argument.input is None else argument.input.vocabulary_size
    length = argument.spec.shape[1]
    checks = []
    if length is not None:
        message = f"{name}: more ids than {length}"
        checks.append(tf.debugging.assert_less_equal(tf.shape(ids)[1], length, message))
    if size is not None and _vocabulary_size(tokenizer) is None:
        message = f"{name}: ids of the tokenizer must be in 0..{size - 1}"
        checks.append(tf.debugging.assert_less(ids, tf.cast(size, ids.dtype), message))
        checks.append(tf.debugging.assert_non_negative(ids, message))
    return [check for check in checks if check is not None]  # None: statically true


def _text_of(
    tokens: tf.Tensor, detokenizer: Tokenizer, end_id: int | Sequence[int] | None
) -> tf.Tensor:
    """Strings (B,) of tokens (B, T), whose first column is the start token."""
    tokens = tokens[:, 1:]
    ended = tf.zeros_like(tokens, tf.bool)
    for one in end_ids_of(end_id):
        ended = tf.logical_or(ended, tf.equal(tokens, one))
    kept = tf.equal(tf.cumsum(tf.cast(ended, tf.int32), axis=1), 0)
    text = detokenizer(tf.ragged.boolean_mask(tokens, kept))
    if text.dtype != tf.string:
        raise ValueError(f"the detokenizer must return strings, got {text.dtype.name}")
    if text.shape.rank == 2:
        text = tf.strings.reduce_join(text, axis=1, separator=" ")
    return text
