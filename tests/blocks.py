"""Blocks composed of parts, from one list of options: what most tests of a block need."""

import inspect

import keras

from keras_tfm.layers import (
    FeedForward,
    LayerNormalization,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    Residual,
    RMSNormalization,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# Options of all attention layers of a block, and of self-attention alone.
ATTENTION = {
    "head_dim", "value_dim", "num_key_value_heads", "query_norm", "key_norm",
    "rotate_first", "soft_cap", "gate",
}  # fmt: skip
SELF_ATTENTION = {"position", "window"}
FEED_FORWARD = {"gated"}
RESIDUAL = {"norm", "drop_path", "residual_scale", "layer_scale"}
# By another name in the part.
RENAMED = {"attention_scale", "attention_dropout", "feed_forward_dropout", "sandwich_norm"}
# With these the block's own parts will not do.
OPTIONS = ATTENTION | SELF_ATTENTION | FEED_FORWARD | RESIDUAL | RENAMED | {"use_bias"}


ORDERS = {
    "post": ["sum_norm"],
    "pre": ["input_norm"],
    "sandwich": ["input_norm", "output_norm"],
}
NORM_LAYERS = {"layer_norm": LayerNormalization, "rms_norm": RMSNormalization}


def residual_of(order, norm="layer_norm", epsilon=1e-5, **options):
    """A `Residual` with norms at the places of `order`, one of `ORDERS`."""
    dtype = {"dtype": options["dtype"]} if "dtype" in options else {}
    norms = {
        place: NORM_LAYERS[norm](
            epsilon=epsilon, name="output_norm" if place == "output_norm" else "norm", **dtype
        )
        for place in ORDERS[order]
    }
    return Residual(**norms, **options)


def head_norms(dtype=None):
    """The configurations of RMS norms of queries and keys, for each layer that gets them anew."""
    return {
        name: keras.saving.serialize_keras_object(
            RMSNormalization(epsilon=1e-6, dtype=dtype, name=name)
        )
        for name in ("query_norm", "key_norm")
    }


def encoder_block(intermediate_dim, num_heads, **options):
    """A `TransformerEncoderBlock` of parts, as `parts` makes them."""
    return _block(TransformerEncoderBlock, intermediate_dim, num_heads, options)


def decoder_block(intermediate_dim, num_heads, **options):
    """A `TransformerDecoderBlock` of parts, as `parts` makes them."""
    return _block(TransformerDecoderBlock, intermediate_dim, num_heads, options)


def _block(cls, intermediate_dim, num_heads, options):
    if not OPTIONS & set(options):
        return cls(intermediate_dim, num_heads, **options)
    return cls(**parts(cls, intermediate_dim, num_heads, **options))


def parts(cls, intermediate_dim, num_heads, **options):
    """The arguments of a block whose parts, named as its own would be, have these options.

    `attention_scale`, `attention_dropout`, `feed_forward_dropout` and `use_bias` are those of the
    parts, `dropout` that of the attention weights and of each sublayer's output.
    """
    is_decoder = cls is TransformerDecoderBlock
    block = {name: options[name] for name in ("name", "trainable") if name in options}
    dtype = {"dtype": options["dtype"]} if "dtype" in options else {}
    dropout = options.get("dropout", 0.0)
    shared = {
        name: options[name]
        for name in ("use_bias", "kernel_initializer", "bias_initializer")
        if name in options
    } | dtype
    attention = {name: options[name] for name in ATTENTION if name in options} | shared
    attention["scale"] = options.get("attention_scale")
    given = options.get("attention_dropout")
    attention["dropout"] = dropout if given is None else given
    causal = options.get("causal", is_decoder)
    arguments = {
        "self_attention": MultiHeadSelfAttention(
            num_heads,
            causal=causal,
            name="self_attention",
            **attention,
            **{name: options[name] for name in SELF_ATTENTION if name in options},
        ),
        "feed_forward": FeedForward(
            intermediate_dim,
            activation=options.get("activation", "relu"),
            gated=options.get("gated", False),
            dropout=options.get("feed_forward_dropout", 0.0),
            name="feed_forward",
            **shared,
        ),
        "residual": residual_of(
            _order(options),
            epsilon=options.get("layer_norm_epsilon", 1e-5),
            dropout=dropout,
            **{name: options[name] for name in RESIDUAL if name in options},
            **dtype,
        ),
        "causal": causal,
    }
    if is_decoder:
        arguments["cross_attention"] = options.get("cross_attention", True) and (
            MultiHeadCrossAttention(num_heads, name="cross_attention", **attention)
        )
    known = OPTIONS | set(inspect.signature(TransformerDecoderBlock.__mro__[1]).parameters)
    unknown = set(options) - known - {"name", "trainable", "dtype", "cross_attention"}
    if unknown:
        raise TypeError(f"no such options: {sorted(unknown)}")
    return {**arguments, **block, **dtype}


def _order(options):
    if options.get("sandwich_norm", False):
        if not options.get("normalize_first", False):
            raise ValueError("sandwich_norm=True needs normalize_first=True")
        return "sandwich"
    return "pre" if options.get("normalize_first", False) else "post"
