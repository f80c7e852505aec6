"""DINOv2 checkpoints, with and without registers: tensor names, configuration and heads."""

from dataclasses import replace

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.vision.vit import (
    NEW_ATTENTION,
    embedding_rows,
    vision_arguments,
    vision_fields,
)
from keras_tfm.layers.images.patch_embedding import as_pair

_LAYER = "encoder.layer.{i}"
_QKV = tuple(f"{_LAYER}.attention.attention.{x}" for x in ("query", "key", "value"))


def table(model: models.Model) -> tuple[Row, ...]:
    """The table, of a model with or without registers."""
    inner, outer = ("weights_in", "weights_out") if model.arguments["gated"] else ("fc1", "fc2")
    attention, feed_forward = "encoder_{i}/self_attention", "encoder_{i}/feed_forward"
    return (
        *embedding_rows(model.arguments),
        *norm(f"{attention}_residual/norm", f"{_LAYER}.norm1"),
        *dense(f"{attention}/query_key_value", *_QKV),
        *dense(f"{attention}/output_projection", f"{_LAYER}.attention.output.dense"),
        Row(f"{attention}_residual/scale", (f"{_LAYER}.layer_scale1.lambda1",)),
        *norm(f"{feed_forward}_residual/norm", f"{_LAYER}.norm2"),
        *dense(f"{feed_forward}/inner", f"{_LAYER}.mlp.{inner}"),
        *dense(f"{feed_forward}/outer", f"{_LAYER}.mlp.{outer}"),
        Row(f"{feed_forward}_residual/scale", (f"{_LAYER}.layer_scale2.lambda1",)),
        *norm("final_norm", "layernorm"),
        *dense("classifier", "classifier", head=True),
    )


def _width(dim: int, ratio: int, gated: bool) -> int:
    """The inner width of a feed-forward network; 2/3 of it, in steps of 8, if it is gated."""
    return -(-(dim * ratio * 2 // 3) // 8) * 8 if gated else dim * ratio


def arguments(config: Config, named: Named) -> Arguments:
    """The arguments of `vit`."""
    # The family with registers, also with 0 of them, has another patch size and antialiasing.
    registers = config.text("model_type", None) != "dinov2"
    shared = vision_arguments(config, 16 if registers else 14)
    if len({*as_pair("image_size", shared["image_size"])}) > 1:
        # transformers takes the table of positions for a square, whatever the size is.
        config.refuse("image_size", shared["image_size"], "a square")
    gated = config.flag("use_swiglu_ffn", False)
    if gated:
        shared["activation"] = "silu"  # whatever hidden_act says
    return {
        **shared,
        "intermediate_dim": _width(shared["dim"], config.integer("mlp_ratio", 4), gated),
        "gated": gated,
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-6),
        "layer_scale": config.number("layerscale_value", 1.0),
        "drop_path": config.number("drop_path_rate", 0.0, 1),
        "num_registers": config.integer("num_register_tokens", 4, minimum=0) if registers else 0,
        "antialias": registers,
    }


def _is_dinov2(model: models.Model) -> bool:
    given = model.arguments
    has_table = given.get("max_wavelength") is None and isinstance(given["attention_bias"], bool)
    return given["layer_scale"] is not None and has_table


def _of_registers(model: models.Model) -> bool:
    """Whether a model is of the family with registers, which may have 0 of them."""
    return bool(model.arguments.get("num_registers") or model.arguments.get("antialias"))


def fields(model: models.Model, architecture: str) -> Fields:
    """The fields of `config.json`."""
    given = model.arguments
    shared = vision_fields(given)
    if len({*as_pair("image_size", shared["image_size"])}) > 1:
        raise ValueError(
            f"{model.name}: a DINOv2 checkpoint has positions of a square, got image_size "
            f"{shared['image_size']}"
        )
    dim, width, gated = given["dim"], given["intermediate_dim"], given["gated"]
    ratios = [x for x in range(1, 33) if _width(dim, x, gated) == width]
    if not ratios:
        raise ValueError(
            f"{model.name}: a DINOv2 checkpoint has an intermediate_dim that is a multiple of dim "
            f"({dim})" + (", 2/3 of it in steps of 8" if gated else "") + f", got {width}"
        )
    found = {
        **shared,
        "mlp_ratio": ratios[0],
        "use_swiglu_ffn": gated,
        "layerscale_value": given["layer_scale"],
        "drop_path_rate": given["drop_path"],
        **(label_fields(model) if "Classification" in architecture else {}),
    }
    if _of_registers(model):
        return {**found, "num_register_tokens": given["num_registers"]}
    return {**found, "use_mask_token": False}


def unread_tokens(model: models.Model, mask_axes: int = 2) -> dict[str, np.ndarray]:
    """The token of masked patches and 0 registers: `transformers` expects what this model lacks."""
    dim = model.arguments["dim"]
    mask = np.zeros((*(1,) * (mask_axes - 1), dim), "float32")
    tokens = {"embeddings.mask_token": mask}
    if not model.arguments["num_registers"]:
        tokens["embeddings.register_tokens"] = np.zeros((1, 0, dim), "float32")
    return tokens


DINOV2 = Family(
    model_type="dinov2",
    builder=models.vit,
    table=table,
    arguments=arguments,
    fields=fields,
    architectures={
        "Dinov2Model": Architecture(),
        "Dinov2ForImageClassification": heads.image_classifier("first_and_mean", "classifier."),
    },
    is_of=lambda model: _is_dinov2(model) and not _of_registers(model),
    # Training with masked patches is not supported, so the token for them is left out.
    names=Names(prefix="dinov2.", ignored=(r"embeddings\.mask_token",), renamed=NEW_ATTENTION),
)
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    architectures={
        name.replace("Dinov2", "Dinov2WithRegisters"): architecture
        for name, architecture in DINOV2.architectures.items()
    },
    is_of=lambda model: _is_dinov2(model) and _of_registers(model),
    names=Names(
        prefix="dinov2_with_registers.",
        ignored=(r"embeddings\.mask_token",),
        renamed=NEW_ATTENTION,
    ),
    constants=unread_tokens,
)
