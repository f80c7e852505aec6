"""A stack of encoder blocks against its peers: training step and inference.

    pip install -e ".[benchmarks]"
    python benchmarks/layers.py                     # ten minutes; skips what is not installed
    python benchmarks/layers.py --markdown --rounds 20
    python benchmarks/layers.py --memory            # peak memory of one block at 2k .. 16k
    python benchmarks/layers.py --vit               # a training step of ViT-S/16

4 layers, D=256, H=8, F=1024, post-norm, relu, dropout 0.1 everywhere, Adam, mean squared error, at
(B=32, S=128) and (B=8, S=512). Contestants: keras_tfm `TransformerEncoderBlock`; KerasHub
`TransformerEncoder`; `keras.layers.MultiHeadAttention` with Dense, Dropout and LayerNormalization;
PyTorch `nn.TransformerEncoder`, eager and compiled. Keras contestants run with and without
`jit_compile`, and the faster one counts. Each contestant runs in a separate process. They take
turns, one step at a time, so that other work on the machine affects all of them. Results are
medians, and ratios of medians within one run. "speedup" is the contestant's time divided by ours.
"of sgemm" is the rate of the step's matrix products (in training 3 times the forward ones) divided
by that of a 2048 x 2048 float32 product, measured in the same rounds.

--vit compares whole models instead: a training step of ViT-S/16 with 1,000 classes at 224 x 224,
B=8, no dropout, AdamW, cross-entropy, of keras_tfm, KerasHub and transformers (PyTorch; needs
`pip install transformers torch`).

On a GPU: KERAS_BACKEND=jax (or torch) and --dtype mixed_bfloat16.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, DIM, HEADS, INNER, DROPOUT = 4, 256, 8, 1024, 0.1
SHAPES = ((32, 128), (8, 512))
KERAS = ("keras_tfm", "KerasHub", "Keras MHA")
TORCH = ("torch eager", "torch compiled")
VIT_BATCH, VIT_CLASSES = 8, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dtype", default="float32", help="float32 or mixed_bfloat16")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--vit", action="store_true")
    parser.add_argument("--only", help="comma-separated contestants")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(json.loads(arguments.worker))
    elif arguments.memory:
        memory_table()
    else:
        names = arguments.only.split(",") if arguments.only else contestants()
        unknown = [name for name in names if name not in contestants()]
        if unknown:
            parser.error(f"--only: {unknown} not among those installed, {contestants()}")
        if arguments.vit:
            names = [name for name in names if name != "Keras MHA"]
            table(names, "vit", VIT_BATCH, 197, arguments)
            return
        for batch, length in SHAPES:
            for task in ("train", "infer"):
                table(names, task, batch, length, arguments)


def contestants() -> list[str]:
    names = ["keras_tfm", "Keras MHA"]
    if importlib.util.find_spec("keras_hub"):
        names.append("KerasHub")
    if importlib.util.find_spec("torch"):
        names += TORCH
    return names


# The comparison.


class Worker:
    """A contestant in a separate process, which runs one step on request."""

    def __init__(self, **job):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.seconds: list[float] = []

    def step(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(f"a contestant ended early: {self.errors.read()[-2000:]}")
        return float(line)


def table(names: list[str], task: str, batch: int, length: int, arguments) -> None:
    workers = {}
    for name in names:
        jits = (False, True) if name in KERAS else (False,)
        for jit in jits:
            workers[name, jit] = Worker(
                name=name, task=task, batch=batch, length=length, jit=jit, dtype=arguments.dtype
            )
    workers["sgemm", False] = Worker(
        name="sgemm", task=task, batch=batch, length=length, jit=False, dtype=arguments.dtype
    )
    for worker in workers.values():  # compile and warm up
        worker.step()
        worker.step()
    order = list(workers.values())
    for _ in range(arguments.rounds):
        random.shuffle(order)  # so that no contestant always runs after the same one
        for worker in order:
            worker.seconds.append(worker.step())
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()

    medians = {key: statistics.median(worker.seconds) for key, worker in workers.items()}
    sgemm = 2 * 2048**3 / medians.pop(("sgemm", False))
    best = {}
    for (name, jit), seconds in medians.items():
        if name not in best or seconds < best[name][0]:
            best[name] = (seconds, jit)
    flops = step_flops(task, batch, length)
    ours = best.get("keras_tfm", next(iter(best.values())))[0]
    bar = "| " if arguments.markdown else ""
    print(f"\n{task}, B={batch}, S={length}, {arguments.dtype}; sgemm {sgemm / 1e9:.0f} GFLOP/s")
    print(f"{bar}{'':16}{bar}{'jit':>6}{bar}{'ms':>9}{bar}{'of sgemm':>9}{bar}{'speedup':>9}{bar}")
    if arguments.markdown:
        print("|---|---|---:|---:|---:|")
    for name, (seconds, jit) in sorted(best.items(), key=lambda item: item[1][0]):
        print(
            f"{bar}{name:16}{bar}{'yes' if jit else 'no':>6}{bar}{1e3 * seconds:9.1f}"
            f"{bar}{flops / seconds / sgemm:9.2f}{bar}{seconds / ours:8.2f}x{bar}",
            flush=True,
        )


def step_flops(task: str, batch: int, length: int) -> float:
    """The number of operations of the matrix products of one step."""
    layers, dim, inner = (12, 384, 1536) if task == "vit" else (LAYERS, DIM, INNER)
    projections = 2 * (4 * dim**2 + 2 * dim * inner)
    forward = layers * batch * length * (projections + 4 * length * dim)
    return forward if task == "infer" else 3 * forward


def memory_table() -> None:
    print(f"one training step of one block, B=1, D={DIM}, H={HEADS}, S: peak resident memory")
    for length in (2048, 4096, 8192, 16384):
        worker = Worker(name="memory", length=length)
        line = worker.process.stdout.readline().split()
        worker.process.wait()
        print(f"S={length:6}  {line[0]:>7} GB, of it {line[1]} GB before the step; {line[2]} s")


# The contestants.


def work(job: dict) -> None:
    if job["name"] == "memory":
        measure_memory(job["length"])
        return
    if job["name"] == "sgemm":
        make = make_sgemm
    elif "torch" in job["name"]:
        make = make_torch_vit if job["task"] == "vit" else make_torch
    else:
        make = make_keras_vit if job["task"] == "vit" else make_keras
    step = make(job)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


def make_sgemm(job: dict):
    """The fastest matrix product installed: PyTorch's or TensorFlow's."""
    import numpy as np

    a = np.random.default_rng(0).normal(size=(2048, 2048)).astype("float32")
    steps = []
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        t = tf.constant(a)
        steps.append(lambda: tf.matmul(t, t).numpy())
    if importlib.util.find_spec("torch"):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        bfloat16 = job["dtype"] == "mixed_bfloat16"
        u = torch.tensor(a, device=device, dtype=torch.bfloat16 if bfloat16 else torch.float32)
        steps.append(lambda: (u @ u)[0, 0].item())

    def seconds(step) -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return min(steps, key=lambda step: min(seconds(step) for _ in range(5)))


def make_keras(job: dict):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(job["dtype"])
    shape = (job["length"], DIM)
    inputs = x = keras.Input(shape)
    for _ in range(LAYERS):
        x = BLOCKS[job["name"]](x)
    model = keras.Model(inputs, x)
    model.compile("adam", "mse", jit_compile=job["jit"])
    data = np.random.default_rng(0).normal(size=(2, job["batch"], *shape)).astype("float32")
    if job["task"] == "train":
        return lambda: model.train_on_batch(data[0], data[1])
    return lambda: model.predict_on_batch(data[0])


def keras_tfm_block(x):
    from keras_tfm.layers import TransformerEncoderBlock

    return TransformerEncoderBlock(INNER, HEADS, dropout=DROPOUT)(x)


def keras_hub_block(x):
    from keras_hub.layers import TransformerEncoder

    return TransformerEncoder(INNER, HEADS, dropout=DROPOUT)(x)


def keras_block(x):
    from keras import layers

    y = layers.MultiHeadAttention(HEADS, DIM // HEADS, dropout=DROPOUT)(x, x)
    x = layers.LayerNormalization(epsilon=1e-5)(x + layers.Dropout(DROPOUT)(y))
    y = layers.Dense(DIM)(layers.Dense(INNER, "relu")(x))
    return layers.LayerNormalization(epsilon=1e-5)(x + layers.Dropout(DROPOUT)(y))


BLOCKS = {"keras_tfm": keras_tfm_block, "KerasHub": keras_hub_block, "Keras MHA": keras_block}


def make_torch(job: dict):
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, INNER, DROPOUT, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS).to(device)
    run = torch.compile(model) if job["name"] == "torch compiled" else model
    data = torch.randn(2, job["batch"], job["length"], DIM, device=device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    mixed = torch.autocast(device, torch.bfloat16, enabled=job["dtype"] == "mixed_bfloat16")

    def train():
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            loss = torch.nn.functional.mse_loss(run(data[0]).float(), data[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    def infer():
        with torch.inference_mode(), mixed:
            return run(data[0])[0, 0, 0].item()

    model.train(job["task"] == "train")
    return train if job["task"] == "train" else infer


def make_keras_vit(job: dict):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(job["dtype"])
    model = VITS[job["name"]]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=job["jit"])
    pixels, classes = vit_data(job["batch"])
    return lambda: model.train_on_batch(pixels, classes)


def keras_tfm_vit():
    from keras_tfm.models import image_classifier, vit
    from keras_tfm.models.vision.vit import SIZES

    return image_classifier(vit(224, 16, **SIZES["small"]), VIT_CLASSES)


def keras_hub_vit():
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    backbone = ViTBackbone((224, 224, 3), 16, 12, 6, 384, 1536)
    return ViTImageClassifier(backbone, VIT_CLASSES, preprocessor=None, activation=None)


VITS = {"keras_tfm": keras_tfm_vit, "KerasHub": keras_hub_vit}


def vit_data(batch: int):
    """Normalised pixels (B, 224, 224, 3) and classes (B,)."""
    import numpy as np

    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(batch, 224, 224, 3)).astype("float32")
    return pixels, rng.integers(0, VIT_CLASSES, batch)


def make_torch_vit(job: dict):
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        num_labels=VIT_CLASSES,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(device).train()
    run = torch.compile(model) if job["name"] == "torch compiled" else model
    pixels, classes = (torch.tensor(x, device=device) for x in vit_data(job["batch"]))
    pixels = pixels.permute(0, 3, 1, 2).contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    mixed = torch.autocast(device, torch.bfloat16, enabled=job["dtype"] == "mixed_bfloat16")

    def train():
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            logits = run(pixels).logits
        loss = torch.nn.functional.cross_entropy(logits.float(), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


def measure_memory(length: int) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import resource

    import keras
    import numpy as np

    from keras_tfm.layers import TransformerEncoderBlock

    inputs = keras.Input((length, DIM))
    model = keras.Model(inputs, TransformerEncoderBlock(INNER, HEADS, dropout=DROPOUT)(inputs))
    model.compile("adam", "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(1, length, DIM)).astype("float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    model.train_on_batch(x, x)
    start = time.perf_counter()
    model.train_on_batch(x, x)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{peak:.2f} {before:.2f} {seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
