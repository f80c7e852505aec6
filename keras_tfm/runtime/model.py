"""An exported file, loaded."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime import manifest as manifests
from keras_tfm.runtime import native_log
from keras_tfm.runtime.weight_cache import Runner, cached_runners


class Generated(NamedTuple):
    """What was generated: `tokens` (B, T), int32, the start token first, 0 after the end."""

    tokens: np.ndarray


class Model:
    """A file written by `keras_tfm.export.export_tflite`, ready to run; made by `load`.

    Attributes:
        path: the file.
        manifest: what it says of itself, a dictionary.
        signatures: by name, the inputs and outputs with their shapes and dtypes.
    """

    def __init__(self, path: str | Path, threads: int = 1, weight_cache: str | Path | None = None):
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.path = Path(path)
        self.manifest = manifests.read(path)
        self.signatures: dict[str, dict[str, Any]] = self.manifest["signatures"]
        if weight_cache is None:
            self._runners = self._interpreted(threads)
        else:
            self._runners = cached_runners(self.path, self.manifest, threads, weight_cache)
        # LiteRT's interpreter is one set of buffers: two threads would mix their answers.
        self._lock = threading.Lock()

    def _interpreted(self, threads: int) -> dict[str, Runner]:
        interpreter_module = manifests.import_litert("interpreter")
        with native_log.captured():
            interpreter = interpreter_module.Interpreter(str(self.path), num_threads=threads)
            interpreter.allocate_tensors()  # or the first answer would log the delegate
            return {name: interpreter.get_signature_runner(name) for name in self.signatures}

    def generate(self, inputs: Any) -> Generated:
        """Generates a row of tokens for each row of `inputs`.

        Args:
            inputs: ids (B, S) or (S,), as an array or as lists of any length; or, by name, all
                inputs of the signature. Ids shorter than the exported length are padded with 0.

        Raises:
            ValueError: ids longer than the file was exported for, or outside the vocabulary.
        """
        return Generated(self.run("generate", inputs)["tokens"])

    def predict(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of one full pass, by name.

        Args:
            inputs: an array for a model of one input, or arrays by name. Ids may be shorter than
                the exported length: they are padded with 0, and outputs are of the exported length.
        """
        return self.run("predict", inputs)

    def run(self, name: str, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name; `inputs` as in `predict`."""
        if name not in self.signatures:
            raise ValueError(
                f"{self.path} has no signature {name!r}, it has {list(self.signatures)}"
            )
        expected = self.signatures[name]["inputs"]
        if not isinstance(inputs, dict):
            inputs = {next(iter(expected)): inputs}
        if set(inputs) != set(expected):
            raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
        arrays = {key: _fit(key, inputs[key], expected[key]) for key in expected}
        lengths = {key: len(array) for key, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {lengths}")
        rows, batch = lengths[next(iter(expected))], next(iter(expected.values()))["shape"][0]
        if rows == 0:
            raise ValueError("got no rows")
        results = []
        for start in range(0, rows, batch):
            chunk = {key: array[start : start + batch] for key, array in arrays.items()}
            filled = {key: _fill(array, batch) for key, array in chunk.items()}
            with self._lock:
                results.append(self._runners[name](**filled))
        return {key: np.concatenate([r[key] for r in results])[:rows] for key in results[0]}


def load(path: str | Path, threads: int = 1, *, weight_cache: str | Path | None = None) -> Model:
    """Loads a file written by `keras_tfm.export.export_tflite` and checks its checksum.

    Args:
        path: the .tflite file.
        threads: how many threads LiteRT uses.
        weight_cache: a folder, made where it is missing, in which the weights are kept as
            XNNPACK's kernels read them: as large as the file. The first load fills it; a later one
            maps it and packs nothing, which saves most of the memory that is the process's own.
            None: weights are packed in memory. LiteRT then runs as its `CompiledModel`, which
            writes a few lines to standard error when the process ends.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or keras_tfm did not write it.
        OSError: the folder of the cache cannot be written.
        ModuleNotFoundError: LiteRT is missing; the message names the extra that brings it.

    Example, with a model that Keras made:

    >>> import tempfile, keras
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/sum.tflite")
    ...     runtime.load(folder + "/sum.tflite").predict([[3.0, 4.0]])["output"].tolist()
    [[7.0]]
    """
    return Model(path, threads, weight_cache)


def _fit(name: str, values: Any, expected: dict[str, Any]) -> np.ndarray:
    """`values` as an array (N, ...) of the shape and dtype that the file takes."""
    shape, dtype = tuple(expected["shape"]), np.dtype(expected["dtype"])
    if dtype.kind in "iu":
        array = _ids(name, values, shape, expected)
    else:
        array = np.asarray(values)
        if dtype.kind == "b" and array.dtype.kind not in "biu":
            raise TypeError(f"{name} must be bool, True = attend, got {array.dtype}")
        array = array.astype(dtype)
        if array.ndim == len(shape) - 1:
            array = array[np.newaxis]
    if array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        wanted = ", ".join(["B", *map(str, shape[1:])])
        raise ValueError(f"{name} must have shape ({wanted}), got {array.shape}")
    return array.astype(dtype)


def _ids(name: str, values: Any, shape: tuple[int, ...], expected: dict[str, Any]) -> np.ndarray:
    """Integers, in range; rows of unequal length padded with 0 on the right, where that may be."""
    if not isinstance(values, (list, tuple)) and np.ndim(values) == 0:
        raise TypeError(f"{name} must be rows of ids, got {type(values).__name__}")
    rows: Sequence[Any] = values
    if len(shape) > 1 and len(rows) and np.ndim(rows[0]) == 0:
        rows = [values]
    arrays = [np.asarray(row) for row in rows]
    for array in arrays:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{name} must be integer ids, got {array.dtype}")
    # Before they are cast: 2**32 + 3 in 32 bits is 3.
    limits = np.iinfo(expected["dtype"])
    size = expected.get("vocabulary_size", int(limits.max) + 1)
    low = 0 if "vocabulary_size" in expected else int(limits.min)
    found = [
        bound for array in arrays if array.size for bound in (int(array.min()), int(array.max()))
    ]
    if found and (min(found) < low or max(found) >= size):
        raise ValueError(
            f"{name}: ids must be in {low}..{size - 1}, got {min(found)}..{max(found)}"
        )
    if len(shape) != 2 or any(array.ndim != 1 for array in arrays):
        return np.stack(arrays)
    lengths = {len(array) for array in arrays}
    if max(lengths, default=0) > shape[1]:
        raise ValueError(
            f"{name} has {max(lengths)} ids, but the file was exported for at most {shape[1]}"
        )
    if lengths - {shape[1]} and not expected.get("padded", True):
        raise ValueError(
            f"{name} must have shape (B, {shape[1]}), got rows of {sorted(lengths)} ids; "
            "the model sees padding as ids like others (no mask_zero)"
        )
    result = np.zeros((len(arrays), shape[1]), expected["dtype"])
    for i, array in enumerate(arrays):
        result[i, : len(array)] = array
    return result


def _fill(array: np.ndarray, batch: int) -> np.ndarray:
    """A last, smaller chunk, filled up by its own last row."""
    missing = batch - len(array)
    return array if missing == 0 else np.concatenate([array, np.repeat(array[-1:], missing, 0)])
