"""SmolVLM, SmolVLM2 and Idefics3 checkpoints: tensor names and configuration."""

from functools import partial

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_heads, is_tied
from keras_tfm.checkpoints.decoders.llama import LLAMA_DEFAULTS, shared_arguments, shared_fields
from keras_tfm.checkpoints.decoders.llama import table as text_rows
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense
from keras_tfm.checkpoints.vision.image_tokens import (
    encoder_arguments,
    encoder_fields,
    image_rows,
    part_rows,
    read_image_id,
)

_EMBEDDINGS = "text_model.embed_tokens.weight"


def _table(model: models.Model) -> tuple[Row, ...]:
    return (
        *image_rows("vision_model."),
        *dense("connector", "connector.modality_projection.proj", bias=False),
        *part_rows(text_rows(model), "text_model."),
    )


def _check_positions(config: Config, image_size: int, patch_size: int) -> None:
    """Refuses sizes of which transformers gives a patch the position of another one.

    It finds the position of patch i of n by comparing i / n with multiples of 1 / n in float32.
    """
    count = image_size // patch_size
    if image_size % patch_size:
        config.refuse("image_size", image_size, f"a multiple of patch_size ({patch_size})")
    steps = np.arange(count) / count
    found = np.arange(count, dtype="float32") * (np.float32(1) / np.float32(count))
    if np.any(found < steps.astype("float32")):
        config.refuse(
            "image_size",
            image_size,
            f"of other than {count} patches a side, whose positions transformers rounds",
        )


def _arguments(config: Config, named: Named, idefics3: bool) -> Arguments:
    vision, text = config.part("vision_config"), config.part("text_config")
    if config.fields.get("text_config") is None:
        text.fields = {"rms_norm_eps": 1e-5}
    kind = text.text("model_type", "llama")
    if kind != "llama":
        text.refuse("text_config.model_type", kind, '"llama"')
    text.only(per_layer_config={})
    config.only(is_causal=True)
    image_size, patch_size = vision.integer("image_size", 224), vision.integer("patch_size", 32)
    _check_positions(vision, image_size, patch_size)
    arguments = shared_arguments(text, named, LLAMA_DEFAULTS)
    return {
        **arguments,
        "tie_output": is_tied(config, named, False, _EMBEDDINGS),
        "activation": text.activation("hidden_act", "silu"),
        **read_rope(text),
        "feed_forward_bias": text.flag("mlp_bias", False),
        "image_id": read_image_id(
            config, named, "image_token_id", 128257, arguments["vocabulary_size"], _EMBEDDINGS
        ),
        "image_size": image_size,
        "patch_size": patch_size,
        "scale_factor": config.integer("scale_factor", 2),
        "image": encoder_arguments(vision, dim=1152, heads=16),
        **image_statistics(vision),
        "idefics3": idefics3,
    }


def _fields(model: models.Model, architecture: str, model_type: str) -> Fields:
    given = model.arguments
    check_heads(model, model_type)
    return {
        "image_token_id": given["image_id"],
        "scale_factor": given["scale_factor"],
        "tie_word_embeddings": given["tie_output"],
        "vision_config": {"model_type": f"{model_type}_vision", **encoder_fields(model)},
        "text_config": {
            "model_type": "llama",
            **shared_fields(model, architecture),
            "hidden_act": activation_name(given["activation"]),
            **rope_fields(model),
            "mlp_bias": given["feed_forward_bias"],
            # The defaults of transformers may exceed the vocabulary.
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
    }


def _family(model_type: str, name: str) -> Family:
    idefics3 = model_type == "idefics3"
    return Family(
        model_type=model_type,
        builder=models.smolvlm,
        table=_table,
        arguments=partial(_arguments, idefics3=idefics3),
        fields=partial(_fields, model_type=model_type),
        architectures=architectures(
            name, f"{name}ForConditionalGeneration", classifies_texts=False
        ),
        is_of=lambda model: model.arguments["idefics3"] == idefics3,
        names=Names(
            prefix="model.",
            aliases={"lm_head.weight": _EMBEDDINGS},
            ignored=(r".*rotary_emb\.inv_freq",),
        ),
        not_saved=("num_images",),
    )


IDEFICS3 = _family("idefics3", "Idefics3")
SMOLVLM = _family("smolvlm", "SmolVLM")
