"""The signatures that LiteRT-LM runs: `prefill_<N>` and `decode`, with names that it looks for.

Both take the stepped input (1, T), `input_pos` (T,), of which they read the first position, and the
KV caches `kv_cache_k_<i>` (1, G, C, K) and `kv_cache_v_<i>` (1, G, V, C) of each self-attention,
and return the caches after the step. `decode` (T = 1) also returns `logits` (1, 1, V).

A prompt may be read in several prefills. The last one is padded on the right to N tokens. Causal
attention does not see the padding, and the next step overwrites its columns.
"""

import tensorflow as tf

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
from keras_tfm.layers import DecodingScope

_LETTERS = {"key": "k", "transposed_value": "v", "mask": "mask"}
# XNNPACK multiplies caches of multiples of 32 columns fastest.
_MULTIPLE = 32


def litertlm_signatures(request: Request) -> list[Signature]:
    """`prefill_<N>` for each prompt length of `request`, and `decode`.

    Raises:
        ValueError: the model cannot be stepped; the error names the layer.
    """
    assert request.max_length is not None
    check_stepping(request.model, request.target, length=request.max_length)
    caches = _Caches(request)
    if caches.replaced:
        raise ValueError(
            f"LiteRT-LM runs models whose only state are keys and values, but {request.model.name} "
            f"has recurrent states, {caches.replaced}: export it with export_tflite"
        )
    settings = {**caches.settings, "capacity": caches.columns}
    result = []
    for length in (*request.prompt_lengths, 1):
        role = "decode" if length == 1 else "prefill"
        specs = {
            request.target: tf.TensorSpec((1, length), "int32"),
            caches.position: tf.TensorSpec((length,), "int32"),
            **caches.specs(caches.columns),
        }
        padded = request.masked_target if role == "decode" else {request.target}
        result.append(
            Signature(
                role if role == "decode" else f"prefill_{length}",
                role,
                for_edge(_step(caches, with_logits=role == "decode")),
                with_padding(caches.arguments(specs), padded),
                settings if role == "decode" else {"capacity": caches.columns},
            )
        )
    return result


class _Caches(Caches):
    """The KV caches under LiteRT-LM's names, without padding masks: every cached token is real.

    Attributes:
        columns: int, number of columns (C). Padding is written, too, so the shortest prefill has to
            fit behind all tokens but one; LiteRT-LM refuses longer ones there.
    """

    # LiteRT-LM takes whole caches, and passes one buffer as a cache's argument and result.
    write_first = True

    def __init__(self, request: Request):
        super().__init__(request)
        assert request.max_length is not None
        needed = request.max_length + min(request.prompt_lengths) - 1
        self.columns = -(-needed // _MULTIPLE) * _MULTIPLE

    @property
    def position(self) -> str:
        """The name of the argument with the positions of a step's tokens."""
        return "input_pos"

    @property
    def encoded(self) -> dict[str, str]:
        """Nothing: the only input is the stepped one."""
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


def _is_mask(name: str) -> bool:
    return name.startswith(f"kv_cache_{_LETTERS['mask']}_")


def _step(caches: _Caches, with_logits: bool) -> Function:
    """The function of a signature: its arguments by name -> its results by name."""
    request, length = caches.request, caches.request.max_length
    assert length is not None

    def step(given: Tensors) -> Tensors:
        with DecodingScope(
            caches.unflatten(given),
            position=given[caches.position][0],
            length=length,
            capacity=caches.columns,
            write_first=caches.write_first,
        ) as scope:
            logits = caches.step(given, given[request.target])
        after = caches.flatten({entry: scope.cache[entry] for entry in caches.growing})
        return {"logits": logits, **after} if with_logits else after

    return step
