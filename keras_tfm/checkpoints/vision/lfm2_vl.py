"""LFM2-VL checkpoints: tensor names and configuration."""

import math

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, is_tied
from keras_tfm.checkpoints.decoders.lfm2 import table as text_rows
from keras_tfm.checkpoints.decoders.lfm2 import text_arguments, text_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.image_settings import image_statistics, read_settings
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.vision.image_tokens import (
    encoder_arguments,
    encoder_fields,
    image_rows,
    part_rows,
    read_image_id,
)
from keras_tfm.layers.images.patch_embedding import as_pair

_TEXT, _VISION, _CONNECTOR = (
    "language_model.",
    "vision_tower.vision_model.",
    "multi_modal_projector",
)
_EMBEDDINGS = f"{_TEXT}embed_tokens.weight"


def _table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    height, width = as_pair("patch_size", given["patch_size"])
    return (
        *image_rows(_VISION, (height, width, len(given["image_mean"]))),
        *norm("projector_norm", f"{_CONNECTOR}.layer_norm"),
        *dense("projector", f"{_CONNECTOR}.linear_1"),
        *dense("connector", f"{_CONNECTOR}.linear_2"),
        *part_rows(text_rows(model), _TEXT),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    config.rename({"tie_embedding": "tie_word_embeddings"})
    vision, text = config.part("vision_config"), config.part("text_config")
    for part, kind in ((vision, "siglip2_vision_model"), (text, "lfm2")):
        part.only(model_type=kind, per_layer_config={})
    arguments = text_arguments(text, named)
    patch_size, count = vision.integer("patch_size", 16), vision.integer("num_patches", 256)
    if math.isqrt(count) ** 2 != count:
        vision.refuse("num_patches", count, "a square number")
    position_size = math.isqrt(count) * patch_size
    settings = read_settings(config.file.parent, "image_processor")[1]
    return {
        **arguments,
        "tie_output": is_tied(config, named, True, _EMBEDDINGS),
        "image_id": read_image_id(
            config, named, "image_token_id", 396, arguments["vocabulary_size"], _EMBEDDINGS
        ),
        "image_size": settings.get("tile_size", position_size),
        "patch_size": patch_size,
        "position_size": position_size,
        "downsample_factor": config.integer("downsample_factor", 2),
        "projector_dim": config.integer("projector_hidden_size", 2560),
        "projector_activation": config.activation("projector_hidden_act", "gelu"),
        "projector_norm": config.flag("projector_use_layernorm", True),
        "projector_bias": config.flag("projector_bias", True),
        "image": encoder_arguments(vision),
        **image_statistics(vision),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        "image_token_id": given["image_id"],
        "downsample_factor": given["downsample_factor"],
        "projector_hidden_size": given["projector_dim"],
        "projector_hidden_act": activation_name(given["projector_activation"]),
        "projector_use_layernorm": given["projector_norm"],
        "projector_bias": given["projector_bias"],
        "tie_word_embeddings": given["tie_output"],
        "vision_config": {
            "model_type": "siglip2_vision_model",
            **encoder_fields(model),
            "vision_use_head": False,
        },
        "text_config": {
            "model_type": "lfm2",
            **text_fields(model, architecture),
            "bos_token_id": None,
            "eos_token_id": None,
        },
    }


LFM2_VL = Family(
    model_type="lfm2_vl",
    builder=models.lfm2_vl,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Lfm2Vl", "Lfm2VlForConditionalGeneration", classifies_texts=False),
    names=Names(
        prefix="model.",
        aliases={"lm_head.weight": _EMBEDDINGS},
        ignored=(r".*rotary_emb\.inv_freq", r"vision_tower\.vision_model\.head\..*"),
        # A name of version 5 of transformers.
        renamed={r"^vision_tower\.(?!vision_model\.)": _VISION},
        modules={r"vision_tower\.vision_model\.": "vision_tower."},
    ),
    not_saved=("num_images", "image_size"),
)
