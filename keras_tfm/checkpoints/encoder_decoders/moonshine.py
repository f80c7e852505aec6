"""Moonshine checkpoints: tensor names and configuration."""

import copy

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import EXTRACTORS, read_settings
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense
from keras_tfm.checkpoints.transforms import ConvolutionKernel, ValueFirst
from keras_tfm.models.encoder_decoders.moonshine import SAMPLE_RATE

_PARTIAL = "partial_rotary_factor"
# transformers gives the decoder what the configuration says of the encoder's heads, and has as many
# key and value heads.
_HEADS = (
    "decoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads",
)  # fmt: skip


def _scale(path: str, tensor: str) -> Row:
    return Row(f"{path}/gamma", (f"{tensor}.weight",))


def _stack(stack: str) -> list[Row]:
    layer, path = f"{stack}.layers.{{i}}", f"{stack}_{{i}}"
    attention = f"{layer}.self_attn"
    names = [f"{attention}.{x}_proj" for x in "qkv"]
    return [
        *dense(f"{path}/self_attention/query_key_value", *names, bias=False),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.o_proj", bias=False),
        _scale(f"{path}/self_attention_residual/norm", f"{layer}.input_layernorm"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.fc2"),
    ]


_CROSS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output_projection": "o_proj"}
_INNER = ("decoder_{i}/feed_forward/inner", "decoder.layers.{i}.mlp.fc1")
TABLE = (
    Row("waveform/kernel", ("encoder.conv1.weight",), ConvolutionKernel()),
    Row("waveform/gamma", ("encoder.groupnorm.weight",)),
    Row("waveform/beta", ("encoder.groupnorm.bias",)),
    *convolution("waveform/convolution_1", "encoder.conv2"),
    *convolution("waveform/convolution_2", "encoder.conv3"),
    *_stack("encoder"),
    *dense("encoder_{i}/feed_forward/inner", "encoder.layers.{i}.mlp.fc1"),
    _scale("encoder_{i}/feed_forward_residual/norm", "encoder.layers.{i}.post_attention_layernorm"),
    _scale("encoder_norm", "encoder.layer_norm"),
    Row("embedding/embeddings", ("decoder.embed_tokens.weight",)),
    *_stack("decoder"),
    *(
        row
        for name, tensor in _CROSS.items()
        for row in dense(
            f"decoder_{{i}}/cross_attention/{name}",
            f"decoder.layers.{{i}}.encoder_attn.{tensor}",
            bias=False,
        )
    ),
    _scale(
        "decoder_{i}/cross_attention_residual/norm", "decoder.layers.{i}.post_attention_layernorm"
    ),
    Row(f"{_INNER[0]}/kernel", (f"{_INNER[1]}.weight",), ValueFirst()),
    Row(f"{_INNER[0]}/bias", (f"{_INNER[1]}.bias",), ValueFirst()),
    _scale("decoder_{i}/feed_forward_residual/norm", "decoder.layers.{i}.final_layernorm"),
    _scale("decoder_norm", "decoder.norm"),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        attention_bias=False,
        is_causal=True,
        is_encoder_decoder=True,
        tie_word_embeddings=True,
    )
    dim, heads = (
        config.integer("hidden_size", 288),
        config.integer("encoder_num_attention_heads", 8),
    )
    if dim % heads:
        config.refuse("encoder_num_attention_heads", heads, f"a divisor of hidden_size ({dim})")
    for name in _HEADS:
        if config.integer(name, 8 if name == _HEADS[0] else heads) != heads:
            expected = f"encoder_num_attention_heads ({heads}), as transformers has as many"
            config.refuse(name, config.fields.get(name), expected)
    config.only(head_dim=dim // heads)  # which transformers reads by getattr
    check_extractor(config)
    layers = config.integer("encoder_num_hidden_layers", 6, maximum=1000)
    rope = _read_rope(config, dim // heads)
    return {
        "vocabulary_size": config.integer("vocab_size", 32768),
        "dim": dim,
        "num_layers": layers,
        "num_heads": heads,
        "intermediate_dim": config.integer("intermediate_size", 1152),
        "num_decoder_layers": config.integer("decoder_num_hidden_layers", 6, maximum=1000),
        "activation": config.activation("encoder_hidden_act", "gelu"),
        "decoder_activation": config.activation("decoder_hidden_act", "silu"),
        **rope,
        "rotary_dim": rope["rotary_dim"] or dim // heads,
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "max_length": config.integer("max_position_embeddings", 512),
        "pad_id": config.fields.get("pad_token_id"),
        "start_id": config.integer("decoder_start_token_id", 1, minimum=0),
        "end_id": config.fields.get("eos_token_id", 2),
    }


def _read_rope(config: Config, head_dim: int) -> Arguments:
    """The rotary positions, of nine tenths of a head unless a field names another part."""
    whole = copy.copy(config)
    whole.fields = {_PARTIAL: 0.9, **config.fields}
    return read_partial_rope(whole, head_dim)


def check_extractor(config: Config) -> None:
    """Raises if the folder's feature extractor changes the samples."""
    file, fields = read_settings(config.file.parent, *EXTRACTORS)
    if fields:
        extractor = Config.of(file, {"do_normalize": True, **fields})
        extractor.only(do_normalize=False, sampling_rate=SAMPLE_RATE, padding_value=0.0)


def save_preprocessor(model: models.Model) -> Fields:
    """The fields of `preprocessor_config.json`: samples at 16 kHz as they are."""
    return {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "do_normalize": False,
        "feature_size": 1,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": SAMPLE_RATE,
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    layers, heads = given["num_layers"], given["num_heads"]
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "intermediate_size": given["intermediate_dim"],
        "encoder_num_hidden_layers": layers,
        "decoder_num_hidden_layers": given["num_decoder_layers"] or layers,
        "encoder_num_attention_heads": heads,
        **dict.fromkeys(_HEADS, heads),
        "encoder_hidden_act": activation_name(given["activation"]),
        "decoder_hidden_act": activation_name(given["decoder_activation"]),
        **partial_rope_fields(model, 9 * (given["dim"] // heads) // 20 * 2),
        "attention_dropout": given["attention_dropout"],
        "max_position_embeddings": given["max_length"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "pad_token_id": given["pad_id"],
        "bos_token_id": given["start_id"],
        "eos_token_id": given["end_id"],
        "decoder_start_token_id": given["start_id"],
    }


MOONSHINE = Family(
    model_type="moonshine",
    builder=models.moonshine,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "MoonshineForConditionalGeneration": Architecture(kind="language_model"),
        "MoonshineModel": heads.backbone(),
    },
    names=Names(prefix="model.", aliases={"proj_out.weight": "decoder.embed_tokens.weight"}),
    aliases={
        "num_key_value_heads": "decoder_num_key_value_heads",
        "num_attention_heads": "decoder_num_attention_heads",
        "num_hidden_layers": "decoder_num_hidden_layers",
        "hidden_act": "decoder_hidden_act",
    },
    preprocessor=save_preprocessor,
)
