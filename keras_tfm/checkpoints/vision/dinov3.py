"""DINOv3 checkpoints of Vision Transformers: tensor names and configuration."""

from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.transforms import Reshaped
from keras_tfm.checkpoints.vision.dinov2 import unread_tokens

_LAYER = "layer.{i}"
# By projection: the name of its tensor and the field that says whether it has a bias.
_PROJECTIONS = {
    "query": ("q_proj", "query_bias", True),
    "key": ("k_proj", "key_bias", False),
    "value": ("v_proj", "value_bias", True),
}


def _table(model: models.Model) -> tuple[Row, ...]:
    dim = model.arguments["dim"]
    attention, feed_forward = "encoder_{i}/self_attention", "encoder_{i}/feed_forward"
    tensors = {x: f"{_LAYER}.attention.{name}" for x, (name, *_) in _PROJECTIONS.items()}
    inner = ("gate_proj", "up_proj") if model.arguments["gated"] else ("up_proj",)
    return (
        *convolution("patches/projection", "embeddings.patch_embeddings"),
        Row("prefix/tokens", ("embeddings.cls_token",), Reshaped((1, 1, dim), (1, dim))),
        Row("registers/tokens", ("embeddings.register_tokens",), Reshaped((1, -1, dim), (-1, dim))),
        *norm(f"{attention}_residual/norm", f"{_LAYER}.norm1"),
        # The fused projection exists if all three have a bias, or if all three have none.
        *dense(f"{attention}/query_key_value", *tensors.values()),
        *(row for name, tensor in tensors.items() for row in dense(f"{attention}/{name}", tensor)),
        *dense(f"{attention}/output_projection", f"{_LAYER}.attention.o_proj"),
        Row(f"{attention}_residual/scale", (f"{_LAYER}.layer_scale1.lambda1",)),
        *norm(f"{feed_forward}_residual/norm", f"{_LAYER}.norm2"),
        *dense(f"{feed_forward}/inner", *(f"{_LAYER}.mlp.{x}" for x in inner)),
        *dense(f"{feed_forward}/outer", f"{_LAYER}.mlp.down_proj"),
        Row(f"{feed_forward}_residual/scale", (f"{_LAYER}.layer_scale2.lambda1",)),
        *norm("final_norm", "norm"),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(proj_bias=True, mlp_bias=True)
    biased = [
        name for name, (_, field, default) in _PROJECTIONS.items() if config.flag(field, default)
    ]
    return {
        "image_size": config.size("image_size", 224),
        "patch_size": config.size("patch_size", 16),
        "dim": config.integer("hidden_size", 384),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 6),
        "intermediate_dim": config.integer("intermediate_size", 1536),
        "dropout": 0.0,
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "drop_path": config.number("drop_path_rate", 0.0, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "gated": config.flag("use_gated_mlp", False),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        "layer_scale": config.number("layerscale_value", 1.0),
        "attention_bias": len(biased) == 3 if len(biased) in (0, 3) else biased,
        "num_registers": config.integer("num_register_tokens", 0, minimum=0),
        "max_wavelength": config.number("rope_theta", 100.0),
        **image_statistics(config),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    if given["dropout"]:
        raise ValueError(
            f"{model.name}: a DINOv3 checkpoint has no dropout of sublayers, got {given['dropout']}"
        )
    bias, attention = given["attention_bias"], given["attention_dropout"]
    biased = (_PROJECTIONS if bias else ()) if isinstance(bias, bool) else bias
    return {
        "image_size": given["image_size"],
        "patch_size": given["patch_size"],
        "num_channels": len(given["image_mean"]),
        "hidden_size": given["dim"],
        "intermediate_size": given["intermediate_dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "hidden_act": activation_name(given["activation"]),
        "attention_dropout": attention or 0.0,
        "drop_path_rate": given["drop_path"],
        "layer_norm_eps": given["layer_norm_epsilon"],
        "layerscale_value": given["layer_scale"],
        "use_gated_mlp": given["gated"],
        "num_register_tokens": given["num_registers"],
        "rope_theta": given["max_wavelength"],
        **{field: name in biased for name, (_, field, _) in _PROJECTIONS.items()},
    }


DINOV3 = Family(
    model_type="dinov3_vit",
    builder=models.vit,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={"DINOv3ViTModel": Architecture()},
    is_of=lambda model: (
        model.arguments.get("max_wavelength") is not None
        and model.arguments["layer_scale"] is not None
        and not model.arguments["distillation_token"]
    ),
    # Training with masked patches is not supported, so the token for them is left out.
    names=Names(
        ignored=(r"embeddings\.mask_token",),
        renamed={r"^model\.layer\.": "layer."},
        modules={r"^layer\.": "model.layer."},
    ),
    constants=partial(unread_tokens, mask_axes=3),
)
