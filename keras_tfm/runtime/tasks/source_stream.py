"""A source that is read in pieces: values in, the outputs that have become final out."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.checked_inputs import fit
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Input, Stream

# The length of a source that has not ended, and no source may be as long: 37 hours at 16 kHz. With
# what a piece and the delay may add, it is less than 2^31.
UNKNOWN_END = 2**31 - 2**20


class SourceStream(ABC):
    """A source that is read in pieces of a fixed length; values may come in any number.

    Args:
        name: str, that of the input.
        expected: `Input`, a piece (1, N, ...).
        delay: int, the number of positions of the source by which outputs are late.
        stride: int, the number of positions of the source for one of the outputs.
    """

    def __init__(self, name: str, expected: Input, delay: int, stride: int):
        self._name, self._expected = name, expected
        self.delay, self.stride, self.piece_length = delay, stride, expected.shape[1]
        self._waiting = np.zeros((0, *expected.shape[2:]), expected.dtype)
        self._position = 0
        self._end: int | None = None

    @property
    def length(self) -> int:
        """The number of positions of the source so far."""
        return self._position + len(self._waiting) if self._end is None else self._end

    def append(self, values: npt.ArrayLike) -> dict[str, np.ndarray]:
        """Reads the next values of the source, any number of them.

        Args:
            values: (T, ...), as the input without its batch axis; of audio (samples,), floats from
                -1 to 1, or int16, at the input's rate.

        Returns:
            The outputs that have become final, (n, ...) by name, behind those of earlier calls. As
            long as there are too few values for a piece, n is 0.

        Raises:
            ValueError: another shape; the stream has ended; more positions than `UNKNOWN_END`.
            TypeError: values of another kind.
        """
        self._check_open()
        array = self._as_values(values)
        if self.length + len(array) + self.delay + self.piece_length >= UNKNOWN_END:
            raise ValueError(f"{self._name}: a stream has at most {UNKNOWN_END} positions: end it")
        self._waiting = np.concatenate([self._waiting, array])
        return self._read(UNKNOWN_END)

    def finish(self) -> dict[str, np.ndarray]:
        """Ends the source: the outputs that waited for later values, (n, ...) by name.

        Raises:
            ValueError: the stream has ended, or has got no values.
        """
        self._check_open()
        if not self.length:
            raise ValueError(f"{self._name}: a stream that ends must have got values, got none")
        self._end = self.length
        count = math.ceil((self._end + self.delay - self._position) / self.piece_length)
        missing = count * self.piece_length - len(self._waiting)
        zeros = np.zeros((missing, *self._waiting.shape[1:]), self._waiting.dtype)
        self._waiting = np.concatenate([self._waiting, zeros])
        return self._read(self._end)

    def _check_open(self) -> None:
        if self._end is not None:
            raise ValueError(f"{self._name}: the stream has ended: begin another one")

    def _as_values(self, values: npt.ArrayLike) -> np.ndarray:
        shape = self._expected.shape[2:]
        if isinstance(values, str | bytes | os.PathLike):  # such as the path of a recording
            raise TypeError(f"{self._name} must be numbers, got {type(values).__name__}")
        try:
            array = np.asarray(values)
        except ValueError:  # NumPy's message is about its internals
            array = np.zeros(())
        if array.ndim != 1 + len(shape) or list(array.shape[1:]) != shape:
            wanted = ", ".join(["T", *map(str, shape)]) + ("" if shape else ",")
            raise ValueError(f"{self._name} must have shape ({wanted}), got {array.shape}")
        if not len(array):
            return self._waiting[:0]
        whole = replace(self._expected, shape=[1, len(array), *shape], shortest=None)
        return fit(self._name, array[np.newaxis], whole)[0]

    def _read(self, end: int) -> dict[str, np.ndarray]:
        """Runs all complete pieces; the final outputs."""
        parts: list[Mapping[str, np.ndarray]] = []
        n = self.piece_length
        while len(self._waiting) >= n:
            parts.append(self._run(self._waiting[np.newaxis, :n], self._position, end))
            self._waiting, self._position = self._waiting[n:], self._position + n
        return {
            name: np.concatenate([part[name] for part in parts]) if parts else empty
            for name, empty in self.empty.items()
        }

    @property
    @abstractmethod
    def empty(self) -> dict[str, np.ndarray]:
        """The outputs of no piece, (0, ...) by name."""

    @abstractmethod
    def _run(self, piece: np.ndarray, position: int, end: int) -> Mapping[str, np.ndarray]:
        """The outputs that a piece (1, N, ...) makes final, (n, ...) by name."""


class FileStream(SourceStream):
    """A stream of a file with a signature "stream"; returned by `Model.open_stream`.

    Args:
        file: `LoadedFile`, of one model.

    Attributes:
        piece_length: int, number of positions of the source in a piece.
        delay: int, the number of positions of the source by which outputs are late.
        stride: int, the number of positions of the source for one of the outputs.

    Example, the mean of the last three readings of a sensor:

    >>> import tempfile, keras
    >>> import numpy as np
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> x = keras.Input((None, 1), name="readings")
    >>> mean = keras.layers.Conv1D(1, 3, padding="causal", kernel_initializer="ones")(x)
    >>> model = keras.Model(x, keras.layers.Rescaling(1 / 3)(mean))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/m.tflite", ["stream"], piece_length=1)
    ...     stream = runtime.load(report.path).open_stream()
    ...     found = stream.append([[3.0], [6.0], [9.0], [12.0]])["output"]
    >>> found[:, 0].round(4).tolist()
    [1.0, 3.0, 6.0, 9.0]
    """

    def __init__(self, file: LoadedFile):
        ((self._signature, stream),) = list(file.of_role(Stream).items())[:1]
        (name,) = stream.of_kind("input")
        self._file, self._stream = file, stream
        self._states = {
            key: np.zeros(stream.inputs[key].shape, stream.inputs[key].dtype)
            for key in stream.states
        }
        super().__init__(name, stream.inputs[name], stream.delay, stream.stride)

    @property
    def empty(self) -> dict[str, np.ndarray]:
        """The outputs of no piece, (0, ...) by name."""
        outputs = self._stream.outputs
        return {
            name: np.zeros((0, *outputs[name].shape[2:]), outputs[name].dtype)
            for name in self._stream.results
        }

    def _run(self, piece: np.ndarray, position: int, end: int) -> dict[str, np.ndarray]:
        (place,) = self._stream.of_kind("position")
        (last,) = self._stream.of_kind("end")
        given = {
            self._name: piece,
            place: np.array([position], "int32"),
            last: np.array([end], "int32"),
            **self._states,
        }
        found = self._file.run(self._signature, given)
        self._states = {key: found[key] for key in self._stream.states}
        ((first, stop),) = found[self._stream.final]
        return {name: found[name][0, first:stop] for name in self._stream.results}
