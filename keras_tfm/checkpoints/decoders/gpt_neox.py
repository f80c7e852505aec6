"""GPT-NeoX and Pythia checkpoints: tensor names, configuration and heads."""

from copy import copy

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import (
    architectures,
    classifier_fields,
    is_tied,
    read_pad_id,
)
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.transforms import ByHead, Transposed

_EMBEDDING, _OUTPUT = "embed_in.weight", "embed_out.weight"


def _table(model: models.Model) -> tuple[Row, ...]:
    """Queries, keys and values are one tensor, in which they alternate head by head."""
    heads, layer, path = model.arguments["num_heads"], "layers.{i}", "decoder_{i}"
    joined, tensor = f"{path}/self_attention/query_key_value", f"{layer}.attention.query_key_value"
    return (
        Row("embedding/embeddings", (_EMBEDDING,)),
        Row(f"{joined}/kernel", (f"{tensor}.weight",), ByHead(heads, each=Transposed())),
        Row(f"{joined}/bias", (f"{tensor}.bias",), ByHead(heads)),
        *dense(f"{path}/self_attention/output_projection", f"{layer}.attention.dense"),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}.input_layernorm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.dense_h_to_4h"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.dense_4h_to_h"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}.post_attention_layernorm"),
        *norm("decoder_norm", "final_layer_norm"),
        *dense("output", _OUTPUT.removesuffix(".weight"), bias=False, head=True),
        *dense("classifier", "score", bias=False, head=True),
    )


def _read_rope(config: Config, head_dim: int) -> Arguments:
    """The rotary positions, whose base and part have names of their own in older files."""
    if config.fields.get("head_dim") not in (None, head_dim):  # which transformers reads by getattr
        config.refuse("head_dim", config.fields["head_dim"], f"hidden_size / heads ({head_dim})")
    renamed = copy(config)
    older = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    renamed.fields = {**config.fields, **{x: config.fields.get(y) for x, y in older.items()}}
    if renamed.fields["partial_rotary_factor"] is None:
        renamed.fields["partial_rotary_factor"] = 0.25
    return read_partial_rope(renamed, head_dim)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_decoder=False, is_causal=True)
    dim, heads = config.integer("hidden_size", 6144), config.integer("num_attention_heads", 64)
    if dim % heads:
        config.refuse("num_attention_heads", heads, f"a divisor of hidden_size ({dim})")
    rope = _read_rope(config, dim // heads)
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
    rope = partial_rope_fields(model, given["dim"] // given["num_heads"] // 4)
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
        **rope,
        # Their names before version 5.
        "rotary_emb_base": given["rope_theta"],
        "rotary_pct": rope["partial_rotary_factor"],
        "use_parallel_residual": given["parallel"],
        "attention_bias": given["attention_bias"],
        "hidden_dropout": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "tie_word_embeddings": given["tie_output"],
        "max_position_embeddings": given["max_length"],
        **classifier_fields(model, architecture),
    }


GPT_NEOX = Family(
    model_type="gpt_neox",
    builder=models.gpt_neox,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("GPTNeoX", "GPTNeoXForCausalLM", "GPTNeoXModel"),
    names=Names(
        prefix="gpt_neox.",
        aliases={_OUTPUT: _EMBEDDING},
        # Masks and angles, which older versions of transformers saved.
        ignored=(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
        renamed={r"^lm_head\.": "embed_out."},  # since version 5
    ),
    base="GPTNeoXModel",
)
