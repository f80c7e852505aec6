"""Seconds and memory of a training step: in float32, with rounded weights, with activations, too.

    python benchmarks/rounded_steps.py                    # a small encoder, 64 wide, a minute
    python benchmarks/rounded_steps.py --model smollm2    # SmolLM2-135M's sizes, adapters of rank 8

One model with a compiled step of each kind; the steps are run in turns, and the medians printed.
Memory is the largest of the process after the steps of each kind, so it never falls from row to
row; `--only KIND` measures that of one kind. Weights are random: they do not change the time.
"""

import argparse
import os
import resource
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from processors import processor

from keras_tfm.runtime import native_log

KINDS: dict[str, dict[str, bool] | None] = {
    "float32": None,
    "int4 weights": {},
    "int4 weights, 8-bit activations": {"activations": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["encoder", "smollm2"], default="encoder")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=KINDS)
    arguments = parser.parse_args()
    with native_log.remove():
        import keras

        from keras_tfm import models
    line = processor()
    print(f"{line['name']}, family {line['family']}, model {line['model']}", flush=True)
    keras.utils.set_random_seed(0)
    model, ids = (encoder if arguments.model == "encoder" else smollm2)()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    steps: dict[str, Any] = {}
    memory: dict[str, float] = {}
    kinds = {arguments.only: KINDS[arguments.only]} if arguments.only else KINDS
    for name, options in kinds.items():
        if options is not None:
            models.enable_quantization(model, "int4", **options)
        model.make_train_function(force=True)
        for _ in range(2):  # the first one is compiled
            model.train_on_batch(ids, ids)
        steps[name] = model.train_function
        memory[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        if options is not None:
            models.disable_quantization(model)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds):
        for name, function in steps.items():
            model.train_function = function
            start = time.perf_counter()
            model.train_on_batch(ids, ids)
            seconds[name].append(time.perf_counter() - start)
    print(f"{'a step of':32}{'ms':>10}{'ratio':>8}{'GB':>8}")
    base = float(np.median(next(iter(seconds.values()))))
    for name, values in seconds.items():
        median = float(np.median(values))
        print(f"{name:32}{1000 * median:10.1f}{median / base:8.2f}{memory[name]:8.2f}")


def encoder() -> tuple[Any, np.ndarray]:
    """The model of examples/quantization_aware.py, and a batch of 256 rows of 16 numbers."""
    import keras

    import keras_tfm
    from keras_tfm import layers

    ids = keras.Input((16,), dtype="int32")
    x = layers.PositionalEncoding()(layers.TokenEmbedding(40, 64)(ids))
    for _ in range(2):
        x = layers.TransformerEncoderBlock(128, num_heads=4, dropout=0.1)(x)
    model = keras_tfm.Model(ids, keras.layers.Dense(40)(x))
    return model, np.random.default_rng(0).integers(0, 40, (256, 16)).astype("int32")


def smollm2() -> tuple[Any, np.ndarray]:
    """SmolLM2-135M with adapters, and a batch of four rows of 128 tokens."""
    from keras_tfm import models

    model = models.llama(
        49152, 576, 30, num_heads=9, num_key_value_heads=3, intermediate_dim=1536, tie_output=True
    )
    models.enable_lora(model, 8)
    return model, np.random.default_rng(0).integers(0, 49152, (4, 128)).astype("int32")


if __name__ == "__main__":
    main()
