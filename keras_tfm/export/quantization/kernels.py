"""The kernels of a model that is calibrated: scaled together with their grids and adapters.

Example:

>>> import numpy as np
>>> from keras_tfm.export.quantization.kernels import Kernels
>>> from keras_tfm.layers.base_layer import Projection
>>> layer, kernels = Projection(2, use_bias=False), Kernels(lambda layer: 8)
>>> y = layer(np.array([[1.0, 2.0]]))
>>> kernels.scale(layer, np.array([1.0, 4.0]), np.ones(2))
>>> bool(np.allclose(layer(np.array([[1.0, 0.5]])), y, atol=1e-6))
True
"""

import logging
from collections.abc import Callable, Mapping

import keras
import numpy as np
from keras import ops

from keras_tfm.export.quantization.gptq import round_kernel
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.models.quantization.rounded_weights import kernel_of
from keras_tfm.models.quantization.rounding import BLOCK, Grid

_log = logging.getLogger(__name__)

Layer = Projection | TokenEmbedding


class Kernels:
    """The kernels of a model's projections and tables.

    Args:
        bits_of: function of a layer, the size of its weights in the file, 4 or 8 bits.
        grids: dict, the grids of a quantized checkpoint by the `id` of the variable. They are
            scaled with the kernels.
    """

    def __init__(self, bits_of: Callable[[Layer], int], grids: Mapping[int, Grid] | None = None):
        self.bits_of, self.grids = bits_of, dict(grids or {})

    def grid(self, layer: Layer) -> Grid | None:
        """The grid that the checkpoint has for a kernel; None: the file finds one."""
        return self.grids.get(id(variable_of(layer)))

    def matrix(self, layer: Layer) -> np.ndarray:
        """The kernel (D, F), without adapters; of a table, its transpose."""
        values = ops.convert_to_numpy(variable_of(layer)).astype("float32")
        return values.T if isinstance(layer, TokenEmbedding) else values

    def round(self, layer: Layer, matrix: np.ndarray) -> np.ndarray:
        """Columns of a scaled kernel as the file has them: on a published grid, as they are."""
        return matrix if self.grid(layer) is not None else round_kernel(matrix, self.bits_of(layer))

    def without_offsets(self, layer: Layer) -> np.ndarray:
        """The kernel (D, F) without the offsets of its grid, which multiply the exact input."""
        matrix, grid = self.matrix(layer), self.grid(layer)
        if grid is None or grid.offsets is None:
            return matrix
        return matrix - np.repeat(grid.offsets, len(matrix) // grid.offsets.shape[1], axis=1).T

    def shared_channels(self, layer: Layer) -> int:
        """How many inputs next to each other have one factor: 1, or those of a scale and offset."""
        grid, width = self.grid(layer), variable_of(layer).shape[isinstance(layer, TokenEmbedding)]
        if grid is None:
            return 1
        groups = 1 if grid.bits == 8 else width // BLOCK
        return width // (groups if grid.offsets is None else min(groups, grid.offsets.shape[1]))

    def can_scale(self, layer: Layer, inputs: np.ndarray, outputs: np.ndarray) -> bool:
        """Whether `scale` keeps the levels of a published grid."""
        variable, grid = variable_of(layer), self.grid(layer)
        if grid is None:
            return True
        is_kept = grid.with_factors(ops.convert_to_numpy(variable), inputs, outputs) is not None
        if not is_kept:
            _log.info("%s keeps its scales: float16 cannot hold others", variable.path)
        return is_kept

    def scale(self, layer: Layer, inputs: np.ndarray, outputs: np.ndarray) -> None:
        """Multiplies the rows of a kernel by `inputs` (D,) and its columns by `outputs` (F,).

        Bias and adapters (LoRA) are scaled, too; a published grid keeps its levels.
        """
        variable, grid = variable_of(layer), self.grid(layer)
        if grid is not None:
            scaled = grid.with_factors(ops.convert_to_numpy(variable), inputs, outputs)
            assert scaled is not None
            self.grids[id(variable)] = scaled
        if isinstance(layer, TokenEmbedding):
            variable.assign(ops.convert_to_numpy(variable) * inputs)
            return
        variable.assign(ops.convert_to_numpy(variable) * inputs[:, np.newaxis] * outputs)
        if layer.bias is not None:
            layer.bias.assign(ops.convert_to_numpy(layer.bias) * outputs)
        if layer.lora_enabled:
            down, up = layer.lora_kernel_a, layer.lora_kernel_b
            down.assign(ops.convert_to_numpy(down) * inputs[:, np.newaxis])
            up.assign(ops.convert_to_numpy(up) * outputs)


def variable_of(layer: Layer) -> keras.Variable:
    """The kernel of a projection, without adapters, or the table."""
    return layer.embeddings if isinstance(layer, TokenEmbedding) else kernel_of(layer)
