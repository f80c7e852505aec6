"""Files that several tests run, each converted once a run, and not verified: tests do that."""

import atexit
import fcntl
import functools
import os
import pickle
import tempfile
from pathlib import Path

import keras
import manifest_lies
import numpy as np
from small_models import SOURCE_SIZE, SOURCES, START, encoder_decoder
from small_tokenizers import WORDS, words

from keras_tfm.export import Report, export_tflite
from keras_tfm.export.quantization.four_bits import unpack
from keras_tfm.generation import generate
from keras_tfm.layers import (
    PositionalEncoding,
    SequencePooling,
    TokenEmbedding,
    TransformerEncoderBlock,
)
from keras_tfm.models import transformer
from keras_tfm.runtime import flatbuffer

SOURCE_LENGTH, MAX_LENGTH = 5, 9
BOTH = ("generate", "predict")
# `SOURCES`, of several lengths, and as many again at random.
QUESTIONS = np.concatenate(
    [SOURCES, np.random.default_rng(1).integers(1, SOURCE_SIZE, (19, SOURCE_LENGTH))]
).astype("int32")


@functools.cache
def folder() -> Path:
    """A folder that goes when Python does."""
    kept = tempfile.TemporaryDirectory(prefix="keras_tfm_tests_")
    atexit.register(kept.cleanup)
    return Path(kept.name)


def once_a_run(export):
    """`export(path, *arguments)` -> its report, made by the first worker that asks for it.

    tests/conftest.py makes the folder that the workers of a run share.
    """

    @functools.cache
    def shared(*arguments):
        name = "_".join(map(str, (export.__name__, *arguments))).replace("/", "-")
        path = Path(os.environ.get("KERAS_TFM_TESTS") or folder()) / f"{name}.tflite"
        report = path.with_suffix(".report")
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not report.exists():
                # Of the weights that a test draws itself, whether it made the file or found it.
                keras.utils.set_random_seed(0)
                report.write_bytes(pickle.dumps(export(path, *arguments)))
                keras.utils.set_random_seed(0)
            return pickle.loads(report.read_bytes())

    return shared


def small(normalize_first=False, seed=None, num_layers=1) -> keras.Model:
    """The same model again and again: nobody may change its weights."""
    return _small(normalize_first, seed, num_layers)


_small = functools.cache(encoder_decoder)


def small_tokens(normalize_first=False, seed=None, num_layers=1, end_id=None) -> np.ndarray:
    """What Keras generates for `QUESTIONS`."""
    return _small_tokens(normalize_first, seed, num_layers, end_id)


@functools.cache
def _small_tokens(normalize_first, seed, num_layers, end_id):
    model = small(normalize_first, seed, num_layers)
    return generate(model, QUESTIONS, MAX_LENGTH, START, end_id).tokens


def small_file(
    normalize_first=False, seed=None, num_layers=1, end_id=None, signatures=BOTH, batch_size=1
) -> Report:
    """`small`, exported in float32."""
    return _small_file(normalize_first, seed, num_layers, end_id, signatures, batch_size)


@once_a_run
def _small_file(path, normalize_first, seed, num_layers, end_id, signatures, batch_size):
    return export_tflite(
        small(normalize_first, seed, num_layers),
        path,
        signatures,
        source_length=SOURCE_LENGTH,
        max_length=MAX_LENGTH,
        start_id=START,
        end_id=end_id,
        batch_size=batch_size,
        verify=False,
    )


@functools.cache
def real() -> keras.Model:
    """A model of a size that is used, 3.2 MB in float32, of which one table is 1.5."""
    keras.utils.set_random_seed(0)
    return transformer(3000, dim=128, num_layers=1, num_heads=2, intermediate_dim=512)


def real_file(quantization: str, signatures=("generate",)) -> Report:
    """`real`, exported."""
    return _real_file(quantization, signatures)


@once_a_run
def _real_file(path, quantization, signatures):
    lengths = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH}
    return export_tflite(
        real(), path, signatures, quantization, start_id=START, verify=False, **lengths
    )


def classifier_file() -> Report:
    """A classifier of texts with a tokenizer of words, in two lengths."""
    return _classifier_file()


@once_a_run
def _classifier_file(path):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = PositionalEncoding()(TokenEmbedding(len(WORDS), 12, mask_zero=True)(tokens))
    x = SequencePooling()(TransformerEncoderBlock(24, num_heads=2)(x))
    model = keras.Model(tokens, keras.layers.Dense(3)(x))
    return export_tflite(
        model,
        path,
        source_length=[4, 8],
        tokenizer=words(),
        labels=["negative", "neutral", "positive"],
        verify=False,
    )


def new_path() -> Path:
    """Of a file that is not there yet."""
    return folder() / f"{len(list(folder().iterdir()))}.tflite"


def with_manifest(content, change):
    """A file whose checksum is right and whose manifest was changed."""
    manifest = manifest_lies.read_manifest(content)
    del manifest["sha256"]
    change(manifest)
    return manifest_lies.with_manifest(content, manifest)


def four_bit_matrices(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """The levels (F, D) and scales (F, N) of the 4-bit matrices of a file."""
    file, found = flatbuffer.read(path.read_bytes()), {}
    for use in flatbuffer.weight_uses(file):
        if use.tensor.type == 17:
            rows = use.graph.tensors[use.tensor.quantization.details.scales]
            scales = np.asarray(file.buffers[rows.buffer].data, "uint8").view("float16")
            scales = scales.reshape(use.tensor.shape[0], -1)
            found[use.tensor.buffer] = unpack(file, use.tensor), scales
    return [*found.values()]
