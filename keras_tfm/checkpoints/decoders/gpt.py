"""Checkpoints of GPT, GPT-2 and OPT: tensor names, configuration and heads."""

from functools import partial
from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import (
    ACTIVATIONS,
    Arguments,
    Config,
    Fields,
    activation_name,
    dropout_rate,
)
from keras_tfm.checkpoints.decoders.decoder_fields import (
    architectures,
    check_saved,
    classifier_fields,
    classifier_rows,
    is_tied,
    read_pad_id,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.layers import gelu_tanh

# In these checkpoints kernels are (in, out), and queries, keys and values share one matrix.
_dense = partial(dense, transposed=False)
# "<|endoftext|>" in GPT-2's own vocabulary.
END = 50256
_OPT_EMBEDDING = "decoder.embed_tokens.weight"

# The arguments that only OPT uses, as they are in every other family.
OF_OPT: Arguments = {"embedding_dim": None, "feed_forward_bias": True, "position_offset": 0}
ALIASES = {
    "max_position_embeddings": "n_positions", "hidden_size": "n_embd",
    "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
}  # fmt: skip


def _rows(embedding: str, positions: str) -> tuple[Row, ...]:
    return (
        Row("embedding/embeddings", (f"{embedding}.weight",)),
        Row("positions/positions", (f"{positions}.weight",)),
        *_dense("decoder_{i}/self_attention/query_key_value", "h.{i}.attn.c_attn"),
        *_dense("decoder_{i}/self_attention/output_projection", "h.{i}.attn.c_proj"),
        *norm("decoder_{i}/self_attention_residual/norm", "h.{i}.ln_1"),
        *_dense("decoder_{i}/feed_forward/inner", "h.{i}.mlp.c_fc"),
        *_dense("decoder_{i}/feed_forward/outer", "h.{i}.mlp.c_proj"),
        *norm("decoder_{i}/feed_forward_residual/norm", "h.{i}.ln_2"),
        *norm("decoder_norm", "ln_f"),
        *dense("output", "lm_head", bias=False, head=True),
    )


def _common(config: Config, named: Named, embedding: str) -> Arguments:
    config.only(add_cross_attention=False, pruned_heads={}, is_causal=True)
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
        "tie_output": is_tied(config, named, True, embedding),
        "pad_id": read_pad_id(config, named),
    }


def _arguments_of_gpt2(config: Config, named: Named) -> Arguments:
    arguments = _common(config, named, "wte.weight")
    return {
        **arguments,
        "vocabulary_size": config.integer("vocab_size", 50257),
        "intermediate_dim": config.integer("n_inner", None) or arguments["intermediate_dim"],
        "activation": config.activation("activation_function", "gelu_new"),
        "max_length": config.integer("n_positions", 1024),
        "scale_scores": config.flag("scale_attn_weights", True),
        "scale_scores_by_layer": config.flag("scale_attn_by_inverse_layer_idx", False),
    }


def _arguments_of_gpt1(config: Config, named: Named) -> Arguments:
    # The first GPT has its own names: its "gelu" is the tanh approximation.
    names = ("relu", "silu", "swish")
    known = {"gelu": gelu_tanh, **{name: ACTIVATIONS[name] for name in names}}
    return {
        **_common(config, named, "tokens_embed.weight"),
        "vocabulary_size": config.integer("vocab_size", 40478),
        "activation": config.activation("afn", "gelu", known),
        "max_length": config.integer("n_positions", 512),
        "normalize_first": False,
    }


def _common_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        "vocab_size": given["vocabulary_size"],
        "n_embd": given["dim"],
        "n_layer": given["num_layers"],
        "n_head": given["num_heads"],
        "n_positions": given["max_length"],
        "resid_pdrop": given["dropout"],
        "attn_pdrop": dropout_rate(given, given["attention_dropout"]),
        "embd_pdrop": dropout_rate(given, given["embedding_dropout"]),
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "tie_word_embeddings": given["tie_output"] or model.head is None,
        **classifier_fields(model, architecture),
    }


def _fields_of_gpt2(model: models.Model, architecture: str) -> Fields:
    check_saved(model, "GPT-2", windows=None, attention_bias=True, **OF_OPT)
    given = model.arguments
    is_own = given["vocabulary_size"] == END + 1
    return {
        **_common_fields(model, architecture),
        "n_inner": given["intermediate_dim"],
        "activation_function": activation_name(given["activation"]),
        "scale_attn_weights": given["scale_scores"],
        "scale_attn_by_inverse_layer_idx": given["scale_scores_by_layer"],
        **({"bos_token_id": END, "eos_token_id": END} if is_own else {}),
    }


def _fields_of_gpt1(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    if given["intermediate_dim"] != 4 * given["dim"]:
        raise ValueError(
            f"{model.name}: intermediate_dim must be 4 times dim ({given['dim']}) to be saved as "
            f"the first GPT, got {given['intermediate_dim']}"
        )
    check_saved(
        model,
        "the first GPT",
        scale_scores=True,
        scale_scores_by_layer=False,
        windows=None,
        attention_bias=True,
        **OF_OPT,
    )
    name = activation_name(given["activation"])
    if name not in ("gelu_new", "relu", "silu"):
        raise ValueError(
            f"{model.name}: activation must be gelu_tanh, relu or silu to be saved as the first "
            f"GPT, got {name}"
        )
    return {**_common_fields(model, architecture), "afn": "gelu" if name == "gelu_new" else name}


def _family(
    model_type: str, name: str, embedding: str, positions: str, normalize_first: bool, **rest: Any
) -> Family:
    rows = _rows(embedding, positions)
    return Family(
        model_type=model_type,
        builder=models.gpt,
        table=lambda model: (*rows, *classifier_rows(model)),
        architectures=architectures(
            name,
            f"{name}LMHeadModel",
            classifies_tokens=model_type == "gpt2",
            of_tokens="classifier",
            answers="transformer." if model_type == "gpt2" else None,
        ),
        is_of=lambda model: model.arguments["normalize_first"] == normalize_first,
        names=Names(
            prefix="transformer.",
            aliases={"lm_head.weight": f"{embedding}.weight"},
            # Causal masks and position ids, which older versions of transformers saved.
            ignored=(r"h\.\d+\.attn\.(masked_)?bias", "position_ids"),
            transposed=r"h\.\d+\..*",
        ),
        aliases=ALIASES,
        **rest,
    )


GPT2 = _family(
    "gpt2",
    "GPT2",
    "wte",
    "wpe",
    normalize_first=True,
    arguments=_arguments_of_gpt2,
    fields=_fields_of_gpt2,
)
GPT1 = _family(
    "openai-gpt",
    "OpenAIGPT",
    "tokens_embed",
    "positions_embed",
    normalize_first=False,
    arguments=_arguments_of_gpt1,
    fields=_fields_of_gpt1,
)


_OFFSET, _OPT_EPSILON = 2, 1e-5


def _opt_table(model: models.Model) -> tuple[Row, ...]:
    layer, path = "decoder.layers.{i}", "decoder_{i}"
    attention = f"{layer}.self_attn"
    joined = tuple(f"{attention}.{x}_proj" for x in "qkv")
    return (
        Row("embedding/embeddings", (_OPT_EMBEDDING,)),
        Row("positions/positions", ("decoder.embed_positions.weight",)),
        *dense("embedding_projection", "decoder.project_in", bias=False),
        *dense(f"{path}/self_attention/query_key_value", *joined),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.out_proj"),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.self_attn_layer_norm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.fc1"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.fc2"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.final_layer_norm"),
        *norm("decoder_norm", "decoder.final_layer_norm"),
        *dense("features_projection", "decoder.project_out", bias=False),
        *dense("output", "lm_head", bias=False, head=True),
        *classifier_rows(model),
    )


def _arguments_of_opt(config: Config, named: Named) -> Arguments:
    normalize_first = config.flag("do_layer_norm_before", True)
    config.only(layer_norm_elementwise_affine=True, is_causal=True)
    if normalize_first:  # post-norm blocks have no norm after the last one
        config.only(_remove_final_layer_norm=False)
    bias, dim = config.flag("enable_bias", True), config.integer("hidden_size", 768)
    embedding_dim = config.integer("word_embed_proj_dim", None)
    return {
        "vocabulary_size": config.integer("vocab_size", 50272),
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("ffn_dim", 3072),
        "embedding_dim": None if embedding_dim == dim else embedding_dim,
        "dropout": config.number("dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "embedding_dropout": 0.0,
        "activation": config.activation("activation_function", "relu"),
        "normalize_first": normalize_first,
        "max_length": config.integer("max_position_embeddings", 2048),
        "attention_bias": bias,
        "feed_forward_bias": bias,
        "position_offset": _OFFSET,
        "tie_output": is_tied(config, named, True, _OPT_EMBEDDING),
        "pad_id": read_pad_id(config, named, 1),
    }


def _fields_of_opt(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    bias, dropout = given["feed_forward_bias"], given["dropout"]
    check_saved(
        model, "OPT", position_offset=_OFFSET, attention_bias=bias, windows=None,
        layer_norm_epsilon=_OPT_EPSILON, scale_scores=True, scale_scores_by_layer=False,
    )  # fmt: skip
    if dropout_rate(given, given["embedding_dropout"]) != 0.0:
        check_saved(model, "OPT", embedding_dropout=0.0)
    return {
        "pad_token_id": None,  # the default must be in the vocabulary; a classifier's is
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "ffn_dim": given["intermediate_dim"],
        "word_embed_proj_dim": given["embedding_dim"] or given["dim"],
        "dropout": dropout,
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "activation_function": activation_name(given["activation"]),
        "do_layer_norm_before": given["normalize_first"],
        "max_position_embeddings": given["max_length"],
        "enable_bias": bias,
        "tie_word_embeddings": given["tie_output"],
        **classifier_fields(model, architecture),
    }


OPT = Family(
    model_type="opt",
    builder=models.gpt,
    table=_opt_table,
    arguments=_arguments_of_opt,
    fields=_fields_of_opt,
    architectures=architectures("OPT", answers="model."),
    # Models that were saved earlier do not have the argument.
    is_of=lambda model: bool(model.arguments.get("position_offset")),
    names=Names(prefix="model.", aliases={"lm_head.weight": _OPT_EMBEDDING}),
)
