"""Models of images of KerasHub: ViT, DeiT, DINOv2, DINOv3, ResNet, CLIP, SigLIP.

A preprocessor's image converter multiplies and shifts pixels from 0 to 255; our models do so in
their first layer. Without a preprocessor they take the pixels that the backbone takes.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from keras import ops

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import Lookup, attention, batch_norm, dense, norm
from keras_tfm.checkpoints.keras_hub.settings import HubPart, Settings
from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Joined, Reshaped
from keras_tfm.layers import gelu_tanh, quick_gelu


def image_statistics(settings: Settings, channels: int) -> Arguments:
    """Mean and standard deviation, for values from 0 to 1, of x * scale + offset."""
    converter = getattr(settings.preprocessor, "image_converter", None)
    scale, offset = (getattr(converter, name, None) for name in ("scale", "offset"))
    factors = np.broadcast_to(1.0 if scale is None else np.ravel(scale), channels)
    shifts = np.broadcast_to(0.0 if offset is None else np.ravel(offset), channels)
    deviations = 1.0 / (255.0 * factors)
    return {
        "image_mean": (-shifts * deviations).tolist(),
        "image_std": deviations.tolist(),
    }


def _size(settings: Settings) -> Arguments:
    """The image size and the statistics of its channels."""
    settings.only(data_format="channels_last")
    *size, channels = settings["image_shape"]
    image_size = None if None in size else list(size)
    return {"image_size": image_size, **image_statistics(settings, channels)}


def _patches(settings: Settings) -> Arguments:
    arguments = _size(settings)
    return {
        **arguments,
        "position_size": arguments["image_size"],
        **settings.rename(
            patch_size="patch_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_heads",
            dropout="dropout_rate",
        ),
    }


def _vit_and_deit_arguments(settings: Settings) -> Arguments:
    """The builder's arguments that ViT and DeiT have in common."""
    return {
        **_patches(settings),
        "attention_dropout": settings["attention_dropout"],
        "layer_norm_epsilon": settings["layer_norm_epsilon"],
    }


def _vit_arguments(settings: Settings) -> Arguments:
    settings.only(use_mha_bias=True, use_mlp_bias=True, use_class_token=True, use_patch_bias=True)
    return {**_vit_and_deit_arguments(settings), "intermediate_dim": settings["mlp_dim"]}


def _attention(model: models.Model, path: str, layer: str) -> tuple[Row, ...]:
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    return attention(path, layer, dim, dim // heads, (dim, dim, dim))


def _vit_and_deit_rows(model: models.Model, name: str, inner: str, outer: str) -> Iterator[Row]:
    """The rows that ViT and DeiT have in common. KerasHub numbers the blocks from 1.

    Args:
        name: str, how the names of KerasHub's layers begin.
        inner, outer: str, the paths of the dense layers in KerasHub's block.
    """
    yield from dense("patches/projection", f"{name}_patching_and_embedding/patch_embedding")
    for i in range(model.arguments["num_layers"]):
        path, layer = f"encoder_{i}", f"{name}_encoder/transformer_block_{i + 1}"
        yield from norm(f"{path}/self_attention_residual/norm", f"{layer}/ln_1")
        yield from _attention(model, f"{path}/self_attention", f"{layer}/mha")
        yield from norm(f"{path}/feed_forward_residual/norm", f"{layer}/ln_2")
        yield from dense(f"{path}/feed_forward/inner", f"{layer}/{inner}")
        yield from dense(f"{path}/feed_forward/outer", f"{layer}/{outer}")
    yield from norm("final_norm", f"{name}_encoder/ln")
    yield from dense("classifier", "predictions")


def _vit_table(model: models.Model) -> tuple[Row, ...]:
    dim, embeddings = model.arguments["dim"], "vit_patching_and_embedding"
    token = Reshaped((1, 1, dim), (1, dim))
    return (
        Row("prefix/tokens", (f"{embeddings}/class_token",), token),
        Row("positions/positions", (f"{embeddings}/position_embedding/embeddings",)),
        *_vit_and_deit_rows(model, "vit", "mlp/dense_1", "mlp/dense_2"),
    )


def _encoder_layers(name: str) -> HubPart:
    return lambda backbone: backbone.get_layer(name).encoder_layers


VIT = HubFamily(
    backbone="ViTBackbone",
    builder=models.vit,
    arguments=_vit_arguments,
    table=_vit_table,
    inputs={"pixels": "images"},
    blocks=_encoder_layers("vit_encoder"),
)


def _deit_arguments(settings: Settings) -> Arguments:
    settings.only(use_mha_bias=True)
    return {
        **_vit_and_deit_arguments(settings),
        "intermediate_dim": settings["intermediate_dim"],
        "distillation_token": True,
    }


def _deit_table(model: models.Model) -> tuple[Row, ...]:
    dim, embeddings = model.arguments["dim"], "deit_patching_and_embedding"
    token, table = Reshaped((1, 1, dim), (1, dim)), Reshaped((1, -1, dim), (-1, dim))
    tokens = (f"{embeddings}/class_token", f"{embeddings}/distillation_token")
    return (
        Row("prefix/tokens", tokens, Joined(2, axis=0, each=token)),
        Row("positions/positions", (f"{embeddings}/position_embedding",), table),
        *_vit_and_deit_rows(model, "deit", "mlp/dense", "output_layer/output"),
    )


DEIT = replace(
    VIT,
    backbone="DeiTBackbone",
    arguments=_deit_arguments,
    table=_deit_table,
    blocks=_encoder_layers("deit_encoder"),
)


def _dinov2_arguments(settings: Settings) -> Arguments:
    width, gated = settings["intermediate_dim"], settings["use_swiglu_ffn"]
    # The table that is interpolated from another size is a weight of its own.
    for name in ("use_mask_token", "position_embedding_shape", "antialias_in_interpolation"):
        settings[name]
    settings["apply_layernorm"]  # to the outputs of blocks, not to the last
    return {
        **_patches(settings),
        "intermediate_dim": (int(width * 2 / 3) + 7) // 8 * 8 if gated else width,
        "gated": gated,
        "activation": "silu" if gated else "gelu",
        "layer_norm_epsilon": 1e-6,
        "layer_scale": settings["layer_scale_init_value"],
        "drop_path": settings["drop_path_rate"],
        "num_registers": settings["num_register_tokens"],
    }


def _dinov2_table(model: models.Model) -> tuple[Row, ...]:
    dim = model.arguments["dim"]
    token, table = Reshaped((1, 1, dim), (1, dim)), Reshaped((1, -1, dim), (-1, dim))
    inner, outer = ("weights_in", "weights_out") if model.arguments["gated"] else ("fc1", "fc2")
    path, layer = "encoder_{i}", "encoder/layers_{i}"
    return (
        *dense("patches/projection", "embeddings/patch_embeddings/projection"),
        Row("prefix/tokens", ("embeddings/cls_token",), token),
        Row("positions/positions", ("embeddings/interpolated_position_embeddings",), table),
        Row("registers/tokens", ("embeddings/register_tokens",), table),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}/norm1"),
        *_attention(model, f"{path}/self_attention", f"{layer}/attention/attention"),
        Row(f"{path}/self_attention_residual/scale", (f"{layer}/layer_scale1/lambda1",)),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}/norm2"),
        *dense(f"{path}/feed_forward/inner", f"{layer}/mlp/{inner}"),
        *dense(f"{path}/feed_forward/outer", f"{layer}/mlp/{outer}"),
        Row(f"{path}/feed_forward_residual/scale", (f"{layer}/layer_scale2/lambda1",)),
        *norm("final_norm", "layernorm"),
    )


DINOV2 = replace(
    VIT,
    backbone="DINOV2Backbone",
    arguments=_dinov2_arguments,
    table=_dinov2_table,
    blocks=lambda backbone: backbone.encoder.layers,
    ignored=(r"embeddings/(mask_token|position_embeddings)",),
)


_DINOV3_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


def _dinov3_arguments(settings: Settings) -> Arguments:
    settings.only(use_proj_bias=True, use_mlp_bias=True)
    settings["use_mask_token"]
    settings["apply_layernorm"]  # to the outputs of blocks, not to the last
    biased = [name for name in _DINOV3_PROJECTIONS if settings[f"use_{name}_bias"]]
    return {
        **_size(settings),
        **settings.rename(
            patch_size="patch_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_heads",
            intermediate_dim="intermediate_dim",
            attention_dropout="attention_dropout",
            drop_path="drop_path_rate",
            activation="hidden_activation",
            gated="use_gated_mlp",
            layer_norm_epsilon="layer_norm_eps",
            layer_scale="layer_scale_init_value",
            num_registers="num_register_tokens",
            max_wavelength="rope_theta",
        ),
        "attention_bias": len(biased) == 3 if len(biased) in (0, 3) else biased,
    }


def _dinov3_table(model: models.Model) -> tuple[Row, ...]:
    dim = model.arguments["dim"]
    path, layer = "encoder_{i}", "encoder/layers_{i}"
    attention, theirs = f"{path}/self_attention", f"{layer}/attention"
    inner = ("gate_proj", "up_proj") if model.arguments["gated"] else ("up_proj",)
    tensors = {name: f"{theirs}/{x}" for name, x in _DINOV3_PROJECTIONS.items()}
    return (
        *dense("patches/projection", "embeddings/patch_embeddings/projection"),
        Row("prefix/tokens", ("embeddings/cls_token",), Reshaped((1, 1, dim), (1, dim))),
        Row("registers/tokens", ("embeddings/register_tokens",), Reshaped((1, -1, dim), (-1, dim))),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}/norm1"),
        # The fused projection exists if all three have a bias, or if all three have none.
        *dense(f"{attention}/query_key_value", *tensors.values()),
        *(row for name, tensor in tensors.items() for row in dense(f"{attention}/{name}", tensor)),
        *dense(f"{attention}/output_projection", f"{theirs}/o_proj"),
        Row(f"{path}/self_attention_residual/scale", (f"{layer}/layer_scale1/lambda1",)),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}/norm2"),
        *dense(f"{path}/feed_forward/inner", *(f"{layer}/mlp/{x}" for x in inner)),
        *dense(f"{path}/feed_forward/outer", f"{layer}/mlp/down_proj"),
        Row(f"{path}/feed_forward_residual/scale", (f"{layer}/layer_scale2/lambda1",)),
        *norm("final_norm", "layernorm"),
    )


DINOV3 = replace(
    DINOV2,
    backbone="DINOV3Backbone",
    arguments=_dinov3_arguments,
    table=_dinov3_table,
    inputs={"pixels": "pixel_values"},
    ignored=(r"embeddings/mask_token",),
)


def _resnet_arguments(settings: Settings) -> Arguments:
    settings.only(
        block_type=("basic_block", "bottleneck_block"),
        use_pre_activation=False,
        input_conv_kernel_sizes=([7], (7,)),
    )
    strides = list(settings["stackwise_num_strides"])
    if strides != [1] + [2] * (len(strides) - 1):
        settings.refuse("stackwise_num_strides", strides, "1 and then 2 for each stack")
    bottleneck = settings["block_type"] == "bottleneck_block"
    return {
        **_size(settings),
        "stem_dim": settings["input_conv_filters"][0],
        "dims": [x * (4 if bottleneck else 1) for x in settings["stackwise_num_filters"]],
        "depths": list(settings["stackwise_num_blocks"]),
        "bottleneck": bottleneck,
    }


def _resnet_table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    rows = [*dense("stem", "conv1_conv", bias=False), *batch_norm("stem_norm", "conv1_bn")]
    for stage, depth in enumerate(given["depths"]):
        for i in range(depth):
            path, name = f"stage_{stage}_block_{i}", f"stack{stage}_block{i}"
            parts = [(f"{j}", f"{j + 1}") for j in range(3 if given["bottleneck"] else 2)]
            for j, number in parts:
                rows += dense(f"{path}/convolution_{j}", f"{name}_{number}_conv", bias=False)
                rows += batch_norm(f"{path}/norm_{j}", f"{name}_{number}_bn")
            rows += dense(f"{path}/shortcut", f"{name}_0_conv", bias=False)
            rows += batch_norm(f"{path}/shortcut_norm", f"{name}_0_bn")
    return (*rows, *dense("classifier", "predictions"))


RESNET = HubFamily(
    backbone="ResNetBackbone",
    builder=models.resnet,
    arguments=_resnet_arguments,
    table=_resnet_table,
    inputs={"pixels": "images"},
    blocks=lambda backbone: [
        backbone.get_layer(f"stack{stage}_block{i}_out")
        for stage, depth in enumerate(backbone.stackwise_num_blocks)
        for i in range(depth)
    ],
)


def _tower(settings: Settings) -> Arguments:
    settings.only(intermediate_output_index=None)
    activation = settings["intermediate_activation"]
    known = {"quick_gelu": quick_gelu, "gelu_approximate": gelu_tanh}
    return {
        **settings.rename(
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_heads",
            intermediate_dim="intermediate_dim",
        ),
        "activation": known.get(activation, activation),
    }


def _clip_and_siglip_arguments(settings: Settings, *own: str) -> Arguments:
    """The builder's arguments of CLIP and SigLIP; `own`: further fields of both encoders."""
    settings["vision_encoder"], settings["text_encoder"]
    image = Settings.of(settings.backbone.vision_encoder, settings.preprocessor)
    text = Settings.of(settings.backbone.text_encoder, settings.preprocessor)
    # CLIP's encoder of texts has no projection.
    text.only(embedding_dim=text["hidden_dim"], projection_dim=image["hidden_dim"])
    size = _size(image)
    arguments = {
        **size,
        "patch_size": image["patch_size"],
        "vocabulary_size": text["vocabulary_size"],
        "max_length": text["max_sequence_length"],
        "image": {
            **_tower(image),
            "position_size": size["image_size"],
            **{name: image[name] for name in own},
        },
        "text": {**_tower(text), **{name: text[name] for name in own}},
    }
    image.check_all_read()
    text.check_all_read()
    return arguments


def _clip_arguments(settings: Settings) -> Arguments:
    return {
        **_clip_and_siglip_arguments(settings),
        "end_id": None,
        "projection_dim": settings["projection_dim"],
    }


def _tower_blocks(
    given: Arguments, path: str, layer: str, names: tuple[str, ...]
) -> tuple[Row, ...]:
    """The rows of the blocks of an encoder; `names`: those of the five layers in each."""
    dim, heads = given["dim"], given["num_heads"]
    of_attention, norm_1, norm_2, dense_1, dense_2 = (f"{layer}/{name}" for name in names)
    return (
        *norm(f"{path}/self_attention_residual/norm", norm_1),
        *attention(f"{path}/self_attention", of_attention, dim, dim // heads, (dim, dim, dim)),
        *norm(f"{path}/feed_forward_residual/norm", norm_2),
        *dense(f"{path}/feed_forward/inner", dense_1),
        *dense(f"{path}/feed_forward/outer", dense_2),
    )


def _clip_table(model: models.Model) -> tuple[Row, ...]:
    image, text = model.arguments["image"], model.arguments["text"]
    embedding, blocks = "vision_encoder/embedding", "encoder_block_{i}"
    table = (f"{embedding}/position_embedding/embeddings", f"{embedding}/position_ids")
    token = Reshaped((image["dim"],), (1, image["dim"]))
    of_text = "text_encoder/embedding"
    names = ("attention", "layer_norm_1", "layer_norm_2", "dense_1", "dense_2")
    return (
        *dense("image_patches/projection", f"{embedding}/patch_embedding", bias=False),
        Row("image_prefix/tokens", (f"{embedding}/class_embedding",), token),
        Row("image_positions/positions", table, Lookup()),
        *norm("image_embedding_norm", "vision_encoder/pre_layer_norm"),
        *_tower_blocks(image, "image_encoder_{i}", f"vision_encoder/{blocks}", names),
        *norm("image_final_norm", "vision_encoder/layer_norm"),
        *dense("image_projection", "vision_projection", bias=False),
        Row("text_embedding/embeddings", (f"{of_text}/token_embedding/embeddings",)),
        Row("text_positions/positions", (f"{of_text}/position_embedding/embeddings",)),
        *_tower_blocks(text, "text_encoder_{i}", f"text_encoder/{blocks}", names),
        *norm("text_final_norm", "text_encoder/layer_norm"),
        *dense("text_projection", "text_projection", bias=False),
        Row("logit_scale/logit_scale", ("clip_head/logit_scale",)),
    )


def _pairs(ours: HubPart, theirs: HubPart) -> Iterator[tuple[str, HubPart, HubPart]]:
    similar = ops.matmul(ours["text_embedding"], ops.transpose(ours["image_embedding"]))
    logits = similar * ours["scale"] + ours.get("bias", 0.0)  # CLIP has no bias
    yield "logits", logits, theirs["text_logits"]


def _set_clip_epsilon(model: models.Model) -> None:
    """KerasHub's last norm of texts has another epsilon than all others."""
    model.get_layer("text_final_norm").epsilon = 1e-6


CLIP = HubFamily(
    backbone="CLIPBackbone",
    builder=models.clip,
    arguments=_clip_arguments,
    table=_clip_table,
    inputs={"pixels": "images", "tokens": "token_ids"},
    blocks=lambda backbone: [
        *backbone.vision_encoder.encoder_layers,
        *backbone.text_encoder.encoder_layers,
    ],
    pairs=_pairs,
    adjust=_set_clip_epsilon,
)


# The vocabulary of Gemma's tokenizer, which SigLIP 2 has.
_GEMMA_VOCABULARY = 256000


def _siglip_arguments(settings: Settings) -> Arguments:
    arguments = _clip_and_siglip_arguments(settings, "layer_norm_epsilon")
    is_second = arguments["vocabulary_size"] == _GEMMA_VOCABULARY
    return {**arguments, "pad_id": settings.pad_id_or(0 if is_second else 1)}


def _siglip_table(model: models.Model) -> tuple[Row, ...]:
    image, text = model.arguments["image"], model.arguments["text"]
    names = ("self_attn", "layer_norm1", "layer_norm2", "mlp/fc1", "mlp/fc2")
    of_image, of_text, blocks = "vision_encoder", "text_encoder", "encoder_block_{i}"
    pooling, head, dim = "image_pooling", f"{of_image}/head", image["dim"]
    positions = ("position_embedding/embeddings", "position_ids")
    return (
        *dense("image_patches/projection", f"{of_image}/embedding/patch_embedding"),
        Row(
            "image_positions/positions",
            tuple(f"{of_image}/embedding/{x}" for x in positions),
            Lookup(),
        ),
        *_tower_blocks(image, "image_encoder_{i}", f"{of_image}/{blocks}", names),
        *norm("image_final_norm", f"{of_image}/post_layer_norm"),
        Row(f"{pooling}/probe", (f"{head}/variable",), Reshaped((1, 1, dim), (1, dim))),
        *attention(
            f"{pooling}/attention",
            f"{head}/attention",
            dim,
            dim // image["num_heads"],
            (dim, dim, dim),
        ),
        *norm(f"{pooling}/norm", f"{head}/layernorm"),
        *dense(f"{pooling}/feed_forward/inner", f"{head}/mlp/fc1"),
        *dense(f"{pooling}/feed_forward/outer", f"{head}/mlp/fc2"),
        Row("text_embedding/embeddings", (f"{of_text}/embedding/token_embedding/embeddings",)),
        Row(
            "text_positions/positions",
            tuple(f"{of_text}/embedding/{x}" for x in positions),
            Lookup(),
        ),
        *_tower_blocks(text, "text_encoder_{i}", f"{of_text}/{blocks}", names),
        *norm("text_final_norm", f"{of_text}/post_layer_norm"),
        *dense("text_projection", f"{of_text}/head"),
        Row("logit_scale/logit_scale", ("siglip_head/logit_scale",)),
        Row("logit_bias/logit_bias", ("siglip_head/logit_bias",)),
    )


def _set_siglip_epsilon(model: models.Model) -> None:
    """KerasHub's last norm of images has this epsilon, whatever the others have."""
    model.get_layer("image_final_norm").epsilon = 1e-6


SIGLIP = replace(
    CLIP,
    backbone="SigLIPBackbone",
    builder=models.siglip,
    arguments=_siglip_arguments,
    table=_siglip_table,
    adjust=_set_siglip_epsilon,
    full_length=True,
)
