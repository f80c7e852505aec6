"""Checkpoints of the text models of Gemma 1, 2 and 3: tensor names, configuration and heads."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import (
    ACTIVATIONS,
    Activation,
    Arguments,
    Config,
    Fields,
    activation_name,
)
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_heads,
    check_saved,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import (
    read_rope,
    read_rope_by_layer_type,
    rope_fields,
    rope_fields_by_layer_type,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.layers import gelu_tanh

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
    "intermediate_size": 9216, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
_DEFAULTS1: Arguments = {
    **_DEFAULTS, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "intermediate_size": 24576, "num_key_value_heads": 16,
}  # fmt: skip
_DEFAULTS3 = {**_DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072}
# The padding id and the window of a configuration without one.
_PAD_ID, _WINDOW = 0, 4096
# Releases of the first Gemma name "gelu" and mean its approximation.
_ACTIVATIONS1 = {**ACTIVATIONS, "gelu": gelu_tanh}


def text_arguments(config: Config, named: Named, version: int) -> Arguments:
    """The builder's arguments of Gemma 1, 2 or 3."""
    causal = version < 3 or not config.flag("use_bidirectional_attention", False)
    if version < 3:
        config.only(use_bidirectional_attention=False)
    defaults = {1: _DEFAULTS1, 2: _DEFAULTS, 3: _DEFAULTS3}[version]
    arguments = {
        **llama.shared_arguments(config, named, defaults),
        "activation": _activation(config, version),
        "post_norm": version > 1,
        "query_key_norm": version == 3,
        "causal": causal,
        "pad_id": read_pad_id(config, named, _PAD_ID, causal),
    }
    if version == 1:
        return {**arguments, **read_rope(config)}
    if version == 3:
        config.only(attn_logit_softcapping=None)
    caps = (50.0, 30.0) if version == 2 else (None, None)
    arguments |= {
        "query_pre_attention_scalar": config.number("query_pre_attn_scalar", 256),
        "attention_logit_soft_cap": _cap(config, "attn_logit_softcapping", caps[0]),
        "final_logit_soft_cap": _cap(config, "final_logit_softcapping", caps[1]),
        "windows": _windows(config, arguments["num_layers"], version, causal),
    }
    return {**arguments, **(read_rope if version == 2 else read_rope_by_layer_type)(config)}


def _activation(config: Config, version: int) -> Activation:
    """The activation; the field of other versions may repeat it."""
    field, other = "hidden_act", "hidden_activation"
    if version > 1:
        field, other = other, field
    known = _ACTIVATIONS1 if version == 1 else ACTIVATIONS
    activation = config.activation(field, "gelu_pytorch_tanh", known)
    repeated = config.fields.get(other)
    if repeated is not None and activation not in (
        _ACTIVATIONS1.get(repeated),
        ACTIVATIONS.get(repeated),
    ):
        config.refuse(other, repeated, f"the activation in {field}")
    return activation


def _cap(config: Config, name: str, default: float | None) -> float | None:
    """A soft cap; null means none."""
    return config.number(name, None) if name in config.fields else default


def _windows(config: Config, num_layers: int, version: int, causal: bool) -> Windows:
    """The window of each block, from `layer_types` or `sliding_window_pattern`.

    Without causality the field is the number of tokens before and after, half on each side.
    """
    kinds = config.fields.get("layer_types")
    if kinds is None:
        pattern = 2 if version == 2 else config.integer("sliding_window_pattern", 6)
        kinds = [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]
    window = config.integer("sliding_window", None, minimum=1 if causal else 0)
    if "sliding_window" not in config.fields:
        window = _WINDOW
    if window is not None and not causal:
        window = window // 2 + 1
    return read_windows(config, kinds, num_layers, window)


def text_fields(model: models.Model, architecture: str, version: int) -> Fields:
    """The fields of `config.json` of Gemma 1, 2 or 3."""
    given = model.arguments
    name = activation_name(given["activation"])
    fields: Fields = {
        **llama.shared_fields(model, architecture),
        "hidden_act" if version == 1 else "hidden_activation": (
            "gelu_pytorch_tanh" if name == "gelu_new" else name
        ),
    }
    kind = "Gemma" if version == 1 else f"Gemma {version}"
    check_saved(model, kind, attention_bias=(False, True), post_norm=version > 1)
    if version < 3:
        check_saved(model, kind, local_rope_theta=None, causal=True)
        fields |= rope_fields(model)
    if version == 1:
        if name == "gelu":
            raise ValueError(
                f"{model.name}: activation must not be gelu to be saved as Gemma, since "
                "transformers reads its name as gelu_tanh there"
            )
        check_saved(
            model,
            kind,
            windows=None,
            attention_logit_soft_cap=None,
            final_logit_soft_cap=None,
            query_pre_attention_scalar=(None, given["head_dim"]),
        )
        return fields
    check_heads(model, kind)
    scalar = given["query_pre_attention_scalar"] or given["head_dim"]
    if int(scalar) != scalar:
        raise ValueError(
            f"{model.name}: query_pre_attention_scalar must be an integer to be saved as {kind}, "
            f"got {scalar}"
        )
    window, each = window_of(model)
    if not given.get("causal", True):
        fields["use_bidirectional_attention"] = True
        window = None if window is None else 2 * (window - 1)
    fields |= {
        "query_pre_attn_scalar": int(scalar),
        "attn_logit_softcapping": given.get("attention_logit_soft_cap"),
        "final_logit_softcapping": given.get("final_logit_soft_cap"),
        # transformers requires a window even if no block has one.
        "sliding_window": _WINDOW if window is None else window,
        "layer_types": [FULL if x is None else SLIDING for x in each],
    }
    if version == 3:
        check_saved(model, kind, attention_logit_soft_cap=None)
        fields |= rope_fields_by_layer_type(model, window is not None, kind)
    return fields


def _family(
    model_type: str, version: int, is_of: Callable[[models.Model], bool], name: str
) -> Family:
    return Family(
        model_type=model_type,
        builder=models.gemma,
        table=lambda model: llama.table(model, offset=1.0, post_norm=version > 1),
        arguments=partial(text_arguments, version=version),
        fields=partial(text_fields, version=version),
        architectures=architectures(
            name, name.removesuffix("Text") + "ForCausalLM", classifies_tokens=version < 3
        ),
        is_of=is_of,
        names=llama.NAMES,
    )


GEMMA3 = replace(
    _family("gemma3_text", 3, lambda model: model.arguments["query_key_norm"], "Gemma3Text"),
    names=llama.PART_NAMES,
)
GEMMA2 = _family("gemma2", 2, lambda model: model.arguments["post_norm"], "Gemma2")
GEMMA = _family("gemma", 1, lambda model: True, "Gemma")
