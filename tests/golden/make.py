"""Writes the golden file of the current manifest format: a small model, and what it answers.

    python tests/golden/make.py

It makes `format_N.tflite.xz` and `format_N.json`, which holds inputs and the answers of Keras. Run
it once for each format, when `FORMAT` of keras_tfm/runtime/manifest_fields.py increases, and commit
both. Earlier ones are never changed: tests/runtime/test_golden_files.py loads all of them.
"""

import json
import lzma
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from keras_tfm.export import export_tflite
from keras_tfm.generation import generate
from keras_tfm.models import transformer
from keras_tfm.runtime.manifest_fields import FORMAT, ROLES

FOLDER = Path(__file__).parent
SOURCES = [[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [2, 0, 0, 0, 0]]
PROMPTS = [[1, 4, 6], [1, 9, 3], [1, 7, 7]]
TEXTS = ["abba", "hd"]
SIZES = {"source_length": 5, "max_length": 9, "start_id": 1, "end_id": 2, "prompt_length": 3}


def model() -> keras.Model:
    """Weights are sines of their index, so that nothing depends on a random generator."""
    result = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=12)
    for number, weight in enumerate(result.weights):
        values = np.sin(9.0 * np.arange(np.prod(weight.shape)) ** 1.5 + number)
        scale = 0.7 if len(weight.shape) > 1 else 0.3
        offset = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign((offset + scale * values).reshape(weight.shape).astype("float32"))
    return result


def letters() -> Tokenizer:
    """A token a letter."""
    ids = {token: i for i, token in enumerate(["<pad>", "<start>", "<end>", *"abcdefgh"])}
    result = Tokenizer(models.WordLevel(ids))
    result.add_special_tokens(["<pad>", "<start>", "<end>"])
    result.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    result.decoder = decoders.Fuse()
    return result


def main() -> None:
    trained, tokenizer = model(), letters()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tflite")
        print(export_tflite(trained, path, ROLES, tokenizer=tokenizer, **SIZES))
        (FOLDER / f"format_{FORMAT}.tflite.xz").write_bytes(lzma.compress(path.read_bytes()))
    sources, prompts = np.array(SOURCES, "int32"), np.array(PROMPTS, "int32")
    tokens = generate(trained, sources, 9, 1, 2).tokens
    continued = generate(trained, {"source": sources, "target": prompts}, 9, end_id=2).tokens
    logits = trained({"source": sources, "target": tokens[:, :9]}, training=False)
    texts = [tokenizer.encode(text).ids for text in TEXTS]
    answers = [generate(trained, np.array([ids]), 9, 1, 2).tokens[0] for ids in texts]
    expected = {
        "sources": SOURCES,
        "prompts": PROMPTS,
        "tokens": tokens.tolist(),
        "continued": continued.tolist(),
        "logits": np.round(ops.convert_to_numpy(logits), 6).tolist(),
        "texts": TEXTS,
        "answers": [tokenizer.decode(ids.tolist()) for ids in answers],
    }
    (FOLDER / f"format_{FORMAT}.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")
    print(tokens, continued, expected["answers"])


if __name__ == "__main__":
    main()
