"""The contestants of gpu.py, each in a separate process: a line on standard input is a turn."""

import contextlib
import json
import sys
import time

import numpy as np
from gpu import SIZES, SMOKE, TRAINING, sizes_of

# Steps of a turn.
STEPS = 5
PAD_ID = 0


def main() -> None:
    job = json.loads(sys.argv[1])
    if "file" in job:
        run_file(job["file"])
        return
    size = SMOKE if job["smoke"] else SIZES
    if job["name"] == "product":
        print(json.dumps(product(size["product"])))
        return
    make = {
        "PyTorch compiled": torch_step,
        "transformers": transformers_generation,
        "keras_tfm": keras_step if job["case"] in TRAINING else keras_generation,
    }.get(job["name"].partition(",")[0], keras_step)
    turn, count = make(job, size)
    turn()  # compiles
    turn()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        turn()
        seconds = (time.perf_counter() - start) / count
        print(json.dumps({"seconds": seconds, "memory": peak_memory()}), flush=True)


def peak_memory() -> int:
    """The largest memory of the framework's allocator on the GPU; 0 on a CPU."""
    if "jax" in sys.modules:
        statistics = sys.modules["jax"].devices()[0].memory_stats() or {}
        if statistics.get("peak_bytes_in_use"):
            return int(statistics["peak_bytes_in_use"])
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return int(sys.modules["torch"].cuda.max_memory_allocated())
    return 0


def product(size: int) -> dict:
    """The device, and the rate of a product of two bfloat16 matrices."""
    import keras

    if keras.backend.backend() == "jax":
        import jax
        import jax.numpy as jnp

        device = jax.devices()[0]
        name = "CPU" if device.platform == "cpu" else device.device_kind
        x = jnp.ones((size, size), "bfloat16")
        multiply = jax.jit(lambda x: x @ x)

        def run() -> None:
            for _ in range(10):
                y = multiply(x)
            y.block_until_ready()
    else:
        import torch

        has_gpu = torch.cuda.is_available()
        name = torch.cuda.get_device_name() if has_gpu else "CPU"
        x = torch.ones((size, size), dtype=torch.bfloat16, device="cuda" if has_gpu else "cpu")

        def run() -> None:
            for _ in range(10):
                x @ x
            if has_gpu:
                torch.cuda.synchronize()

    if name == "CPU" and size == SIZES["product"]:
        return {"device": "CPU", "rate": 0.0}
    run()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"device": name, "rate": 10 * 2 * size**3 / min(times)}


def batches(job: dict, size: dict) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a turn; padding comes last."""
    batch, length, _, padded = sizes_of(job["case"], job["smoke"])
    random = np.random.default_rng(0)
    ids = random.integers(1, size["vocabulary"], (STEPS * batch, length + 1)).astype("int32")
    if padded:
        lengths = random.integers(length // 4, length + 1, len(ids))
        ids[np.arange(length + 1) >= lengths[:, np.newaxis]] = PAD_ID
    return ids[:, :-1], ids[:, 1:]


# Keras.


def keras_step(job: dict, size: dict):
    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    batch, length, dropout, padded = sizes_of(job["case"], job["smoke"])
    build = {"keras_tfm": keras_tfm_model, "KerasHub": keras_hub_model, "Keras MHA": mha_model}
    model = build[job["name"]](size, length, dropout, padded)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if padded:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD_ID)
    model.compile(keras.optimizers.AdamW(1e-4), loss)
    x, y = batches(job, size)
    return lambda: model.fit(x, y, batch_size=batch, shuffle=False, verbose=0), STEPS


def keras_tfm_model(size: dict, length: int, dropout: float, padded: bool):
    from keras_tfm import models

    return models.gpt(
        size["vocabulary"],
        size["dim"],
        size["layers"],
        size["heads"],
        size["inner"],
        dropout=dropout,
        max_length=length,
        pad_id=PAD_ID if padded else None,
    )


def mha_model(size: dict, length: int, dropout: float, padded: bool):
    import keras
    from keras import layers, ops

    class Positions(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=shape[1:], initializer="random_normal")

        def call(self, x):
            return x + ops.cast(self.table, x.dtype)

    table = layers.ReversibleEmbedding(size["vocabulary"], size["dim"], mask_zero=padded)
    ids = keras.Input((length,), dtype="int32")
    positions = Positions()
    positions.supports_masking = True
    x = layers.Dropout(dropout)(positions(table(ids)))
    width = size["dim"] // size["heads"]
    for _ in range(size["layers"]):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        attention = layers.MultiHeadAttention(size["heads"], width, dropout=dropout)
        x = layers.Add()([x, layers.Dropout(dropout)(attention(y, y, use_causal_mask=True))])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(size["inner"], lambda x: keras.activations.gelu(x, approximate=True))(y)
        x = layers.Add()([x, layers.Dropout(dropout)(layers.Dense(size["dim"])(y))])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(ids, table(x, reverse=True))


def keras_hub_model(size: dict, length: int, dropout: float, padded: bool):
    import keras
    import keras_hub

    ids = keras.Input((length,), dtype="int32")
    table = keras_hub.layers.TokenAndPositionEmbedding(
        size["vocabulary"], length, size["dim"], mask_zero=padded
    )
    x = keras.layers.Dropout(dropout)(table(ids))
    for _ in range(size["layers"]):
        x = keras_hub.layers.TransformerDecoder(
            size["inner"],
            size["heads"],
            dropout=dropout,
            activation=lambda x: keras.activations.gelu(x, approximate=True),
            normalize_first=True,
        )(x)
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(ids, table.token_embedding(x, reverse=True))


def keras_generation(job: dict, size: dict):
    import keras

    from keras_tfm import generation, models

    keras.utils.set_random_seed(0)
    rows, prompt, new = sizes_of(job["case"], job["smoke"])
    model = models.gpt(
        size["vocabulary"],
        size["dim"],
        size["layers"],
        size["heads"],
        size["inner"],
        dropout=0.0,
        max_length=prompt + new,
        dtype="bfloat16",
    )
    ids = np.random.default_rng(0).integers(1, size["vocabulary"], (rows, prompt)).astype("int32")
    generator = generation.Generator(model, max_length=prompt + new)
    return lambda: np.asarray(generator(ids).tokens), 1


# PyTorch.


def torch_step(job: dict, size: dict):
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, length, dropout, _ = sizes_of(job["case"], job["smoke"])
    dim, heads = size["dim"], size["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
            self.query_key_value, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.inner, self.outer = nn.Linear(dim, size["inner"]), nn.Linear(size["inner"], dim)
            self.dropout = nn.Dropout(dropout)

        def forward(self, x):
            rows, columns = x.shape[:2]
            parts = self.query_key_value(self.norms[0](x)).view(rows, columns, 3, heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=dropout if self.training else 0.0
            )
            x = x + self.dropout(self.output(y.transpose(1, 2).reshape(rows, columns, dim)))
            y = functional.gelu(self.inner(self.norms[1](x)), approximate="tanh")
            return x + self.dropout(self.outer(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(size["vocabulary"], dim)
            self.positions = nn.Embedding(length, dim)
            self.blocks = nn.Sequential(*[Block() for _ in range(size["layers"])])
            self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

        def forward(self, ids, labels):
            x = self.dropout(self.table(ids) + self.positions.weight)
            logits = self.norm(self.blocks(x)) @ self.table.weight.T
            return functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD_ID
            )

    model = Model().to(device)
    # On a CPU, compiling takes longer than all the rest.
    loss_of = torch.compile(model) if device == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device == "cuda")
    x, y = (torch.tensor(a, device=device).long() for a in batches(job, size))

    def turn() -> None:
        for start in range(0, len(x), batch):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                loss = loss_of(x[start : start + batch], y[start : start + batch])
            loss.backward()
            optimizer.step()
        loss.item()  # waits

    return turn, STEPS


def transformers_generation(job: dict, size: dict):
    import torch
    import transformers

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, prompt, new = sizes_of(job["case"], job["smoke"])
    config = transformers.GPT2Config(
        vocab_size=size["vocabulary"],
        n_positions=prompt + new,
        n_embd=size["dim"],
        n_layer=size["layers"],
        n_head=size["heads"],
        n_inner=size["inner"],
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config).to(device, torch.bfloat16).eval()
    ids = torch.randint(1, size["vocabulary"], (rows, prompt), device=device)

    def turn() -> None:
        with torch.inference_mode():
            # A static cache lets transformers compile the step on a GPU.
            tokens = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                cache_implementation="static",
                pad_token_id=PAD_ID,
            )
        tokens.cpu()

    return turn, 1


# LiteRT.


def run_file(path: str) -> None:
    """Prints a row for each signature: on the delegate in its default precision, and on a CPU."""
    from ai_edge_litert.compiled_model import CompiledModel, Options
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator

    from keras_tfm import runtime
    from keras_tfm.runtime.inspection.random_inputs import random_inputs

    file = runtime.load(path)
    options = Options(hardware_accelerators=HardwareAccelerator.GPU)
    try:
        model = CompiledModel.from_file(path, options=options)
        refusal = None if model.is_fully_accelerated() else "only a part of the graph"
    except RuntimeError as error:
        refusal = str(error).splitlines()[0]
    for name, tensors in {} if refusal else model.get_signature_list().items():
        given = random_inputs(file.file.signatures[name].inputs)
        inputs = {x: model.create_input_buffer_by_name(name, x) for x in tensors["inputs"]}
        outputs = {x: model.create_output_buffer_by_name(name, x) for x in tensors["outputs"]}
        for x, buffer in inputs.items():
            buffer.write(given[x])
        details = model.get_output_tensor_details(name)
        first = tensors["outputs"][0]
        count, dtype = int(np.prod(details[first]["shape"])), details[first]["dtype"]

        def on_gpu(name=name, inputs=inputs, outputs=outputs, first=first, n=count, dtype=dtype):
            model.run_by_name(name, inputs, outputs)
            outputs[first].read(n, dtype)  # waits

        on_cpu = lambda name=name, given=given: file.run(name, given)  # noqa: E731
        print(f"| {name}: whole graph | {milliseconds(on_gpu)} | {milliseconds(on_cpu)} |")
    if refusal:
        print(f"| refused: {refusal} | | |")


def milliseconds(run) -> str:
    times = []
    for _ in range(12):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return f"{np.median(times[2:]):.2f}"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
