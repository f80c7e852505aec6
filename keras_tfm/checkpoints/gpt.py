"""GPT's and GPT-2's checkpoints: names, configuration, heads."""

from typing import Any

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import ACTIVATIONS, Config, activation_name
from keras_tfm.checkpoints.mapping import Family, Named, Row
from keras_tfm.layers import PositionEmbedding, TokenEmbedding, TransformerDecoderBlock, gelu_tanh


def _table(embedding: str, positions: str) -> tuple[Row, ...]:
    """Kernels are (in, out) as here, and queries, keys and values are one."""

    def both(weight: str, tensor: str, names: tuple[str, str] = ("kernel", "bias")) -> list[Row]:
        return [
            Row(f"{weight}/{name}", (f"{tensor}.{kind}",))
            for name, kind in zip(names, ("weight", "bias"), strict=True)
        ]

    norm = ("gamma", "beta")
    return (
        Row("embedding/embeddings", (f"{embedding}.weight",)),
        Row("positions/positions", (f"{positions}.weight",)),
        *both("decoder_{i}/self_attention/query_key_value", "h.{i}.attn.c_attn"),
        *both("decoder_{i}/self_attention/output_projection", "h.{i}.attn.c_proj"),
        *both("decoder_{i}/self_attention_residual/norm", "h.{i}.ln_1", norm),
        *both("decoder_{i}/feed_forward/inner", "h.{i}.mlp.c_fc"),
        *both("decoder_{i}/feed_forward/outer", "h.{i}.mlp.c_proj"),
        *both("decoder_{i}/feed_forward_residual/norm", "h.{i}.ln_2", norm),
        *both("decoder_norm", "ln_f", norm),
        Row("output/kernel", ("lm_head.weight",), transposed=True, head=True),
    )


def _is_tied(config: Config, named: Named, embedding: str) -> bool:
    own = "lm_head.weight" in named.own and not named.same("lm_head.weight", embedding)
    return config.flag("tie_word_embeddings", True) and not own


def _common(config: Config) -> dict[str, Any]:
    config.only(add_cross_attention=False, is_decoder=False, pruned_heads={})
    dim = config.integer("n_embd", 768)
    return {
        "dim": dim,
        "num_layers": config.integer("n_layer", 12, maximum=1000),
        "num_heads": config.integer("n_head", 12),
        "intermediate_dim": 4 * dim,
        "dropout": config.number("resid_pdrop", 0.1, 1),
        "attention_dropout": config.number("attn_pdrop", 0.1, 1),
        "embedding_dropout": config.number("embd_pdrop", 0.1, 1),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
    }


def _arguments_of_gpt2(config: Config, named: Named) -> dict[str, Any]:
    arguments = _common(config)
    return {
        **arguments,
        "vocabulary_size": config.integer("vocab_size", 50257),
        "intermediate_dim": config.integer("n_inner", None) or arguments["intermediate_dim"],
        "activation": config.activation("activation_function", "gelu_new"),
        "max_length": config.integer("n_positions", 1024),
        "scale_scores": config.flag("scale_attn_weights", True),
        "scale_scores_by_layer": config.flag("scale_attn_by_inverse_layer_idx", False),
        "tie_output": _is_tied(config, named, "wte.weight"),
    }


def _arguments_of_gpt1(config: Config, named: Named) -> dict[str, Any]:
    # Its own names: "gelu" is not the exact one.
    names = ("relu", "silu", "swish")
    known = {"gelu": gelu_tanh, **{name: ACTIVATIONS[name] for name in names}}
    return {
        **_common(config),
        "vocabulary_size": config.integer("vocab_size", 40478),
        "activation": config.activation("afn", "gelu", known),
        "max_length": config.integer("n_positions", 512),
        "normalize_first": False,
        "tie_output": _is_tied(config, named, "tokens_embed.weight"),
    }


def _describe_gpt2(model: keras.Model) -> tuple[str, dict[str, Any]] | None:
    found = _blocks(model)
    if found is None or not found[0].normalize_first:
        return None
    block, config = found
    scales = [layer.attention_scale for layer in _decoders(model)]
    size = config["n_embd"] // config["n_head"]
    scaled = scales[0] is None or scales[0] != 1.0
    by_layer = len(scales) > 1 and scales[1] not in (None, 1.0)
    expected = [(size**-0.5 if scaled else 1.0) / (i + 1 if by_layer else 1) for i in range(99)]
    if any(
        abs((size**-0.5 if x is None else x) - y) > 1e-7
        for x, y in zip(scales, expected, strict=False)
    ):
        raise ValueError(
            f"{model.name}: attention_scale must be the default, 1, or either of them divided by "
            f"the block's number from 1, to be saved as GPT-2, got {scales}"
        )
    return _head(model, "GPT2"), {
        **config,
        "n_inner": block.intermediate_dim,
        "activation_function": activation_name(block.activation),
        "scale_attn_weights": scaled,
        "scale_attn_by_inverse_layer_idx": by_layer,
    }


def _describe_gpt1(model: keras.Model) -> tuple[str, dict[str, Any]] | None:
    found = _blocks(model)
    if found is None or found[0].normalize_first:
        return None
    block, config = found
    if block.intermediate_dim != 4 * config["n_embd"]:
        raise ValueError(
            f"{model.name}: intermediate_dim must be 4 times dim ({config['n_embd']}) to be saved "
            f"as the first GPT, got {block.intermediate_dim}"
        )
    name = activation_name(block.activation)
    if name not in ("gelu_new", "relu", "silu"):
        raise ValueError(
            f"{model.name}: activation must be gelu_tanh, relu or silu to be saved as the first "
            f"GPT, got {name}"
        )
    config["afn"] = "gelu" if name == "gelu_new" else name
    return _head(model, "OpenAIGPT"), config


def _decoders(model: keras.Model) -> list[TransformerDecoderBlock]:
    return [x for x in model.layers if isinstance(x, TransformerDecoderBlock)]


def _blocks(model: keras.Model) -> tuple[TransformerDecoderBlock, dict[str, Any]] | None:
    layers = {layer.name: layer for layer in model.layers}
    blocks, embedding = _decoders(model), layers.get("embedding")
    positions = layers.get("positions")
    if not (
        blocks
        and blocks[0].cross_attention is None
        and isinstance(embedding, TokenEmbedding)
        and isinstance(positions, PositionEmbedding)
    ):
        return None
    block, attention = blocks[0], blocks[0].attention_dropout
    return block, {
        "vocab_size": embedding.vocabulary_size,
        "n_embd": embedding.dim,
        "n_layer": len(blocks),
        "n_head": block.num_heads,
        "n_positions": positions.max_length,
        "resid_pdrop": block.dropout,
        "attn_pdrop": block.dropout if attention is None else attention,
        "embd_pdrop": positions.dropout,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "tie_word_embeddings": "output" not in layers,
    }


def _head(model: keras.Model, name: str) -> str:
    """Logits or features: what the last layer of the model says."""
    made_by = model.output._keras_history.operation  # not public, and no other record
    return name + ("LMHeadModel" if made_by.name in ("output", "embedding") else "Model")


def _family(model_type: str, name: str, embedding: str, positions: str, **rest: Any) -> Family:
    table = _table(embedding, positions)
    return Family(
        model_type=model_type,
        builder=models.gpt,
        table=lambda model: table,
        architectures={
            f"{name}LMHeadModel": (lambda model, config: model, ()),
            f"{name}Model": (lambda model, config: models.backbone(model), ()),
        },
        prefix="transformer.",
        base=f"{name}Model",
        aliases={"lm_head.weight": f"{embedding}.weight"},
        # Masks and numbers, which older versions of transformers saved.
        ignored=(r"h\.\d+\.attn\.(masked_)?bias", "position_ids"),
        **rest,
    )


GPT2 = _family("gpt2", "GPT2", "wte", "wpe", arguments=_arguments_of_gpt2, describe=_describe_gpt2)
GPT1 = _family(
    "openai-gpt",
    "OpenAIGPT",
    "tokens_embed",
    "positions_embed",
    arguments=_arguments_of_gpt1,
    describe=_describe_gpt1,
)
