"""Seconds and memory from a Hugging Face folder to the first token in Keras, or to a file.

    python benchmarks/loading.py                              # random weights of Qwen3-0.6B's shape
    python benchmarks/loading.py smollm2-135m --dtype bfloat16
    python benchmarks/loading.py --folder FOLDER
    python benchmarks/loading.py --export int8 --no-verify    # a file with prefill and decode
    python benchmarks/loading.py --export int8 --lazy         # the weights stay in the folder
    python benchmarks/loading.py gemma3-1b --export int8 --lazy --format litertlm
    PYTHONPATH=another/tree python benchmarks/loading.py      # with another version of keras_tfm

A new process imports Keras and the library, loads the folder (bfloat16 weights, in the page cache)
and generates one token after a prompt of eight, or exports the model. After each stage it reports
CPU seconds of all threads, wall seconds, the peak of the resident memory, and the anonymous part
now.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")  # as keras-tfm does

import ml_dtypes
import numpy as np

# fmt: off
MODELS = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960, "tie_word_embeddings": True, "rope_theta": 1000000.0,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "head_dim": 64, "intermediate_size": 1536, "vocab_size": 49152, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100000.0,
    },
    "gemma3-1b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "sliding_window": 512, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    "llama3.2-1b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_theta": 500000.0,
    },
    "llama3.2-3b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_theta": 500000.0,
    },
}
# fmt: on


def write_folder(folder: Path, config: dict) -> None:
    """Writes a folder of random bfloat16 weights, a tensor at a time."""
    (folder / "config.json").write_text(json.dumps(config))
    dim, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim), "model.norm.weight": (dim,)}
    for i in range(config["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": (query, dim),
            "self_attn.k_proj": (key, dim),
            "self_attn.v_proj": (key, dim),
            "self_attn.o_proj": (dim, query),
            "mlp.gate_proj": (inner, dim),
            "mlp.up_proj": (inner, dim),
            "mlp.down_proj": (dim, inner),
            "input_layernorm": (dim,),
            "post_attention_layernorm": (dim,),
        }
        if config["model_type"] != "llama":
            norm = (config["head_dim"],)
            parts |= {"self_attn.q_norm": norm, "self_attn.k_norm": norm}
        if config["model_type"] == "gemma3_text":
            parts |= {f"{x}_feedforward_layernorm": (dim,) for x in ("pre", "post")}
        shapes |= {f"model.layers.{i}.{name}.weight": x for name, x in parts.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            values = 0.02 * rng.standard_normal(shape, "float32")
            if len(shape) == 1 and config["model_type"] != "gemma3_text":  # Gemma adds 1 itself
                values += 1
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())


def report(stage: str, start: float) -> None:
    """Prints the time since the process began, and its memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    peak, anonymous = (int(status[key].split()[0]) * 1024e-9 for key in ("VmHWM", "RssAnon"))
    print(
        f"{stage:12} CPU {time.process_time():6.1f} s, wall {time.perf_counter() - start:6.1f} s, "
        f"peak {peak:.2f} GB, anonymous {anonymous:.2f} GB",
        flush=True,
    )


def measure(arguments: argparse.Namespace) -> None:
    """Loads a folder, and generates a token or exports the model."""
    start, folder = time.perf_counter(), arguments.folder
    from keras_tfm import checkpoints, generation

    report("import", start)
    options = {"lazy": True} if arguments.lazy else {}
    model = checkpoints.load_huggingface(folder, dtype=arguments.dtype, **options)
    report("load", start)
    if arguments.export is None:
        generation.generate(model, np.arange(1, 9)[None] * 7, max_length=9)
        report("first token", start)
        return
    path = arguments.output or folder / f"model.{arguments.format}"
    written = FORMATS[arguments.format](model, path, arguments)
    report("export", start)
    print(f"{written.bytes / 1e6:.0f} MB", written.verification or "")


def tflite(model, path: Path, arguments: argparse.Namespace):
    """Exports prefill and decode, each for two sizes of caches."""
    from keras_tfm.export import export_tflite

    sizes = {"prompt_length": 64, "max_length": 256, "end_id": 2}
    steps, common = ["prefill", "decode"], {"verify": arguments.verify, "overwrite": True}
    return export_tflite(model, path, steps, arguments.export, **sizes, **common)


def litertlm(model, path: Path, arguments: argparse.Namespace):
    """Exports a file with a tokenizer of as many words as the model has ids."""
    import tokenizers

    from keras_tfm.export import export_litertlm

    size = model.arguments["vocabulary_size"]
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["w1", "w2"])
    sizes = {"max_length": 256, "start_id": 1, "end_id": 2}
    common = {"verify": arguments.verify, "overwrite": True}
    return export_litertlm(model, path, tokenizer, arguments.export, **sizes, **common)


FORMATS = {"tflite": tflite, "litertlm": litertlm}


def main() -> None:
    """Parses the command line and runs the benchmark in a new process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="qwen3-0.6b", choices=MODELS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--export", metavar="QUANTIZATION")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--format", default="tflite", choices=FORMATS)
    parser.add_argument("--output", type=Path, help="where to keep the file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        measure(arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if not (folder / "config.json").exists():
            folder.mkdir(exist_ok=True)
            write_folder(folder, MODELS[arguments.model])
        command = [sys.executable, __file__, "--here", *sys.argv[1:], "--folder", str(folder)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
