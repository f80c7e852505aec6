"""torch.nn.Transformer's parameters, from the fixture, as weights of `reference`.

`parity/make_torch_fixture.py` made the fixture.
"""

from pathlib import Path

import numpy as np


def fixture():
    """The arrays of the fixture by name."""
    with np.load(Path(__file__).parent / "parity" / "torch_transformer.npz") as arrays:
        return dict(arrays)


def _linear(parameters, name):
    """A kernel (in, out) and a bias from torch's weight (out, in)."""
    return parameters[f"{name}.weight"].T, parameters[f"{name}.bias"]


def norm(parameters, name):
    return {"gamma": parameters[f"{name}.weight"], "beta": parameters[f"{name}.bias"]}


def attention(parameters, name):
    """in_proj stacks the rows of query, key and value; each is (out, in)."""
    kernels = np.split(parameters[f"{name}.in_proj_weight"], 3)
    biases = np.split(parameters[f"{name}.in_proj_bias"], 3)
    weights = {}
    for part, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        weights |= {part: kernel.T, f"{part}_bias": bias}
    kernel, bias = _linear(parameters, f"{name}.out_proj")
    return weights | {"output": kernel, "output_bias": bias}


def block(parameters, name):
    """The weights of an encoder or decoder layer; torch numbers the norms in order of use."""
    inner, inner_bias = _linear(parameters, f"{name}.linear1")
    outer, outer_bias = _linear(parameters, f"{name}.linear2")
    weights = {
        "self_attention": attention(parameters, f"{name}.self_attn"),
        "self_attention_norm": norm(parameters, f"{name}.norm1"),
        "feed_forward": {
            "inner": inner,
            "inner_bias": inner_bias,
            "outer": outer,
            "outer_bias": outer_bias,
        },
    }
    if name.startswith("encoder"):
        return weights | {"feed_forward_norm": norm(parameters, f"{name}.norm2")}
    return weights | {
        "cross_attention": attention(parameters, f"{name}.multihead_attn"),
        "cross_attention_norm": norm(parameters, f"{name}.norm2"),
        "feed_forward_norm": norm(parameters, f"{name}.norm3"),
    }


def transformer(fixture, case):
    """The weights of `reference.transformer` but for the embeddings."""
    parameters = {
        key.removeprefix(f"{case}/"): value.astype(np.float64)
        for key, value in fixture.items()
        if key.startswith(f"{case}/")
    }
    return {
        "encoder": [block(parameters, f"encoder.layers.{i}") for i in range(2)],
        "decoder": [block(parameters, f"decoder.layers.{i}") for i in range(3)],
        "encoder_norm": norm(parameters, "encoder.norm"),
        "decoder_norm": norm(parameters, "decoder.norm"),
    }
