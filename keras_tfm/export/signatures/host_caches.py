"""The KV caches of a host's decoding loop, as flat arguments and results of signatures."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np
import tensorflow as tf

from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import Argument, Tensors
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.decoding.cache import COLUMN_AXES, Columns, is_int8
from keras_tfm.layers.decoding.state import State
from keras_tfm.layers.target import export_target
from keras_tfm.models.without_storage import with_largest_weight
from keras_tfm.runtime.manifest.records import Json


class Caches:
    """The model's KV caches and the encoded values that a step reads, as flat arguments.

    Their names and shapes are found once for all signatures.
    """

    # Whether queries read the updated cache; see `DecodingScope`.
    write_first = False

    def __init__(self, request: Request):
        self.request = request

    @cached_property
    def model(self) -> SteppedModel:
        """The model, split into `encode` and `step`."""
        return SteppedModel(self.request.model, self.request.target)

    @cached_property
    def _first_step(self) -> tuple[DecodingScope, Tensors]:
        """The scope of a first step on zeros, which has the cache shapes, and `encode`'s result."""
        specs = {name: x.spec for name, x in self.request.arguments(self.request.others).items()}
        token = tf.zeros((self.request.batch_size, 1), "int32")
        zeros = {name: tf.zeros(x.shape, x.dtype) for name, x in specs.items()}
        with with_largest_weight(self.request.model):
            encoded = self.model.encode(zeros)
            with (
                export_target(f"{self.request.accelerator}-edge"),
                self.first_scope() as scope,
            ):
                self.model.step(encoded, token)
        return scope, encoded

    def first_scope(self) -> DecodingScope:
        """The scope of a first step, which decides how caches are stored."""
        int8 = self.request.cache == "int8"
        return DecodingScope(length=2, write_first=self.write_first, int8=int8)

    def check_format(self) -> None:
        """Raises ValueError if int8 caches were requested, but there is nothing to store so."""
        if self.request.cache != "int8":
            return
        if not any(map(is_int8, self._first_step[0].cache.values())):
            raise ValueError(
                f"cache='int8': {self.request.model.name} has no attention whose keys and values "
                "are cached; leave it out"
            )

    @cached_property
    def states(self) -> dict[str, State]:
        """The kind of each cache entry."""
        return self._first_step[0].states

    @property
    def growing(self) -> list[str]:
        """The cache entries of self-attention, which grow with each step."""
        return [entry for entry, state in self.states.items() if state.grows]

    @property
    def replaced(self) -> list[str]:
        """The cache entries that each step replaces."""
        return [entry for entry, state in self.states.items() if state.is_replaced]

    @cached_property
    def prefix(self) -> int:
        """The number of columns of the growing entries before the first token."""
        prefixes = {x.prefix for x in self.states.values() if isinstance(x, Columns)}
        if len(prefixes) > 1 or (prefixes - {0} and len(self.request.source_lengths) > 1):
            lengths = f"{sorted(prefixes)} and the source lengths {[*self.request.source_lengths]}"
            name = self.request.model.name
            raise ValueError(f"{name}: caches must have a prefix of one length, got {lengths}")
        return max(prefixes, default=0)

    @cached_property
    def _traced_step(self) -> tuple[Tensors, Json]:
        """A traced step of one token: the encoded values it gets; its logits and new entries."""
        request, length = self.request, self.request.max_length
        assert length is not None
        _, encoded = self._first_step
        specs = {
            "token": tf.TensorSpec((request.batch_size, 1), "int32"),
            "position": tf.TensorSpec((), "int32"),
            "cache": self.specs(length),
            "encoded": {name: tf.TensorSpec(x.shape, x.dtype) for name, x in encoded.items()},
        }

        def step(given: Json) -> Json:
            cache = self.unflatten(given["cache"])
            with (
                export_target(f"{request.accelerator}-edge"),
                DecodingScope(
                    cache, position=given["position"], length=length, restarts=True
                ) as scope,
            ):
                outputs = self.model.step(given["encoded"], given["token"])
            return {"logits": tf.nest.flatten(outputs)[0], "new": self.flatten(scope.new)}

        traced = tf.function(step, autograph=False).get_concrete_function(specs)
        given = tf.nest.pack_sequence_as(specs, traced.inputs[: len(tf.nest.flatten(specs))])
        return given["encoded"], traced.structured_outputs

    @cached_property
    def encoded(self) -> dict[str, str]:
        """The encoded values that a step reads beside the caches: flat name -> name in `encode`.

        Most models have none: cross-attention reads its keys and values from the cache. Without a
        signature "encode", each value must be an input of the model, and has its name.
        """
        if not self._first_step[1]:
            return {}
        encoded, outputs = self._traced_step
        waiting = [x.op for x in tf.nest.flatten(outputs)]
        seen = set(waiting)
        while waiting:
            for x in waiting.pop().inputs:
                if x.op not in seen:
                    seen.add(x.op)
                    waiting.append(x.op)
        read = [name for name, x in encoded.items() if x.op in seen]
        if "encode" in self.request.roles:
            for name in read:
                if tuple(encoded[name].shape[:1]) != (self.request.batch_size,):
                    raise ValueError(
                        f"{self.request.model.name} cannot be stepped on a host: a step reads an "
                        f"encoded value of shape {tuple(encoded[name].shape)}, but its first axis "
                        f"must be the batch ({self.request.batch_size})"
                    )
            return {self.request.own_name(f"encoded_{i}"): name for i, name in enumerate(read)}
        inputs = {name: self.model.input_name(name) for name in read}
        if None in inputs.values() or self.context_specs() or self.prefix:
            raise ValueError(
                f"the signature 'decode' of {self.request.model.name} takes the results of "
                f"'encode': export both, got {self.request.roles}"
            )
        return {str(inputs[name]): name for name in read}

    def encoded_specs(self) -> dict[str, tf.TensorSpec]:
        """The specs of the encoded values that a step reads, by flat name."""
        _, shapes = self._first_step
        return {
            flat: tf.TensorSpec(shapes[name].shape, _host_dtype(shapes[name].dtype))
            for flat, name in self.encoded.items()
        }

    def to_host(self, encoded: Tensors) -> Tensors:
        """The values of `encode` that a step reads, by flat name, padded to the longest source."""
        result = {}
        for flat, spec in self.encoded_specs().items():
            x = encoded[self.encoded[flat]]
            # A padded step reads only values that the model masks, or ids.
            own = self.request.interface.inputs.get(self.model.input_name(self.encoded[flat]) or "")
            pad_id = 0 if own is None else own.pad_id or 0
            paddings = [(0, long - short) for long, short in zip(spec.shape, x.shape, strict=True)]
            if np.any(paddings):
                x = tf.pad(tf.cast(x, spec.dtype), paddings, constant_values=pad_id)
            result[flat] = tf.cast(x, spec.dtype)
        return result

    def step(self, given: Tensors, tokens: tf.Tensor) -> tf.Tensor:
        """The logits of a step. Call it inside a `DecodingScope`.

        Args:
            given: a signature's arguments, including the encoded values that the step reads.
            tokens: (B, n).
        """
        return tf.nest.flatten(self.model.step(self._encoded_of(given), tokens))[0]

    def step_partly(
        self, given: Tensors, tokens: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        """The logits of a step, and a function for further outputs: `SteppedModel.step_partly`."""
        return self.model.step_partly(self._encoded_of(given), tokens)

    def _encoded_of(self, given: Tensors) -> Tensors:
        """The encoded values as a step takes them: those that it does not read are zeros."""
        flat_names = {name: flat for flat, name in self.encoded.items()}
        return {
            name: tf.cast(given[flat_names[name]], x.dtype)
            if name in flat_names
            else tf.zeros(x.shape, x.dtype)
            for name, x in self._first_step[1].items()
        }

    def specs(self, length: int | None = None) -> dict[str, tf.TensorSpec]:
        """The specs of all entries by flat name; those that grow have `length` columns."""
        specs = {}
        for entry, parts in self._first_step[0].cache.items():
            for part, x in parts.items():
                shape = list(x.shape)
                if self.states[entry].grows:
                    shape[COLUMN_AXES[part]] = None if length is None else self.prefix + length
                specs[self.flat_name(entry, part)] = tf.TensorSpec(shape, _host_dtype(x.dtype))
        return specs

    def context_specs(self) -> dict[str, tf.TensorSpec]:
        """The specs of the entries that no step changes, by flat name."""
        names = self._flat_names(
            entry for entry, x in self.states.items() if not (x.grows or x.is_replaced)
        )
        return {name: x for name, x in self.specs().items() if name in names}

    def _flat_names(self, entries: Iterable[str]) -> list[str]:
        cache = self._first_step[0].cache
        return [self.flat_name(entry, part) for entry in entries for part in cache[entry]]

    def unflatten(self, given: Tensors) -> dict[str, Tensors]:
        """A cache from arguments with flat names."""
        cache: dict[str, Tensors] = {}
        for entry, parts in self._first_step[0].cache.items():
            cache[entry] = {
                part: _from_host(part, given[self.flat_name(entry, part)]) for part in parts
            }
        return cache

    @property
    def position(self) -> str:
        """The name of the argument with the position of a step."""
        return self.request.own_name("position")

    @property
    def count(self) -> str:
        """The name of the argument with the number of a prefill's tokens that are no padding."""
        return self.request.own_name("count")

    def flat_name(self, entry: str, part: str) -> str:
        """The argument's name for a part of a cache entry."""
        return self.request.own_name(f"cache_{entry}_{part}")

    @property
    def settings(self) -> Json:
        """The manifest's entries of "decode", without its capacity."""
        request = self.request
        return {
            "max_length": request.max_length,
            "start_id": request.start_id,
            "end_id": request.end_id_setting(),
            "pad_id": request.pad_id,
            "target": request.target,
            "vocabulary_size": request.model.outputs[0].shape[-1],
            **({"transposed": self.transposed} if self.transposed else {}),
            **({"states": self._flat_names(self.replaced)} if self.replaced else {}),
            **({"prefix": self.prefix} if self.prefix else {}),
            **({"sampling": request.sampling} if request.sampling else {}),
        }

    @property
    def transposed(self) -> list[str]:
        """The flat names of entries whose last axis is S, as transposed keys (B, G, K, S)."""
        return [
            self.flat_name(entry, part)
            for entry in self.growing
            for part in self._first_step[0].cache[entry]
            if COLUMN_AXES[part] == 3
        ]

    def flatten(self, entries: dict[str, Tensors]) -> Tensors:
        """Cache entries by flat name, in dtypes that hosts support."""
        return {
            self.flat_name(entry, part): tf.cast(x, _host_dtype(x.dtype))
            for entry, parts in entries.items()
            for part, x in parts.items()
        }

    def arguments(self, specs: Mapping[str, tf.TensorSpec]) -> dict[str, Argument]:
        """The arguments of a signature with these specs."""
        kinds = dict.fromkeys(self.specs(), "cache")
        if "encode" in self.request.roles:
            kinds |= dict.fromkeys(self.encoded, "encoded")
        kinds |= {self.position: "position", self.count: "count"}
        inputs = self.request.interface.inputs
        return {
            name: Argument(spec, kinds.get(name, "input"), inputs.get(name))
            for name, spec in specs.items()
        }


def _host_dtype(dtype: tf.DType) -> tf.DType:
    """Integers for booleans, which LiteRT.js neither takes nor returns."""
    return tf.int32 if dtype == tf.bool else dtype


def _from_host(part: str, x: tf.Tensor) -> tf.Tensor:
    return tf.not_equal(x, 0) if part == "mask" else x
