"""Tensors in files of the TensorFlow classes of `transformers` 4, such as `tf_model.h5`.

They are given the names and the shapes that the PyTorch class has for them: what `transformers` 4
did when it loaded such a file into one. HDF5 keeps the values of a variable in one piece, of which
a transposed kernel is a view.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import h5py

from keras_tfm.checkpoints.stored_tensor import Tensor

# The dtypes in safetensors.
_DTYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32"}
# The last part of a variable's name, and the name of the tensor.
_NAMES = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# The table of BART and its relatives, whose layer has a name of two levels.
_SHARED = "model.shared"
# The axes of a kernel by their number: of dense layers, of convolutions over time and of pictures.
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}


def read_h5_file(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    """The tensors of a file, by name.

    Args:
        path: Path of the file.
        file: the file, open for reading.

    Raises:
        ValueError: it has no weights of a Keras model, or values in several pieces.
        OSError: it is damaged.
    """
    variables = []
    with h5py.File(file, "r") as opened:
        for layer in _texts(opened, "layer_names"):
            group = opened[layer]
            if isinstance(group, h5py.Dataset):  # in one of several files
                variables.append((layer, _location(path, layer, group)))
                continue
            for name in _texts(group, "weight_names"):
                # The first level is the model; `final_logits_bias` of BART has no other.
                variables.append((name.split("/", 1)[-1], _location(path, name, group[name])))
    return as_torch(variables)


def _texts(group: h5py.Group, name: str) -> list[str]:
    """An attribute of texts, which Keras divides where it is long: `name`, or `name0`, `name1`."""
    names = [x for x in group.attrs if re.fullmatch(rf"{name}\d*", x)]
    if not names:
        raise ValueError(f"{group.name} has no attribute {name!r}")
    texts = [text for x in sorted(names, key=lambda x: (len(x), x)) for text in group.attrs[x]]
    return [x.decode() if isinstance(x, bytes) else str(x) for x in texts]


def _location(path: Path, name: str, dataset: h5py.Dataset) -> Tensor:
    begin, dtype = dataset.id.get_offset(), _DTYPES.get(dataset.dtype.str)
    if dtype is None:
        raise ValueError(f"{name} has the dtype {dataset.dtype}, not one of {[*_DTYPES]}")
    if begin is None:
        raise ValueError(f"{name} is stored in chunks or compressed, expected one piece")
    return Tensor(path, dtype, dataset.shape, begin, begin + dataset.nbytes)


def as_torch(variables: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The variables of a TensorFlow class under the names of the PyTorch class, in its shapes.

    Args:
        variables: their names, without the level of the model, and their locations. A table that
            several layers share may be there more than once.

    >>> from pathlib import Path
    >>> from keras_tfm.checkpoints.stored_tensor import Tensor
    >>> from keras_tfm.checkpoints.tensorflow_files import as_torch
    >>> kernel = Tensor(Path("tf_model.h5"), "F32", (2, 3), 0, 24)
    >>> as_torch([("bert/encoder/layer_._0/output/dense/kernel:0", kernel)])
    ... # doctest: +NORMALIZE_WHITESPACE
    {'bert.encoder.layer.0.output.dense.weight': Tensor(file=PosixPath('tf_model.h5'), dtype='F32',
     shape=(3, 2), begin=0, end=24, strides=(1, 3))}
    """
    tensors: dict[str, Tensor] = {}
    for variable, tensor in variables:
        # Lists are "layer_._0"; "model___bert" is "bert" in PyTorch.
        levels = variable.split(":")[0].replace("_._", "/").split("/")
        levels = [re.sub(".*___", "", level) for level in levels if level]
        last = levels[-1]
        name = ".".join([*levels[:-1], _NAMES.get(last, last)])
        name = name.replace(f"{_SHARED}.{_SHARED}", _SHARED)
        tensors.setdefault(name, _in_shape(last, tensor))
    for name in [*tensors]:
        # ALBERT's logits have this bias in TensorFlow; in PyTorch both are one.
        if name.endswith("predictions.decoder.bias"):
            tensors[name.replace(".decoder.", ".")] = tensors.pop(name)
    return tensors


def _in_shape(last: str, tensor: Tensor) -> Tensor:
    """A tensor in the shape that it has in PyTorch; `last`: the last level of its name."""
    shape = tensor.shape
    if last == "bias" and len(shape) == 2:  # (1, D) of GPT-2's dense layers
        return tensor._replace(shape=shape[1:])
    if last == "logit_scale":  # (1,) of CLIP
        return tensor._replace(shape=())
    if last == "weight_g":  # (K, 1, 1) of the convolution of positions of wav2vec 2.0
        return tensor._replace(shape=shape[::-1])
    if last != "kernel" or len(shape) not in _AXES:
        return tensor
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    axes = _AXES[len(shape)]
    return tensor._replace(
        shape=tuple(shape[i] for i in axes), strides=tuple(steps[i] for i in axes)
    )
