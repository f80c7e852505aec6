"""GGUF files of a Hugging Face folder for llama.cpp: `gguf` writes float32, llama.cpp quantizes.

Llama and Qwen3 with tied embeddings, as benchmarks/language_model.py needs them. There is no
tokenizer in the files: the benchmark passes ids.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

# llama.cpp's numbers of its precisions (`llama_ftype`).
PRECISIONS = {"Q4_0": 2, "Q8_0": 7}


def write(folder: Path, path: Path) -> None:
    """A folder's model as a GGUF file in float32."""
    import gguf
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text())
    kind, layers = config["model_type"], config["num_hidden_layers"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    size = config.get("head_dim") or config["hidden_size"] // heads["q"]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q"])
    writer.add_head_count_kv(heads["k"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{i}>" for i in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["< 0"])
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, kind.upper()), layers)
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no dictionary)
                if name == "lm_head.weight" and config["tie_word_embeddings"]:
                    continue
                x = file.get_tensor(name).float().numpy()
                for letter, count in heads.items():
                    if kind == "llama" and name.endswith(f"{letter}_proj.weight"):
                        # ggml rotates neighbouring columns of Llama's heads, not halves.
                        halves = x.reshape(count, 2, size // 2, -1)
                        x = halves.swapaxes(1, 2).reshape(x.shape)
                writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Parameters(ctypes.Structure):
    """The first fields of `llama_model_quantize_params`, and more bytes than it has."""

    _fields_ = (
        ("threads", ctypes.c_int32),
        ("precision", ctypes.c_int32),
        ("rest", ctypes.c_byte * 1024),
    )


def quantize(libraries: Path, source: Path, target: Path, precision: str) -> None:
    """What `llama-quantize` does; node-llama-cpp has no function for it."""
    (path,) = libraries.glob("libggml.v*.so")
    ctypes.CDLL(str(path)).ggml_backend_load_all_from_path(str(libraries).encode())
    (path,) = libraries.glob("libllama.v*.so")
    library: Any = ctypes.CDLL(str(path))
    library.llama_model_quantize_default_params.restype = _Parameters
    parameters = library.llama_model_quantize_default_params()
    parameters.threads, parameters.precision = 1, PRECISIONS[precision]
    arguments = str(source).encode(), str(target).encode(), ctypes.byref(parameters)
    if library.llama_model_quantize(*arguments):
        raise RuntimeError(f"llama.cpp cannot quantize {source}")
