"""The signatures that LiteRT-LM runs: `prefill_<N>` and `decode`, with names that it looks for.

Both take the stepped input (1, T), `input_pos` (T,), of which they read the first position, and the
KV caches `kv_cache_k_<i>` (1, G, C, K) and `kv_cache_v_<i>` (1, G, V, C) of each self-attention,
and return the caches after the step. `decode` (T = 1) also returns `logits` (1, 1, V).

With n draft heads, `decode` also returns `activations` (1, 1, n), the drafted ids as numbers, and
`verify` reads T = n + 1 tokens, the last certain one and n drafts: it takes `embeddings` (1, T, n)
of the section EMBEDDER and returns the logits of each, (1, T, V). Its `activations` (1, T, n) are
the heads' drafts after the last draft that is right, in each row, since LiteRT-LM picks that row.

Of a model that reads pictures, both take `embeddings` (1, T, 1 + D) of the sections EMBEDDER and
VISION_ADAPTER instead of ids: the id and zeros, or -1 and the feature in the token's place.

A prompt may be read in several prefills. The last one is padded on the right to N tokens. Causal
attention does not see the padding, and the next step overwrites its columns.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import keras
import tensorflow as tf

from keras_tfm.export.litertlm.lookup import convert_function, ids_of
from keras_tfm.export.litertlm.vision import Vision
from keras_tfm.export.signatures.host_caches import Caches
from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import (
    Function,
    Signature,
    Tensors,
    for_edge,
    with_padding,
)
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies.drafts import best_tokens
from keras_tfm.layers import DecodingScope

# The input of a signature that takes no ids.
_VECTORS = "embeddings"
_LETTERS = {"key": "k", "transposed_value": "v", "mask": "mask"}
# What carries drafts from a step of the model to the drafter.
ACTIVATIONS = "activations"
# XNNPACK multiplies caches of multiples of 32 columns fastest.
_MULTIPLE = 32


def litertlm_signatures(request: Request, vision: Vision | None = None) -> list[Signature]:
    """`prefill_<N>` for each prompt length of `request`, and `decode`.

    Args:
        request: the export.
        vision: how the model reads pictures; None: it reads none.

    Raises:
        ValueError: the model cannot be stepped; the error names the layer.
    """
    assert request.max_length is not None
    check_stepping(request.model, request.target, length=request.max_length)
    caches = _Caches(request, vision)
    if caches.replaced:
        raise ValueError(
            f"LiteRT-LM runs models whose only state are keys and values, but {request.model.name} "
            f"has recurrent states, {caches.replaced}: export it with export_tflite"
        )
    settings = {**caches.settings, "capacity": caches.columns}
    drafts = draft_count(request.model)
    result = []
    for role, length in [*(("prefill", n) for n in request.prompt_lengths), ("decode", 1)]:
        name, spec = request.target, tf.TensorSpec((1, length), "int32")
        if vision is not None:
            name, spec = _VECTORS, tf.TensorSpec((1, length, vision.width), "float32")
        specs = {
            name: spec,
            caches.position: tf.TensorSpec((length,), "int32"),
            **caches.specs(caches.columns),
        }
        padded = request.masked_target if role == "decode" else {request.target}
        result.append(
            Signature(
                role if role == "decode" else f"prefill_{length}",
                role,
                for_edge(_step(caches, role == "decode", drafts)),
                with_padding(caches.arguments(specs), padded),
                settings if role == "decode" else {"capacity": caches.columns},
            )
        )
    return [*result, _verify(caches, drafts)] if drafts else result


def draft_count(model: keras.Model) -> int:
    """The number of draft heads of a model (n); 0 without any.

    Raises:
        ValueError: its second output is no drafts (B, T, n, V).

    >>> from keras_tfm.export.litertlm.signatures import draft_count
    >>> from keras_tfm.models import gpt, with_draft_heads
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> draft_count(model), draft_count(with_draft_heads(model, 3))
    (0, 3)
    """
    if len(model.outputs) == 1:
        return 0
    size, shape = model.outputs[0].shape[-1], model.outputs[1].shape
    if len(shape) != 4 or shape[2] is None or shape[3] != size:
        raise ValueError(
            f"the second output of {model.name} must be drafts (B, T, n, {size}), as of "
            f"models.with_draft_heads, got {tuple(shape)}"
        )
    return int(shape[2])


class _Caches(Caches):
    """The KV caches under LiteRT-LM's names, without padding masks: every cached token is real.

    Attributes:
        vision: `Vision` of a model that reads pictures.
        columns: int, number of columns (C). Padding is written, too, so the shortest prefill has to
            fit behind all tokens but one; LiteRT-LM refuses longer ones there.
    """

    # LiteRT-LM takes whole caches, and passes one buffer as a cache's argument and result.
    write_first = True

    def __init__(self, request: Request, vision: Vision | None):
        super().__init__(request)
        self.vision = vision
        self.columns = _column_count(request)

    @cached_property
    def _first_step(self) -> tuple[DecodingScope, Tensors]:
        if self.vision is None:
            return super()._first_step
        with self.vision.places(tf.zeros((1, 1, self.vision.width))):
            return super()._first_step

    def read(self, given: Tensors) -> tuple[tf.Tensor, AbstractContextManager[None]]:
        """The ids (1, T) of a signature's arguments, and the context in which a step reads them."""
        if self.vision is None:
            return given[self.request.target], nullcontext()
        vectors = given[_VECTORS]
        return self.vision.ids(vectors), self.vision.places(vectors)

    @property
    def position(self) -> str:
        """The name of the argument with the positions of a step's tokens."""
        return "input_pos"

    @property
    def encoded(self) -> dict[str, str]:
        """Nothing: the only input is the stepped one, or has the features in their places."""
        return {}

    def flat_name(self, entry: str, part: str) -> str:
        """`kv_cache_k_<i>` for the keys of the i-th self-attention, `kv_cache_v_<i>` for values."""
        return f"kv_cache_{_LETTERS[part]}_{self.growing.index(entry)}"

    def specs(self, length: int | None = None) -> dict[str, tf.TensorSpec]:
        """The specs of keys and values, by flat name."""
        return {name: x for name, x in super().specs(length).items() if not _is_mask(name)}

    def unflatten(self, given: Tensors) -> dict[str, Tensors]:
        """A cache from keys and values with flat names."""
        specs = super().specs(self.columns)
        masks = {name: tf.ones(x.shape, x.dtype) for name, x in specs.items() if _is_mask(name)}
        return super().unflatten({**given, **masks})

    def flatten(self, entries: dict[str, Tensors]) -> Tensors:
        """Keys and values by flat name."""
        return {name: x for name, x in super().flatten(entries).items() if not _is_mask(name)}


def _column_count(request: Request) -> int:
    assert request.max_length is not None
    needed = request.max_length + min(request.prompt_lengths) - 1
    return -(-needed // _MULTIPLE) * _MULTIPLE


def _is_mask(name: str) -> bool:
    return name.startswith(f"kv_cache_{_LETTERS['mask']}_")


def _step(caches: _Caches, with_logits: bool, drafts: int) -> Function:
    """The function of a signature: its arguments by name -> its results by name."""

    def step(given: Tensors) -> Tensors:
        tokens, places = caches.read(given)
        with places, _scope(caches, given) as scope:
            if with_logits and drafts:
                logits, others = caches.step_partly(given, tokens)
                activations = {ACTIVATIONS: _draft_ids(others(tf.constant(0)))}
            else:
                logits, activations = caches.step(given, tokens), {}
        after = caches.flatten({entry: scope.cache[entry] for entry in caches.growing})
        return {"logits": logits, **activations, **after} if with_logits else after

    return step


def _verify(caches: _Caches, drafts: int) -> Signature:
    """The signature `verify`, which LiteRT-LM runs with a drafter."""
    count = drafts + 1

    def verify(given: Tensors) -> Tensors:
        tokens = ids_of(given[_VECTORS])
        with _scope(caches, given) as scope:
            logits, others = caches.step_partly(given, tokens)
            wrong = tf.cast(best_tokens(logits[0])[:-1] != tokens[0, 1:], "int32")
            # The index of the first wrong draft, or of the last token.
            kept = tf.argmax(tf.pad(wrong, [(0, 1)], constant_values=1), output_type="int32")
            drafted = _draft_ids(others(kept))
        after = caches.flatten({entry: scope.cache[entry] for entry in caches.growing})
        return {"logits": logits, ACTIVATIONS: tf.tile(drafted, (1, count, 1)), **after}

    specs = {
        _VECTORS: tf.TensorSpec((1, count, drafts), "float32"),
        caches.position: tf.TensorSpec((count,), "int32"),
        # LiteRT-LM fills it; the graph knows its own.
        "mask": tf.TensorSpec((1, 1, count, caches.columns), "bool"),
        **caches.specs(caches.columns),
    }
    settings = {"capacity": caches.columns}
    return Signature("verify", "prefill", for_edge(verify), caches.arguments(specs), settings)


def convert_drafter(request: Request) -> bytes:
    """The .tflite file of the section MTP_DRAFTER, which hands out drafts one by one.

    LiteRT-LM runs it for each draft, with `activations` (1, 1, 2 n): the embedding of the token
    before, and the activations that the step before returned.
    """
    drafts, size = draft_count(request.model), request.model.outputs[0].shape[-1]

    def draft(activations: tf.Tensor, input_pos: tf.Tensor, mask: tf.Tensor) -> Tensors:
        waiting = activations[:, :, drafts:]
        return {
            "logits": tf.one_hot(tf.cast(waiting[:, :, 0], "int32"), size),
            "projected_activations": tf.roll(waiting, -1, axis=2),
        }

    module = tf.Module()
    module.draft = tf.function(
        draft,
        input_signature=[
            tf.TensorSpec((1, 1, 2 * drafts), "float32", "activations"),
            tf.TensorSpec((1,), "int32", "input_pos"),
            tf.TensorSpec((1, 1, 1, _column_count(request)), "bool", "mask"),
        ],
    )
    return convert_function(module, module.draft)


def _draft_ids(outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The best token of each draft head, (1, 1, n), as numbers; of outputs (1, 1, n, V)."""
    (heads,) = outputs
    return tf.cast(best_tokens(heads[0, 0]), "float32")[tf.newaxis, tf.newaxis]


def _scope(caches: _Caches, given: Tensors) -> DecodingScope:
    """The scope of a step."""
    length = caches.request.max_length
    assert length is not None
    return DecodingScope(
        caches.unflatten(given),
        position=given[caches.position][0],
        length=length,
        capacity=caches.columns,
        write_first=caches.write_first,
    )
