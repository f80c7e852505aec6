"""SigLIP and SigLIP 2 checkpoints, of both encoders or of one: tensor names and configuration.

The model type "siglip2" is NaFlex: patches of images of any shape. A model here has images of one
size, `image_size`, and the vectors that `transformers` has for their patches; the released
checkpoints of SigLIP 2 with images of one size are of the type "siglip".
"""

import math
from functools import partial
from pathlib import Path

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.transforms import Reshaped, Transposed
from keras_tfm.checkpoints.vision.clip import (
    block_rows,
    side,
    text_rows,
    tower_arguments,
    tower_fields,
)
from keras_tfm.checkpoints.vision.image_tokens import PatchMatrix
from keras_tfm.checkpoints.vision.vit import classifier
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.models.identity import tensors_of

# transformers 4 saves the ids of the positions in some versions.
_IGNORED = (r"(.*\.)?embeddings\.position_ids",)
_CLASSIFIER = "ForImageClassification"


def _image_rows(given: Arguments, prefix: str = "") -> tuple[Row, ...]:
    embeddings, attention = f"{prefix}embeddings", f"{prefix}head.attention"
    pooling, dim = "image_pooling", given["dim"]
    patches = f"{embeddings}.patch_embedding"
    kernel = convolution("image_patches/projection", patches, bias=False)
    if _is_naflex(given):
        window = (*as_pair("patch_size", given["patch_size"]), len(given["image_mean"]))
        kernel = (Row(kernel[0].weight, (f"{patches}.weight",), PatchMatrix(window)),)
    return (
        *kernel,
        Row("image_patches/projection/bias", (f"{patches}.bias",)),
        Row("image_positions/positions", (f"{embeddings}.position_embedding.weight",)),
        *block_rows("image", prefix),
        *norm("image_final_norm", f"{prefix}post_layernorm"),
        Row(f"{pooling}/probe", (f"{prefix}head.probe",), Reshaped((1, 1, dim), (1, dim))),
        Row(
            f"{pooling}/attention/query_key_value/kernel",
            (f"{attention}.in_proj_weight",),
            Transposed(),
        ),
        Row(f"{pooling}/attention/query_key_value/bias", (f"{attention}.in_proj_bias",)),
        *dense(f"{pooling}/attention/output_projection", f"{attention}.out_proj"),
        *norm(f"{pooling}/norm", f"{prefix}head.layernorm"),
        *dense(f"{pooling}/feed_forward/inner", f"{prefix}head.mlp.fc1"),
        *dense(f"{pooling}/feed_forward/outer", f"{prefix}head.mlp.fc2"),
        *dense("classifier", "classifier", head=True),
    )


def _text_rows(prefix: str = "") -> tuple[Row, ...]:
    return (*text_rows(prefix), *dense("text_projection", f"{prefix}head"))


def _table(model: models.Model) -> tuple[Row, ...]:
    scalar, given = Reshaped((1,), ()), model.arguments
    image = {**given, **(given.get("image") or {})}  # of a classifier, those of the one encoder
    image["dim"] = model.get_layer("image_final_norm").gamma.shape[0]
    return (
        *_image_rows(image, "vision_model."),
        *_text_rows("text_model."),
        Row("logit_scale/logit_scale", ("logit_scale",), scalar),
        Row("logit_bias/logit_bias", ("logit_bias",), scalar),
    )


_tower = partial(
    tower_arguments, dim=768, heads=12, width=3072, activation="gelu_pytorch_tanh", epsilon=1e-6
)


def _sizes_of_images(config: Config, naflex: bool) -> Arguments:
    patch_size = config.integer("patch_size", 16)
    if naflex:
        count = config.integer("num_patches", 256)
        if math.isqrt(count) ** 2 != count:
            config.refuse("num_patches", count, "a square number")
        image_size = math.isqrt(count) * patch_size
    else:
        image_size = config.integer("image_size", 224)
    return {"image_size": image_size, "patch_size": patch_size, **image_statistics(config)}


def _of_positions(sizes: Arguments, naflex: bool) -> Arguments:
    """The arguments that tell how positions are interpolated."""
    return {"position_size": sizes["image_size"], **({"naflex": True} if naflex else {})}


def _sizes_of_texts(config: Config) -> Arguments:
    size = config.integer("vocab_size", 32000)
    # SigLIP 2 pads with id 0 of its tokenizer, while the configuration has SigLIP's default, 1.
    pad_id = _pad_id_of_tokenizer(config.file.parent)
    if pad_id is None:
        pad_id = config.integer("pad_token_id", 1, minimum=0, maximum=size - 1)
    return {
        "vocabulary_size": size,
        "max_length": config.integer("max_position_embeddings", 64),
        "pad_id": pad_id,
    }


def _pad_id_of_tokenizer(folder: Path) -> int | None:
    """The id of the padding of the tokenizer in a folder; None if there is none, or it has none."""
    settings, file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    fields: Fields = read_json(settings) if settings.is_file() else {}
    name = fields.get("pad_token")
    name = name.get("content") if isinstance(name, dict) else name
    added = fields.get("added_tokens_decoder")
    tokens = [{**x, "id": int(i)} for i, x in added.items()] if isinstance(added, dict) else []
    if not tokens and name is not None and file.is_file():
        tokens = read_json(file).get("added_tokens", [])
    return next((x["id"] for x in tokens if x.get("content") == name), None)


def _image_arguments(config: Config, named: Named, naflex: bool = False) -> Arguments:
    sizes = _sizes_of_images(config, naflex)
    return {
        **sizes,
        **_tower(config),
        **_of_positions(sizes, naflex),
        "pooling": config.flag("vision_use_head", True),
    }


def _text_arguments(config: Config, named: Named) -> Arguments:
    return {
        **_sizes_of_texts(config),
        **_tower(config),
        "projection_dim": config.integer("projection_size", config.integer("hidden_size", 768)),
    }


def _arguments(config: Config, named: Named, naflex: bool = False) -> Arguments:
    image, text = config.part("vision_config"), config.part("text_config")
    sizes, tower = _sizes_of_images(image, naflex), _tower(image)
    if named.begins("text_model."):  # a classifier of images has none, and no use for the pooling
        image.only(vision_use_head=True)
        text.only(projection_size=tower["dim"])
        width = text.integer("projection_size", text.integer("hidden_size", 768))
        if width != tower["dim"]:
            text.refuse("hidden_size", width, f"the {tower['dim']} of vision_config")
    return {
        **sizes,
        **_sizes_of_texts(text),
        "image": {**tower, **_of_positions(sizes, naflex)},
        "text": _tower(text),
    }


def _image_fields(given: Arguments) -> Fields:
    size = given["image_size"] if given["position_size"] is None else given["position_size"]
    size, patch_size = side("image_size", size), side("patch_size", given["patch_size"])
    is_naflex = _is_naflex(given)
    known = {"num_patches": (size // patch_size) ** 2} if is_naflex else {"image_size": size}
    return {
        **tower_fields(given),
        **known,
        "patch_size": patch_size,
        "num_channels": len(given["image_mean"]),
        "vision_use_head": given["pooling"],
    }


def _text_fields(given: Arguments) -> Fields:
    width = given["projection_dim"]
    return {
        **tower_fields(given),
        "vocab_size": given["vocabulary_size"],
        "max_position_embeddings": given["max_length"],
        "pad_token_id": given["pad_id"],
        "projection_size": given["dim"] if width is None else width,
        # The defaults of transformers may exceed the vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    towers = models.clip_towers(model)
    image, text = towers["image"].arguments, towers["text"].arguments
    kind = _kind(image)
    return {
        "vision_config": {"model_type": f"{kind}_vision_model", **_image_fields(image)},
        "text_config": {"model_type": f"{kind}_text_model", **_text_fields(text)},
    }


def _kind(given: Arguments) -> str:
    """How model types begin."""
    return "siglip2" if _is_naflex(given) else "siglip"


def _fields_of_images(model: models.Model, architecture: str) -> Fields:
    fields, kind = _image_fields(model.arguments), _kind(model.arguments)
    if not architecture.endswith(_CLASSIFIER):
        return fields
    vision = {"model_type": f"{kind}_vision_model", **fields, "vision_use_head": False}
    return {"model_type": kind, "vision_config": vision, **label_fields(model)}


def _image_classifier(model: models.Model, config: Config) -> models.Model:
    """The classifier of a model of both encoders: that of images, whose vector is not used."""
    features = tensors_of(model, "features")[0]
    return classifier(models.Model(model.input["pixels"], features), config, "mean")


def _unused_tensors(model: models.Model) -> dict[str, np.ndarray]:
    """The pooling of a classifier of images, on which its logits do not depend."""
    if model.head is None or model.head.kind != "image_classifier":
        return {}
    rows = _image_rows({"dim": 1}, "vision_model.")
    names = (name for row in rows if row.weight.startswith("image_pooling") for name in row.tensors)
    return {name: np.zeros(()) for name in names}


def _of_both(name: str, naflex: bool) -> Family:
    """The type of both encoders; `name`: how the classes of transformers begin."""
    return Family(
        model_type=name.lower(),
        builder=models.siglip,
        table=_table,
        arguments=partial(_arguments, naflex=naflex),
        fields=_fields,
        architectures={
            f"{name}Model": Architecture(kind="embedding", prefixes=("logit_scale", "text_model.")),
            # Saved by the family below, as the model has the encoder of images alone.
            f"{name}{_CLASSIFIER}": Architecture(
                _image_classifier, "image_classifier", prefixes=("classifier.",)
            ),
        },
        is_of=lambda model: _is_naflex(model.arguments["image"]) is naflex,
        names=Names(ignored=_IGNORED),
        unused=_unused_tensors,
        not_saved=("image_size", "logit_scale", "logit_bias"),
    )


def _of_images(name: str, naflex: bool) -> Family:
    """The type of the encoder of images."""
    return Family(
        model_type=f"{name.lower()}_vision_model",
        builder=models.siglip_image,
        table=lambda model: _image_rows(model.arguments),
        arguments=partial(_image_arguments, naflex=naflex),
        fields=_fields_of_images,
        architectures={
            f"{name}VisionModel": Architecture(prefix="vision_model."),
            f"{name}{_CLASSIFIER}": Architecture(
                lambda model, config: classifier(model, config, "mean"),
                "image_classifier",
                {"pooling": "mean"},
                prefixes=("classifier.",),
            ),
        },
        is_of=lambda model: _is_naflex(model.arguments) is naflex,
        names=Names(prefix="vision_model.", ignored=_IGNORED),
    )


def _is_naflex(given: Arguments | None) -> bool:
    return bool((given or {}).get("naflex"))


SIGLIP, SIGLIP2 = _of_both("Siglip", naflex=False), _of_both("Siglip2", naflex=True)
SIGLIP_IMAGE, SIGLIP2_IMAGE = _of_images("Siglip", False), _of_images("Siglip2", True)
SIGLIP_TEXT = Family(
    model_type="siglip_text_model",
    builder=models.siglip_text,
    table=lambda model: _text_rows(),
    arguments=_text_arguments,
    fields=lambda model, architecture: _text_fields(model.arguments),
    architectures={"SiglipTextModel": Architecture(prefix="text_model.")},
    names=Names(prefix="text_model.", ignored=_IGNORED),
)
