"""Signatures for a decoding loop on the host: the KV caches are arguments and results.

`encode` projects a source once for all steps, `prefill` reads a prompt without its last token,
`decode` steps one token. `prefill` and `decode` return the new cache entries only; the host writes
them at their positions into the buffers that it passes in. With `whole_caches` they return the
updated caches, for hosts that pass results on as arguments.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tfm.export.signatures import Request, Signature
from keras_tfm.generation.loop import cache_capacities
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.decoding.cache import COLUMN_AXES
from keras_tfm.layers.target import export_target

Tensor = Any


class Caches:
    """The shapes of a model's caches, and their entries as arguments with flat names.

    Also the inputs that a step reads. Both are found once for all signatures.
    """

    def __init__(self, request: Request):
        self.request = request

    @cached_property
    def model(self) -> SteppedModel:
        """The model, split into `encode` and `step`."""
        return SteppedModel(self.request.model, self.request.target)

    @cached_property
    def _first_step(self) -> tuple[DecodingScope, dict[str, Tensor]]:
        """The scope of a first step on zeros, which has the shapes, and the result of `encode`."""
        inputs = self.inputs({})
        token = tf.zeros((self.request.batch_size, 1), "int32")
        encoded = self.model.encode(inputs)
        with DecodingScope(length=2) as scope:
            self.model.step(encoded, token)
        return scope, encoded

    @cached_property
    def growing(self) -> list[str]:
        """The entries of self-attention, which grow; those of cross-attention are constant."""
        return self._first_step[0].growing

    @cached_property
    def _traced_step(self) -> tuple[dict[str, Tensor], Any]:
        """A traced step of one token: the encoded values, and its outputs: logits, new entries."""
        request, length = self.request, self.request.max_length
        assert length is not None
        _, encoded = self._first_step
        specs = {
            "token": tf.TensorSpec((request.batch_size, 1), "int32"),
            "position": tf.TensorSpec((), "int32"),
            "cache": {**self.specs(growing=False), **self.specs(growing=True, length=length)},
            "encoded": {name: tf.TensorSpec(x.shape, x.dtype) for name, x in encoded.items()},
        }

        def step(given: dict[str, Any]) -> Any:
            cache = self.unflatten(given["cache"])
            with (
                export_target("cpu-edge"),
                DecodingScope(cache, position=given["position"], length=length) as scope,
            ):
                outputs = self.model.step(given["encoded"], given["token"])
            return {"logits": tf.nest.flatten(outputs)[0], "new": _to_host(scope.new)}

        traced = tf.function(step, autograph=False).get_concrete_function(specs)
        given = tf.nest.pack_sequence_as(specs, traced.inputs[: len(tf.nest.flatten(specs))])
        return given["encoded"], traced.structured_outputs

    def inputs_read(self, logits: bool) -> dict[str, tf.TensorSpec]:
        """The inputs of the model that a step reads besides the stepped one. Most read none.

        Args:
            logits: whether the step returns logits too, or only the new cache entries.
        """
        others = self.request.specs(self.request.others)
        if not others:
            return {}
        encoded, outputs = self._traced_step
        waiting = [x.op for x in tf.nest.flatten(outputs if logits else outputs["new"])]
        seen = set(waiting)
        while waiting:
            for x in waiting.pop().inputs:
                if x.op not in seen:
                    seen.add(x.op)
                    waiting.append(x.op)
        read = {
            source
            for name, x in encoded.items()
            if x.op in seen
            for source in self.model.inputs_of(name)
        }
        return {name: spec for name, spec in others.items() if name in read}

    def inputs(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The model's inputs without the stepped one; zeros for those that are not given."""
        return {
            name: given[name] if name in given else tf.zeros(spec.shape, spec.dtype)
            for name, spec in self.request.specs(self.request.others).items()
        }

    def read(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The arguments of a signature that are inputs of the model."""
        return {name: x for name, x in given.items() if name in self.request.others}

    def step(self, given: dict[str, Tensor], tokens: Tensor) -> Tensor:
        """The logits of a step. Call it inside a `DecodingScope`.

        Args:
            given: the inputs of the model that the step reads.
            tokens: (B, n).
        """
        if given:
            encoded = self.model.encode(self.inputs(given))
        else:  # no layer reads it
            _, shapes = self._first_step
            encoded = {name: tf.zeros(x.shape, x.dtype) for name, x in shapes.items()}
        return tf.nest.flatten(self.model.step(encoded, tokens))[0]

    def specs(self, growing: bool, length: int | None = None) -> dict[str, tf.TensorSpec]:
        """The specs of the growing entries, or of the others, by flat name."""
        specs = {}
        for entry, parts in self._first_step[0].cache.items():
            if (entry in self.growing) != growing:
                continue
            for part, x in parts.items():
                shape = list(x.shape)
                if growing:
                    shape[COLUMN_AXES[part]] = length
                # LiteRT.js passes no booleans in or out.
                dtype = "int32" if part == "mask" else x.dtype
                specs[_flat_name(entry, part)] = tf.TensorSpec(shape, dtype)
        return specs

    def unflatten(self, given: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """A cache from arguments with flat names."""
        cache: dict[str, dict[str, Tensor]] = {}
        for entry, parts in self._first_step[0].cache.items():
            cache[entry] = {
                part: _from_host(part, given[_flat_name(entry, part)]) for part in parts
            }
        return cache


def _flat_name(entry: str, part: str) -> str:
    return f"cache_{entry}_{part}"


def _from_host(part: str, x: Tensor) -> Tensor:
    return tf.not_equal(x, 0) if part == "mask" else x


def _to_host(entries: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        _flat_name(entry, part): tf.cast(x, tf.int32) if part == "mask" else x
        for entry, parts in entries.items()
        for part, x in parts.items()
    }


def encode(caches: Caches) -> list[Signature]:
    """From the source to the keys, values and mask of each cross-attention, once for all steps.

    With several source lengths, all results have the longest shape, so one `decode` reads them all.
    """
    request = caches.request
    longest = max(request.source_lengths, default=None)
    result = []
    for length in request.source_lengths or (None,):

        def function(missing: int = (longest or 0) - (length or 0), **inputs: Tensor) -> Any:
            token = tf.zeros((request.batch_size, 1), "int32")
            encoded = caches.model.encode(inputs)
            with DecodingScope(length=2) as scope:
                caches.model.step(encoded, token)
            contexts = {
                entry: parts for entry, parts in scope.cache.items() if entry not in caches.growing
            }
            return _to_host(_longer(contexts, missing))

        if not caches.specs(growing=False):
            raise ValueError(
                f"{request.model.name} has no cross-attention: there is nothing to encode"
            )
        result.append(
            Signature(
                "encode" if length is None else f"encode_{length}",
                "encode",
                _named(function),
                request.specs(request.others, length),
                request.vocabulary_sizes,
                padded=request.padded,
            )
        )
    return result


def prefill(caches: Caches) -> list[Signature]:
    """From N tokens, at positions 0 to N - 1, to their cache entries (B, G, N, K).

    A shorter prompt is padded on the right. `decode` masks the entries of the padding, and later
    steps overwrite them.
    """
    request = caches.request
    contexts = caches.specs(growing=False)
    assert request.max_length is not None
    result = []
    for length in request.prompt_lengths:
        own = caches.specs(growing=True, length=length)

        missing = request.max_length - length if request.whole_caches else 0

        def function(
            length: int = length, own: Any = own, missing: int = missing, **given: Tensor
        ) -> Any:
            tokens = given.pop(request.target)
            empty = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in own.items()}
            cache = caches.unflatten({**empty, **given})
            with DecodingScope(cache, position=0, length=length) as scope:
                caches.step(caches.read(given), tokens)
            return _to_host(_longer(scope.new, missing))

        specs = {
            request.target: tf.TensorSpec((request.batch_size, length), "int32"),
            **contexts,
            **caches.inputs_read(logits=False),
        }
        result.append(
            Signature(
                f"prefill_{length}",
                "prefill",
                _named(function),
                specs,
                request.vocabulary_sizes,
                padded=request.padded | {request.target},
            )
        )
    return result


def decode(caches: Caches) -> list[Signature]:
    """From one token per row, its position and the caches to logits (B, V) and new entries."""
    request = caches.request
    assert request.max_length is not None
    capacities = cache_capacities(request.max_length, first=128)
    if request.whole_caches:  # the results of a call are the arguments of the next: one capacity
        capacities = (request.max_length,)
    contexts = caches.specs(growing=False)
    if contexts and "encode" not in request.roles:
        raise ValueError(
            f"the signature 'decode' of {request.model.name} takes the results of 'encode': "
            f"export both, got {request.roles}"
        )
    settings = {
        "max_length": request.max_length,
        "start_id": request.start_id,
        "end_id": request.end_id_setting(),
        "pad_id": request.pad_ids.get(request.target, 0),
        "target": request.target,
        "vocabulary_size": request.model.outputs[0].shape[-1],
    }
    result = []
    for capacity in capacities:

        def function(capacity: int = capacity, **given: Tensor) -> Any:
            token, position = given.pop(request.target), tf.reshape(given.pop("position"), ())
            with DecodingScope(
                caches.unflatten(given), position=position, length=capacity
            ) as scope:
                logits = caches.step(caches.read(given), token)
            after = scope.new
            if request.whole_caches:
                after = {entry: scope.cache[entry] for entry in scope.growing}
            return {"logits": logits[:, -1], **_to_host(after)}

        specs = {
            request.target: tf.TensorSpec((request.batch_size, 1), "int32"),
            "position": tf.TensorSpec((1,), "int32"),
            **contexts,
            **caches.specs(growing=True, length=capacity),
            **caches.inputs_read(logits=True),
        }
        result.append(
            Signature(
                "decode" if len(capacities) == 1 else f"decode_{capacity}",
                "decode",
                _named(function),
                specs,
                request.vocabulary_sizes,
                {**settings, "capacity": capacity},
            )
        )
    return result


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without its default arguments, which would become inputs of the signature."""

    def run(**given: Tensor) -> Any:
        return function(**given)

    return run


def _longer(entries: dict[str, dict[str, Tensor]], missing: int) -> dict[str, dict[str, Tensor]]:
    """Entries padded with `missing` columns of zeros."""
    if not missing:
        return entries

    def longer(part: str, x: Tensor) -> Tensor:
        paddings = np.zeros((len(x.shape), 2), "int32")
        paddings[COLUMN_AXES[part], 1] = missing
        return tf.pad(x, paddings)

    return {
        entry: {part: longer(part, x) for part, x in parts.items()}
        for entry, parts in entries.items()
    }
