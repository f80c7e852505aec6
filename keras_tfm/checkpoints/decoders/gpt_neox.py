"""Checkpoints of GPT-NeoX and relatives: tensor names, configuration and heads.

They are Phi-1 to Phi-2, StarCoder 2, Falcon, BLOOM, GPT-J and CodeGen; those with Llama's names of
tensors are in `cohere.py`.
"""

from copy import copy
from functools import partial

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.decoders.decoder_fields import (
    architectures,
    check_saved,
    classifier_fields,
    classifier_rows,
    is_tied,
    read_pad_id,
    window_of,
)
from keras_tfm.checkpoints.decoders.llama import NAMES
from keras_tfm.checkpoints.decoders.rope import (
    partial_rope_fields,
    read_partial_rope,
    read_rope,
    rope_fields,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.transforms import ByHead, Transposed
from keras_tfm.layers import gelu_tanh, squared_relu

_EMBEDDING, _OUTPUT = "embed_in.weight", "embed_out.weight"
_NORMS = ("input_layernorm", "post_attention_layernorm")


# What the builder's arguments are in the families that do not have them.
PLAIN: Arguments = {
    "alibi": False, "embedding_norm": False, "gated": False, "head_dim": None, "head_norm": False,
    "interleaved": False, "model_type": None, "norm_weights": True,
}  # fmt: skip


def type_of(model: models.Model) -> str:
    """The `model_type` of a model of this builder, by its arguments, of which older ones lack some.

    What a type cannot express besides, its `fields` refuse.
    """
    given = {**PLAIN, **model.arguments}
    if given["alibi"]:
        return "bloom"
    if given["interleaved"]:
        return given["model_type"] or "gptj"
    if given["gated"]:
        return "stablelm" if given["norm_weights"] else "olmo"
    is_squared = keras.activations.get(given["activation"]) is squared_relu
    if is_squared and not given["parallel"]:
        return "nemotron"
    if given["parallel"] and not given["feed_forward_bias"]:
        return "falcon"
    if given["parallel"] == "one_residual":
        return "phi"
    return "gpt_neox" if given.get("num_key_value_heads") is None else "starcoder2"


def _table(
    model: models.Model,
    layer: str = "layers.{i}",
    attention: str = "attention",
    embedding: str = _EMBEDDING,
    output: str = _OUTPUT,
    last_norm: str = "final_layer_norm",
) -> tuple[Row, ...]:
    """Queries, keys and values are one tensor, in which they alternate head by head."""
    given, path = model.arguments, "decoder_{i}"
    groups = given["num_key_value_heads"] or given["num_heads"]
    by_head = partial(ByHead, groups, given["num_heads"] // groups)
    joined = f"{path}/self_attention/query_key_value"
    tensor = f"{layer}.{attention}.query_key_value"
    has_two_norms = type_of(model) == "falcon" and given["parallel"] is True
    first, second = ("ln_attn", "ln_mlp") if has_two_norms else _NORMS
    return (
        Row("embedding/embeddings", (embedding,)),
        *norm("embedding_norm", "word_embeddings_layernorm"),
        Row(f"{joined}/kernel", (f"{tensor}.weight",), by_head(each=Transposed())),
        Row(f"{joined}/bias", (f"{tensor}.bias",), by_head()),
        *dense(f"{path}/self_attention/output_projection", f"{layer}.{attention}.dense"),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.{first}"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.dense_h_to_4h"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.dense_4h_to_h"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.{second}"),
        *norm("decoder_norm", last_norm),
        *dense("output", output.removesuffix(".weight"), bias=False, head=True),
        *classifier_rows(model),
    )


def _head_dim(config: Config, dim: int, heads: int) -> int:
    """The width of a head, which `transformers` reads by `getattr`, too."""
    if dim % heads:
        config.refuse("num_attention_heads", heads, f"a divisor of hidden_size ({dim})")
    if config.fields.get("head_dim") not in (None, dim // heads):
        config.refuse(
            "head_dim", config.fields["head_dim"], f"hidden_size / heads ({dim // heads})"
        )
    return dim // heads


def _read_rope(config: Config, head_dim: int) -> Arguments:
    """The rotary positions, whose base and part have names of their own in older files."""
    renamed = copy(config)
    older = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    renamed.fields = {**config.fields, **{x: config.fields.get(y) for x, y in older.items()}}
    if renamed.fields["partial_rotary_factor"] is None:
        renamed.fields["partial_rotary_factor"] = 0.25
    return read_partial_rope(renamed, head_dim)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_decoder=False, is_causal=True)
    dim, heads = config.integer("hidden_size", 6144), config.integer("num_attention_heads", 64)
    rope = _read_rope(config, _head_dim(config, dim, heads))
    return {
        "vocabulary_size": config.integer("vocab_size", 50432),
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 44, maximum=1000),
        "num_heads": heads,
        "intermediate_dim": config.integer("intermediate_size", 24576),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        **rope,
        "rotary_dim": rope["rotary_dim"] or dim // heads,
        "parallel": config.flag("use_parallel_residual", True),
        "attention_bias": config.flag("attention_bias", True),
        "dropout": config.number("hidden_dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "tie_output": is_tied(config, named, False, _EMBEDDING, _OUTPUT),
        "max_length": config.integer("max_position_embeddings", 2048),
        "pad_id": read_pad_id(config, named),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "GPT-NeoX", embedding_dropout=(None, given["dropout"]), feed_forward_bias=True,
        num_key_value_heads=(None, given["num_heads"]), output_bias=False, parallel=(True, False),
        windows=None, **PLAIN,
    )  # fmt: skip
    rope = partial_rope_fields(model, given["dim"] // given["num_heads"] // 4)
    return {
        **_shared_fields(model, architecture),
        "layer_norm_eps": given["layer_norm_epsilon"],
        **rope,
        # Their names before version 5.
        "rotary_emb_base": given["rope_theta"],
        "rotary_pct": rope["partial_rotary_factor"],
        "use_parallel_residual": given["parallel"],
        "attention_bias": given["attention_bias"],
        "hidden_dropout": given["dropout"],
    }


GPT_NEOX = Family(
    model_type="gpt_neox",
    builder=models.gpt_neox,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures(
        "GPTNeoX", classifies_tokens=True, of_tokens="classifier", answers="gpt_neox."
    ),
    names=Names(
        prefix="gpt_neox.",
        aliases={_OUTPUT: _EMBEDDING},
        # Masks and angles, which older versions of transformers saved.
        ignored=(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
        renamed={r"^lm_head\.": "embed_out."},  # since version 5
        modules={r"^embed_out\.": "lm_head."},
    ),
    is_of=lambda model: type_of(model) == "gpt_neox",
)


def _rotary_table(
    model: models.Model, output: str, inner: str, outer: str, last_norm: str
) -> tuple[Row, ...]:
    """The table of Phi and StarCoder 2, whose queries, keys and values are three tensors.

    Args:
        output, inner, outer: names of the layers in a block.
        last_norm: name of the norm after the last block.
    """
    given, layer, path = model.arguments, "layers.{i}", "decoder_{i}"
    attention = f"{layer}.self_attn"
    groups = given["num_key_value_heads"] or given["num_heads"]
    width = given["dim"] // given["num_heads"] * groups
    return (
        Row("embedding/embeddings", ("embed_tokens.weight",)),
        *dense(
            f"{path}/self_attention/query_key_value",
            *(f"{attention}.{x}_proj" for x in "qkv"),
            widths=(given["dim"], width, width),
        ),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.{output}"),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.input_layernorm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.{inner}"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.{outer}"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.post_attention_layernorm"),
        *norm("decoder_norm", last_norm),
        *dense("output", "lm_head", bias=False, head=True),
        Row("output_bias/bias", ("lm_head.bias",), head=True),
        *classifier_rows(model, "score"),
    )


def _shared_arguments(config: Config, named: Named, sizes: Arguments) -> Arguments:
    """The arguments of Phi and StarCoder 2, with the defaults of some fields."""
    config.only(is_causal=True)
    heads = config.integer("num_attention_heads", sizes["num_attention_heads"])
    groups = sizes["num_key_value_heads"] or heads
    return {
        "vocabulary_size": config.integer("vocab_size", sizes["vocab_size"]),
        "dim": config.integer("hidden_size", sizes["hidden_size"]),
        "num_layers": config.integer("num_hidden_layers", sizes["num_hidden_layers"], maximum=1000),
        "num_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", groups),
        "intermediate_dim": config.integer("intermediate_size", sizes["intermediate_size"]),
        "activation": config.activation("hidden_act", sizes["hidden_act"]),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "tie_output": is_tied(config, named, sizes["tie_word_embeddings"], "embed_tokens.weight"),
        "max_length": config.integer("max_position_embeddings", sizes["max_position_embeddings"]),
        "pad_id": read_pad_id(config, named),
    }


_PHI: Arguments = {
    "vocab_size": 51200, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
    "num_key_value_heads": None, "intermediate_size": 8192, "hidden_act": "gelu_new",
    "tie_word_embeddings": False, "max_position_embeddings": 2048,
}  # fmt: skip
_STARCODER2: Arguments = {
    "vocab_size": 49152, "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24,
    "num_key_value_heads": 2, "intermediate_size": 12288, "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip


def _arguments_of_phi(config: Config, named: Named) -> Arguments:
    config.only(qk_layernorm=False)
    arguments = _shared_arguments(config, named, _PHI)
    head_dim = _head_dim(config, arguments["dim"], arguments["num_heads"])
    rope = read_partial_rope(config, head_dim, default_part=0.5)
    return {
        **arguments,
        **rope,
        "rotary_dim": rope["rotary_dim"] or head_dim,
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        "parallel": "one_residual",
        "dropout": config.number("resid_pdrop", 0.0, 1),
        "embedding_dropout": config.number("embd_pdrop", 0.0, 1),
        "output_bias": True,
    }


def _arguments_of_starcoder2(config: Config, named: Named) -> Arguments:
    arguments = _shared_arguments(config, named, _STARCODER2)
    bias = config.flag("use_bias", True)
    return {
        **arguments,
        **read_rope(config),
        "rotary_dim": _head_dim(config, arguments["dim"], arguments["num_heads"]),
        "layer_norm_epsilon": config.number("norm_epsilon", 1e-5),
        "windows": config.integer("sliding_window", None),
        "parallel": False,
        "attention_bias": bias,
        "feed_forward_bias": bias,
        "dropout": config.number("residual_dropout", 0.0, 1),
        "embedding_dropout": config.number("embedding_dropout", 0.0, 1),
    }


def _shared_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of GPT-NeoX, Phi and StarCoder 2."""
    given = model.arguments
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_act": activation_name(given["activation"]),
        "attention_dropout": given["attention_dropout"],
        "tie_word_embeddings": given["tie_output"],
        "max_position_embeddings": given["max_length"],
        **classifier_fields(model, architecture),
    }


def _has_output_bias(model: models.Model) -> bool | tuple[bool, bool]:
    """What `output_bias` may be in a family whose language models have it: of others, either."""
    is_language_model = model.head is not None and model.head.kind == "language_model"
    return True if is_language_model else (True, False)


def _fields_of_phi(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "phi", attention_bias=True, feed_forward_bias=True, windows=None,
        output_bias=_has_output_bias(model), **PLAIN,
    )  # fmt: skip
    return {
        **_shared_fields(model, architecture),
        "num_key_value_heads": given["num_key_value_heads"] or given["num_heads"],
        **partial_rope_fields(model, given["dim"] // given["num_heads"] // 4),
        "layer_norm_eps": given["layer_norm_epsilon"],
        "resid_pdrop": given["dropout"],
        "embd_pdrop": dropout_rate(given, given["embedding_dropout"]),
    }


def _fields_of_starcoder2(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    head_dim, bias = given["dim"] // given["num_heads"], given["feed_forward_bias"]
    check_saved(
        model, "starcoder2", attention_bias=bias, output_bias=False, parallel=False,
        rotary_dim=head_dim, **PLAIN,
    )  # fmt: skip
    window, each = window_of(model)
    if window is not None and None in each:
        raise ValueError(
            f"{model.name}: all windows must be equal to be saved as starcoder2, got {each}"
        )
    return {
        # Those of the class may exceed the vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        **_shared_fields(model, architecture),
        "num_key_value_heads": given["num_key_value_heads"] or given["num_heads"],
        **rope_fields(model),
        "norm_epsilon": given["layer_norm_epsilon"],
        "sliding_window": window,
        "use_bias": bias,
        "residual_dropout": given["dropout"],
        "embedding_dropout": dropout_rate(given, given["embedding_dropout"]),
    }


PHI = Family(
    model_type="phi",
    builder=models.gpt_neox,
    table=partial(
        _rotary_table, output="dense", inner="fc1", outer="fc2", last_norm="final_layernorm"
    ),
    arguments=_arguments_of_phi,
    fields=_fields_of_phi,
    architectures=architectures("Phi", classifies_tokens=True),
    is_of=lambda model: type_of(model) == "phi",
    names=NAMES,
)
STARCODER2 = Family(
    model_type="starcoder2",
    builder=models.gpt_neox,
    table=partial(_rotary_table, output="o_proj", inner="c_fc", outer="c_proj", last_norm="norm"),
    arguments=_arguments_of_starcoder2,
    fields=_fields_of_starcoder2,
    architectures=architectures("Starcoder2", classifies_tokens=True),
    is_of=lambda model: type_of(model) == "starcoder2",
    names=NAMES,
)


# Of Falcon and BLOOM, whose tensors have one set of names.
_WORDS = "word_embeddings.weight"
_OLDER = {"n_embed": "hidden_size"}  # a name in older files
_FALCON_NAMES = Names(
    prefix="transformer.",
    aliases={"lm_head.weight": _WORDS},
    ignored=(r"h\.\d+\.self_attention\.scale_mask_softmax\.causal_mask",),  # older files of BLOOM
)
_falcon_table = partial(
    _table, layer="h.{i}", attention="self_attention", embedding=_WORDS, output="lm_head.weight",
    last_norm="ln_f",
)  # fmt: skip


def _falcon_arguments(config: Config, named: Named) -> Arguments:
    # transformers rounds the products of slopes and positions of ALiBi to bfloat16, so that they
    # depend on more than distances.
    config.only(alibi=False, bias=False, is_causal=True)
    config.rename(_OLDER)
    dim, heads = config.integer("hidden_size", 4544), config.integer("num_attention_heads", 71)
    is_new = config.flag("new_decoder_architecture", False)
    groups = config.integer("num_kv_heads", heads)
    if not is_new and config.flag("multi_query", True):
        groups = 1
    config.only(parallel_attn=True)
    num_norms = config.integer("num_ln_in_parallel_attn", 2 if is_new else 1, maximum=2)
    if num_norms == 2 and not is_new:
        config.refuse("num_ln_in_parallel_attn", 2, "1 without new_decoder_architecture")
    return {
        "vocabulary_size": config.integer("vocab_size", 65024),
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 32, maximum=1000),
        "num_heads": heads,
        "intermediate_dim": config.integer("ffn_hidden_size", None) or 4 * dim,
        "num_key_value_heads": groups,
        "activation": config.activation("activation", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        **read_rope(config),
        "rotary_dim": _head_dim(config, dim, heads),
        "parallel": num_norms == 2 or "one_residual",
        "attention_bias": False,
        "feed_forward_bias": False,
        "dropout": config.number("hidden_dropout", 0.0, 1),
        "embedding_dropout": 0.0,
        "tie_output": is_tied(config, named, True, _WORDS),
        "max_length": config.integer("max_position_embeddings", 2048),
        "pad_id": read_pad_id(config, named),
    }


def _falcon_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "falcon", attention_bias=False, attention_dropout=0.0, output_bias=False,
        embedding_dropout=0.0 if given["dropout"] else (0.0, None), windows=None,
        rotary_dim=given["dim"] // given["num_heads"], **PLAIN,
    )  # fmt: skip
    groups = given["num_key_value_heads"] or given["num_heads"]
    is_new = groups > 1 or given["parallel"] is True
    return {
        "bos_token_id": None,
        "eos_token_id": None,
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "num_kv_heads": groups,
        "ffn_hidden_size": given["intermediate_dim"],
        "activation": activation_name(given["activation"]),
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        **rope_fields(model),
        "new_decoder_architecture": is_new,
        "multi_query": not is_new,
        "parallel_attn": True,
        "num_ln_in_parallel_attn": 2 if given["parallel"] is True else 1,
        "bias": False,
        "alibi": False,
        "hidden_dropout": given["dropout"],
        "tie_word_embeddings": given["tie_output"],
        "max_position_embeddings": given["max_length"],
        **classifier_fields(model, architecture),
    }


FALCON = Family(
    model_type="falcon",
    builder=models.gpt_neox,
    table=_falcon_table,
    arguments=_falcon_arguments,
    fields=_falcon_fields,
    architectures=architectures(
        "Falcon", classifies_tokens=True, of_tokens="classifier", answers="transformer."
    ),
    is_of=lambda model: type_of(model) == "falcon",
    names=_FALCON_NAMES,
)


def _bloom_arguments(config: Config, named: Named) -> Arguments:
    config.only(apply_residual_connection_post_layernorm=False, is_causal=True)
    config.rename(_OLDER)
    dim, heads = config.integer("hidden_size", 64), config.integer("n_head", 8)
    if dim % heads:
        config.refuse("n_head", heads, f"a divisor of hidden_size ({dim})")
    return {
        "vocabulary_size": config.integer("vocab_size", 250880),
        "dim": dim,
        "num_layers": config.integer("n_layer", 2, maximum=1000),
        "num_heads": heads,
        "intermediate_dim": 4 * dim,
        "activation": gelu_tanh,
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "alibi": True,
        "parallel": False,
        "embedding_norm": True,
        "dropout": config.number("hidden_dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "embedding_dropout": 0.0,
        "tie_output": is_tied(config, named, True, _WORDS),
        "pad_id": read_pad_id(config, named),
    }


def _bloom_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "bloom", attention_bias=True, feed_forward_bias=True, output_bias=False,
        embedding_dropout=0.0 if given["dropout"] else (0.0, None), windows=None, parallel=False,
        num_key_value_heads=(None, given["num_heads"]), intermediate_dim=4 * given["dim"],
        **{**PLAIN, "alibi": True, "embedding_norm": True},
    )  # fmt: skip
    if activation_name(given["activation"]) != "gelu_new":
        raise ValueError(
            f"{model.name}: activation must be gelu_tanh to be saved as bloom, got "
            f"{activation_name(given['activation'])}"
        )
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "n_layer": given["num_layers"],
        "n_head": given["num_heads"],
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "hidden_dropout": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "tie_word_embeddings": given["tie_output"],
        **classifier_fields(model, architecture),
    }


BLOOM = Family(
    model_type="bloom",
    builder=models.gpt_neox,
    table=_falcon_table,
    arguments=_bloom_arguments,
    fields=_bloom_fields,
    architectures=architectures(
        "Bloom", classifies_tokens=True, of_tokens="classifier", answers="transformer."
    ),
    is_of=lambda model: type_of(model) == "bloom",
    names=_FALCON_NAMES,
    aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    not_saved=("max_length",),
)


_GPTJ = "wte.weight"


def _gptj_table(model: models.Model) -> tuple[Row, ...]:
    """The tables of GPT-J and of CodeGen, which has queries, values and keys in four shards."""
    layer, path = "h.{i}", "decoder_{i}"
    joined = f"{path}/self_attention/query_key_value"
    parts = dense(joined, *(f"{layer}.attn.{x}_proj" for x in "qkv"), bias=False)
    if type_of(model) == "codegen":
        shards = ByHead(4, each=Transposed(), order=(0, 2, 1))
        parts = (Row(f"{joined}/kernel", (f"{layer}.attn.qkv_proj.weight",), shards),)
    return (
        Row("embedding/embeddings", (_GPTJ,)),
        *parts,
        *dense(f"{path}/self_attention/output_projection", f"{layer}.attn.out_proj", bias=False),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.ln_1"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.fc_in"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.fc_out"),
        *norm("decoder_norm", "ln_f"),
        *dense("output", "lm_head", bias=False, head=True),
        Row("output_bias/bias", ("lm_head.bias",), head=True),
        *classifier_rows(model),
    )


def _gptj_arguments(config: Config, named: Named, model_type: str | None) -> Arguments:
    config.only(is_causal=True)
    dim, heads = config.integer("n_embd", 4096), config.integer("n_head", 16)
    if dim % heads:
        config.refuse("n_head", heads, f"a divisor of n_embd ({dim})")
    return {
        "vocabulary_size": config.integer("vocab_size", 50400),
        "dim": dim,
        "num_layers": config.integer("n_layer", 28, maximum=1000),
        "num_heads": heads,
        "intermediate_dim": config.integer("n_inner", None) or 4 * dim,
        "activation": config.activation("activation_function", "gelu_new"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "rotary_dim": config.integer("rotary_dim", 64, maximum=dim // heads),
        "interleaved": True,
        "parallel": "one_residual",
        "attention_bias": False,
        "dropout": config.number("resid_pdrop", 0.0, 1),
        "attention_dropout": config.number("attn_pdrop", 0.0, 1),
        "embedding_dropout": config.number("embd_pdrop", 0.0, 1),
        "tie_output": is_tied(config, named, False, _GPTJ),
        "output_bias": True,
        "max_length": config.integer("n_positions", 2048),
        "pad_id": read_pad_id(config, named),
        "model_type": model_type,
    }


def _gptj_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, type_of(model), attention_bias=False, feed_forward_bias=True, rope_theta=10000.0,
        rope_scaling=None, windows=None, parallel="one_residual",
        num_key_value_heads=(None, given["num_heads"]), output_bias=_has_output_bias(model),
        **{**PLAIN, "interleaved": True, "model_type": (None, "codegen")},
    )  # fmt: skip
    return {
        "bos_token_id": None,
        "eos_token_id": None,
        "vocab_size": given["vocabulary_size"],
        "n_embd": given["dim"],
        "n_layer": given["num_layers"],
        "n_head": given["num_heads"],
        "n_inner": given["intermediate_dim"],
        "activation_function": activation_name(given["activation"]),
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "rotary_dim": given["rotary_dim"] or given["dim"] // given["num_heads"] // 4,
        "resid_pdrop": given["dropout"],
        "attn_pdrop": given["attention_dropout"],
        "embd_pdrop": dropout_rate(given, given["embedding_dropout"]),
        "tie_word_embeddings": given["tie_output"],
        "n_positions": given["max_length"],
        **classifier_fields(model, architecture),
    }


def _gptj_family(model_type: str, name: str, is_first: bool) -> Family:
    return Family(
        model_type=model_type,
        builder=models.gpt_neox,
        table=_gptj_table,
        arguments=partial(_gptj_arguments, model_type=None if is_first else model_type),
        fields=_gptj_fields,
        architectures=architectures(
            name, classifies_texts=is_first, answers="transformer." if is_first else None
        ),
        is_of=lambda model: type_of(model) == model_type,
        names=Names(
            prefix="transformer.",
            aliases={"lm_head.weight": _GPTJ},
            # Masks and angles, which older versions of transformers saved.
            ignored=(r"h\.\d+\.attn\.((masked_)?bias|causal_mask|embed_positions)",),
        ),
        aliases={
            "max_position_embeddings": "n_positions", "hidden_size": "n_embd",
            "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
        },
    )  # fmt: skip


GPTJ = _gptj_family("gptj", "GPTJ", is_first=True)
CODEGEN = _gptj_family("codegen", "CodeGen", is_first=False)
