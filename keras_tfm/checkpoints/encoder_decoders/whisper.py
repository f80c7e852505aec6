"""Whisper checkpoints: tensor names, configuration and special tokens."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.encoder_decoders.bart import ALIASES
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import EXTRACTORS, read_settings
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.models.encoder_decoders.whisper import SAMPLES_PER_POSITION

# The ids that a folder has in `generation_config.json`, or in `config.json`, by argument.
_ONE = {"start_id": "decoder_start_token_id", "pad_id": "pad_token_id"}
_SEVERAL = {
    "end_id": "eos_token_id",
    "suppressed_ids": "suppress_tokens",
    "suppressed_first_ids": "begin_suppress_tokens",
}
# What `LogMelSpectrogram` computes.
_EXTRACTOR = {"n_fft": 400, "hop_length": 160, "sampling_rate": 16000}
_NO_TIMESTAMPS = "no_timestamps_token_id"


def _attention(path: str, tensor: str) -> list[Row]:
    names = {"query": "q_proj", "value": "v_proj", "output_projection": "out_proj"}
    rows = [row for name, x in names.items() for row in dense(f"{path}/{name}", f"{tensor}.{x}")]
    return [
        *rows,
        *dense(f"{path}/key", f"{tensor}.k_proj", bias=False),
        *norm(f"{path}_residual/norm", f"{tensor}_layer_norm"),
    ]


def _stack(stack: str) -> list[Row]:
    block, path = f"{stack}.layers.{{i}}", f"{stack}_{{i}}"
    return [
        Row(f"{stack}_positions/positions", (f"{stack}.embed_positions.weight",)),
        *_attention(f"{path}/self_attention", f"{block}.self_attn"),
        *dense(f"{path}/feed_forward/inner", f"{block}.fc1"),
        *dense(f"{path}/feed_forward/outer", f"{block}.fc2"),
        *norm(f"{path}/feed_forward_residual/norm", f"{block}.final_layer_norm"),
        *norm(f"{stack}_norm", f"{stack}.layer_norm"),
    ]


TABLE = (
    *convolution("convolution_0", "encoder.conv1"),
    *convolution("convolution_1", "encoder.conv2"),
    Row("embedding/embeddings", ("decoder.embed_tokens.weight",)),
    *_stack("encoder"),
    *_stack("decoder"),
    *_attention("decoder_{i}/cross_attention", "decoder.layers.{i}.encoder_attn"),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        is_causal=True,
        is_encoder_decoder=True,
        tie_word_embeddings=True,
    )
    size = config.integer("vocab_size", 51865)
    num_mels = config.integer("num_mel_bins", 80)
    _check_features(config, num_mels)
    return {
        "vocabulary_size": size,
        "dim": config.integer("d_model", 384),
        "num_layers": config.integer("encoder_layers", 4, maximum=1000),
        "num_heads": config.integer("encoder_attention_heads", 6),
        "intermediate_dim": config.integer("encoder_ffn_dim", 1536),
        "num_decoder_layers": config.integer("decoder_layers", 4, maximum=1000),
        "num_decoder_heads": config.integer("decoder_attention_heads", 6),
        "decoder_intermediate_dim": config.integer("decoder_ffn_dim", 1536),
        "num_mels": num_mels,
        "max_source_length": config.integer("max_source_positions", 1500),
        "max_length": config.integer("max_target_positions", 448),
        "dropout": config.number("dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation_dropout": config.number("activation_dropout", 0.0, 1),
        "activation": config.activation("activation_function", "gelu"),
        **_ids(config, size),
    }


def _check_features(config: Config, num_mels: int) -> None:
    """Raises if the folder's feature extractor is not that of `LogMelSpectrogram`."""
    file, fields = read_settings(config.file.parent, *EXTRACTORS)
    if fields:
        padding = {"padding_side": "right", "padding_value": 0.0}
        extractor = Config.of(file, fields)
        extractor.only(
            feature_size=num_mels, do_normalize=False, dither=0.0, **padding, **_EXTRACTOR
        )


def _preprocessor(model: models.Model) -> Fields | None:
    """The fields of the feature extractor, which counts in whole seconds."""
    given = model.arguments
    samples = given["max_source_length"] * SAMPLES_PER_POSITION
    rate = _EXTRACTOR["sampling_rate"]
    if samples % rate:
        return None
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": given["num_mels"],
        "chunk_length": samples // rate,
        "n_samples": samples,
        "nb_max_frames": samples // _EXTRACTOR["hop_length"],
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
        **_EXTRACTOR,
    }


def _ids(config: Config, size: int) -> Arguments:
    """The special tokens: those of `generation_config.json`, if it names them."""
    fields, own = config.fields, config.generation_fields
    if own is not None:  # transformers then suppresses nothing that `config.json` names
        older = {name: x for name, x in fields.items() if not name.endswith("suppress_tokens")}
        fields = {**older, **own}
    names = {**_ONE, **_SEVERAL, "no_timestamps_id": _NO_TIMESTAMPS}
    result: Arguments = {}
    for argument, name in names.items():
        value = fields.get(name)
        ids = value if isinstance(value, list) and argument in _SEVERAL else [value]
        if value is not None and not all(type(x) is int and 0 <= x < size for x in ids):
            config.refuse(name, value, f"an id from 0 to {size - 1}")
        result[argument] = value
    return result


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    end_id = given["end_id"]
    layers, heads, width = (given[x] for x in ("num_layers", "num_heads", "intermediate_dim"))
    fields = {
        "vocab_size": given["vocabulary_size"],
        "d_model": given["dim"],
        "encoder_layers": layers,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_layers": given["num_decoder_layers"] or layers,
        "num_hidden_layers": layers,
        "decoder_attention_heads": given["num_decoder_heads"] or heads,
        "decoder_ffn_dim": given["decoder_intermediate_dim"] or width,
        "num_mel_bins": given["num_mels"],
        "max_source_positions": given["max_source_length"],
        "max_target_positions": given["max_length"],
        "dropout": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "activation_dropout": given["activation_dropout"],
        "activation_function": activation_name(given["activation"]),
        "scale_embedding": False,  # transformers reads it and scales nothing
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": given["pad_id"],
        "bos_token_id": end_id if isinstance(end_id, int) else None,
        **{name: given[argument] for argument, name in _SEVERAL.items()},
    }
    optional = {"decoder_start_token_id": "start_id", _NO_TIMESTAMPS: "no_timestamps_id"}
    given = {name: given[argument] for name, argument in optional.items()}
    return fields | {name: value for name, value in given.items() if value is not None}


WHISPER = Family(
    model_type="whisper",
    builder=models.whisper,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "WhisperForConditionalGeneration": Architecture(kind="language_model"),
        "WhisperModel": heads.backbone(),
    },
    names=Names(prefix="model.", aliases={"proj_out.weight": "decoder.embed_tokens.weight"}),
    aliases={**ALIASES, "num_key_value_heads": "encoder_attention_heads"},
    preprocessor=_preprocessor,
)
