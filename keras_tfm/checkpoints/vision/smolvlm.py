"""SmolVLM, SmolVLM2 and Idefics3 checkpoints: tensor names and configuration."""

import dataclasses
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
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.vision.clip import block_rows, side
from keras_tfm.models.vision.smolvlm import image_encoder_arguments

_EMBEDDINGS = "text_model.embed_tokens.weight"


def _table(model: models.Model) -> tuple[Row, ...]:
    vision = "vision_model."
    return (
        *convolution("image_patches/projection", f"{vision}embeddings.patch_embedding"),
        Row("image_positions/positions", (f"{vision}embeddings.position_embedding.weight",)),
        *block_rows("image", vision),
        *norm("image_final_norm", f"{vision}post_layernorm"),
        *dense("connector", "connector.modality_projection.proj", bias=False),
        *(
            row
            if row.head
            else dataclasses.replace(row, tensors=tuple(f"text_model.{x}" for x in row.tensors))
            for row in text_rows(model)
        ),
    )


def _vision_arguments(config: Config) -> Arguments:
    """The arguments of the image encoder, with the defaults of transformers."""
    return {
        "dim": config.integer("hidden_size", 1152),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 16),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "activation": config.activation("hidden_act", "gelu_pytorch_tanh"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-6),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
    }


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
    image_id = config.integer("image_token_id", 128257, minimum=0)
    if _EMBEDDINGS in named.own and image_id >= arguments["vocabulary_size"]:
        expected = f"an id of the vocabulary, 0 to {arguments['vocabulary_size'] - 1}"
        config.refuse("image_token_id", image_id, expected)
    return {
        **arguments,
        "tie_output": is_tied(config, named, False, _EMBEDDINGS),
        "activation": text.activation("hidden_act", "silu"),
        **read_rope(text),
        "feed_forward_bias": text.flag("mlp_bias", False),
        "image_id": image_id,
        "image_size": image_size,
        "patch_size": patch_size,
        "scale_factor": config.integer("scale_factor", 2),
        "image": _vision_arguments(vision),
        **image_statistics(vision),
        "idefics3": idefics3,
    }


def _vision_fields(model: models.Model) -> Fields:
    given = model.arguments
    tower = image_encoder_arguments(given["image"])
    return {
        "hidden_size": tower["dim"],
        "num_hidden_layers": tower["num_layers"],
        "num_attention_heads": tower["num_heads"],
        "intermediate_size": tower["intermediate_dim"],
        "hidden_act": activation_name(tower["activation"]),
        "layer_norm_eps": tower["layer_norm_epsilon"],
        "attention_dropout": tower["attention_dropout"],
        "image_size": side("image_size", given["image_size"]),
        "patch_size": side("patch_size", given["patch_size"]),
        "num_channels": len(given["image_mean"]),
    }


def _fields(model: models.Model, architecture: str, model_type: str) -> Fields:
    given = model.arguments
    check_heads(model, model_type)
    return {
        "image_token_id": given["image_id"],
        "scale_factor": given["scale_factor"],
        "tie_word_embeddings": given["tie_output"],
        "vision_config": {"model_type": f"{model_type}_vision", **_vision_fields(model)},
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
