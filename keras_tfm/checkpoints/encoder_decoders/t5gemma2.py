"""Checkpoints of T5Gemma 2, of which the text model is read: tensor names and configuration."""

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, SLIDING, Windows, read_windows
from keras_tfm.checkpoints.decoders.rope import read_rope_by_layer_type, rope_fields_by_layer_type
from keras_tfm.checkpoints.encoder_decoders.t5gemma import (
    CLASSIFIER,
    OUTPUT,
    WINDOW,
    check_equal_fields,
    classifier_fields,
    classifiers,
    own_fields,
    read_cap,
    read_ids,
    read_sizes,
    shared_fields,
    stack_fields,
    stack_rows,
)
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm

# transformers always makes a vision tower. That of a saved folder has one patch and no blocks.
_VISION: Fields = {
    "model_type": "siglip_vision_model", "hidden_size": 1, "num_hidden_layers": 0,
    "num_attention_heads": 1, "intermediate_size": 1, "image_size": 1, "patch_size": 1,
    "num_channels": 3, "vision_use_head": False,
}  # fmt: skip


def table(model: models.Model) -> tuple[Row, ...]:
    """A row for each tensor."""
    sublayers = {"self_attention": "self_attn", "feed_forward": "feedforward"}
    rows = [Row("embedding/embeddings", ("encoder.embed_tokens.weight",))]
    for stack in ("encoder", "decoder"):
        path, tensor = f"{stack}_{{i}}/self_attention", f"{stack}.layers.{{i}}.self_attn"
        rows += stack_rows(model, stack, sublayers)
        for name, short in (("query", "q"), ("key", "k")):
            rows += rms_norm(f"{path}/{name}_norm", f"{tensor}.{short}_norm", 1.0)
    for name in ("query", "key", "value"):  # of merged attention, which is not fused
        tensor = f"decoder.layers.{{i}}.self_attn.{name[0]}_proj"
        rows += dense(f"decoder_{{i}}/self_attention/{name}", tensor)
    return (*rows, *CLASSIFIER)


def _unused_tensors(model: models.Model) -> dict[str, np.ndarray]:
    """The vision tower of one patch, its projection, and the embedding of an image's end."""
    dim, tower = model.arguments["dim"], "encoder.vision_tower"
    shapes = {
        "encoder.embed_tokens.eoi_embedding": (dim,),
        f"{tower}.embeddings.patch_embedding.weight": (1, 3, 1, 1),
        f"{tower}.embeddings.patch_embedding.bias": (1,),
        f"{tower}.embeddings.position_embedding.weight": (1, 1),
        f"{tower}.post_layernorm.weight": (1,),
        f"{tower}.post_layernorm.bias": (1,),
        "encoder.multi_modal_projector.mm_input_projection_weight": (1, dim),
        "encoder.multi_modal_projector.mm_soft_emb_norm.weight": (1,),
    }
    return {name: np.zeros(shape, "float32") for name, shape in shapes.items()}


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_encoder_decoder=True, tie_word_embeddings=True)
    encoder, decoder = config.part("encoder").part("text_config"), config.part("decoder")
    decoder.only(is_causal=True)
    first, second = _equal_fields(encoder), _equal_fields(decoder)
    check_equal_fields(decoder, first, second)
    sizes = read_sizes(encoder, decoder)
    if sizes["dim"] != sizes.pop("decoder_dim"):
        decoder.refuse("decoder.hidden_size", decoder.fields.get("hidden_size"), sizes["dim"])
    rope = first["rope_parameters"]
    if rope["local_rope_theta"] is None:  # the same in all blocks
        rope = {**rope, "local_rope_theta": rope["rope_theta"]}
        if rope["rope_scaling"] is not None:
            encoder.refuse("rope_parameters", encoder.fields.get("rope_parameters"), (
                f"without scaling in {SLIDING}"
            ))  # fmt: skip
    return {
        **sizes,
        **read_ids(config, encoder, decoder, first["vocab_size"]),
        "vocabulary_size": first["vocab_size"],
        "head_dim": first["head_dim"],
        "activation": first["hidden_activation"],
        "rms_norm_epsilon": first["rms_norm_eps"],
        **rope,
        "windows": _windows(encoder, sizes["num_layers"]),
        "decoder_windows": _windows(decoder, sizes["decoder_num_layers"]),
        "query_pre_attention_scalar": first["query_pre_attn_scalar"],
        # transformers does not read attn_logit_softcapping here.
        "final_logit_soft_cap": read_cap(decoder, "final_logit_softcapping", None),
        "attention_bias": first["attention_bias"],
        "dropout": config.number("dropout_rate", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "max_length": decoder.integer("max_position_embeddings", 131072),
    }


def _equal_fields(config: Config) -> Arguments:
    """The values that must be equal in both stacks, by field."""
    return {
        "vocab_size": config.integer("vocab_size", 262208),
        "head_dim": config.integer("head_dim", 256),
        "hidden_activation": config.activation("hidden_activation", "gelu_pytorch_tanh"),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
        "query_pre_attn_scalar": config.number("query_pre_attn_scalar", 256),
        "attention_bias": config.flag("attention_bias", False),
        "rope_parameters": read_rope_by_layer_type(config),
    }


def _windows(config: Config, num_layers: int) -> Windows:
    """The window of each block."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        pattern = config.integer("sliding_window_pattern", 6)
        kinds = [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]
    window = config.integer("sliding_window", None)
    if "sliding_window" not in config.fields:
        window = WINDOW
    return read_windows(config, kinds, num_layers, window)


def _fields(model: models.Model, architecture: str) -> Fields:
    given, kind = model.arguments, "T5Gemma 2"
    has_windows = any(given[x] is not None for x in ("windows", "decoder_windows"))
    shared = {**shared_fields(model), **rope_fields_by_layer_type(model, has_windows, kind)}
    text = {**shared, **stack_fields(model, ""), "model_type": "t5gemma2_text"}
    encoder = {
        "model_type": "t5gemma2_encoder", "text_config": text, "vision_config": _VISION,
        "mm_tokens_per_image": 1,
    }  # fmt: skip
    decoder = {**shared, **stack_fields(model, "decoder_"), "model_type": "t5gemma2_decoder"}
    return {
        "encoder": encoder,
        "decoder": decoder,
        "is_encoder_decoder": True,
        **own_fields(model),
        **classifier_fields(model, architecture),
    }


T5GEMMA2 = Family(
    model_type="t5gemma2",
    builder=models.t5gemma2,
    table=table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "T5Gemma2ForConditionalGeneration": Architecture(kind="language_model"),
        "T5Gemma2Model": Architecture(lambda model, config: models.backbone(model)),
        **classifiers("T5Gemma2", whole=True),
    },
    names=Names(
        prefix="model.",
        aliases={
            OUTPUT: "encoder.embed_tokens.weight",
            "decoder.embed_tokens.weight": "encoder.embed_tokens.weight",
        },
        ignored=(
            r"encoder\.(vision_tower|multi_modal_projector)\..*",
            r".*\.eoi_embedding",
            r".*rotary_emb\..*",
        ),
        # transformers has the first name in memory and saves the second.
        renamed={r"^encoder\.text_model\.": "encoder."},
        modules={r"\bencoder\.(layers|norm|embed_tokens)\.": r"encoder.text_model.\1."},
    ),
    unused=_unused_tensors,
    aliases={"image_token_id": "image_token_index", "eoi_token_id": "eoi_token_index"},
)
