"""Writes the golden files of the manifest formats: small models, and what they answer.

    python tests/golden/make.py

It makes `format_N.tflite.xz` and `format_N.json`, which holds inputs and the answers of Keras, for
the formats that have no file yet. Run it when `FORMAT` of keras_tfm/runtime/manifest/manifest.py
increases, and commit both. Earlier ones are never changed: tests/runtime/test_golden_files.py loads
all of them. Format 1 is a file of one model, format 2 one of several, format 3 one of a model with
recurrent states, format 4 one that reads its source in pieces.
"""

import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from keras_tfm.export import export_tflite
from keras_tfm.generation import generate
from keras_tfm.layers import MultiHeadSelfAttention, RotaryEmbedding, TokenEmbedding
from keras_tfm.models import clip, clip_towers, transformer
from keras_tfm.runtime import ImageProcessor
from keras_tfm.runtime.manifest.manifest import (
    ONE_MODEL,
    ROLES,
    SEVERAL_MODELS,
    WITH_STATES,
    WITH_STREAMS,
)

FOLDER = Path(__file__).parent
SOURCES = [[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [2, 0, 0, 0, 0]]
PROMPTS = [[1, 4, 6], [1, 9, 3], [1, 7, 7]]
TEXTS = ["abba", "hd"]
SIZES = {"source_length": 5, "max_length": 9, "start_id": 1, "end_id": 2, "prompt_length": 3}


def filled(result: keras.Model) -> keras.Model:
    """Weights are sines of their index, so that nothing depends on a random generator."""
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


def letters_with_end() -> Tokenizer:
    """As `letters`; a text ends with the end token."""
    result = letters()
    result.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 2)]
    )
    return result


def one_model(path: Path) -> dict[str, Any]:
    """Writes a file of one model; returns what it is asked and its answers."""
    trained = filled(transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=12))
    tokenizer = letters()
    print(export_tflite(trained, path, ROLES[:5], tokenizer=tokenizer, **SIZES))
    sources, prompts = np.array(SOURCES, "int32"), np.array(PROMPTS, "int32")
    tokens = generate(trained, sources, 9, 1, 2).tokens
    continued = generate(trained, {"source": sources, "target": prompts}, 9, end_id=2).tokens
    logits = trained({"source": sources, "target": tokens[:, :9]}, training=False)
    texts = [tokenizer.encode(text).ids for text in TEXTS]
    answers = [generate(trained, np.array([ids]), 9, 1, 2).tokens[0] for ids in texts]
    return {
        "sources": SOURCES,
        "prompts": PROMPTS,
        "tokens": tokens.tolist(),
        "continued": continued.tolist(),
        "logits": np.round(ops.convert_to_numpy(logits), 6).tolist(),
        "texts": TEXTS,
        "answers": [tokenizer.decode(ids.tolist()) for ids in answers],
    }


def several_models(path: Path) -> dict[str, Any]:
    """Writes a file of two models; returns what it is asked and its answers."""
    tower = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 12}
    trained = clip(8, 4, 11, max_length=9, end_id=2, projection_dim=5, image=tower, text=tower)
    towers, tokenizer = clip_towers(filled(trained)), letters_with_end()
    images = ImageProcessor((8, 8))
    print(export_tflite(towers, path, tokenizer=tokenizer, images=images, source_length=6))
    pixels = (np.arange(2 * 8 * 8 * 3) ** 2 % 256).reshape(2, 8, 8, 3)
    texts = {text: tokenizer.encode(text).ids for text in TEXTS}
    return {
        "pixels": pixels.tolist(),
        "texts": TEXTS,
        "image": [vector(towers["image"], x) for x in pixels.astype("uint8")],
        "text": [vector(towers["text"], np.array(ids, "int32")) for ids in texts.values()],
    }


def with_states(path: Path) -> dict[str, Any]:
    """Writes a file of a model with a convolution, recurrence and attention; as above."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = TokenEmbedding(11, 8)(tokens)
    x = keras.layers.Conv1D(8, 3, padding="causal")(x) + x
    x = keras.layers.GRU(8, return_sequences=True)(x) + x
    x = keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True) + x
    trained = filled(keras.Model(tokens, keras.layers.Dense(11)(x)))
    roles = ["prefill", "decode"]
    print(export_tflite(trained, path, roles, prompt_length=3, max_length=9, draft_length=2))
    prompts = np.array(PROMPTS, "int32")
    continued = generate(trained, prompts, 9).tokens
    return {"prompts": PROMPTS, "continued": continued.tolist()}


def with_streams(path: Path) -> dict[str, Any]:
    """Writes a file that reads its source in pieces; as above."""
    x = source = keras.Input((None, 3), name="readings")
    x = keras.layers.Conv1D(8, 3, strides=2, padding="causal")(x)
    x = MultiHeadSelfAttention(2, window=(3, 2), position=RotaryEmbedding())(x) + x
    trained = filled(keras.Model(source, x))
    print(export_tflite(trained, path, ["stream"], piece_length=4))
    readings = np.sin(np.arange(33.0)).reshape(11, 3).astype("float32")
    return {"readings": readings.tolist(), "outputs": vector(trained, readings)}


def vector(model: keras.Model, row: np.ndarray) -> list[float]:
    """The output for one row."""
    return np.round(ops.convert_to_numpy(model(row[np.newaxis]))[0], 6).tolist()


def main() -> None:
    made = {ONE_MODEL: one_model, SEVERAL_MODELS: several_models, WITH_STATES: with_states}
    made[WITH_STREAMS] = with_streams
    for version, make in made.items():
        stored = FOLDER / f"format_{version}.tflite.xz"
        if stored.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.tflite")
            expected = make(path)
            stored.write_bytes(lzma.compress(path.read_bytes()))
        text = json.dumps(expected) + "\n"
        (FOLDER / f"format_{version}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
