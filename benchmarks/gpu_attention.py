"""Which attention runs fused on this GPU, and how exact it is: a minute.

    KERAS_BACKEND=jax python benchmarks/gpu_attention.py      # or torch; TensorFlow has none

Each row is a layer's call, forward and backward, in bfloat16. "fused": the compiled program (JAX),
or what the profiler saw on the GPU (PyTorch), holds the fused kernel and no softmax beside it.
"error": the largest error of the result and of its gradients, each relative to the largest value,
against the plain path in float32. "scores": memory of the step beyond that of its arrays, as a
multiple of the scores (B, H, T, T) in bfloat16; fused attention takes a fraction.
"""

import logging
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops

from keras_tfm.layers import ALiBi, MultiHeadSelfAttention, RelativePositionBias

B, H, T, K = 4, 8, 1024, 64
CASES = {
    "encoder": {},
    "encoder, odd length": {"shorter": 1},
    "encoder, right padding": {"padding": "right"},
    "encoder, left padding": {"padding": "left"},
    "decoder": {"causal": True},
    "decoder, right padding": {"causal": True, "padding": "right"},
    "decoder, left padding": {"causal": True, "padding": "left"},
    "decoder, grouped heads, right padding": {
        "causal": True, "num_key_value_heads": 2, "padding": "right",
    },
    "packed rows": {"causal": True, "padding": "packed"},
    "T5's positions, right padding": {"position": RelativePositionBias, "padding": "right"},
    "ALiBi": {"causal": True, "position": ALiBi},
    "window": {"causal": True, "window": 128},
    "window, right padding": {"causal": True, "window": 128, "padding": "right"},
    "decoder, dropout": {"causal": True, "dropout": 0.1},
    "decoder, dropout, right padding": {"causal": True, "dropout": 0.1, "padding": "right"},
}  # fmt: skip


def main(length: int = T) -> None:
    """Prints a table of all cases."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    print("| attention | fused | error | scores |\n|---|---|---|---|")
    for name, case in CASES.items():
        result = run(length - case.get("shorter", 0), **case)
        row = [
            f"{value:.3g}" if isinstance(value, float) else str(value) for value in result.values()
        ]
        print("|", " | ".join([name, *row]), "|", flush=True)
    logging.getLogger().removeHandler(handler)
    # Keras logs a traceback where its own call of the fused operation fails.
    print("messages:", [message.splitlines()[0] for message in records] or "none")


def run(length: int, padding: str | None = None, shorter: int = 0, **options) -> dict:
    """One case: a layer in bfloat16 and its copy in float32."""
    if "position" in options:
        options["position"] = options["position"]()
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(2, B, length, H * K)).astype("float32")
    call = mask_of(padding, length, rng)
    results, measured = {}, {}
    for dtype in ("float32", "bfloat16"):
        keras.utils.set_random_seed(0)
        policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
        layer = MultiHeadSelfAttention(H, head_dim=K, dtype=policy, **options)
        layer.build(x.shape)
        if layer.dropout:  # the same values are dropped
            layer.dropout_layer.seed = 0
            layer.dropout_layer.seed_generator.state.assign(np.array([3, 0]))
        step = on_torch if keras.backend.backend() == "torch" else on_jax
        results[dtype], measured = step(layer, x, upstream, call)
    if options.get("dropout") and keras.backend.backend() == "torch":
        results["float32"] = []  # each of its kernels draws other numbers
    real = call["mask"][..., None] if call.get("mask") is not None else 1.0
    error = 0.0 if results["float32"] else float("nan")
    for exact, half in zip(results["float32"], results["bfloat16"], strict=False):
        error = max(error, np.abs((exact - half) * real).max() / np.abs(exact * real).max())
    scores = measured["bytes"] / (B * H * length**2 * 2)
    return {"fused": measured["fused"], "error": float(error), "scores": float(scores)}


def mask_of(padding: str | None, length: int, rng: np.random.Generator) -> dict:
    """The arguments of the layer for a kind of padding."""
    if padding is None:
        return {}
    lengths = rng.integers(length // 4, length, size=(B, 1))
    right = np.arange(length) < lengths
    if padding == "packed":
        segments = 1 + (np.arange(length) >= lengths)
        return {"attention_mask": segments[:, :, None] == segments[:, None]}
    return {"mask": right if padding == "right" else right[:, ::-1].copy()}


def on_jax(layer, x, upstream, call) -> tuple[list, dict]:
    """Result and gradient of x, and what the compiled program holds."""
    import jax

    def both(x, upstream, call):
        y, pull = jax.vjp(lambda x: layer(x, training=True, **call).astype("float32"), x)
        return y, *pull(upstream)

    program = jax.jit(both).lower(x, upstream, call).compile()
    text = program.as_text()
    kernel = "fmha" in text
    if layer.dropout:  # no kernel: blocks of queries, of which no scores are stored
        kernel = f"{B},{H},1,{x.shape[1]},{x.shape[1]}]" not in text
    found = {
        "fused": bool(kernel and (layer.dropout or "exponential(" not in text)),
        "bytes": program.memory_analysis().temp_size_in_bytes,
    }
    return [np.asarray(y, "float32") for y in program(x, upstream, call)], found


def on_torch(layer, x, upstream, call) -> tuple[list, dict]:
    """Result and gradient of x, and what the profiler saw."""
    import torch

    x = ops.convert_to_tensor(x).detach().requires_grad_()
    upstream = ops.convert_to_tensor(upstream)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.profiler.profile() as profile:
        y = layer(x, training=True, **call).float()
        ops.sum(y * upstream).backward()
    names = [event.key for event in profile.key_averages()]
    kernels = ("flash_attention", "efficient_attention", "cudnn_attention")
    found = {
        "fused": any(kernel in name for kernel in kernels for name in names),
        "bytes": torch.cuda.max_memory_allocated() - before if cuda else 0,
    }
    return [z.detach().cpu().numpy() for z in (y, x.grad)], found


if __name__ == "__main__":
    main()
