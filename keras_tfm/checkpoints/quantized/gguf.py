"""GGUF files of Llama, Mistral, Qwen and Gemma, under the names and fields of transformers."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.checkpoints.config import Config, Fields
from keras_tfm.checkpoints.quantized.gguf_file import GgufFile
from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.stored_tensor import Tensor
from keras_tfm.checkpoints.tensors import AnyTensors

# The class and the model type of transformers by the architecture of a file.
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# In blocks that normalise the output of each sublayer, too.
_POST_NORM_NAMES = {
    **_BLOCK_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The number of blocks of the models of 27 billion parameters, whose heads are scaled by another
# number than their width, which no field tells.
_LARGEST = {"gemma2": 46, "gemma3": 62}
# Each must be the width of a head.
_WIDTHS = (
    "attention.key_length_swa",
    "attention.value_length",
    "attention.value_length_swa",
    "rope.dimension_count",
    "rope.dimension_count_swa",
)
# Keys that may change what is computed: these are read here, or by llama.cpp for no model of these.
_READ = {
    *_WIDTHS,
    "attention.attn_logit_softcapping",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
# The values with which other keys change nothing; 0 of a number that scales means none.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.shared_kv_layers": (0,),
    "embedding_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
# How the model is sampled, by the names in `generation_config.json`.
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
# One of this number of blocks has no window.
_PERIODS = {"gemma2": 2, "gemma3": 6}
# The tensor by which llama.cpp scales the rotary positions of Llama 3.1 and later.
_ROPE_FACTORS = "rope_freqs.weight"
# The factors of Llama 3.1 and 3.2; the other numbers are the same in all models.
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3: Fields = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def open_gguf(path: Path) -> tuple[Config, "GgufTensors"]:
    """The configuration and the tensors of a GGUF file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, of an unsupported architecture, or has an unsupported tensor.
    """
    file = GgufFile(path)
    architecture = file.fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path}: general.architecture must be one of {list(_ARCHITECTURES)}, "
            f"got {architecture!r}"
        )
    fields = _fields(file, str(architecture))
    return Config.of(path, fields), GgufTensors(file, fields, str(architecture))


def _fields(file: GgufFile, architecture: str) -> Fields:
    """The fields that `config.json` would have."""

    def field(name: str, default: object = None) -> Any:
        return file.fields.get(f"{architecture}.{name}", default)

    def refuse(name: str, value: object, expected: str) -> None:
        raise ValueError(f"{file.path}: {architecture}.{name} must be {expected}, got {value!r}")

    if field("expert_count", 0):
        refuse("expert_count", field("expert_count"), "0: mixtures of experts are not supported")
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ValueError(f"{file.path} has no matrix token_embd.weight")
    numbers = {}
    for name in ("embedding_length", "block_count", "attention.head_count"):
        numbers[name] = field(name)
        if type(numbers[name]) is not int or numbers[name] < 1:
            refuse(name, numbers[name], "a positive integer")
    heads = numbers["attention.head_count"]
    fields = {
        "architectures": [_ARCHITECTURES[architecture][0]],
        "model_type": _ARCHITECTURES[architecture][1],
        "vocab_size": table.shape[0],
        "hidden_size": numbers["embedding_length"],
        "num_hidden_layers": numbers["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "head_dim": field("attention.key_length", numbers["embedding_length"] // heads),
        "intermediate_size": field("feed_forward_length"),
        "rms_norm_eps": _shortest(field("attention.layer_norm_rms_epsilon", 1e-5)),
        "max_position_embeddings": field("context_length"),
        "rope_theta": _shortest(field("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        **{
            f"{x}_token_id": file.fields.get(f"tokenizer.ggml.{x}_token_id") for x in ("bos", "eos")
        },
    }
    sampling = {name: file.fields.get(key) for key, name in _SAMPLING.items()}
    if any(value is not None for value in sampling.values()):
        fields |= {name: _shortest(x) for name, x in sampling.items() if x is not None}
        # llama.cpp has other defaults than transformers, and no limit for a `top_k` below 1.
        fields["do_sample"] = fields.get("temperature") != 0
        top_k = fields.get("top_k", 0)
        fields["top_k"] = max(0, top_k) if type(top_k) is int else top_k
    if architecture == "llama":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    width = fields["head_dim"]
    for name in _WIDTHS:
        if field(name, width) != width:
            refuse(name, field(name), f"the width of a head ({width})")
    if architecture.startswith("gemma"):
        fields |= _of_gemma(architecture, fields, field)
    for name, value in _other_keys(file, architecture):
        if name == "attention.scale":
            neutral = (0.0, float(np.float32(fields.get("query_pre_attn_scalar", width) ** -0.5)))
        elif name == "attention.sliding_window_pattern":
            neutral = _patterns(_PERIODS.get(architecture, 1), numbers["block_count"])
        else:
            neutral = _NEUTRAL.get(name, ())
        if value not in neutral:
            expected = " or ".join(map(str, neutral)) or "absent"
            refuse(name, value, f"{expected}: other values are not supported")
    if scaling := _rope_scaling(field, refuse):
        fields["rope_scaling"] = scaling
    if _ROPE_FACTORS in file.tensors:
        fields["rope_scaling"] = _llama3(file, fields)
    return fields


def _other_keys(file: GgufFile, architecture: str) -> Iterator[tuple[str, Any]]:
    """The keys of an architecture that may change what it computes, and are not read."""
    for key, value in file.fields.items():
        name = key.removeprefix(f"{architecture}.")
        computes = name.startswith(("attention.", "rope.")) or name.endswith(("_scale", "capping"))
        if name != key and computes and name not in _READ:
            yield name, value


def _patterns(period: int, blocks: int) -> tuple[Any, ...]:
    """A pattern of windows as llama.cpp writes it: a period, or whether each block has one."""
    return period, [(i + 1) % period != 0 for i in range(blocks)]


def _rope_scaling(field: Callable[..., Any], refuse: Callable[..., None]) -> Fields | None:
    """The scaling of the rotary positions; as in llama.cpp, a factor without a type is linear."""
    factor = field("rope.scaling.factor", field("rope.scale_linear", 0.0))
    kind = field("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        refuse("rope.scaling.type", kind, "none, linear or yarn")
    if kind == "none" or not factor:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    betas = {name: field(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": field("rope.scaling.original_context_length"),
        **{name: x for name, x in betas.items() if x is not None},
    }


def _of_gemma(architecture: str, fields: Fields, field: Callable[..., Any]) -> Fields:
    """What the configuration of a Gemma has besides that of a Llama."""
    found: Fields = {"hidden_act": "gelu_pytorch_tanh"}
    if architecture == "gemma":
        return found
    width = fields["head_dim"]
    if fields["num_hidden_layers"] == _LARGEST[architecture]:
        width = fields["hidden_size"] // fields["num_attention_heads"]
    found |= {
        "hidden_activation": found["hidden_act"],
        "query_pre_attn_scalar": width,
        "sliding_window": field("attention.sliding_window"),
    }
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    if architecture == "gemma3":
        found["rope_local_base_freq"] = _shortest(field("rope.freq_base_swa", 10000.0))
        caps = {name: field(name) for name in caps if field(name)}  # by default none
    return found | {name: _shortest(field(name, x)) for name, x in caps.items()}


def _shortest(value: Any) -> Any:
    """The shortest decimal number that is this one in float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _llama3(file: GgufFile, fields: Fields) -> Fields:
    """The scaling whose factors the file has."""
    found = np.asarray(file.read(_ROPE_FACTORS)).ravel()
    width = fields["head_dim"]
    turns = np.asarray(fields["rope_theta"], "float64") ** (-np.arange(0, width, 2) / width)
    turns = turns * _LLAMA3["original_max_position_embeddings"] / (2 * math.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    for factor in _LLAMA3_FACTORS:
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        wanted = 1 / ((1 - smooth) / factor + smooth)
        if found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-4):
            return {**_LLAMA3, "factor": factor}
    raise ValueError(
        f"{file.path}: {_ROPE_FACTORS} must have the factors of Llama 3.1 or 3.2, "
        f"got {found[:3].tolist()}... of shape {found.shape}"
    )


class GgufTensors(AnyTensors):
    """The tensors of a GGUF file, by their names in transformers.

    The rows of Llama's queries and keys are in transformers' order: llama.cpp rotates neighbouring
    columns of a head, transformers columns of its two halves. The scales of Gemma's norms are less
    1, as there.

    Args:
        file: the file.
        fields: the fields of its configuration.
        architecture: str, that of the file.
    """

    def __init__(self, file: GgufFile, fields: Fields, architecture: str):
        super().__init__()
        self._file = file
        self._is_gemma = architecture.startswith("gemma")
        names = _POST_NORM_NAMES if architecture in ("gemma2", "gemma3") else _BLOCK_NAMES
        self._own: dict[str, str] = {}
        self._heads: dict[str, int] = {}
        for own, found in file.tensors.items():
            name = _name(own, names)
            if own == _ROPE_FACTORS:
                continue
            if name is None:
                raise ValueError(f"{file.path} has the unknown tensor {own}")
            if len(found.shape) > 1 + name.endswith("weight"):
                raise ValueError(f"{file.path}: {own} has the shape {found.shape}")
            end = found.begin + found.size
            self._own[name] = own
            self._tensors[name] = Tensor(file.path, "F32", found.shape, found.begin, end)
            for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if fields["model_type"] == "llama" and f".{part}." in name:
                    self._heads[name] = self._check_heads(own, found.shape[0], fields[key])

    def _check_heads(self, own: str, rows: int, heads: Any) -> int:
        if type(heads) is not int or heads < 1 or rows % (2 * heads):
            raise ValueError(f"{self._file.path}: {own} has {rows} rows for {heads!r} heads")
        return heads

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor in float32."""
        found = self._file.read(self._own[name])
        values = found.values() if isinstance(found, QuantizedTensor) else found
        if self._is_gemma and name.endswith("norm.weight"):
            values = values - 1
        return self._order(name, values.reshape(self[name].shape))

    def quantized_tensor(self, name: str) -> QuantizedTensor | None:
        """The levels and scales of a matrix; None: it has none."""
        found = self._file.read(self._own[name])
        if not isinstance(found, QuantizedTensor):
            return None
        offsets = None if found.offsets is None else self._order(name, found.offsets)
        levels, scales = (self._order(name, x) for x in (found.levels, found.scales))
        return QuantizedTensor(found.bits, levels, scales, offsets)

    def kind(self, name: str) -> str:
        """The type of a tensor in the file."""
        return self._file.tensors[self._own[name]].format.name

    def check_unchanged(self) -> None:
        """Raises a ValueError if the file was changed, replaced or removed since it was opened."""
        self._file.check_unchanged()

    def _order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows, or numbers of a bias, in transformers' order."""
        heads = self._heads.get(name)
        if heads is None:
            return rows
        pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)


def _name(own: str, names: Mapping[str, str] = _BLOCK_NAMES) -> str | None:
    """The name in transformers.

    >>> _name("blk.3.attn_q.weight"), _name("output_norm.weight"), _name("blk.0.ssm_a")
    ('model.layers.3.self_attn.q_proj.weight', 'model.norm.weight', None)
    """
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", own)
    if found is None:
        return None
    number, name, kind = found.groups()
    known = (_NAMES if number is None else names).get(name)
    if known is None:
        return None
    return f"{known}.{kind}" if number is None else f"model.layers.{number}.{known}.{kind}"
