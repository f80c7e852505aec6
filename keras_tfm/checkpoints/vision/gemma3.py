"""Gemma 3 checkpoints with pictures: tensor names and configuration."""

import math

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, is_tied
from keras_tfm.checkpoints.decoders.gemma import text_arguments, text_fields
from keras_tfm.checkpoints.decoders.llama import table as text_rows
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, rms_norm
from keras_tfm.checkpoints.vision.clip import side
from keras_tfm.checkpoints.vision.image_tokens import (
    encoder_arguments,
    encoder_fields,
    image_rows,
    part_rows,
    read_image_id,
)

_TEXT, _VISION, _CONNECTOR = (
    "language_model.",
    "vision_tower.vision_model.",
    "multi_modal_projector",
)
_CAP = "final_logit_soft_cap"
_EMBEDDINGS = f"{_TEXT}embed_tokens.weight"
# Names of versions 4 and 5 of transformers.
_NAMES = Names(
    prefix="model.",
    aliases={"lm_head.weight": _EMBEDDINGS},
    ignored=(r".*rotary_emb\.inv_freq", r"vision_tower\.vision_model\.head\..*"),
    renamed={
        r"^language_model\.model\.": _TEXT,
        r"^language_model\.lm_head\.": "lm_head.",
        r"^vision_tower\.(?!vision_model\.)": _VISION,
    },
    modules={r"vision_tower\.vision_model\.": "vision_tower."},
)


def _table(model: models.Model) -> tuple[Row, ...]:
    return (
        *image_rows(_VISION),
        *rms_norm("connector_norm", f"{_CONNECTOR}.mm_soft_emb_norm", 1.0),
        Row("connector/kernel", (f"{_CONNECTOR}.mm_input_projection_weight",)),
        *part_rows(text_rows(model, offset=1.0, post_norm=True), _TEXT),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    vision, text = config.part("vision_config"), config.part("text_config")
    for part, kind in ((vision, "siglip_vision_model"), (text, "gemma3_text")):
        part.only(model_type=kind, per_layer_config={})
    text.only(use_bidirectional_attention=False)
    config.only(is_causal=True)
    arguments = text_arguments(text, named, version=3)
    # transformers caps no logits of this class.
    for name in ("post_norm", "query_key_norm", "causal", "attention_logit_soft_cap", _CAP):
        del arguments[name]
    image_size, patch_size = vision.integer("image_size", 224), vision.integer("patch_size", 16)
    rows, features = image_size // patch_size, config.integer("mm_tokens_per_image", 256)
    root = math.isqrt(features)
    if _EMBEDDINGS in named.own and (root**2 != features or rows < root or rows % root):
        config.refuse(
            "mm_tokens_per_image",
            features,
            f"the square of a divisor of image_size // patch_size of vision_config, {rows}",
        )
    return {
        **arguments,
        "tie_output": is_tied(config, named, True, _EMBEDDINGS),
        "image_id": read_image_id(
            config, named, "image_token_index", 262144, arguments["vocabulary_size"], _EMBEDDINGS
        ),
        "image_size": image_size,
        "patch_size": patch_size,
        "pool_size": rows // root,
        "image": encoder_arguments(vision),
        **image_statistics(vision),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    rows = side("image_size", given["image_size"]) // side("patch_size", given["patch_size"])
    return {
        "image_token_index": given["image_id"],
        "mm_tokens_per_image": (rows // given["pool_size"]) ** 2,
        "tie_word_embeddings": given["tie_output"],
        "vision_config": {
            "model_type": "siglip_vision_model",
            **encoder_fields(model),
            "vision_use_head": False,
        },
        "text_config": {
            "model_type": "gemma3_text",
            **text_fields(model, architecture, version=3),
            # The defaults of transformers may exceed the vocabulary.
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
    }


GEMMA3 = Family(
    model_type="gemma3",
    builder=models.gemma3,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Gemma3", "Gemma3ForConditionalGeneration", classifies_texts=False),
    names=_NAMES,
    aliases={
        "image_token_id": "image_token_index",
        "boi_token_id": "boi_token_index",
        "eoi_token_id": "eoi_token_index",
    },
    not_saved=("num_images",),
)
