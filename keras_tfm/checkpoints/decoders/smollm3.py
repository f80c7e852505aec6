"""Checkpoints of SmolLM3: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.models.decoders.smollm3 import each_rotary

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
    "intermediate_size": 11008, "num_key_value_heads": 4, "head_dim": None,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
_PAD_ID, _THETA, _INTERVAL = 128004, 2000000.0, 4


def _rotary(config: Config, num_layers: int) -> list[bool]:
    """Whether each block has rotary positions: 1 in `no_rope_layers` says that it has them."""
    flags = config.fields.get("no_rope_layers")
    if flags is None:
        interval = config.integer("no_rope_layer_interval", _INTERVAL)
        return each_rotary(None, num_layers, interval)
    if (
        not isinstance(flags, list)
        or len(flags) < num_layers
        or not all(x in (0, 1) for x in flags)
    ):
        config.refuse("no_rope_layers", flags, f"a list of at least {num_layers} zeros and ones")
    return [bool(x) for x in flags[:num_layers]]


def _windows(config: Config, rotary: list[bool]) -> Windows:
    """The window of each block. Without `layer_types`, blocks with rotary positions have none."""
    window = config.integer("sliding_window", None)
    kinds = config.fields.get("layer_types")
    if kinds is None:
        has_windows = config.flag("use_sliding_window", False) and window is not None
        kinds = [SLIDING if has_windows and not rotates else FULL for rotates in rotary]
    # transformers masks by `layer_types`, whatever `use_sliding_window` says.
    return read_windows(config, kinds, len(rotary), window)


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    rotary = _rotary(config, arguments["num_layers"])
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config, _THETA),
        "rotary": rotary,
        "windows": _windows(config, rotary),
        "feed_forward_bias": config.flag("mlp_bias", False),
        "pad_id": read_pad_id(config, named, _PAD_ID),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    window, each = window_of(model)
    rotary = each_rotary(given["rotary"], given["num_layers"])
    return {
        "pad_token_id": None,  # the default, 128004, must be in the vocabulary; a classifier's is
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "no_rope_layers": [int(x) for x in rotary],
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "layer_types": [FULL if x is None else SLIDING for x in each],
        "mlp_bias": given["feed_forward_bias"],
    }


SMOLLM3 = Family(
    model_type="smollm3",
    builder=models.smollm3,
    table=llama.table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("SmolLM3", classifies_tokens=True, answers=llama.OLD_PREFIX),
    names=llama.NAMES,
)
