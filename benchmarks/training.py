"""Whole training runs: the cost of replicas, and the time to a validation loss.

    pip install -e ".[benchmarks,examples]" keras-hub && pip install torch==2.13.0
    python benchmarks/training.py --replicas      # 1 device, 2 logical ones, 2 processes: 3 minutes
    python benchmarks/training.py --loss 0.2      # seconds to that validation loss: 15 minutes

The model of examples/dates.py: D=128, 2+2 layers, 4 heads, F=512, pre-norm, no dropout, Adam with
warm-up and cosine decay, batches of 64 dates. The contestants of `--loss`: keras_tfm; the same
model made of KerasHub's `TransformerEncoder` and `TransformerDecoder`; PyTorch's `nn.Transformer`,
eager and compiled. Each contestant runs in a separate process. They take turns of 50 steps on the
same batches in the same order, and only training is timed. With `--replicas` a turn has 20 steps,
and all replicas together use as many threads as there are cores.
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
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "examples" / "multi_worker")]

SIZE = {"dim": 128, "num_layers": 2, "num_heads": 4, "intermediate_dim": 512}
BATCH, EXAMPLES, STEPS, WARMUP, RATE = 64, 160_000, 2_400, 300, 0.002
CONTESTANTS = ("keras_tfm", "KerasHub", "torch eager", "torch compiled")
REPLICAS = ("1 device", "2 logical devices", "2 processes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", action="store_true")
    parser.add_argument("--loss", type=float, help="the validation loss to reach")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turn", type=int, default=50, help="steps per turn with --loss")
    parser.add_argument("--only", help="comma-separated contestants")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
    elif arguments.loss is not None:
        race(arguments)
    elif arguments.replicas:
        compare_replicas(arguments.rounds)
    else:
        parser.error("give --replicas or --loss")


class Worker:
    """A contestant in one or more separate processes, which runs training steps on request."""

    def __init__(self, name: str, processes: int = 1):
        from launch import free_ports, tf_config

        addresses = [f"localhost:{port}" for port in free_ports(processes)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until the processes end)
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", name],
                env={
                    **os.environ,
                    **({"TF_CONFIG": tf_config(addresses, index)} if processes > 1 else {}),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
            )
            for index in range(processes)
        ]

    def steps(self, count: int) -> dict:
        """Runs `count` steps; returns the report of the first process."""
        for process in self.processes:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            self.errors.seek(0)
            raise RuntimeError(f"a contestant ended early:\n{self.errors.read()[-3000:]}")
        return json.loads(lines[0])

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def race(arguments) -> None:
    names = arguments.only.split(",") if arguments.only else contestants()
    workers = {name: Worker(name) for name in names}
    seconds, losses, reached = dict.fromkeys(names, 0.0), {}, {}
    tokens = dict.fromkeys(names, 0)
    for worker in workers.values():
        worker.steps(0)  # builds and compiles
    done = 0
    while len(reached) < len(names) and done < STEPS:
        running = [name for name in names if name not in reached]
        random.shuffle(running)
        for name in running:
            report = workers[name].steps(arguments.turn)
            seconds[name] += report["seconds"]
            tokens[name] += report["tokens"]
            losses[name] = report["loss"]
            if report["loss"] <= arguments.loss:
                reached[name] = done + arguments.turn
        done += arguments.turn
        print(f"step {done}: " + ", ".join(f"{n} {losses[n]:.3f}" for n in names), flush=True)
    for worker in workers.values():
        worker.end()
    ours = seconds.get("keras_tfm", float("nan"))
    print(f"\n| to a validation loss of {arguments.loss} | steps | seconds | speedup | tokens/s |")
    print("|---|---:|---:|---:|---:|")
    for name in sorted(names, key=lambda name: seconds[name]):
        steps = reached.get(name, f"not in {done}: {losses[name]:.3f}")
        print(
            f"| {name} | {steps} | {seconds[name]:.1f} | {seconds[name] / ours:.2f}x "
            f"| {tokens[name] / seconds[name]:.0f} |"
        )


def contestants() -> list[str]:
    names = ["keras_tfm"]
    if importlib.util.find_spec("keras_hub"):
        names.append("KerasHub")
    if importlib.util.find_spec("torch"):
        names += ["torch eager", "torch compiled"]
    return names


def compare_replicas(rounds: int) -> None:
    workers = {name: Worker(name, 2 if name == "2 processes" else 1) for name in REPLICAS}
    for worker in workers.values():
        worker.steps(3)
    rates: dict[str, list[float]] = {name: [] for name in REPLICAS}
    for _ in range(rounds):
        for name in random.sample(REPLICAS, len(REPLICAS)):
            report = workers[name].steps(20)
            rates[name].append(report["tokens"] / report["seconds"])
    for worker in workers.values():
        worker.end()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print("| | tokens/s | relative to 1 device |\n|---|---:|---:|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:.0f} | {rate / medians['1 device']:.2f} |")


# The contestants.


def work(name: str) -> None:
    make = make_torch if name.startswith("torch") else make_keras
    step, validation_loss = make(name)
    batches = iter(training_batches())
    for line in sys.stdin:
        start = time.perf_counter()
        # With a count of 0 nothing is trained: the model is already built and compiled.
        tokens = sum(step(*next(batches)) for _ in range(int(line)))
        seconds = time.perf_counter() - start
        loss = validation_loss()
        print(json.dumps({"seconds": seconds, "tokens": tokens, "loss": loss}), flush=True)


def training_batches():
    """(source (B, 40), target (B, 11), labels (B, 11)), NumPy arrays, the same for everyone."""
    import dates_data as data
    import numpy as np

    sources, targets = data.arrays(data.training_examples(EXAMPLES))
    order = np.random.default_rng(0).permutation(len(sources))
    for start in range(0, len(order) - BATCH, BATCH):
        rows = order[start : start + BATCH]
        yield sources[rows], targets[rows, :-1], targets[rows, 1:]


def validation():
    import dates_data as data

    sources, targets = data.arrays(data.test_dates()[:1_000])
    return sources, targets[:, :-1], targets[:, 1:]


def vocabularies() -> tuple[int, int]:
    import dates_data as data

    return data.source_tokenizer().get_vocab_size(), data.target_tokenizer().get_vocab_size()


def make_keras(name: str):
    """A step of `model.fit` and a function for the validation loss, for keras_tfm or KerasHub."""
    from keras_tfm import models, training

    replicas = {"2 logical devices": "mirrored", "2 processes": "multi_worker"}.get(name)
    import tensorflow as tf

    if replicas == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    if replicas == "multi_worker":
        tf.config.threading.set_intra_op_parallelism_threads(max(1, os.cpu_count() // 2))
    strategy = training.distribution(replicas or "one")
    import keras

    keras.utils.set_random_seed(0)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, STEPS - WARMUP, alpha=0.01, warmup_target=RATE, warmup_steps=WARMUP
    )
    with strategy.scope():
        if name == "KerasHub":
            model = keras_hub_model(*vocabularies())
        else:
            model = models.transformer(*vocabularies(), normalize_first=True, dropout=0.0, **SIZE)
        model.compile(
            keras.optimizers.Adam(rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
            training.LabelSmoothedCrossEntropy(label_smoothing=0.0),
        )
        model.optimizer.build(model.trainable_variables)
    if replicas:
        return fit_step(model), lambda: 0.0
    model.make_train_function()

    def step(source, target, labels):
        batch = (
            {"source": tf.constant(source), "target": tf.constant(target)},
            tf.constant(labels),
        )
        model.train_function(iter([batch]))
        return int((labels != 0).sum() + (source != 0).sum())

    source, target, labels = validation()

    def validation_loss():
        return model.evaluate(
            {"source": source, "target": target},
            labels,
            batch_size=200,
            verbose=0,
            return_dict=True,
        )["loss"]

    # One step to compile; then the weights and the optimizer are restored.
    before = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    step(source[:BATCH], target[:BATCH], labels[:BATCH])
    for variable, value in zip((*model.variables, *model.optimizer.variables), before, strict=True):
        variable.assign(value)
    return step, validation_loss


def fit_step(model):
    """A step on the next batch of a distributed iterator, like that of `fit`."""
    import tensorflow as tf

    def generate():
        while True:
            for source, target, labels in training_batches():
                yield {"source": source, "target": target}, labels

    spec = lambda n: tf.TensorSpec((BATCH, n), tf.int32)  # noqa: E731
    data = tf.data.Dataset.from_generator(
        generate, output_signature=({"source": spec(40), "target": spec(11)}, spec(11))
    ).prefetch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    strategy = model.distribute_strategy
    batches = iter(strategy.experimental_distribute_dataset(data.with_options(options)))
    model.make_train_function()

    def step(source, target, labels):
        model.train_function(batches)
        return int((labels != 0).sum() + (source != 0).sum())

    return step


def keras_hub_model(source_size: int, target_size: int):
    """The same model made of KerasHub's layers.

    Each block gets its padding masks as arguments, because the position layer drops them.
    """
    import keras
    import keras_hub
    from keras_hub.layers import ReversibleEmbedding, SinePositionEncoding

    class NotPadding(keras.layers.Layer):
        def call(self, ids):
            return keras.ops.not_equal(ids, 0)

    class Scale(keras.layers.Layer):
        def call(self, x):
            return x * SIZE["dim"] ** 0.5

    block = {
        "intermediate_dim": SIZE["intermediate_dim"],
        "num_heads": SIZE["num_heads"],
        "normalize_first": True,
        "activation": "relu",
    }
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    source_mask, target_mask = NotPadding()(source), NotPadding()(target)
    initializer = keras.initializers.RandomNormal(stddev=SIZE["dim"] ** -0.5)

    def embed(ids, size):
        table = ReversibleEmbedding(size, SIZE["dim"], embeddings_initializer=initializer)
        x = Scale()(table(ids))
        return keras.layers.Add()([x, SinePositionEncoding()(x)]), table

    x, _ = embed(source, source_size)
    for _ in range(SIZE["num_layers"]):
        x = keras_hub.layers.TransformerEncoder(**block)(x, padding_mask=source_mask)
    context = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    x, table = embed(target, target_size)
    for _ in range(SIZE["num_layers"]):
        x = keras_hub.layers.TransformerDecoder(**block)(
            x, context, decoder_padding_mask=target_mask, encoder_padding_mask=source_mask
        )
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model({"source": source, "target": target}, table(x, reverse=True))


def make_torch(name: str):
    """A step and a function for the validation loss, for PyTorch's nn.Transformer, tied output."""
    import math

    import torch
    from torch import nn

    torch.manual_seed(0)
    dim = SIZE["dim"]
    source_size, target_size = vocabularies()
    angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(64, dim)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.source = nn.Embedding(source_size, dim)
            self.target = nn.Embedding(target_size, dim)
            for table in (self.source, self.target):
                nn.init.normal_(table.weight, std=dim**-0.5)
            self.transformer = nn.Transformer(
                dim,
                SIZE["num_heads"],
                SIZE["num_layers"],
                SIZE["num_layers"],
                SIZE["intermediate_dim"],
                dropout=0.0,
                batch_first=True,
                norm_first=True,
            )
            self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(11))

        def forward(self, source, target):
            x = self.source(source) * math.sqrt(dim) + positions[: source.shape[1]]
            y = self.target(target) * math.sqrt(dim) + positions[: target.shape[1]]
            padding = torch.zeros(source.shape).masked_fill(source == 0, -1e9)
            features = self.transformer(
                x,
                y,
                tgt_mask=self.causal,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return features @ self.target.weight.T

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)

    def factor(step):
        if step < WARMUP:
            return step / WARMUP
        share = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    forward = torch.compile(model) if "compiled" in name else model

    def loss_of(logits, labels):
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)

    def step(source, target, labels, apply=True):
        source, target, labels = (torch.from_numpy(a).long() for a in (source, target, labels))
        optimizer.zero_grad()
        loss_of(forward(source, target), labels).backward()
        if apply:
            optimizer.step()
            schedule.step()
        return int((labels != 0).sum() + (source != 0).sum())

    source, target, labels = validation()
    step(source[:BATCH], target[:BATCH], labels[:BATCH], apply=False)

    def validation_loss():
        model.eval()
        with torch.no_grad():
            logits = model(torch.from_numpy(source).long(), torch.from_numpy(target).long())
            loss = loss_of(logits, torch.from_numpy(labels).long())
        model.train()
        return float(loss)

    return step, validation_loss


if __name__ == "__main__":
    main()
