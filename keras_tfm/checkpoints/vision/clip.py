"""CLIP checkpoints, of both encoders or of one: tensor names and configuration."""

from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.transforms import Reshaped
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.models.vision.clip_encoders import MEAN, STD

# Before version 4.24 or so, transformers saved the ids of the positions.
_IGNORED = (r"(.*\.)?embeddings\.position_ids",)
# The first level of names in files of the TensorFlow classes.
_OF_TENSORFLOW = r"^clip\."
# The end id in the configurations of OpenAI's models, which their tokenizer does not have: the end
# token is the one with the largest id.
_LARGEST = 2


def block_rows(tower: str, prefix: str) -> tuple[Row, ...]:
    """The rows of the blocks of the encoder "image" or "text"."""
    ours, theirs = f"{tower}_encoder_{{i}}", f"{prefix}encoder.layers.{{i}}"
    names = (f"{theirs}.self_attn.{x}_proj" for x in ("q", "k", "v"))
    return (
        *norm(f"{ours}/self_attention_residual/norm", f"{theirs}.layer_norm1"),
        *dense(f"{ours}/self_attention/query_key_value", *names),
        *dense(f"{ours}/self_attention/output_projection", f"{theirs}.self_attn.out_proj"),
        *norm(f"{ours}/feed_forward_residual/norm", f"{theirs}.layer_norm2"),
        *dense(f"{ours}/feed_forward/inner", f"{theirs}.mlp.fc1"),
        *dense(f"{ours}/feed_forward/outer", f"{theirs}.mlp.fc2"),
    )


def _image_rows(dim: int, prefix: str = "") -> tuple[Row, ...]:
    embeddings, token = f"{prefix}embeddings", Reshaped((dim,), (1, dim))
    return (
        *convolution("image_patches/projection", f"{embeddings}.patch_embedding", bias=False),
        Row("image_prefix/tokens", (f"{embeddings}.class_embedding",), token),
        Row("image_positions/positions", (f"{embeddings}.position_embedding.weight",)),
        *norm("image_embedding_norm", f"{prefix}pre_layrnorm"),
        *block_rows("image", prefix),
        *norm("image_final_norm", f"{prefix}post_layernorm"),
        *dense("image_projection", "visual_projection", bias=False, head=True),
    )


def text_rows(prefix: str) -> tuple[Row, ...]:
    """The rows of an encoder of texts, without its projection."""
    embeddings = f"{prefix}embeddings"
    return (
        Row("text_embedding/embeddings", (f"{embeddings}.token_embedding.weight",)),
        Row("text_positions/positions", (f"{embeddings}.position_embedding.weight",)),
        *block_rows("text", prefix),
        *norm("text_final_norm", f"{prefix}final_layer_norm"),
    )


def _text_rows(prefix: str = "") -> tuple[Row, ...]:
    projection = dense("text_projection", "text_projection", bias=False, head=True)
    return (*text_rows(prefix), *projection)


def _table(model: models.Model) -> tuple[Row, ...]:
    return (
        *_image_rows(model.get_layer("image_final_norm").gamma.shape[0], "vision_model."),
        *_text_rows("text_model."),
        Row("logit_scale/logit_scale", ("logit_scale",)),
    )


def tower_arguments(
    config: Config, dim: int, heads: int, width: int, activation: str, epsilon: float
) -> Arguments:
    """The arguments that both encoders have, with the defaults of transformers."""
    return {
        "dim": config.integer("hidden_size", dim),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", heads),
        "intermediate_dim": config.integer("intermediate_size", width),
        "dropout": config.number("dropout", 0.0, 1),  # our own field
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation": config.activation("hidden_act", activation),
        "layer_norm_epsilon": config.number("layer_norm_eps", epsilon),
    }


_image_tower = partial(
    tower_arguments, dim=768, heads=12, width=3072, activation="quick_gelu", epsilon=1e-5
)
_text_tower = partial(_image_tower, dim=512, heads=8, width=2048)


def _sizes_of_images(config: Config) -> Arguments:
    return {
        "image_size": config.size("image_size", 224),
        "patch_size": config.size("patch_size", 32),
        **image_statistics(config, MEAN, STD),
    }


def _sizes_of_texts(config: Config) -> Arguments:
    config.only(is_causal=True)
    size = config.integer("vocab_size", 49408)
    if isinstance(config.fields.get("eos_token_id"), list):
        expected = "one id, as the vector of a text is that of its end token"
        config.refuse("eos_token_id", config.fields["eos_token_id"], expected)
    end_id = config.integer("eos_token_id", 49407, minimum=0, maximum=size - 1)
    return {
        "vocabulary_size": size,
        "max_length": config.integer("max_position_embeddings", 77),
        "end_id": None if end_id == _LARGEST else end_id,
    }


def _image_arguments(config: Config, named: Named) -> Arguments:
    projects = named.begins("visual_projection.")
    size = config.size("image_size", 224)
    return {
        **_sizes_of_images(config),
        **_image_tower(config),
        "position_size": size,
        "projection_dim": config.integer("projection_dim", 512) if projects else None,
    }


def _text_arguments(config: Config, named: Named) -> Arguments:
    projects = named.begins("text_projection.")
    return {
        **_sizes_of_texts(config),
        **_text_tower(config),
        "projection_dim": config.integer("projection_dim", 512) if projects else None,
    }


def _encoder_config(config: Config, name: str) -> Config:
    """The fields of an encoder; a dictionary of an older name, which older files have, wins."""
    older = f"{name}_dict"
    return config.part(name if config.fields.get(older) is None else older)


def _arguments(config: Config, named: Named) -> Arguments:
    image, text = (_encoder_config(config, name) for name in ("vision_config", "text_config"))
    sizes = _sizes_of_images(image)
    return {
        **sizes,
        **_sizes_of_texts(text),
        "projection_dim": config.integer("projection_dim", 512),
        "image": {**_image_tower(image), "position_size": sizes["image_size"]},
        "text": _text_tower(text),
        "logit_scale": config.number("logit_scale_init_value", 2.6592),
    }


def tower_fields(given: Arguments) -> Fields:
    """The fields that both encoders have."""
    return {
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "dropout": given["dropout"],
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
    }


def _tower_fields(given: Arguments) -> Fields:
    width = given["projection_dim"]
    return {**tower_fields(given), **({} if width is None else {"projection_dim": width})}


def _image_fields(given: Arguments) -> Fields:
    size = given["image_size"] if given["position_size"] is None else given["position_size"]
    return {
        **_tower_fields(given),
        "image_size": side("image_size", size),
        "patch_size": side("patch_size", given["patch_size"]),
        "num_channels": len(given["image_mean"]),
    }


def side(name: str, value: int | tuple[int, int]) -> int:
    """The edge of a square: `transformers` has no other images for CLIP and SigLIP."""
    height, width = as_pair(name, value)
    if height != width:
        raise ValueError(
            f"{name} must be square to be saved, as transformers has no other model, got "
            f"{(height, width)}"
        )
    return height


def _text_fields(given: Arguments) -> Fields:
    end_id = given["end_id"]
    if end_id == _LARGEST:
        raise ValueError(
            f"end_id must not be {_LARGEST} to be saved: transformers takes it for OpenAI's "
            "configurations, and pools the largest id; use another id, or end_id=None and an end "
            "token of the largest id"
        )
    return {
        **_tower_fields(given),
        "vocab_size": given["vocabulary_size"],
        "max_position_embeddings": given["max_length"],
        "eos_token_id": _LARGEST if end_id is None else end_id,
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    towers = models.clip_towers(model)
    return {
        "vision_config": {
            "model_type": "clip_vision_model",
            **_image_fields(towers["image"].arguments),
        },
        "text_config": {"model_type": "clip_text_model", **_text_fields(towers["text"].arguments)},
        "projection_dim": model.arguments["projection_dim"],
        "logit_scale_init_value": model.arguments["logit_scale"],
    }


def _architectures(name: str, projection: str) -> dict[str, Architecture]:
    return {
        name: Architecture(),
        f"{name}WithProjection": Architecture(kind="embedding", prefixes=(projection,)),
    }


CLIP = Family(
    model_type="clip",
    builder=models.clip,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={"CLIPModel": Architecture(kind="embedding")},
    names=Names(ignored=_IGNORED, renamed={_OF_TENSORFLOW: ""}),
)
CLIP_IMAGE = Family(
    model_type="clip_vision_model",
    builder=models.clip_image,
    table=lambda model: _image_rows(model.arguments["dim"]),
    arguments=_image_arguments,
    fields=lambda model, architecture: _image_fields(model.arguments),
    architectures=_architectures("CLIPVisionModel", "visual_projection."),
    names=Names(
        prefix="vision_model.",
        ignored=_IGNORED,
        renamed={rf"{_OF_TENSORFLOW}vision_model\.": ""},
    ),
)
CLIP_TEXT = Family(
    model_type="clip_text_model",
    builder=models.clip_text,
    table=lambda model: _text_rows(),
    arguments=_text_arguments,
    fields=lambda model, architecture: _text_fields(model.arguments),
    architectures=_architectures("CLIPTextModel", "text_projection."),
    names=Names(
        prefix="text_model.",
        ignored=_IGNORED,
        renamed={rf"{_OF_TENSORFLOW}text_model\.": ""},
    ),
)
