"""Layers with positions, windows, norms and gates: random weights, and what they should compute."""

import math

import numpy as np
import reference
import reference_positions as rp
from compare import to_numpy
from keras import ops
from keras_weights import dense, self_attention

from keras_tfm.layers import (
    ALiBi,
    AttentionInputs,
    DecodingScope,
    DisentangledPositionEmbedding,
    LinearScaling,
    LongRoPEScaling,
    RelativePositionBias,
    RelativePositionEmbedding,
    RotaryEmbedding,
    YaRNScaling,
)
from keras_tfm.layers.positions.attention_position import Positions

# Every part that `position=` takes, in the forms that differ. Short reaches, so that a few
# positions meet the clipping and the logarithmic buckets; short wavelengths, so that every pair
# turns within a few positions.
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(max_wavelength=20.0),
    "rotary, neighbours of a part, YaRN": lambda: RotaryEmbedding(
        max_wavelength=20.0,
        rotary_dim=4,
        interleaved=True,
        scaling=YaRNScaling(3.0, original_length=11, beta_fast=1.5, beta_slow=0.5),
    ),
    "rotary, linear": lambda: RotaryEmbedding(max_wavelength=20.0, scaling=LinearScaling(2.0)),
    "T5": lambda: RelativePositionBias(num_buckets=8, max_distance=5),
    "Shaw": lambda: RelativePositionEmbedding(max_distance=3),
    "Shaw, keys only": lambda: RelativePositionEmbedding(max_distance=2, values=False),
    "ALiBi": ALiBi,
}


def randomize(layer, seed=0):
    """Gives a built layer weights of which none is left at 0 or 1; returns the layer.

    Kernels keep the variance, tables and biases are large enough that each changes the result.
    """
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        kind = weight.path.rsplit("/", 1)[-1]
        if kind == "kernel":
            values = rng.normal(scale=weight.shape[0] ** -0.5, size=weight.shape)
        elif kind in ("gamma", "scale"):
            values = rng.normal(loc=1.0, scale=0.3, size=weight.shape)
        elif kind in ("table", "key_table", "value_table", "positions", "embeddings"):
            values = rng.normal(size=weight.shape)
        elif kind in ("bias", "beta"):
            values = rng.normal(scale=0.3, size=weight.shape)
        elif kind == "seed_generator_state":
            continue
        else:
            raise ValueError(f"no random values for {weight.path}")
        weight.assign(values)
    return layer


def built(layer, *shapes, seed=0):
    """The layer, built for inputs of these shapes, with random weights."""
    layer.build(*shapes)
    return randomize(layer, seed)


def stepped(function, steps, length=None):
    """The outputs (B, n, D) of `function(start, end)`, step by step in one cache, joined."""
    outputs, cache, start = [], None, 0
    for n in steps:
        with DecodingScope(cache, position=start, length=length or sum(steps)) as scope:
            outputs.append(to_numpy(function(start, start + n)))
        cache, start = scope.cache, start + n
    return np.concatenate(outputs, axis=1)


def terms_of(part, query, queries, keys, causal=False):
    """What a part adds, of queries (B, H, T, K) and keys at given positions."""
    query = ops.convert_to_tensor(query)
    queries, keys = (ops.convert_to_tensor(np.asarray(x, "int32")) for x in (queries, keys))
    inputs = AttentionInputs(query, Positions(queries, keys), causal, None, None, None, 1.0)
    return part.terms(inputs)


def rotary_arguments(position, head_dim):
    """A `RotaryEmbedding` as arguments of `reference_positions.rotate`."""
    dim, base, scaling = position.rotary_dim or head_dim, position.max_wavelength, position.scaling
    magnitude = 1.0
    if scaling is None:
        frequencies = rp.rotary_frequencies(dim, base)
    elif isinstance(scaling, LinearScaling):
        frequencies = rp.linear_frequencies(dim, scaling.factor, base)
    elif isinstance(scaling, YaRNScaling):
        turns = scaling.beta_fast, scaling.beta_slow
        length = scaling.original_length
        frequencies = rp.yarn_frequencies(dim, scaling.factor, length, base, *turns)
        magnitude = rp.yarn_magnitude(scaling.factor)
    elif isinstance(scaling, LongRoPEScaling):
        factors = scaling.long_factors if scaling.is_long else scaling.short_factors
        frequencies = rp.rotary_frequencies(dim, base) / np.array(factors)
        magnitude = (1 + math.log(scaling.factor, scaling.original_length)) ** 0.5
    else:
        frequencies = rp.ntk_frequencies(dim, scaling.factor, base)
    return {
        "frequencies": frequencies, "interleaved": position.interleaved, "magnitude": magnitude
    }  # fmt: skip


def position_arguments(position, num_heads, head_dim, length, causal):
    """A part, with its weights, as arguments of `reference_positions.self_attention`."""
    if position is None:
        return {}
    if isinstance(position, RotaryEmbedding):
        return {"rotary": rotary_arguments(position, head_dim)}
    if isinstance(position, RelativePositionBias):
        table, reach = to_numpy(position.table), position.max_distance
        return {"relative": rp.t5_bias(table, length, length, causal, reach)}
    if isinstance(position, RelativePositionEmbedding):
        tables = [to_numpy(position.key_table)]
        tables.append(to_numpy(position.value_table) if position.with_values else None)
        return {"shaw": tables}
    if isinstance(position, DisentangledPositionEmbedding):
        table = position.table
        vectors = to_numpy(table.table)
        if table.normalize:
            gains = to_numpy(table.norm.gamma), to_numpy(table.norm.beta)
            vectors = reference.layer_norm(vectors, *gains, epsilon=table.layer_norm_epsilon)
        terms = {"key": position.content_to_position, "query": position.position_to_content}
        return {
            "disentangled": {
                "table": vectors,
                "num_buckets": table.num_buckets,
                "max_distance": table.max_distance,
                "terms": [name for name, is_used in terms.items() if is_used],
            }
        }
    return {"relative": rp.alibi_bias(num_heads, length, length)}


def expected_self_attention(layer, x, **options):
    """What a built `MultiHeadSelfAttention` should return for x.

    `options` are those that the layer was made with, and the masks and biases of the call.
    """
    weights = self_attention(layer)
    num_heads = options.pop("num_heads")
    head_dim = weights["query"].shape[-1] // num_heads
    for name in ("head_dim", "value_dim", "num_key_value_heads", "use_bias", "dtype"):
        options.pop(name, None)
    if [options.pop(name, None) for name in ("query_norm", "key_norm")] != [None, None]:
        options["gains"] = [to_numpy(norm.scale) for norm in (layer.query_norm, layer.key_norm)]
    position = options.pop("position", None)
    for name in ("position_key", "position_query"):
        if hasattr(position, name):
            weights |= dense(getattr(position, name), name)
    causal = options.get("causal", False)
    options |= position_arguments(position, num_heads, head_dim, x.shape[1], causal)
    return rp.self_attention(x, weights, num_heads, **options)
