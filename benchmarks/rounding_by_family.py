"""How far rounding to 8 bits moves the logits of small random decoders, family by family.

    python benchmarks/rounding_by_family.py    # a minute

Each weight of a model of four layers, 64 wide, is its initial value plus noise. Logits are compared
with those of float32 on the same random tokens: of the same model with weights and activations in
8 bits, which is what an int8 file computes, and with other noise of 0.5 % on each matrix. The ratio
of the two errors tells what rounding costs; the error alone also tells how sharp attention is.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

import numpy as np

from keras_tfm.runtime import native_log

VOCABULARY, SEEDS = 97, (0, 1)
SIZES: dict[str, Any] = {
    "dim": 64, "num_layers": 4, "num_heads": 4, "num_key_value_heads": 2, "intermediate_dim": 128,
    "max_length": 64,
}  # fmt: skip


def families() -> dict[str, tuple[str, dict[str, Any], float]]:
    """The builder of each family, its arguments, and a factor of the queries' kernels."""
    from keras_tfm import layers

    yarn = {"rope_scaling": layers.YaRNScaling(4.0, 16)}
    hunyuan = {"query_key_norm": True, "rotate_first": True}
    return {
        "Llama": ("llama", {}, 1.0),
        "Llama, queries / 8": ("llama", {}, 0.125),
        "ERNIE 4.5": ("llama", {"interleaved": True}, 1.0),
        "SmolLM3": ("smollm3", {}, 1.0),
        "Granite": ("granite", {"attention_multiplier": 0.25, "residual_multiplier": 0.6}, 1.0),
        "Ministral 3 (YaRN)": ("llama", {**yarn, "query_beta": 0.1}, 1.0),
        "Ministral 3, queries / 8": ("llama", {**yarn, "query_beta": 0.1}, 0.125),
        "Qwen3": ("llama", {"query_key_norm": True}, 1.0),
        "HunYuan": ("llama", hunyuan, 1.0),
        "EXAONE 4": ("olmo2", {"head_norm": True}, 1.0),
        "Gemma 3": ("gemma", {"post_norm": True, "query_key_norm": True, "head_dim": 16}, 1.0),
    }


def errors(model: Any, queries: float, seed: int) -> tuple[float, ...]:
    """The mean largest attention weight; errors of noise and rounding; share of equal tokens."""
    from keras import ops

    from keras_tfm import layers, models

    def to_numpy(x: Any) -> np.ndarray:
        return np.array(ops.convert_to_numpy(x))

    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = to_numpy(weight)
        value = value + 0.3 * rng.normal(size=value.shape).astype("float32")
        if weight.path.endswith("query_key_value/kernel"):
            value[:, : SIZES["dim"]] *= queries
        weight.assign(value)
    ids = rng.integers(1, VOCABULARY, (24, 16))
    with layers.AttentionProbe() as probe:
        exact = to_numpy(model(ids))
    largest = np.mean([to_numpy(x)[:, :, 8:].max(-1).mean() for x in probe.maps.values()])
    before = [to_numpy(x) for x in model.weights]
    noisy = []
    for _ in range(5):
        for weight, value in zip(model.weights, before, strict=True):
            if value.ndim > 1:
                weight.assign(value + 0.005 * value.std() * rng.normal(size=value.shape))
        noisy.append(to_numpy(model(ids)))
    for weight, value in zip(model.weights, before, strict=True):
        weight.assign(value)
    models.enable_quantization(model, "int8", activations=True)
    rounded = to_numpy(model(ids))
    models.disable_quantization(model)

    def relative(logits: np.ndarray) -> float:
        wanted, difference = (
            x - x.mean(-1, keepdims=True) for x in (exact, (logits - exact).astype("float64"))
        )
        return float(np.sqrt(np.mean(difference**2) / np.mean(wanted**2)))

    equal = np.mean(rounded.argmax(-1) == exact.argmax(-1))
    noise = np.mean([relative(x) for x in noisy])
    return float(largest), float(noise), relative(rounded), float(equal)


def main() -> None:
    with native_log.remove():
        import keras

        from keras_tfm import models
    print("| | largest weight | noise of 0.5 % | int8 | int8 / noise | equal best tokens, % |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (builder, options, queries) in families().items():
        found = []
        for seed in SEEDS:
            keras.utils.set_random_seed(seed)
            model = getattr(models, builder)(VOCABULARY, **{**SIZES, **options})
            found.append(errors(model, queries, seed))
        largest, noise, rounding, equal = np.mean(found, axis=0)
        print(
            f"| {name} | {largest:.2f} | {noise:.3f} | {rounding:.3f} | {rounding / noise:.2f} | "
            f"{100 * equal:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
