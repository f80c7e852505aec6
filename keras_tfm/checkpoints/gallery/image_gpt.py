"""ImageGPT checkpoints: tensor names and configuration."""

from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.decoders.gpt import ALIASES
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm

# As in GPT-2: kernels are (in, out), and queries, keys and values share one matrix.
_dense = partial(dense, transposed=False)
_CLASSIFIER = "ImageGPTForImageClassification"
_TABLE = (
    Row("embedding/embeddings", ("wte.weight",)),
    Row("positions/positions", ("wpe.weight",)),
    *_dense("decoder_{i}/self_attention/query_key_value", "h.{i}.attn.c_attn"),
    *_dense("decoder_{i}/self_attention/output_projection", "h.{i}.attn.c_proj"),
    *rms_norm("decoder_{i}/self_attention_residual/norm", "h.{i}.ln_1"),
    *_dense("decoder_{i}/feed_forward/inner", "h.{i}.mlp.c_fc"),
    *_dense("decoder_{i}/feed_forward/outer", "h.{i}.mlp.c_proj"),
    *rms_norm("decoder_{i}/feed_forward_residual/norm", "h.{i}.ln_2"),
    *rms_norm("decoder_norm", "ln_f"),
    *dense("output", "lm_head", bias=False, head=True),
    *dense("classifier", "score", bias=False, head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(add_cross_attention=False, tie_word_embeddings=False, is_causal=True)
    dim = config.integer("n_embd", 512)
    return {
        # One id more is the start token.
        "vocabulary_size": config.integer("vocab_size", 513) - 1,
        "dim": dim,
        "num_layers": config.integer("n_layer", 24, maximum=1000),
        "num_heads": config.integer("n_head", 8),
        "intermediate_dim": config.integer("n_inner", None) or 4 * dim,
        "dropout": config.number("resid_pdrop", 0.1, 1),
        "attention_dropout": config.number("attn_pdrop", 0.1, 1),
        "embedding_dropout": config.number("embd_pdrop", 0.1, 1),
        "activation": config.activation("activation_function", "quick_gelu"),
        "rms_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "max_length": config.integer("n_positions", 1024),
        "scale_scores": config.flag("scale_attn_weights", True),
        "scale_scores_by_layer": config.flag("scale_attn_by_inverse_layer_idx", False),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        "vocab_size": given["vocabulary_size"] + 1,
        "n_embd": given["dim"],
        "n_layer": given["num_layers"],
        "n_head": given["num_heads"],
        "n_inner": given["intermediate_dim"],
        "n_positions": given["max_length"],
        "activation_function": activation_name(given["activation"]),
        "resid_pdrop": given["dropout"],
        "attn_pdrop": dropout_rate(given, given["attention_dropout"]),
        "embd_pdrop": dropout_rate(given, given["embedding_dropout"]),
        "layer_norm_epsilon": given["rms_norm_epsilon"],
        "scale_attn_weights": given["scale_scores"],
        "scale_attn_by_inverse_layer_idx": given["scale_scores_by_layer"],
        "tie_word_embeddings": False,
        **(label_fields(model) if architecture == _CLASSIFIER else {}),
    }


IMAGE_GPT = Family(
    model_type="imagegpt",
    builder=models.image_gpt,
    table=lambda model: _TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "ImageGPTForCausalImageModeling": Architecture(
            kind="language_model", prefixes=("lm_head.",)
        ),
        "ImageGPTModel": heads.backbone(),
        _CLASSIFIER: heads.sequence_classifier("mean", "score."),
    },
    names=Names(
        prefix="transformer.",
        # Causal masks, which older versions of transformers saved.
        ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
        transposed=r"h\.\d+\..*",
    ),
    aliases=ALIASES,
)
