"""Signatures for a decoding loop on the host: the KV caches are arguments and results.

`encode` runs the layers that do not depend on the stepped input, once for all steps. `prefill`
reads several tokens at any position, `decode` one token, whose logits it returns. `prefill` and
`decode` return the new cache entries only; the host writes them at their positions into the buffers
that it passes in. A recurrent state is returned whole: the host passes it to the next step, and
zeros to the first. A prefill with states also takes `count`, the number of its tokens that are no
padding on the right.
With `whole_caches` they return the updated caches, for hosts that pass results on as arguments.
If a prefix stands before the tokens (`layers.ConcatenatePrefix`), `encode` also returns its
columns, with which the host begins the caches. Positions still count tokens.
"""

from collections.abc import Iterable

import tensorflow as tf

from keras_tfm.export.signatures.host_caches import Caches
from keras_tfm.export.signatures.signature import Signature, Tensors, with_padding
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.decoding.cache import COLUMN_AXES, columns_of_entry, longer


def encode(caches: Caches) -> list[Signature]:
    """Everything that does not depend on the stepped input, computed once for all steps.

    These are the keys, values and mask of each cross-attention, those of a prefix in each causal
    self-attention, and other encoded values that a step reads. With several source lengths, all
    results are padded to the longest, so one `decode` works for all.
    """
    request = caches.request
    longest = max(request.source_lengths, default=None)
    result = []
    for length in request.source_lengths or (None,):

        def function(inputs: Tensors, is_short: bool = length != longest) -> Tensors:
            token = tf.zeros((request.batch_size, 1), "int32")
            encoded = caches.model.encode(inputs)
            with caches.first_scope() as scope:
                caches.model.step(encoded, token)
            changing = {*caches.growing, *caches.replaced}
            contexts = {
                entry: parts for entry, parts in scope.cache.items() if entry not in changing
            }
            prefixes = {
                entry: columns_of_entry(scope.new[entry], 0, caches.prefix)
                for entry in (caches.growing if caches.prefix else ())
            }
            if is_short:
                contexts = _longer(contexts, caches)
            contexts = {**contexts, **prefixes}
            return {**caches.flatten(contexts), **caches.to_host(encoded)}

        if not caches.context_specs() and not caches.encoded and not caches.prefix:
            raise ValueError(
                f"no step of {request.model.name} reads {request.others}: "
                "there is nothing to encode"
            )
        result.append(
            Signature(
                "encode" if length is None else f"encode_{length}",
                "encode",
                function,
                with_padding(request.arguments(request.others, length), request.padded),
            )
        )
    return result


def prefill(caches: Caches) -> list[Signature]:
    """Reads N tokens at `position` to `position` + N - 1; returns their cache entries (B, G, N, K).

    The tokens also attend to the caches of the positions before. `position` + N must not exceed the
    capacity. Fewer tokens are padded on the right: later steps mask the entries of the padding, and
    overwrite them. There is a signature for each N and each capacity of at least N.

    Raises:
        ValueError: the tokens leave nothing that later steps read.
    """
    if not (caches.growing or caches.replaced):
        raise ValueError(
            f"{caches.request.model.name} has no KV cache and no recurrent state, so the signature "
            "'prefill' would have no outputs: export 'decode' without 'prefill' and prompt_length"
        )
    return _chunks(caches, "prefill", caches.request.prompt_lengths, logits=False)


def verify(caches: Caches) -> list[Signature]:
    """A prefill of `draft_length` + 1 tokens that also returns the logits after each, (B, N, V).

    Recurrent states are returned after each token, (B, N, ...).
    """
    drafted = caches.request.draft_length
    return [] if drafted is None else _chunks(caches, "verify", [drafted + 1], logits=True)


def _chunks(caches: Caches, prefix: str, lengths: Iterable[int], logits: bool) -> list[Signature]:
    request, result = caches.request, []
    capacities = _capacities(caches)
    counts = caches.replaced and not logits
    for length in lengths:
        for capacity in (x for x in capacities if x >= length):

            def function(given: Tensors, capacity: int = capacity) -> Tensors:
                found, entries = _step(caches, given, capacity, drafts=logits)
                return {"logits": found, **entries} if logits else entries

            specs = {
                request.target: tf.TensorSpec((request.batch_size, length), "int32"),
                **_step_specs(caches, capacity),
                **({caches.count: tf.TensorSpec((1,), "int32")} if counts else {}),
            }
            result.append(
                Signature(
                    f"{prefix}_{length}" + (f"_{capacity}" if len(capacities) > 1 else ""),
                    "prefill",
                    function,
                    with_padding(caches.arguments(specs), request.padded | {request.target}),
                    {"capacity": capacity},
                )
            )
    return result


def decode(caches: Caches) -> list[Signature]:
    """Reads one token per row, its position and the caches; returns logits (B, V), new entries."""
    request, settings = caches.request, caches.settings
    capacities = _capacities(caches)
    result = []
    for capacity in capacities:

        def function(given: Tensors, capacity: int = capacity) -> Tensors:
            logits, entries = _step(caches, given, capacity)
            # Of one token. LiteRT would copy a slice of it number by number: 0.2 ms for 49,152.
            return {"logits": tf.squeeze(logits, 1), **entries}

        specs = {
            request.target: tf.TensorSpec((request.batch_size, 1), "int32"),
            **_step_specs(caches, capacity),
        }
        result.append(
            Signature(
                "decode" if len(capacities) == 1 else f"decode_{capacity}",
                "decode",
                function,
                with_padding(caches.arguments(specs), request.masked_target),
                {**settings, "capacity": capacity},
            )
        )
    return result


def _capacities(caches: Caches) -> tuple[int, ...]:
    """The cache lengths of the signatures, smallest first."""
    request = caches.request
    assert request.max_length is not None
    # With `whole_caches` the results of a call are the arguments of the next: one capacity.
    if request.whole_caches or not caches.growing:
        return (request.max_length,)
    result, capacity = [], 128
    while 3 * capacity < 2 * request.max_length:  # another graph for the last third is not worth it
        result.append(capacity)
        # A step reads all columns. From 512 on, twice too many take longer than the model itself.
        capacity *= 4 if capacity < 512 else 2
    return (*result, request.max_length)


def _step_specs(caches: Caches, capacity: int) -> dict[str, tf.TensorSpec]:
    """The specs of a step's arguments, except its tokens."""
    return {
        caches.position: tf.TensorSpec((1,), "int32"),
        **caches.specs(capacity),
        **caches.encoded_specs(),
    }


def _step(
    caches: Caches, given: Tensors, capacity: int, drafts: bool = False
) -> tuple[tf.Tensor, Tensors]:
    """The logits (B, N, V) of a step of N tokens, and the cache entries that it returns."""
    count = given.get(caches.count)
    with DecodingScope(
        caches.unflatten(given),
        position=tf.reshape(given[caches.position], ()),
        length=capacity,
        count=None if count is None else tf.reshape(count, ()),
        drafts=drafts and bool(caches.replaced),
        restarts=True,
    ) as scope:
        logits = caches.step(given, given[caches.request.target])
    after = scope.new
    if caches.request.whole_caches:
        after = {entry: scope.cache[entry] for entry in (*caches.growing, *caches.replaced)}
    return logits, caches.flatten(after)


def _longer(entries: dict[str, Tensors], caches: Caches) -> dict[str, Tensors]:
    """Entries padded with columns of zeros, as many as those of the longest source have."""
    specs = caches.context_specs()

    def pad(entry: str, part: str, x: tf.Tensor) -> tf.Tensor:
        if part not in COLUMN_AXES:
            return x
        axis, longest = COLUMN_AXES[part], specs[caches.flat_name(entry, part)].shape
        return longer(part, x, longest[axis] - x.shape[axis])

    return {
        entry: {part: pad(entry, part, x) for part, x in parts.items()}
        for entry, parts in entries.items()
    }
