"""Seconds from a composed language model to its first answer, an export and a step of `fit`.

    python benchmarks/first_token.py                          # random weights, SmolLM2-135M's shape
    python benchmarks/first_token.py --folder SMOLLM2         # a Hugging Face folder of a Llama
    python benchmarks/first_token.py --stages generate,xla --layers 4 --markdown
    PYTHONPATH=another/tree python benchmarks/first_token.py  # with another version of keras_tfm

Each stage runs in a new process, which composes the model again. It reports CPU seconds (of all
threads), wall seconds and the peak memory (including the model). A prompt has 37 tokens, and 24 new
tokens are generated; the exported file has max_length 96.
"""

import argparse
import contextlib
import cProfile
import json
import os
import platform
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0},
}
PROMPT, OTHER, NEW = 37, 45, 24  # prompts of both lengths are padded to 64
STAGES = ("generate", "xla", "function", "int8", "fit")


def compose(config: dict[str, Any], num_layers: int) -> Any:
    """Composes SmolLM2 from layers."""
    import keras

    from keras_tfm import layers

    ids = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(config["vocab_size"], config["hidden_size"], name="embedding")
    x = embedding(ids)
    for i in range(num_layers):
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                config["num_attention_heads"],
                causal=True,
                num_key_value_heads=config["num_key_value_heads"],
                use_bias=False,
                position=layers.RotaryEmbedding(
                    max_wavelength=config["rope_parameters"]["rope_theta"]
                ),
                name="self_attention",
            ),
            cross_attention=False,
            feed_forward=layers.FeedForward(
                config["intermediate_size"],
                activation="silu",
                gated=True,
                use_bias=False,
                name="feed_forward",
            ),
            residual=layers.Residual(
                input_norm=layers.RMSNormalization(epsilon=config["rms_norm_eps"], name="norm")
            ),
            name=f"decoder_{i}",
        )(x)
    x = layers.RMSNormalization(epsilon=config["rms_norm_eps"], name="final_norm")(x)
    return keras.Model(ids, embedding(x, reverse=True), name="smollm2")


def load(model: Any, folder: Path) -> None:
    """Loads the weights of a Hugging Face folder, fused as in our layers."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    for variable in model.weights:
        variable.assign(_tensor(tensors, variable.path))


def _tensor(tensors: dict[str, np.ndarray], path: str) -> np.ndarray:
    if path.startswith("embedding/"):
        return tensors["model.embed_tokens.weight"]
    if path.startswith("final_norm/"):
        return tensors["model.norm.weight"]
    block = f"model.layers.{path.split('/')[0].split('_')[1]}."

    def kernels(*names: str) -> np.ndarray:
        return np.concatenate([tensors[f"{block}{name}.weight"].T for name in names], axis=1)

    if path.endswith("query_key_value/kernel"):
        return kernels("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    if path.endswith("output_projection/kernel"):
        return kernels("self_attn.o_proj")
    if path.endswith("inner/kernel"):
        return kernels("mlp.gate_proj", "mlp.up_proj")
    if path.endswith("outer/kernel"):
        return kernels("mlp.down_proj")
    norm = "input" if "self_attention_residual" in path else "post_attention"
    return tensors[f"{block}{norm}_layernorm.weight"]


class Watch:
    """Measures named parts of a stage."""

    def __init__(self, profiled: str | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._profiled = profiled

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures the code inside and adds a row."""
        profile = cProfile.Profile() if name == self._profiled else contextlib.nullcontext()
        wall, cpu = time.perf_counter(), time.process_time()
        with profile:
            yield
        self.rows.append(
            {
                "part": name,
                "cpu": time.process_time() - cpu,
                "wall": time.perf_counter() - wall,
                "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
        if isinstance(profile, cProfile.Profile):
            for order in ("cumulative", "tottime"):
                pstats.Stats(profile, stream=sys.stderr).sort_stats(order).print_stats(70)


def run(stage: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one stage, in this process."""
    import keras
    import tensorflow  # noqa: F401  (imported here, so that it is not measured)

    import keras_tfm.export
    from keras_tfm.generation import Generator, generate

    config = SMOLLM2
    if arguments.folder:
        config = json.loads((arguments.folder / "config.json").read_text())
    keras.utils.set_random_seed(0)
    watch = Watch(arguments.profile)
    with watch.part("compose"):
        model = compose(config, arguments.layers or config["num_hidden_layers"])
        if arguments.folder:
            load(model, arguments.folder)
    rng = np.random.default_rng(0)
    first, second = (rng.integers(1, config["vocab_size"], (1, n)) for n in (PROMPT, OTHER))
    if stage in ("generate", "xla"):
        with watch.part("Generator(...)"):
            generator = Generator(model, max_new_tokens=NEW, jit_compile=stage == "xla")
        suffix = ", XLA" if stage == "xla" else ""
        with watch.part("first call" + suffix):
            tokens = generator(first).tokens
        with watch.part("second call, another length" + suffix):
            generator(second)
        with watch.part("third call" + suffix):
            generator(first)
        print("tokens", tokens[0, PROMPT:].tolist(), file=sys.stderr)
    elif stage == "function":
        for name, prompt in (("first", first), ("second", second)):
            with watch.part(f"generate(...), {name} call"):
                generate(model, prompt, max_new_tokens=NEW)
    elif stage == "int8":
        with tempfile.TemporaryDirectory() as folder, watch.part("export_tflite, int8, verified"):
            report = keras_tfm.export.export_tflite(
                model,
                folder + "/model.tflite",
                signatures=["generate"],
                quantization="int8",
                prompt_length=48,
                max_length=96,
            )
        print(report, file=sys.stderr)
    elif stage == "fit":
        model.compile(keras.optimizers.Adam(1e-5), keras.losses.SparseCategoricalCrossentropy(True))
        ids = rng.integers(1, config["vocab_size"], (2, 65))
        for name in ("first", "second"):
            with watch.part(f"fit, {name} step of 2 x 64"):
                model.fit(ids[:, :-1], ids[:, 1:], batch_size=2, epochs=1, verbose=0)
    return watch.rows


def processor() -> str:
    """The name of the processor and its number of cores."""
    name = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":")[1].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Runs the stages and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="Hugging Face folder; default: random weights")
    parser.add_argument("--layers", type=int, help="number of blocks; default: the model's")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--profile", help="the part to profile, by its name in the table")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        print(json.dumps(run(arguments.stage, arguments)))
        return
    print(f"{processor()}; seconds; peak memory in GiB")
    bar = "| " if arguments.markdown else ""
    print(f"{bar}{'':42}{bar}{'CPU s':>8}{bar}{'wall s':>8}{bar}{'GiB':>6}{bar}".rstrip())
    if arguments.markdown:
        print("|---|---:|---:|---:|")
    composed = False
    for stage in arguments.stages.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        for row in json.loads(output.splitlines()[-1]):
            if row["part"] == "compose" and composed:
                continue
            composed = True
            print(
                f"{bar}{row['part']:42}{bar}{row['cpu']:8.2f}{bar}{row['wall']:8.2f}{bar}"
                f"{row['gigabytes']:6.2f}{bar}".rstrip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
