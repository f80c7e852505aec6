"""Layers' weights as weights of `reference`, and random ones to put into layers.

`read` turns a variable into an array; one that returns its gradient gives the gradients in the same
form.
"""

import numpy as np
from compare import to_numpy


def randomize(layer, seed=0):
    """Gives a built layer weights of which none is left at 0 or 1; returns the layer.

    Kernels keep the variance, and biases of 0.3 add to it, so that attention is far from uniform.
    """
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        kind = weight.path.rsplit("/", 1)[-1]
        if kind in ("kernel", "recurrent_kernel"):
            inputs = np.prod(weight.shape[:-1])  # of a convolution, those of its window
            values = rng.normal(scale=inputs**-0.5, size=weight.shape)
        elif kind in (
            "embeddings",
            "positions",
            "table",
            "key_table",
            "value_table",
            "segments",
            "tokens",
            "probe",
            *("text", "rows", "columns"),
        ):
            values = rng.normal(scale=weight.shape[1] ** -0.5, size=weight.shape)
        elif kind in (
            "gamma",
            "scale",
            "skip",
            "beta",
            "bias",
            "log_rate",
            "time_step_bias",
            "selection_bias",
        ):
            center = kind in ("gamma", "scale", "skip")
            values = rng.normal(loc=center, scale=0.3, size=weight.shape)
        elif kind in ("compression", "queries", "moving_mean", "logit_scale", "logit_bias"):
            values = rng.normal(size=weight.shape)
        elif kind in ("moving_variance", "temperature"):
            values = rng.uniform(0.5, 1.5, size=weight.shape)
        else:
            raise ValueError(f"no random values for {weight.path}")
        weight.assign(values)
    return layer


def built(layer, *shapes, seed=0):
    """The layer, built for inputs of these shapes, with random weights."""
    layer.build(*shapes)
    return randomize(layer, seed)


def dense(layer, name, read=to_numpy):
    """A kernel (in, out) and a bias, as `name` and `name`_bias."""
    bias = {} if layer.bias is None else {f"{name}_bias": read(layer.bias)}
    return {name: read(layer.kernel), **bias}


def norm(layer, read=to_numpy):
    return {"gamma": read(layer.gamma), "beta": read(layer.beta)}


def self_attention(layer, read=to_numpy):
    """The fused projection holds all queries, then all keys, then all values."""
    if not hasattr(layer, "query_key_value"):
        return cross_attention(layer, read)
    fused = dense(layer.query_key_value, "fused", read)
    output = dense(layer.output_projection, "output", read)
    num_key_value_heads = layer.num_key_value_heads or layer.num_heads
    head_dim = layer.head_dim or output["output"].shape[-1] // layer.num_heads
    query_end = layer.num_heads * head_dim
    key_end = query_end + num_key_value_heads * head_dim
    weights = {}
    for name, array in fused.items():
        parts = np.split(array, [query_end, key_end], axis=-1)
        for part, values in zip(("query", "key", "value"), parts, strict=True):
            weights[name.replace("fused", part)] = values
    return weights | output | gate(layer, read)


def gate(layer, read=to_numpy):
    return dense(layer.gate_projection, "gate", read) if layer.gate else {}


def cross_attention(layer, read=to_numpy):
    return (
        dense(layer.query, "query", read)
        | dense(layer.key, "key", read)
        | dense(layer.value, "value", read)
        | dense(layer.output_projection, "output", read)
        | gate(layer, read)
    )


def feed_forward(layer, read=to_numpy):
    return dense(layer.inner, "inner", read) | dense(layer.outer, "outer", read)


def norm_of(residual):
    """The norm of a pre-norm or post-norm residual connection."""
    return residual.input_norm or residual.sum_norm


def block(layer, read=to_numpy):
    """Of an encoder or a decoder block."""
    weights = {
        "feed_forward": feed_forward(layer.feed_forward, read),
        "feed_forward_norm": norm(norm_of(layer.feed_forward_residual), read),
    }
    if layer.self_attention is not None:
        weights |= {
            "self_attention": self_attention(layer.self_attention, read),
            "self_attention_norm": norm(norm_of(layer.self_attention_residual), read),
        }
    if getattr(layer, "cross_attention", None) is not None:
        weights |= {
            "cross_attention": cross_attention(layer.cross_attention, read),
            "cross_attention_norm": norm(norm_of(layer.cross_attention_residual), read),
        }
    return weights


def transformer_weights(model):
    """Of a model that `models.transformer` made."""
    layers = {layer.name: layer for layer in model.layers}

    def table(name):
        return to_numpy(layers[name if name in layers else "embedding"].embeddings)

    blocks = {
        name: [block(layers[key]) for key in layers if key.removeprefix(f"{name}_").isdigit()]
        for name in ("encoder", "decoder")
    }
    norms = {
        name: norm(layers[name]) for name in ("encoder_norm", "decoder_norm") if name in layers
    }
    tables = {name: table(name) for name in ("source_embedding", "target_embedding")}
    return blocks | norms | tables


def assign_block(layer, weights):
    """Puts weights of `reference` into a built block."""

    def assign_dense(dense, kernel, bias):
        dense.kernel.assign(kernel)
        dense.bias.assign(bias)

    def assign_norm(name):
        layer_norm = norm_of(getattr(layer, f"{name}_residual"))
        layer_norm.gamma.assign(weights[f"{name}_norm"]["gamma"])
        layer_norm.beta.assign(weights[f"{name}_norm"]["beta"])

    part = weights["self_attention"]
    names = ("query", "key", "value")
    assign_dense(
        layer.self_attention.query_key_value,
        np.concatenate([part[name] for name in names], axis=-1),
        np.concatenate([part[f"{name}_bias"] for name in names]),
    )
    assign_dense(layer.self_attention.output_projection, part["output"], part["output_bias"])
    assign_norm("self_attention")
    if "cross_attention" in weights:
        part = weights["cross_attention"]
        for name in names:
            projection = getattr(layer.cross_attention, name)
            assign_dense(projection, part[name], part[f"{name}_bias"])
        assign_dense(layer.cross_attention.output_projection, part["output"], part["output_bias"])
        assign_norm("cross_attention")
    part = weights["feed_forward"]
    for name in ("inner", "outer"):
        assign_dense(getattr(layer.feed_forward, name), part[name], part[f"{name}_bias"])
    assign_norm("feed_forward")
