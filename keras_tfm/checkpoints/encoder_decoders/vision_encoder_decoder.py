"""Checkpoints of `VisionEncoderDecoderModel`: a ViT or DeiT, and TrOCR, GPT-2, BERT or RoBERTa."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.decoders.decoder_fields import check_saved, is_tied
from keras_tfm.checkpoints.decoders.gpt import ALIASES as GPT2_ALIASES
from keras_tfm.checkpoints.encoders.bert import ENCODER as BERT_ENCODER
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.vision.vit import (
    NEW_NAMES,
    encoder_arguments,
    encoder_fields,
    encoder_rows,
)
from keras_tfm.models.encoder_decoders.vision_encoder_decoder import image_encoder_arguments

ENCODERS = ("vit", "deit")
# The arguments of `vit` that the builder takes beside `image`.
_OF_IMAGES = ("image_size", "position_size", "patch_size", "image_mean", "image_std")
# The ids that tell `generate` of transformers how a text starts and ends, by builder's argument.
_IDS = {
    "start_id": "decoder_start_token_id",
    "end_id": "eos_token_id",
    "pad_id": "pad_token_id",
}


@dataclass(frozen=True)
class _Decoder:
    """How one type of decoder is read and written.

    Attributes:
        rows: the rows of its tensors, whose names have no "decoder.".
        arguments: function of its configuration that returns the builder's arguments.
        fields: function of a model that returns the fields of its configuration.
        is_of: function of a model's arguments that tells whether its decoder is of this type.
        embedding, output: str, the tensors of the token embedding and of the logits.
        aliases: dict from the names that `transformers` has for fields to the fields.
        tensors: dict from a tensor's second name to its name in the rows.
        ids: dict, the default of each field of `_IDS`.
    """

    rows: tuple[Row, ...]
    arguments: Callable[[Config], Arguments]
    fields: Callable[[models.Model], Fields]
    is_of: Callable[[Arguments], bool]
    embedding: str
    output: str
    ids: Mapping[str, int | None]
    aliases: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


def _cross_rows(tensor: str, output: str, names: tuple[str, str, str]) -> tuple[Row, ...]:
    """The rows of cross-attention with separate queries, keys and values, by their tensors."""
    path = "decoder_{i}/cross_attention"
    parts = zip(("query", "key", "value"), names, strict=True)
    return (
        *(row for part, x in parts for row in dense(f"{path}/{part}", f"{tensor}.{x}")),
        *dense(f"{path}/output_projection", output),
    )


# TrOCR


def _trocr_rows() -> tuple[Row, ...]:
    layer, path = "model.decoder.layers.{i}", "decoder_{i}"
    own, cross = f"{layer}.self_attn", f"{layer}.encoder_attn"
    names = ("q_proj", "k_proj", "v_proj")
    return (
        Row("embedding/embeddings", ("model.decoder.embed_tokens.weight",)),
        Row("positions/positions", ("model.decoder.embed_positions.weight",)),
        *norm("embedding_norm", "model.decoder.layernorm_embedding"),
        *dense(f"{path}/self_attention/query_key_value", *(f"{own}.{x}" for x in names)),
        *dense(f"{path}/self_attention/output_projection", f"{own}.out_proj"),
        *norm(f"{path}/self_attention_residual/norm", f"{own}_layer_norm"),
        *_cross_rows(cross, f"{cross}.out_proj", names),
        *norm(f"{path}/cross_attention_residual/norm", f"{cross}_layer_norm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.fc1"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.fc2"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.final_layer_norm"),
        *dense("output", "output_projection", bias=False),
    )


def _trocr_arguments(config: Config) -> Arguments:
    learned = config.flag("use_learned_position_embeddings", True)
    dim = config.integer("d_model", 1024)
    if not learned and (dim < 4 or dim % 2):
        config.refuse("d_model", dim, "even and at least 4, for sinusoids")
    return {
        "vocabulary_size": config.integer("vocab_size", 50265),
        "dim": dim,
        "num_layers": config.integer("decoder_layers", 12, maximum=1000),
        "num_heads": config.integer("decoder_attention_heads", 16),
        "intermediate_dim": config.integer("decoder_ffn_dim", 4096),
        "dropout": config.number("dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation_dropout": config.number("activation_dropout", 0.0, 1),
        "activation": config.activation("activation_function", "gelu"),
        "embedding_norm": config.flag("layernorm_embedding", True),
        "scale_embedding": config.flag("scale_embedding", False),
        "learned_positions": learned,
        # Sinusoids begin behind the padding id, rows of the table at 2.
        "position_offset": 2 if learned else config.integer("pad_token_id", 1, 0) + 1,
        "max_length": config.integer("max_position_embeddings", 512),
    }


def _trocr_fields(model: models.Model) -> Fields:
    given = model.arguments
    learned = given["learned_positions"]
    check_saved(
        model, "TrOCR", layer_norm_epsilon=1e-5, num_segments=0,
        embedding_dropout=(None, given["dropout"]),
        position_offset=2 if learned else given["pad_id"] + 1,
    )  # fmt: skip
    width = image_encoder_arguments(given["image"])["dim"]
    return {
        "vocab_size": given["vocabulary_size"],
        "d_model": given["dim"],
        "decoder_layers": given["num_layers"],
        "decoder_attention_heads": given["num_heads"],
        "decoder_ffn_dim": given["intermediate_dim"],
        "dropout": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "activation_dropout": given["activation_dropout"],
        "activation_function": activation_name(given["activation"]),
        "layernorm_embedding": given["embedding_norm"],
        "scale_embedding": given["scale_embedding"],
        "use_learned_position_embeddings": learned,
        "max_position_embeddings": given["max_length"],
        "cross_attention_hidden_size": None if given["image_projection"] else width,
    }


# GPT-2


def _gpt2_rows() -> tuple[Row, ...]:
    layer, path = "transformer.h.{i}", "decoder_{i}"
    own, cross = f"{layer}.attn", f"{layer}.crossattention"
    matrices = {
        "self_attention/query_key_value": f"{own}.c_attn",
        "self_attention/output_projection": f"{own}.c_proj",
        "cross_attention/query": f"{cross}.q_attn",
        "cross_attention/key_value": f"{cross}.c_attn",
        "cross_attention/output_projection": f"{cross}.c_proj",
        "feed_forward/inner": f"{layer}.mlp.c_fc",
        "feed_forward/outer": f"{layer}.mlp.c_proj",
    }
    return (
        Row("embedding/embeddings", ("transformer.wte.weight",)),
        Row("positions/positions", ("transformer.wpe.weight",)),
        *(
            row
            for weight, tensor in matrices.items()
            for row in dense(f"{path}/{weight}", tensor, transposed=False)
        ),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.ln_1"),
        *norm(f"{path}/cross_attention_residual/norm", f"{layer}.ln_cross_attn"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.ln_2"),
        *norm("decoder_norm", "transformer.ln_f"),
        *dense("output", "lm_head", bias=False),
    )


def _gpt2_arguments(config: Config) -> Arguments:
    config.only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    dim = config.integer("n_embd", 768)
    return {
        "vocabulary_size": config.integer("vocab_size", 50257),
        "dim": dim,
        "num_layers": config.integer("n_layer", 12, maximum=1000),
        "num_heads": config.integer("n_head", 12),
        "intermediate_dim": config.integer("n_inner", None) or 4 * dim,
        "dropout": config.number("resid_pdrop", 0.1, 1),
        "attention_dropout": config.number("attn_pdrop", 0.1, 1),
        "embedding_dropout": config.number("embd_pdrop", 0.1, 1),
        "activation": config.activation("activation_function", "gelu_new"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "normalize_first": True,
        "embedding_norm": False,
        "position_offset": 0,
        "max_length": config.integer("n_positions", 1024),
    }


def _gpt2_fields(model: models.Model) -> Fields:
    given = model.arguments
    check_saved(
        model, "GPT-2", embedding_norm=False, scale_embedding=False, learned_positions=True,
        position_offset=0, num_segments=0, activation_dropout=0.0, head_activation=None,
    )  # fmt: skip
    return {
        "vocab_size": given["vocabulary_size"],
        "n_embd": given["dim"],
        "n_layer": given["num_layers"],
        "n_head": given["num_heads"],
        "n_inner": given["intermediate_dim"],
        "resid_pdrop": given["dropout"],
        "attn_pdrop": given["attention_dropout"],
        "embd_pdrop": dropout_rate(given, given["embedding_dropout"]),
        "activation_function": activation_name(given["activation"]),
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "n_positions": given["max_length"],
    }


# BERT and RoBERTa


def _bert_rows(base: str, head: tuple[str, str, str]) -> tuple[Row, ...]:
    """The rows of BERT's blocks, and of a head: the tensors of its dense layer, norm and bias."""
    layer, path = f"{base}.encoder.layer.{{i}}", "decoder_{i}"
    cross = f"{layer}.crossattention"
    own = (
        dataclasses.replace(
            row,
            weight=row.weight.replace("encoder_{i}", path),
            tensors=tuple(f"{base}.{x}" for x in row.tensors),
        )
        for row in BERT_ENCODER
    )
    return (
        *own,
        *_cross_rows(f"{cross}.self", f"{cross}.output.dense", ("query", "key", "value")),
        *norm(f"{path}/cross_attention_residual/norm", f"{cross}.output.LayerNorm"),
        *dense("transform", head[0]),
        *norm("transform_norm", head[1]),
        Row("output_bias/bias", (head[2],)),
    )


def _bert_arguments(config: Config) -> Arguments:
    config.only(position_embedding_type="absolute", pruned_heads={}, tie_word_embeddings=True)
    roberta = config.text("model_type", "bert") == "roberta"
    pad_id = config.integer("pad_token_id", 1, minimum=0) if roberta else 0
    offset = pad_id + 1 if roberta else 0
    activation = config.activation("hidden_act", "gelu")
    return {
        "vocabulary_size": config.integer("vocab_size", 50265 if roberta else 30522),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": activation,
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "position_offset": offset,
        "num_segments": config.integer("type_vocab_size", 2),
        "head_activation": "gelu" if roberta else activation,
        "max_length": config.integer("max_position_embeddings", 512, minimum=offset + 1) - offset,
    }


def _bert_fields(model: models.Model) -> Fields:
    given = model.arguments
    offset = given["position_offset"]
    head = activation_name(given["head_activation"])
    check_saved(
        model, "BERT or RoBERTa", embedding_norm=True, scale_embedding=False, tie_output=True,
        learned_positions=True, activation_dropout=0.0,
        embedding_dropout=(None, given["dropout"]),
        position_offset=(0, given["pad_id"] + 1),
    )  # fmt: skip
    if given["num_segments"] < 1:
        raise ValueError(
            f"{model.name}: num_segments must be at least 1 to be saved as BERT or RoBERTa, got 0"
        )
    expected = "gelu" if offset else activation_name(given["activation"])
    if head != expected:
        raise ValueError(
            f"{model.name}: head_activation must be {expected} to be saved as "
            f"{'RoBERTa' if offset else 'BERT'}, got {head}"
        )
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_dropout_prob": given["dropout"],
        "attention_probs_dropout_prob": given["attention_dropout"],
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
        "type_vocab_size": given["num_segments"],
        "max_position_embeddings": given["max_length"] + offset,
    }


_BERT_HEAD = "cls.predictions"
# In this order, a model is saved as the first one that it is of.
DECODERS = {
    "gpt2": _Decoder(
        _gpt2_rows(),
        _gpt2_arguments,
        _gpt2_fields,
        lambda given: given["normalize_first"],
        "transformer.wte.weight",
        "lm_head.weight",
        {"start_id": None, "end_id": 50256, "pad_id": None},
        GPT2_ALIASES,
        {"lm_head.weight": "transformer.wte.weight"},
    ),
    "bert": _Decoder(
        _bert_rows(
            "bert",
            (f"{_BERT_HEAD}.transform.dense", f"{_BERT_HEAD}.transform.LayerNorm",
             f"{_BERT_HEAD}.bias"),
        ),
        _bert_arguments,
        _bert_fields,
        lambda given: given["head_activation"] is not None and not given["position_offset"],
        "bert.embeddings.word_embeddings.weight",
        f"{_BERT_HEAD}.decoder.weight",
        {"start_id": None, "end_id": None, "pad_id": 0},
        tensors={
            f"{_BERT_HEAD}.decoder.weight": "bert.embeddings.word_embeddings.weight",
            f"{_BERT_HEAD}.decoder.bias": f"{_BERT_HEAD}.bias",
        },
    ),
    "roberta": _Decoder(
        _bert_rows("roberta", ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")),
        _bert_arguments,
        _bert_fields,
        lambda given: given["head_activation"] is not None,
        "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.weight",
        {"start_id": None, "end_id": 2, "pad_id": 1},
        tensors={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    ),
    "trocr": _Decoder(
        _trocr_rows(),
        _trocr_arguments,
        _trocr_fields,
        lambda given: True,
        "model.decoder.embed_tokens.weight",
        "output_projection.weight",
        {"start_id": 2, "end_id": 2, "pad_id": 1},
        {
            "num_attention_heads": "decoder_attention_heads",
            "hidden_size": "d_model",
            "num_hidden_layers": "decoder_layers",
        },
        {"output_projection.weight": "model.decoder.embed_tokens.weight"},
    ),
}  # fmt: skip


def _type_of(given: Arguments) -> str:
    """The type of a model's decoder."""
    return next(name for name, decoder in DECODERS.items() if decoder.is_of(given))


def _vit_arguments(given: Arguments) -> Arguments:
    """The arguments of `vit` of a model's encoder."""
    own = {name: given[name] for name in _OF_IMAGES}
    return {**own, **image_encoder_arguments(given["image"])}


def _table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    encoder = (
        dataclasses.replace(
            row,
            weight=f"image_{row.weight}",
            tensors=tuple(f"encoder.{x}" for x in row.tensors),
        )
        for row in encoder_rows(_vit_arguments(given))
    )
    decoder = (
        dataclasses.replace(row, tensors=tuple(f"decoder.{x}" for x in row.tensors))
        for row in DECODERS[_type_of(given)].rows
    )
    return (*encoder, *decoder, *dense("image_projection", "enc_to_dec_proj"))


def _part(config: Config, name: str, default: str, known: Collection[str]) -> Config:
    """The configuration of the encoder or decoder, whose type must be a known one."""
    part = config.part(name)
    found = part.text("model_type", default)
    if found not in known:
        config.refuse(f"model_type of {name}", found, f"one of {list(known)}")
    part.fields = {**part.fields, "model_type": found}
    return part


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_encoder_decoder=True)
    encoder = _part(config, "encoder", "vit", ENCODERS)
    part = _part(config, "decoder", "bert", DECODERS)
    decoder = DECODERS[part.fields["model_type"]]
    part.rename(decoder.aliases)
    given = config.fields.get("decoder") is not None  # transformers gives a missing one both
    part.only(is_decoder=True, add_cross_attention=True, is_causal=True, per_layer_config={})
    if given and part.fields["model_type"] != "trocr":
        for name in ("is_decoder", "add_cross_attention"):
            if not part.flag(name, False):
                part.refuse(f"{name} of decoder", False, "True")
    arguments = decoder.arguments(part)
    image = encoder_arguments(encoder)
    own = {name: image.pop(name) for name in _OF_IMAGES}
    width, dim = image["dim"], arguments["dim"]
    reads = part.integer("cross_attention_hidden_size", None)
    expected = width if part.fields["model_type"] == "trocr" or width == dim else None
    if reads is not None and reads != expected:
        part.refuse("cross_attention_hidden_size", reads, repr(expected))
    tied = is_tied(part, named, True, f"decoder.{decoder.embedding}", f"decoder.{decoder.output}")
    return {
        **arguments,
        **own,
        "image": image,
        "image_projection": width != dim and reads is None,
        "tie_output": tied,
        **_ids(config, part, decoder, arguments),
    }


def _ids(config: Config, part: Config, decoder: _Decoder, arguments: Arguments) -> Arguments:
    """The special tokens: of `generation_config.json`, of `config.json`, or of the decoder's."""
    size = arguments["vocabulary_size"]
    result: Arguments = {}
    sources = [config.generation_fields or {}, config.fields, part.fields]
    for argument, name in _IDS.items():
        value = next((x[name] for x in sources if x.get(name) is not None), None)
        default = decoder.ids[argument]
        if value is None and default is not None and default < size:
            value = default
        result[argument] = Config.of(config.file, {name: value}).ids(name, None, size)
    for argument in ("start_id", "pad_id"):
        if isinstance(result[argument], list):
            config.refuse(_IDS[argument], result[argument], "one id")
    start, pad_id = result["start_id"], arguments["position_offset"] - 1
    counts = "roberta" in decoder.embedding or not arguments.get("learned_positions", True)
    if counts and start == pad_id:
        # Positions count tokens other than padding, so that such a start would have none.
        config.refuse("decoder_start_token_id", start, f"another id than {start}, the padding id")
    return result


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    image = _vit_arguments(given)
    name, dim = _type_of(given), given["dim"]
    if name != "trocr":
        check_saved(model, f"a decoder of type {name}", image_projection=image["dim"] != dim)
    elif given["image_projection"] and image["dim"] == dim:
        check_saved(model, "TrOCR with an encoder as wide", image_projection=False)
    ids = {name: given[argument] for argument, name in _IDS.items()}
    decoder = {
        "model_type": name,
        **DECODERS[name].fields(model),
        "is_decoder": True,
        "add_cross_attention": True,
        "tie_word_embeddings": given["tie_output"],
        # Also those that are null: the defaults of transformers may exceed the vocabulary.
        "bos_token_id": None,
        "eos_token_id": given["end_id"],
        "pad_token_id": given["pad_id"],
    }
    encoder = {
        "model_type": "deit" if image["distillation_token"] else "vit", **encoder_fields(image),
    }  # fmt: skip
    return {
        "encoder": encoder,
        "decoder": decoder,
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,  # of encoder and decoder: the decoder has a field of its own
        **ids,
    }


def _pooler(model: models.Model) -> dict[str, np.ndarray]:
    """The encoder's pooler, which `transformers` expects and does not read."""
    dim = image_encoder_arguments(model.arguments["image"])["dim"]
    shapes = {"weight": (dim, dim), "bias": (dim,)}
    return {f"encoder.pooler.dense.{name}": np.zeros(x, "float32") for name, x in shapes.items()}


VISION_ENCODER_DECODER = Family(
    model_type="vision-encoder-decoder",
    builder=models.vision_encoder_decoder,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={"VisionEncoderDecoderModel": Architecture(kind="language_model")},
    names=Names(
        aliases={
            f"decoder.{alias}": f"decoder.{name}"
            for decoder in DECODERS.values()
            for alias, name in decoder.tensors.items()
        },
        ignored=(
            r"encoder\.embeddings\.mask_token",
            # Causal masks, position ids and sinusoids, which older versions of transformers saved.
            r"decoder\.transformer\.h\.\d+\.(cross)?(attn|attention)\.(masked_)?bias",
            r"decoder\.(bert|roberta)\.embeddings\.(position_ids|token_type_ids)",
            r"decoder\.model\.decoder\.embed_positions\.(weights|_float_tensor)",
        ),
        renamed={
            (f"^encoder\\.{old[1:]}" if old[0] == "^" else old): (
                f"encoder.{new}" if old[0] == "^" else new
            )
            for old, new in NEW_NAMES.items()
        },
        transposed=r"decoder\.transformer\.h\.\d+\..*",
    ),
    unused=_pooler,
)
