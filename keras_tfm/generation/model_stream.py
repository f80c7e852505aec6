"""`ModelStream`: a Keras model that reads its source in pieces."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.generator import compile_function
from keras_tfm.generation.source_model import SourceModel
from keras_tfm.runtime.manifest.manifest import Input
from keras_tfm.runtime.tasks.source_stream import SourceStream


class ModelStream(SourceStream):
    """A Keras model that reads a source of any length in pieces, such as live audio.

    Each output is final as soon as the layers have read all that it depends on: attention with
    `window=(left, right)` waits for right - 1 positions, a causal convolution for none. `finish`
    gives the outputs that wait. All outputs together are those of a pass over the whole source.

    What a layer keeps has a constant size: the keys and values that a window reaches, the last
    inputs of a convolution, a recurrent state. So a layer that reads any number of positions, such
    as attention without a window or a bidirectional one, cannot read in pieces.

    A file with the signature "stream" does the same: `runtime.Model.open_stream`.

    Args:
        model: functional model of one input (B, T, ...), whose outputs have a position for each, or
            for each few, of the input's.
        piece_length: int, number of positions of the source in a piece, a multiple of the model's
            strides. Longer pieces take less time, but outputs come later.

    Attributes:
        piece_length: int, the argument.
        delay: int, the number of positions of the source by which outputs are late.
        stride: int, the number of positions of the source for one of the outputs.

    Raises:
        ValueError: the model cannot read in pieces, or its strides do not divide them; the error
            names the layer.
        TypeError: the model is not functional, or `piece_length` is no integer.

    Example:

    >>> import keras, numpy as np
    >>> from keras_tfm.generation import ModelStream
    >>> from keras_tfm.layers import TransformerEncoderBlock, MultiHeadSelfAttention
    >>> x = source = keras.Input((None, 8))
    >>> x = keras.layers.Conv1D(8, 3, strides=2, padding="causal")(x)
    >>> attention = MultiHeadSelfAttention(num_heads=2, window=(5, 2))
    >>> x = TransformerEncoderBlock(16, self_attention=attention)(x)
    >>> model = keras.Model(source, x)
    >>> stream = ModelStream(model, piece_length=4)
    >>> values = np.random.default_rng(0).normal(size=(11, 8)).astype("float32")
    >>> parts = [stream.append(values[:5])["output"], stream.append(values[5:])["output"]]
    >>> parts.append(stream.finish()["output"])
    >>> [len(x) for x in parts]
    [1, 2, 3]
    >>> whole = model(values[np.newaxis])[0]
    >>> bool(np.allclose(np.concatenate(parts), whole, atol=1e-5))
    True
    """

    def __init__(self, model: keras.Model, piece_length: int):
        source = SourceModel(model, piece_length)
        known = source.interface.inputs[source.target]
        expected = Input(
            shape=[1, source.piece_length, *known.spec.shape[2:]],
            dtype=known.spec.dtype,
            kind="input",
            padded=False,
            pad_id=known.pad_id,
            vocabulary_size=known.vocabulary_size,
            sample_rate=None if known.audio is None else known.audio.sample_rate,
        )
        super().__init__(source.target, expected, source.delay, source.stride)
        self._cache: Any = source.states
        self._step = compile_function(source.run, model.variables)
        outputs = source.interface.name_outputs(model.output)
        self._empty_outputs = {
            name: np.zeros((0, *x.shape[2:]), x.dtype) for name, x in outputs.items()
        }

    @property
    def empty(self) -> dict[str, np.ndarray]:
        """The outputs of no piece, (0, ...) by name."""
        return self._empty_outputs

    def _run(self, piece: np.ndarray, position: int, end: int) -> dict[str, np.ndarray]:
        numbers = (ops.convert_to_tensor(np.int32(x)) for x in (position, end))
        found, self._cache = self._step(self._cache, ops.convert_to_tensor(piece), *numbers)
        first, last = (int(x) for x in (found.first, found.last))
        return {name: ops.convert_to_numpy(x)[0, first:last] for name, x in found.outputs.items()}
