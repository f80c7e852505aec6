"""Weights in 4 bits and their rounding, as `four_bits` stores them."""

import ml_dtypes
import numpy as np

from keras_tfm.models.quantization.rounding import BLOCK, LARGEST_LEVEL

# Added to the diagonal of the products of inputs, relative to its mean.
_DAMPING = 0.01


def compensate(kernel: np.ndarray, products: np.ndarray) -> np.ndarray:
    """A kernel whose values are those of a 4-bit file, chosen for the inputs it gets.

    Row after row is rounded, and the rows that follow are changed so that the product with the
    inputs x changes least. With H = x^T x and the upper triangular U, U^T U = H^-1:

    W[j:] -= U[j, j:]^T (W[j] - round(W[j])) / U[j, j]

    "GPTQ" (arXiv:2210.17323), equations 2 and 3 in the form of section 3.3. The scale of a block
    is the one of its largest value when its turn comes, which stays the largest.

    Args:
        kernel: (D, F), float32, with D a multiple of 32.
        products: (D, D), float32, x^T x.

    Returns:
        (D, F), float32. Rounding it again changes nothing.
    """
    weights, width = kernel.astype("float32"), len(kernel)
    hessian = products.astype("float64")
    diagonal = np.einsum("ii->i", hessian)
    diagonal[diagonal == 0.0] = 1.0  # a channel that is always zero
    diagonal += _DAMPING * diagonal.mean()
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T.astype("float32")
    result = np.empty_like(weights)
    columns = np.arange(weights.shape[1])
    for start in range(0, width, BLOCK):
        part = slice(start, start + BLOCK)
        block, factors = weights[part], upper[part, part]
        largest = np.abs(block).argmax(0)
        ends = np.sign(block[largest, columns]) * LARGEST_LEVEL
        steps = block_scales(block)
        errors = np.empty_like(block)
        for row in range(BLOCK):
            levels = np.clip(np.rint(block[row] / steps), -LARGEST_LEVEL, LARGEST_LEVEL)
            levels = np.where(largest == row, ends, levels)
            result[start + row] = levels * steps
            errors[row] = (block[row] - result[start + row]) / factors[row, row]
            block[row:] -= np.outer(factors[row, row:], errors[row])
        weights[start + BLOCK :] -= upper[part, start + BLOCK :].T @ errors
    return result


def block_scales(block: np.ndarray) -> np.ndarray:
    """The scales (F,) of a block (32, F): the difference between two levels.

    A file holds them in float16, with the seven bits of bfloat16's fraction.
    """
    scales = (np.abs(block).max(0) / LARGEST_LEVEL).astype(ml_dtypes.bfloat16)
    return np.maximum(scales.astype("float16").astype("float32"), np.finfo("float16").tiny)


def round_kernel(kernel: np.ndarray, bits: int) -> np.ndarray:
    """A kernel (D, F) with each value rounded to the nearest one of an 8-bit or 4-bit file.

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.gptq import round_kernel
    >>> kernel = np.array([[100.0], [502.2], [1270.0]])
    >>> round_kernel(kernel, 8).ravel().tolist()
    [100.0, 500.0, 1270.0]
    """
    if bits == 8:
        scales = np.maximum(np.abs(kernel).max(0) / 127, np.finfo("float32").tiny)
        return np.rint(kernel / scales) * scales
    blocks = kernel.reshape(-1, BLOCK, kernel.shape[1])
    scales = np.stack([block_scales(block) for block in blocks])[:, np.newaxis]
    levels = np.clip(np.rint(blocks / scales), -LARGEST_LEVEL, LARGEST_LEVEL)
    return (levels * scales).reshape(kernel.shape)
