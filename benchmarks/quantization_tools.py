"""The accuracy that one trained model keeps in int4, by the tool that rounds it.

    pip install -e ".[examples]" ai-edge-quantizer
    python benchmarks/quantization_tools.py --seeds 0 1 2

Each seed trains the model of examples/quantization_aware.py once, in float32, and then rounds it:
after the training with this library (also calibrated), with AI Edge Quantizer and with Keras's own
`model.quantize`; and with this library's training with rounding. All but Keras's are files, which
round activations to 8 bits, too. litert-torch quantizes its files with AI Edge Quantizer.
"""

import argparse
import os
import statistics
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import keras
import numpy as np

import keras_tfm
from keras_tfm import layers, models, runtime
from keras_tfm.export import calibrate, export_tflite

LENGTH, VALUES = 16, 40
# The granularities of AI Edge Quantizer's dynamic int4 recipes, by the names in the table.
RECIPES = {
    "AI Edge Quantizer, int4, blocks of 32": "BLOCKWISE_32",
    "AI Edge Quantizer, int4, channels": "CHANNELWISE",
}


def build() -> keras_tfm.Model:
    ids = keras.Input((LENGTH,), dtype="int32", name="numbers")
    x = layers.PositionalEncoding()(layers.TokenEmbedding(VALUES, 64)(ids))
    for _ in range(2):
        x = layers.TransformerEncoderBlock(128, num_heads=4, dropout=0.1)(x)
    return keras_tfm.Model(ids, keras.layers.Dense(VALUES)(x))


def train(model: keras.Model, rows: np.ndarray, rate: float, epochs: int) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    model.fit(rows, np.sort(rows, axis=1), batch_size=256, epochs=epochs, verbose=2)


def file_accuracy(path: Path, rows: np.ndarray) -> float:
    file = runtime.load(path)
    found = np.concatenate([next(iter(file.predict(row[None]).values())) for row in rows])
    return float((found.argmax(-1) == np.sort(rows, axis=1)).mean())


def accuracy_of(model: keras.Model, rows: np.ndarray) -> float:
    found = model.predict(rows, batch_size=256, verbose=0)
    return float((found.argmax(-1) == np.sort(rows, axis=1)).mean())


def quantizer_accuracy(path: Path, granularity: str, rows: np.ndarray) -> float:
    """The accuracy of our float32 file, rounded by AI Edge Quantizer."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import qtyping, quantizer, recipe_manager

    recipe = recipe_manager.RecipeManager()
    for name in ("FULLY_CONNECTED", "EMBEDDING_LOOKUP"):
        recipe.add_dynamic_config(
            regex=".*",
            operation_name=qtyping.TFLOperationName[name],
            num_bits=4,
            granularity=qtyping.QuantGranularity[granularity],
        )
    rules = recipe.get_quantization_recipe()
    content = quantizer.Quantizer(bytearray(path.read_bytes()), rules).quantize().quantized_model
    run = Interpreter(model_content=bytes(content), num_threads=1).get_signature_runner("predict")
    (name,) = run.get_input_details()
    (output,) = run.get_output_details()
    found = np.concatenate([run(**{name: row[None]})[output] for row in rows])
    return float((found.argmax(-1) == np.sort(rows, axis=1)).mean())


def measure(seed: int, count: int, epochs: int, folder: Path) -> dict[str, float]:
    keras.utils.set_random_seed(seed)
    rows = np.random.default_rng(seed).integers(0, VALUES, (count, LENGTH)).astype("int32")
    held_out = min(4000, count // 8)
    training, test = rows[:-held_out], rows[-held_out:]
    model = build()
    train(model, training, 2e-3, epochs)
    results = {"float32": accuracy_of(model, test)}
    path = folder / f"float32_{seed}.tflite"
    export_tflite(model, path, overwrite=True)
    for name, granularity in RECIPES.items():
        results[name] = quantizer_accuracy(path, granularity, test)
    keras_int4 = models.with_dtype(model, "float32")
    keras_int4.quantize("int4")
    results["Keras's model.quantize, int4, in Keras"] = accuracy_of(keras_int4, test)
    path = folder / f"int4_{seed}.tflite"
    export_tflite(model, path, quantization="int4", overwrite=True)
    results["this library, int4"] = file_accuracy(path, test)
    calibrated = calibrate(model, list(training[:256, np.newaxis]), "int4")
    export_tflite(calibrated, path, quantization="int4", overwrite=True)
    results["this library, int4, calibrated"] = file_accuracy(path, test)
    models.enable_quantization(model, "int4")
    train(model, training, 5e-4, max(1, epochs // 3))
    export_tflite(model, path, quantization="int4", overwrite=True)
    results["this library, int4, trained with rounding"] = file_accuracy(path, test)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracies in int4 by tool; see the file.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            found.append(measure(seed, arguments.rows, arguments.epochs, Path(folder)))
            print(seed, {name: round(100 * x, 2) for name, x in found[-1].items()}, flush=True)
    print(f"\n{'accuracy of a position, %':44}" + "".join(f"{x:>9}" for x in arguments.seeds))
    for name in found[0]:
        values = [100 * x[name] for x in found]
        median = f"   median {statistics.median(values):.2f}"
        print(f"{name:44}" + "".join(f"{x:9.2f}" for x in values) + median)


if __name__ == "__main__":
    main()
