"""Checkpoints of mixtures of experts: fields and rows of all, Mixtral, Qwen2-MoE and Qwen3-MoE."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_saved,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.layers import Routing
from keras_tfm.models.decoders.causal_decoder import each_flag

# Values of fields that are missing in `config.json`.
_MIXTRAL: Arguments = {
    **llama.LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
}  # fmt: skip
_QWEN2: Arguments = {
    **llama.LLAMA_DEFAULTS, "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24,
    "num_attention_heads": 16, "intermediate_size": 5632, "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
}  # fmt: skip
_QWEN3: Arguments = {
    **_QWEN2, "num_attention_heads": 32, "intermediate_size": 6144, "num_key_value_heads": 4,
}  # fmt: skip
_THETA, _WINDOW, _MAX_WINDOW_LAYERS = 1000000.0, 4096, 28
_QKV = ["query", "key", "value"]


def expert_rows(
    module: str, inner: Sequence[str], outer: str, router: str = "gate"
) -> tuple[Row, ...]:
    """The rows of a block's router and experts.

    Args:
        module: str, name of the block's mixture in the checkpoint, with {i} for the block.
        inner: names of the tensors of an expert's first layer, the gate first.
        outer: str, that of its second layer.
        router: str, that of the router.
    """
    path, expert = "decoder_{i}/feed_forward", f"{module}.experts.{{j}}"
    return (
        *dense(f"{path}/router", f"{module}.{router}", bias=False),
        *dense(f"{path}/expert_{{j}}/inner", *(f"{expert}.{x}" for x in inner), bias=False),
        *dense(f"{path}/expert_{{j}}/outer", f"{expert}.{outer}", bias=False),
    )


def stacked_rows(module: str) -> tuple[Row, ...]:
    """The rows of a router and experts of Granite, whose tensors are those of all experts.

    Args:
        module: str, name of the block's mixture in the checkpoint, with {i} for the block.
    """
    path = "decoder_{i}/feed_forward"
    parts = {"inner": "input_linear", "outer": "output_linear"}
    return (
        *dense(f"{path}/router", f"{module}.router.layer", bias=False),
        *(
            Row(
                f"{path}/expert_{{j}}/{ours}/kernel",
                (f"{module}.{theirs}.weight[{{j}}]",),
                Transposed(),
            )
            for ours, theirs in parts.items()
        ),
    )


# Names of the tensors in `stacked_rows`.
STACKED = r".*\.block_sparse_moe\.(input|output)_linear\.weight"


def read_numbers(
    config: Config, num_experts: int, top_k: int, name: str = "num_local_experts"
) -> tuple[int, int]:
    """The number of experts, and of those of a token.

    Args:
        config: the configuration.
        num_experts, top_k: int, the numbers if the fields are missing.
        name: str, name of the first field.
    """
    experts = config.integer(name, num_experts)
    return experts, config.integer("num_experts_per_tok", top_k, maximum=experts)


def experts_of(model: models.Model) -> models.Experts | None:
    """The experts of a model; None if it has none, or was saved before there were any."""
    experts: models.Experts | None = model.arguments.get("experts")
    return experts


def check_experts(
    model: models.Model,
    kind: str,
    saved: Collection[str] = (),
    scores: str = "softmax",
    shared_gate: bool = False,
) -> models.Experts:
    """The experts of a model, if checkpoints of its kind can express them.

    Args:
        model: the model.
        kind: str, name of the checkpoints, for the message.
        saved: attributes of the experts and their routing that such a checkpoint has, besides
            those that all have.
        scores, shared_gate: the only values of these.
    """
    experts = experts_of(model)
    if experts is None:
        raise ValueError(f"{model.name}: experts must be given to be saved as {kind}, got None")
    only: dict[str, object] = {
        "scores": scores, "normalize": True, "scale": 1.0, "use_bias": False,
        "selection_bias": False, "shared_dim": None, "shared_gate": shared_gate,
    }  # fmt: skip
    for name, value in only.items():
        found = getattr(experts if hasattr(experts, name) else experts.routing, name)
        if name not in saved and found != value:
            raise ValueError(
                f"{model.name}: {name} of experts must be {value!r} to be saved as {kind}, got "
                f"{found!r}"
            )
    if "blocks" not in saved and not all(blocks_with_experts(model)):
        raise ValueError(
            f"{model.name}: all blocks must have experts to be saved as {kind}, got "
            f"{experts.blocks}"
        )
    return experts


def blocks_with_experts(model: models.Model) -> list[bool]:
    """Whether each block of a model with experts has some."""
    given = model.arguments
    return each_flag("experts.blocks", given["experts"].blocks, given["num_layers"], interval=1)


def expert_width(model: models.Model) -> int:
    """The inner width of an expert."""
    width: int = model.arguments["experts"].intermediate_dim or model.arguments["intermediate_dim"]
    return width


def _mixtral_table(model: models.Model) -> tuple[Row, ...]:
    module = "layers.{i}.block_sparse_moe"
    return (*llama.table(model), *expert_rows(module, ("w1", "w3"), "w2"))


def _mixtral_arguments(config: Config, named: Named) -> Arguments:
    config.only(router_jitter_noise=0.0)
    arguments = llama.shared_arguments(config, named, _MIXTRAL)
    del arguments["attention_bias"]  # which transformers does not read
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config, _THETA),
        "windows": config.integer("sliding_window", None),
        "experts": models.Experts(Routing(*read_numbers(config, 8, 2))),
        "pad_id": read_pad_id(config, named),
    }


def _shared_fields(model: models.Model, architecture: str, kind: str) -> Fields:
    """The fields that the three families have in common."""
    check_saved(
        model, kind, causal=True, interleaved=False, query_beta=None, rotate_first=False,
        gated=True, feed_forward_bias=False, model_type=None,
    )  # fmt: skip
    given = model.arguments
    return {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "num_experts_per_tok": given["experts"].routing.top_k,
    }


def _mixtral_fields(model: models.Model, architecture: str) -> Fields:
    experts = check_experts(model, "mixtral")
    check_saved(model, "mixtral", attention_bias=False, query_key_norm=False)
    window, each = window_of(model)
    if len(set(each)) > 1:
        raise ValueError(f"{model.name}: a mixtral checkpoint has one window, got {each}")
    return {
        **_shared_fields(model, architecture, "mixtral"),
        "intermediate_size": expert_width(model),
        "num_local_experts": experts.routing.num_experts,
        "sliding_window": window,
    }


def _has_experts(config: Config, num_layers: int) -> list[bool]:
    """Whether each block of Qwen has experts."""
    dense_blocks = config.fields.get("mlp_only_layers")
    dense_blocks = [] if dense_blocks is None else dense_blocks
    if not isinstance(dense_blocks, list) or not all(type(x) is int for x in dense_blocks):
        config.refuse("mlp_only_layers", dense_blocks, "a list of integers")
    step = config.integer("decoder_sparse_step", 1)
    return [i not in dense_blocks and (i + 1) % step == 0 for i in range(num_layers)]


def _qwen_windows(config: Config, num_layers: int, by_block: bool) -> Windows:
    """The windows of Qwen3-MoE, one for all blocks, or of Qwen2-MoE, in every second block."""
    if not config.flag("use_sliding_window", False):
        return None
    missing = "sliding_window" not in config.fields
    window = _WINDOW if missing else config.integer("sliding_window", None)
    if not by_block:
        return window
    kinds = config.fields.get("layer_types")
    if kinds is None:
        last = config.integer("max_window_layers", _MAX_WINDOW_LAYERS, minimum=0)
        kinds = [SLIDING if i % 2 == 0 and i < last else FULL for i in range(num_layers)]
    return read_windows(config, kinds, num_layers, window)


def _qwen_table(model: models.Model) -> tuple[Row, ...]:
    module, path = "layers.{i}.mlp", "decoder_{i}/feed_forward"
    inner, outer, shared = ("gate_proj", "up_proj"), "down_proj", f"{module}.shared_expert"
    return (
        *llama.table(model),
        *expert_rows(module, inner, outer),
        *dense(f"{path}/shared_expert/inner", *(f"{shared}.{x}" for x in inner), bias=False),
        *dense(f"{path}/shared_expert/outer", f"{shared}.{outer}", bias=False),
        *dense(f"{path}/shared_gate", f"{module}.shared_expert_gate", bias=False),
    )


def _qwen_arguments(config: Config, named: Named, is_third: bool) -> Arguments:
    arguments = llama.shared_arguments(config, named, _QWEN3 if is_third else _QWEN2)
    shared: Arguments = {}
    if not is_third:
        biased = config.flag("qkv_bias", True)
        arguments["attention_bias"] = _QKV if biased else False
        shared = {
            "shared_dim": config.integer("shared_expert_intermediate_size", 5632),
            "shared_gate": True,
        }
    numbers = (
        read_numbers(config, 128, 8) if is_third else read_numbers(config, 60, 4, "num_experts")
    )
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        "windows": _qwen_windows(config, arguments["num_layers"], by_block=not is_third),
        "query_key_norm": is_third,
        "experts": models.Experts(
            Routing(*numbers, normalize=config.flag("norm_topk_prob", False)),
            config.integer("moe_intermediate_size", 768 if is_third else 1408),
            **shared,
            blocks=_has_experts(config, arguments["num_layers"]),
        ),
        "pad_id": read_pad_id(config, named),
    }


def _qwen_fields(model: models.Model, architecture: str, is_third: bool) -> Fields:
    kind = "qwen3_moe" if is_third else "qwen2_moe"
    given = model.arguments
    saved = ("normalize", "blocks") if is_third else ("normalize", "blocks", "shared_dim")
    experts = check_experts(model, kind, saved, shared_gate=not is_third)
    fields = _shared_fields(model, architecture, kind)
    window, each = window_of(model)
    if is_third:
        check_saved(model, kind, attention_bias=(True, False))
        if len(set(each)) > 1:
            raise ValueError(f"{model.name}: a {kind} checkpoint has one window, got {each}")
    else:
        check_saved(model, kind, attention_bias=(_QKV, False), query_key_norm=False)
        fields |= {
            "qkv_bias": given["attention_bias"] is not False,
            "shared_expert_intermediate_size": experts.shared_dim,
            "layer_types": [FULL if x is None else SLIDING for x in each],
        }
        del fields["attention_bias"]
    return {
        **fields,
        "num_local_experts" if is_third else "num_experts": experts.routing.num_experts,
        "moe_intermediate_size": expert_width(model),
        "norm_topk_prob": experts.routing.normalize,
        "mlp_only_layers": [i for i, x in enumerate(blocks_with_experts(model)) if not x],
        "decoder_sparse_step": 1,
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


def _is_qwen3(model: models.Model) -> bool:
    return experts_of(model) is not None and bool(model.arguments["query_key_norm"])


def _is_qwen2(model: models.Model) -> bool:
    experts = experts_of(model)
    return experts is not None and experts.shared_gate


def _family(
    model_type: str,
    name: str,
    answers: str,
    aliases: Mapping[str, str],
    is_of: Callable[[models.Model], bool],
    table: Callable[[models.Model], tuple[Row, ...]],
    arguments: Callable[[Config, Named], Arguments],
    fields: Callable[[models.Model, str], Fields],
) -> Family:
    return Family(
        model_type=model_type,
        builder=models.llama,
        table=table,
        arguments=arguments,
        fields=fields,
        architectures=architectures(name, classifies_tokens=True, answers=answers),
        is_of=is_of,
        names=llama.NAMES,
        aliases=aliases,
    )


_ALIASES = {"num_experts": "num_local_experts"}
QWEN3_MOE = _family(
    "qwen3_moe",
    "Qwen3Moe",
    llama.OLD_PREFIX,
    _ALIASES,
    _is_qwen3,
    _qwen_table,
    partial(_qwen_arguments, is_third=True),
    partial(_qwen_fields, is_third=True),
)
QWEN2_MOE = _family(
    "qwen2_moe",
    "Qwen2Moe",
    llama.NAMES.prefix,
    {},
    _is_qwen2,
    _qwen_table,
    partial(_qwen_arguments, is_third=False),
    partial(_qwen_fields, is_third=False),
)
MIXTRAL = _family(
    "mixtral",
    "Mixtral",
    llama.NAMES.prefix,
    _ALIASES,
    lambda model: experts_of(model) is not None,
    _mixtral_table,
    _mixtral_arguments,
    _mixtral_fields,
)
