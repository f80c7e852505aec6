"""ViT and DeiT checkpoints, DINO's among them: tensor names, configuration and heads."""

from dataclasses import replace

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.transforms import Joined, Reshaped

_ATTENTION = "encoder.layer.{i}.attention"
_QKV = tuple(f"{_ATTENTION}.attention.{x}" for x in ("query", "key", "value"))
# The modules of transformers 5, by which adapters are named; files keep the names of version 4.
NEW_ATTENTION = {
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
}
NEW_NAMES = {
    r"^layers\.": "encoder.layer.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
    **NEW_ATTENTION,
}


def embedding_rows(given: Arguments) -> tuple[Row, ...]:
    """The rows of patches, prefix tokens and positions, by the arguments of `vit`."""
    dim = given["dim"]
    token, table = Reshaped((1, 1, dim), (1, dim)), Reshaped((1, -1, dim), (-1, dim))
    prefix = Row("prefix/tokens", ("embeddings.cls_token",), token)
    if given.get("distillation_token"):
        names = ("embeddings.cls_token", "embeddings.distillation_token")
        prefix = Row("prefix/tokens", names, Joined(2, axis=0, each=token))
    return (
        *convolution("patches/projection", "embeddings.patch_embeddings.projection"),
        prefix,
        Row("positions/positions", ("embeddings.position_embeddings",), table),
        Row("registers/tokens", ("embeddings.register_tokens",), table),
    )


def encoder_rows(given: Arguments) -> tuple[Row, ...]:
    """The rows of an encoder without its heads, by the arguments of `vit`."""
    return (
        *embedding_rows(given),
        *norm("encoder_{i}/self_attention_residual/norm", "encoder.layer.{i}.layernorm_before"),
        *dense("encoder_{i}/self_attention/query_key_value", *_QKV),
        *dense("encoder_{i}/self_attention/output_projection", f"{_ATTENTION}.output.dense"),
        *norm("encoder_{i}/feed_forward_residual/norm", "encoder.layer.{i}.layernorm_after"),
        *dense("encoder_{i}/feed_forward/inner", "encoder.layer.{i}.intermediate.dense"),
        *dense("encoder_{i}/feed_forward/outer", "encoder.layer.{i}.output.dense"),
        *norm("final_norm", "layernorm"),
    )


def _table(model: models.Model) -> tuple[Row, ...]:
    distilled = model.head is not None and model.head.arguments.get("pooling") == "distilled"
    return (
        *encoder_rows(model.arguments),
        *dense("pooler", "pooler.dense"),
        *dense("classifier", "cls_classifier" if distilled else "classifier", head=True),
        *dense("distillation_classifier", "distillation_classifier", head=True),
    )


def vision_arguments(config: Config, patch_size: int = 16) -> Arguments:
    """The builder's arguments that ViT, DeiT and DINOv2 have in common."""
    size = config.size("image_size", 224)
    return {
        "image_size": size,
        "position_size": size,
        "patch_size": config.size("patch_size", patch_size),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "dropout": config.number("hidden_dropout_prob", 0.0, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.0, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "attention_bias": config.flag("qkv_bias", True),
        **image_statistics(config),
    }


def encoder_arguments(config: Config) -> Arguments:
    """The builder's arguments of an encoder of ViT or DeiT."""
    return {
        **vision_arguments(config),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "distillation_token": config.text("model_type", None) == "deit",
    }


def _arguments(config: Config, named: Named) -> Arguments:
    dim = config.integer("hidden_size", 768)
    pooler = named.begins("pooler.")
    if pooler:
        config.only(pooler_act="tanh", pooler_output_size=dim)
    return {**encoder_arguments(config), "pooler": pooler}


def classifier(model: models.Model, config: Config, pooling: str) -> models.Model:
    """A model with the head of `image_classifier`."""
    return models.image_classifier(
        model, config.num_labels, pooling, dropout=0.0, labels=config.labels
    )


def vision_fields(given: Arguments) -> Fields:
    """The fields of `config.json` that ViT, DeiT and DINOv2 have in common, without a head's."""
    size = given["image_size"] if given["position_size"] is None else given["position_size"]
    return {
        "image_size": size,
        "patch_size": given["patch_size"],
        "num_channels": len(given["image_mean"]),
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "hidden_act": activation_name(given["activation"]),
        "hidden_dropout_prob": given["dropout"],
        "attention_probs_dropout_prob": dropout_rate(given, given["attention_dropout"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
        "qkv_bias": given["attention_bias"],
    }


def encoder_fields(given: Arguments) -> Fields:
    """The fields of `config.json` of an encoder of ViT or DeiT, by the arguments of `vit`."""
    return {**vision_fields(given), "intermediate_size": given["intermediate_dim"]}


def _fields(model: models.Model, architecture: str) -> Fields:
    labels = label_fields(model) if "Classification" in architecture else {}
    return {**encoder_fields(model.arguments), **labels}


def _is_vit(model: models.Model) -> bool:
    given = model.arguments
    plain = (
        not given["num_registers"] and not given["gated"] and given.get("max_wavelength") is None
    )
    return plain and given["layer_scale"] is None and isinstance(given["attention_bias"], bool)


VIT = Family(
    model_type="vit",
    builder=models.vit,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "ViTModel": Architecture(),
        "ViTForImageClassification": heads.image_classifier("first", "classifier."),
    },
    is_of=lambda model: _is_vit(model) and not model.arguments["distillation_token"],
    names=Names(prefix="vit.", ignored=(r"embeddings\.mask_token",), renamed=NEW_NAMES),
)
DEIT = replace(
    VIT,
    model_type="deit",
    architectures={
        "DeiTModel": Architecture(),
        "DeiTForImageClassification": heads.image_classifier("first", "classifier."),
        "DeiTForImageClassificationWithTeacher": heads.image_classifier(
            "distilled", "cls_classifier.", "distillation_classifier."
        ),
    },
    is_of=lambda model: _is_vit(model) and model.arguments["distillation_token"],
    names=Names(prefix="deit.", ignored=(r"embeddings\.mask_token",), renamed=NEW_NAMES),
)
