"""LoRA adapters in files of their own, for LiteRT-LM's `LoraConfig`.

The signatures of a base file take A (D, rank) and B (rank, F) of each adapted projection as inputs,
transposed, under names by which LiteRT-LM knows adapters. It passes what a session's adapter file
has under these names, and zeros without an adapter. The names are those of attention's projections;
here their numbers count all adapted projections, also those of feed-forward layers.

An adapter file is the flatbuffer of a .tflite file without a graph: names and shapes of tensors,
whose values stand behind it at given offsets. LiteRT-LM maps whole pages, and takes the number of
the buffer of the metadata "lora_rank" for the rank.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from keras_tfm.atomic_files import check_earlier, replacement
from keras_tfm.export.graph.adapters import adapted_layers
from keras_tfm.export.graph.schema import ModelT, SignatureDefT
from keras_tfm.export.pipeline import Converted
from keras_tfm.runtime.adapters import LowRank
from keras_tfm.runtime.manifest.storage import IDENTIFIER, import_litert

# Of adapters that LiteRT-LM 0.18 takes.
_RANKS = (16, 32)
_DESCRIPTION = "lora_params"
# The largest page of memory of a system that it runs on, and the alignment of the matrices.
_PAGE, _ALIGNMENT = 1 << 16, 64
# Where the matrices of a file whose size is not known yet are.
_SOMEWHERE = 1 << 30


def save_litertlm_adapter(model: keras.Model, path: str | Path) -> Path:
    """Writes the LoRA adapters of a model to a small file, for LiteRT-LM's `LoraConfig`.

    The file is for the base of the same model, which `export_litertlm(..., separate_adapters=True)`
    writes: one base, any number of adapters. LiteRT-LM compares sizes alone, so that the adapter
    of another base with the same layers is not refused.

    Args:
        model: functional `keras.Model` with adapters (`models.enable_lora`) of rank 16 or 32.
        path: str or Path, the file, which ends in ".tflite". It is written completely or not at
            all; an earlier adapter is replaced.

    Returns:
        `path`.

    Raises:
        ValueError: the model has no adapters, one in a layer that cannot have a separate one, or
            one of another rank; or the path ends otherwise.
        FileExistsError: `path` is another file, such as a model.

    Example:

    >>> import tempfile
    >>> from keras_tfm import models
    >>> from keras_tfm.export import save_litertlm_adapter
    >>> gpt = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=6)
    >>> count = models.enable_lora(gpt, rank=16)
    >>> # gpt.fit(...)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_litertlm_adapter(gpt, folder + "/first.tflite").name
    'first.tflite'
    """
    path = Path(path)
    if path.suffix != ".tflite":
        raise ValueError(f"the path of LiteRT-LM's adapters must end in .tflite, got {path}")
    rank, matrices = rank_of(model), dict[str, np.ndarray]()
    for number, layer in enumerate(adapted_layers(model).values()):
        a, b = (
            np.asarray(keras.ops.convert_to_numpy(x), "float32")
            for x in (layer.lora_kernel_a, layer.lora_kernel_b)
        )
        scaled = LowRank(a, b, float(layer.lora_alpha)).scaled
        matrices |= zip(_names(number), (a.T, scaled.T), strict=True)
    header = len(_header(matrices, rank, _SOMEWHERE))
    start = -(-header // _ALIGNMENT) * _ALIGNMENT
    content = bytearray(_header(matrices, rank, start).ljust(start, b"\0"))
    for x in matrices.values():
        content += x.tobytes().ljust(_aligned_size(x), b"\0")
    check_earlier(path, "an adapter for LiteRT-LM", _is_adapter)
    with replacement(path) as new:
        new.write_bytes(content.ljust(-(-len(content) // _PAGE) * _PAGE, b"\0"))
    return path


def _is_adapter(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_PAGE)
    return start[4:8] == IDENTIFIER and _DESCRIPTION.encode() in start


def rank_of(model: keras.Model) -> int:
    """The rank of all adapters of a model.

    Raises:
        ValueError: LiteRT-LM does not take it.
    """
    ranks = {int(x.lora_rank) for x in adapted_layers(model).values()}
    if len(ranks) > 1 or not ranks <= set(_RANKS):
        raise ValueError(
            f"LiteRT-LM takes adapters of rank 16 or 32, got {', '.join(map(str, sorted(ranks)))}: "
            "call models.enable_lora(model, rank=16)"
        )
    return ranks.pop()


def with_adapters_as_inputs(converted: Converted) -> Converted:
    """The file with A and B of each adapted projection as inputs of its signatures."""
    places = converted.manifest.adapters
    if places is None:
        return converted
    names = {
        number: name
        for i, layer in enumerate(places.layers.values())
        for name, numbers in zip(_names(i), (layer.a, layer.b), strict=True)
        for number in numbers
    }
    model = copy.copy(converted.model)
    model.buffers = [
        model.buffers[0] if number in names else x for number, x in enumerate(model.buffers)
    ]
    model.subgraphs = [*model.subgraphs]
    model.signatureDefs = [copy.copy(x) for x in model.signatureDefs]
    for signature in model.signatureDefs:
        _add_inputs(model, signature, names)
    return replace(converted, model=model, manifest=replace(converted.manifest, adapters=None))


def _add_inputs(model: ModelT, signature: SignatureDefT, names: dict[int, str]) -> None:
    """Makes inputs of a signature of the tensors in these buffers, whose names are given."""
    graph = model.subgraphs[signature.subgraphIndex] = copy.copy(
        model.subgraphs[signature.subgraphIndex]
    )
    graph.tensors, found, same = [*graph.tensors], dict[str, int](), dict[int, int]()
    for index, tensor in enumerate(graph.tensors):
        name = names.get(tensor.buffer)
        if name is not None:
            same[index] = found.setdefault(name, index)
            graph.tensors[index] = tensor = copy.copy(tensor)
            tensor.buffer, tensor.name = 0, f"{signature.signatureKey.decode()}_{name}".encode()
    graph.operators = [copy.copy(x) for x in graph.operators]
    for operator in graph.operators:
        operator.inputs = [same.get(int(x), int(x)) for x in operator.inputs]
    graph.inputs = [*graph.inputs, *found.values()]
    arguments = []
    for name, index in found.items():
        argument = copy.copy(signature.inputs[0])
        argument.name, argument.tensorIndex = name.encode(), index
        arguments.append(argument)
    signature.inputs = [*signature.inputs, *arguments]


def _names(number: int) -> Iterable[str]:
    """LiteRT-LM's names of A and B of a projection."""
    return [f"lora_atten_q_{letter}_prime_weight_{number}" for letter in "ab"]


def _aligned_size(x: np.ndarray) -> int:
    return -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT


def _header(matrices: dict[str, np.ndarray], rank: int, start: int) -> bytes:
    """The flatbuffer of an adapter file whose first matrix is at the offset `start`."""
    import flatbuffers

    schema = import_litert("schema_py_generated")
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.description, model.operatorCodes = 3, _DESCRIPTION, []
    model.subgraphs, graph.name = [graph], _DESCRIPTION
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [], [], [], []
    # Buffer 0 is empty; that of the rank has the rank as its number.
    model.buffers = [schema.BufferT() for _ in range(max(rank, len(matrices) + 1) + 1)]
    model.buffers[rank].data = np.frombuffer(np.int32(rank).tobytes(), "uint8")
    numbers = (x for x in range(1, len(model.buffers)) if x != rank)
    for (name, x), number in zip(matrices.items(), numbers, strict=False):
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name, list(x.shape), number
        model.buffers[number].offset, model.buffers[number].size = start, x.nbytes
        graph.tensors.append(tensor)
        start += _aligned_size(x)
    metadata = schema.MetadataT()
    metadata.name, metadata.buffer = "lora_rank", rank
    model.metadata = [metadata]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
