"""The fields of a manifest, compared with each other and with the tensors of the file.

`manifest` checks each field by itself. After these checks, later code neither allocates nor indexes
by a number that no tensor bounds.

Example:

>>> from keras_tfm.runtime.manifest.checks import check_input
>>> from keras_tfm.runtime.manifest.manifest import Input
>>> ids = Input(
...     shape=[1, 4], dtype="int32", kind="input", padded=False, pad_id=9, vocabulary_size=9
... )
>>> check_input("inputs.ids", ids)
Traceback (most recent call last):
ValueError: inputs.ids.pad_id must be in 0..8, got 9
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.litert_internals import Table
from keras_tfm.runtime.manifest.manifest import (
    NUMBERS,
    Decode,
    Encode,
    Generate,
    Identity,
    Input,
    Manifest,
    Member,
    Predict,
    Prefill,
    Signature,
    Stepped,
    Stream,
    Tensor,
)
from keras_tfm.runtime.manifest.records import Json

# Ids are int32 in every step, whatever the dtype of an input.
_IDS = 1 << 31
# Hz. Above the ultrasound of bats; a lie beyond it would make resampling allocate gigabytes.
LARGEST_RATE = 1_000_000
# Positions of a source in a piece and its delay; `source_stream.UNKNOWN_END` leaves twice as many.
LARGEST_REACH = 1 << 19
# Pixels of an edge to which a picture is resized before it is cropped to a smaller size.
LARGEST_RESIZE = 4096
# The factor of cosine similarities, which CLIP's training limits to 100, and SigLIP's bias.
LARGEST_SCALE = 1e6


class Graph(NamedTuple):
    """The inputs and outputs of a signature in a .tflite file, by name."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def read_graphs(schema: ModuleType, model: Table) -> dict[str, Graph]:
    """The inputs and outputs of each signature of a .tflite file.

    Args:
        schema: LiteRT's module `schema_py_generated`.
        model: the file as a `schema.Model`.
    """
    codes = vars(schema.TensorType).items()
    types = {code: name.lower() for name, code in codes if not name.startswith("_")}

    def tensor_of(graph: Table, index: int) -> Tensor:
        tensor = graph.Tensors(index)
        shape = [tensor.Shape(k) for k in range(tensor.ShapeLength())]
        return Tensor(shape=shape, dtype=types[tensor.Type()])

    result = {}
    for i in range(model.SignatureDefsLength()):
        signature = model.SignatureDefs(i)
        graph = model.Subgraphs(signature.SubgraphIndex())
        inputs = [signature.Inputs(j) for j in range(signature.InputsLength())]
        outputs = [signature.Outputs(j) for j in range(signature.OutputsLength())]
        result[signature.SignatureKey().decode()] = Graph(
            *(
                {x.Name().decode(): tensor_of(graph, x.TensorIndex()) for x in tensors}
                for tensors in (inputs, outputs)
            )
        )
    return result


def check_manifest(manifest: Manifest, graphs: Mapping[str, Graph]) -> None:
    """Raises ValueError unless a manifest describes its file.

    Args:
        manifest: the manifest.
        graphs: the signatures in the file, from `read_graphs`.
    """
    signatures = manifest.signatures
    if manifest.models:
        for name, signature in signatures.items():
            _require(
                signature.model in manifest.models,
                f"signatures.{name}.model must be one of {', '.join(manifest.models)}",
                signature.model,
            )
    for name, signature in signatures.items():
        _check_arguments(f"signatures.{name}", signature)
        _check_graph(f"signatures.{name}", signature, graphs.get(name))
    targets = {x.target for x in signatures.values() if isinstance(x, Decode)}
    for name, signature in signatures.items():
        if isinstance(signature, Prefill) and not targets & signature.inputs.keys():
            raise ValueError(f"signatures.{name}.inputs lacks the target of a decode signature")
    for name, signature in signatures.items():
        _check_signature(f"signatures.{name}", signature)
    owners: dict[str, Manifest | Member] = {f"models.{k}": x for k, x in manifest.models.items()}
    for place, owner in owners.items() or [("", manifest)]:
        own = {
            f"signatures.{name}": x
            for name, x in signatures.items()
            if not place or place == f"models.{x.model}"
        }
        _check_steps(own)
        _check_owner(place and f"{place}.", owner, own)


def _check_arguments(place: str, signature: Signature) -> None:
    """The arguments that the role of a signature needs."""
    inputs, outputs = signature.inputs, signature.outputs
    for name, x in inputs.items():
        if len(x.shape) < (2 if x.is_ids else 1):
            raise ValueError(f"{place}.inputs.{name}.shape has too few axes: {x.shape}")
    needed: list[str] = []
    kinds: list[str] = []
    results: list[str] = []
    if isinstance(signature, Decode):
        needed, kinds, results = [signature.target], ["position"], ["logits"]
    elif isinstance(signature, Prefill):
        if signature.capacity is not None:
            kinds = ["position"]
        elif signature.of_kind("position"):
            raise ValueError(f"{place} lacks 'capacity', a positive integer")
    elif isinstance(signature, Stream):
        needed, kinds, results = signature.states, ["input", "position", "end"], [signature.final]
        results = [*results, *signature.states]
    elif isinstance(signature, Generate):
        results = ["tokens"]
        if signature.prompt is not None:
            needed, kinds = [signature.prompt], ["padding"]
    for name in needed:
        if name not in inputs:
            raise ValueError(f"{place}.inputs lacks {name!r}")
    for kind in kinds:
        if not signature.of_kind(kind):
            raise ValueError(f"{place}.inputs lacks one of kind {kind!r}")
    for name in results:
        if name not in outputs:
            raise ValueError(f"{place}.outputs lacks {name!r}")
    is_step = isinstance(signature, Decode | Prefill)
    if is_step and "position" in kinds and not outputs.keys() - {"logits"} <= inputs.keys():
        raise ValueError(f"{place}.outputs has caches that are not among its inputs")


def _check_graph(place: str, signature: Signature, graph: Graph | None) -> None:
    """The file has the signature, with the same inputs and outputs."""
    if graph is None:
        raise ValueError(f"{place} is not among the signatures of the file")
    for kind, tensors, stored in (
        ("inputs", signature.inputs, graph.inputs),
        ("outputs", signature.outputs, graph.outputs),
    ):
        for name in [*tensors, *stored]:
            texts = [_tensor_text(x.get(name)) for x in (tensors, stored)]
            if texts[0] != texts[1]:
                raise ValueError(f"{place}.{kind}.{name} is {texts[0]}, in the file {texts[1]}")


def _tensor_text(x: Tensor | None) -> str:
    return "missing" if x is None else f"{x.dtype} {tuple(x.shape)}"


def check_input(place: str, x: Input) -> None:
    """Raises ValueError unless the fields of an input fit its shape and dtype."""
    dtype = np.dtype(x.dtype)
    is_integer = dtype.kind in "iu"
    largest = min(int(np.iinfo(dtype).max) + 1, _IDS) if is_integer else 0
    for key, value in (("pad_id", x.pad_id), ("vocabulary_size", x.vocabulary_size)):
        _require(is_integer or value is None, f"{place}.{key} is for integers", dtype.name)
    size = largest if x.vocabulary_size is None else x.vocabulary_size
    _require(size <= largest, f"{place}.vocabulary_size must be at most {largest}", size)
    if x.is_ids:
        _require(len(x.shape) == 2, f"{place} has ids, which are rows (B, S)", x.shape)
    _check_ids(f"{place}.pad_id", [] if x.pad_id in (None, -1) else [x.pad_id], size)
    _check_ids(f"{place}.end_id", [] if x.end_id is None else [x.end_id], size)
    of_ids = {"end_id": x.end_id is not None, "needs_token": x.needs_token, "padding": x.padding}
    for key, is_there in of_ids.items():
        _require(x.is_ids or not is_there, f"{place}.{key} needs a pad_id", "none")
    has_placeholders = x.placeholder_id is not None
    _require(
        has_placeholders or not x.sees_later, f"{place}.sees_later needs placeholder_id", "none"
    )
    if x.shortest is not None:
        _require(x.is_audio, f"{place}.shortest needs a sample_rate", "none")
        length = x.shape[1] if len(x.shape) == 2 else 0
        _require(x.shortest <= length, f"{place}.shortest must be at most {length}", x.shortest)
    if x.sample_rate is not None:
        is_audio = dtype.kind == "f" and len(x.shape) == 2
        _require(is_audio, f"{place} has audio, floats (B, samples)", f"{dtype.name} {x.shape}")
        _require(
            x.sample_rate <= LARGEST_RATE,
            f"{place}.sample_rate must be at most {LARGEST_RATE} Hz",
            x.sample_rate,
        )


def _require(holds: bool, expected: str, found: object) -> None:
    if not holds:
        text = str(found)
        raise ValueError(f"{expected}, got {text if len(text) <= 60 else text[:60] + '...'}")


def _check_ids(place: str, ids: Iterable[int], size: int) -> None:
    for one in ids:
        _require(0 <= one < size, f"{place} must be in 0..{size - 1}", one)


def _check_signature(place: str, signature: Signature) -> None:
    """One signature, with the checks of its role."""
    inputs = signature.inputs
    for name, x in inputs.items():
        here = f"{place}.inputs.{name}"
        check_input(here, x)
        for key, other in (("segments_of", x.segments_of), ("mask_of", x.mask_of)):
            tokens = inputs.get(other or "")
            # An input that is made of the tokens of another one has a value for each of them.
            fits = tokens is not None and tokens.shape == x.shape and tokens.is_ids
            _require(
                other is None or fits,
                f"{here}.{key} must be an input of ids of the same shape",
                other,
            )
        _require(0 not in x.shape, f"{here} must not be empty", x.shape)
    known = {"input", "position", "count", "cache", "encoded"}
    if isinstance(signature, Predict | Encode):
        known = {"input"}
    elif isinstance(signature, Generate):
        known = {"input", "padding"}
    elif isinstance(signature, Stream):
        known = {"input", "position", "end", "cache"}
    for name, x in inputs.items():
        _require(
            x.kind in known,
            f"{place}.inputs.{name}.kind must be one of {', '.join(sorted(known))}",
            x.kind,
        )
    sizes = {name: x.shape[0] for name, x in inputs.items() if x.kind not in NUMBERS}
    batches = set(sizes.values())
    _require(len(batches) == 1, f"{place}.inputs must have one batch size", sizes)
    if isinstance(signature, Generate):
        _check_generate(place, signature, *batches)
    elif isinstance(signature, Prefill | Decode):
        _check_step(place, signature, *batches)
    elif isinstance(signature, Stream):
        _check_stream(place, signature, *batches)


def _check_generate(place: str, signature: Generate, batch: int) -> None:
    inputs, outputs = signature.inputs, signature.outputs
    tokens, length = outputs["tokens"], signature.max_length
    shape = tokens.shape
    is_rows = np.dtype(tokens.dtype).kind in "iu" and len(shape) in (2, 3) and shape[0] == batch
    _require(is_rows, f"{place}.outputs.tokens must be integers (B, T) or (B, n, T)", shape)
    _require(length <= shape[-1], f"{place}.max_length must be at most {shape[-1]}", length)
    scores = outputs["scores"].shape if "scores" in outputs else None
    has_scores = scores == shape[:-1] or (scores is None and len(shape) == 2)
    _require(has_scores, f"{place}.outputs.scores must be {shape[:-1]}", scores)
    target, prompt = signature.target, signature.prompt
    paddings = {name: inputs[name].shape for name in signature.of_kind("padding")}
    wanted = {} if prompt is None else {name: [batch] for name in [*paddings][:1]}
    _require(
        paddings == wanted, f"{place} needs one number of padding ids a row with prompts", paddings
    )
    _require(prompt in (None, target), f"{place}.prompt must be the target {target!r}", prompt)
    begins = prompt is not None or signature.start_id is not None
    _require(begins, f"{place}.start_id must be an id in a signature without prompts", None)
    size, default = _IDS, signature.default_prompt or []
    if prompt is not None:
        x = _prompts(f"{place}.inputs.{prompt}", inputs[prompt])
        size, most = x.vocabulary_size or _IDS, x.shape[1]
        _require(
            len(default) <= most,
            f"{place}.default_prompt must have at most {most} ids",
            len(default),
        )
    _check_special(place, signature, size)
    _check_ids(f"{place}.default_prompt", default, size)


def _check_special(place: str, signature: Stepped, size: int) -> None:
    """The ids in the settings of a signature that writes tokens."""
    start, pad = signature.start_id, signature.pad_id
    _check_ids(f"{place}.start_id", [] if start is None else [start], size)
    _check_ids(f"{place}.pad_id", [] if pad == -1 else [pad], size)
    _check_ids(f"{place}.end_id", signature.end_ids, _IDS)


def _prompts(place: str, x: Input) -> Input:
    """A stepped input, after checking that it takes rows of ids."""
    _require(x.is_ids and x.kind == "input", f"{place} must be rows of ids", x.to_json())
    return x


def _check_step(place: str, signature: Prefill | Decode, batch: int) -> None:
    """A decode signature or a prefill, by itself."""
    inputs, outputs = signature.inputs, signature.outputs
    lengths = [x.shape[1] for x in inputs.values() if x.is_ids and len(x.shape) == 2]
    positions = signature.of_kind("position")
    for name in positions:
        # LiteRT-LM has the positions of all tokens.
        x = inputs[name]
        is_number = math.prod(x.shape) in (1, *lengths) and np.dtype(x.dtype).kind in "iu"
        _require(is_number, f"{place}.inputs.{name} must be one integer", x.shape)
    most = int(signature.capacity is not None)
    count = len(positions)
    _require(count == most, f"{place} needs {most} of kind 'position'", count)
    for name in outputs:
        if name != "logits" and name in inputs:
            kind = inputs[name].kind
            _require(kind == "cache", f"{place}.inputs.{name}.kind must be cache", kind)
    if isinstance(signature, Decode):
        target, size = signature.target, signature.vocabulary_size
        x = _prompts(f"{place}.inputs.{target}", inputs[target])
        _require(x.shape[1] == 1, f"{place}.inputs.{target} takes one token", x.shape)
        shape = outputs["logits"].shape
        is_right = [*shape[:1], math.prod(shape[1:])] == [batch, size] and len(shape) > 1
        _require(is_right, f"{place}.outputs.logits must be (B, {size})", shape)
        _check_special(place, signature, x.vocabulary_size or _IDS)


def _check_stream(place: str, signature: Stream, batch: int) -> None:
    """A signature that reads a source in pieces."""
    inputs, outputs, stride = signature.inputs, signature.outputs, signature.stride
    _require(batch == 1, f"{place}.inputs must have one row", batch)
    for kind in ("input", "position", "end"):
        names = signature.of_kind(kind)
        _require(len(names) == 1, f"{place} needs one argument of kind {kind!r}", names)
        x = inputs[names[0]]
        if kind in NUMBERS:
            found = (x.shape, x.dtype)
            _require(found == ([1], "int32"), f"{place}.inputs.{names[0]} must be [1] int32", found)
    caches, states = signature.of_kind("cache"), signature.states
    _require(sorted(caches) == sorted(states), f"{place}.states must be {caches}", states)
    for name in states:
        own, after = ((x.shape, x.dtype) for x in (inputs[name], outputs[name]))
        _require(own == after, f"{place}.outputs.{name} must be {own}", after)
    final = outputs[signature.final]
    is_pair = (final.shape, final.dtype) == ([1, 2], "int32")
    _require(is_pair, f"{place}.outputs.{signature.final} must be [1, 2] int32", final.shape)
    (source,) = signature.of_kind("input")
    shape = inputs[source].shape
    length = shape[1] if len(shape) > 1 else 0
    _require(length > 0 and length % stride == 0, f"{place}.stride must divide {length}", stride)
    reach = signature.delay + length
    _require(reach < LARGEST_REACH, f"{place}.delay must be less than {LARGEST_REACH}", reach)
    for name in signature.results:
        found_shape = outputs[name].shape
        fits = found_shape[:2] == [1, length // stride]
        wanted = [1, length // stride]
        _require(fits, f"{place}.outputs.{name} must begin with {wanted}", found_shape)


def _check_steps(signatures: dict[str, Signature]) -> None:
    """The signatures of a decoding loop on the host, which share caches."""
    decodes = {place: x for place, x in signatures.items() if isinstance(x, Decode)}
    prefills = {place: x for place, x in signatures.items() if isinstance(x, Prefill)}
    if not decodes:
        return
    place, first = next(iter(decodes.items()))
    same = ("target", "max_length", "start_id", "end_id", "pad_id", "vocabulary_size")
    for other, decode in decodes.items():
        for key in (*same, "prefix", "transposed", "states", "sampling"):
            found, expected = getattr(decode, key), getattr(first, key)
            _require(found == expected, f"{other}.{key} must be that of {place}", found)
    capacities = [x.capacity for x in decodes.values()]
    length, largest = first.max_length, max(capacities)
    _require(length <= largest, f"{place}.max_length must be at most {largest}", length)
    shared = {name: x for name, x in first.inputs.items() if name not in first.outputs}
    steps: dict[str, Prefill | Decode] = {**decodes, **prefills}
    for other, step in steps.items():
        capacity = step.capacity
        _require(
            capacity is None or capacity in capacities,
            f"{other}.capacity must be one of {capacities}",
            capacity,
        )
        _check_caches(other, step, first, largest)
        for name, x in step.inputs.items():
            wanted = shared.get(name, x)
            own = name == first.target or x.kind in NUMBERS
            if not own and (x.shape, x.dtype, x.kind) != (wanted.shape, wanted.dtype, wanted.kind):
                raise ValueError(
                    f"{other}.inputs.{name} must be that of {place}, got {x.to_json()}"
                )
    for other, prefill in prefills.items():
        _check_prefill(other, prefill, first)
    drafts = {other: x.inputs[first.target].shape[1] for other, x in prefills.items() if x.verifies}
    _require(len({*drafts.values()}) < 2, "all steps of a draft must have one length", drafts)
    reach = max((prefills[x].capacity or 0 for x in drafts), default=length)
    _require(reach >= length, f"a draft must be verified up to max_length {length}", reach)
    for other, encode in signatures.items():
        if isinstance(encode, Encode):
            _check_encode(other, encode, first)


def _check_caches(place: str, step: Prefill | Decode, decode: Decode, largest: int) -> None:
    """The cache entries of a step: those of "decode", of the length that its capacity tells."""
    inputs, outputs, prefix = step.inputs, step.outputs, decode.prefix
    names, states = {*decode.caches}, {*decode.states}
    found = outputs.keys() - {"logits"}
    wanted_names = sorted(names | states)
    _require(
        sorted(found) == wanted_names, f"{place}.outputs must be the caches {wanted_names}", found
    )
    _check_states(place, step, decode)
    unknown = sorted({*decode.transposed} - names)
    _require(not unknown, f"{place}.transposed must be among the caches {sorted(names)}", unknown)
    tokens = inputs[decode.target].shape[1] if decode.target in inputs else 0
    axes = decode.column_axes
    for name in sorted(names):
        shape, dtype, here = outputs[name].shape, outputs[name].dtype, decode.outputs[name].shape
        axis = axes[name]
        columns = axis < len(shape) == len(here)
        _require(columns, f"{place}.outputs.{name} must have columns, as those of decode", shape)
        widths = (tokens, prefix + largest)
        _require(shape[axis] in widths, f"{place}.outputs.{name} must have columns {widths}", shape)
        if name in inputs:
            wanted = [*shape[:axis], prefix + (step.capacity or 0), *shape[axis + 1 :]], dtype
            own = inputs[name].shape, inputs[name].dtype
            _require(own == wanted, f"{place}.inputs.{name} must be {wanted}", own)
        others = [shape[:axis], shape[axis + 1 :]] == [here[:axis], here[axis + 1 :]]
        _require(others, f"{place}.outputs.{name} must be like those of decode, {here}", shape)


def _check_states(place: str, step: Prefill | Decode, decode: Decode) -> None:
    """The recurrent states of a step, and the number of a prefill's tokens that change them."""
    names = decode.states
    unknown = sorted({*names} - decode.outputs.keys())
    _require(not unknown, f"{place}.states must be among the outputs of decode", unknown)
    verifies = isinstance(step, Prefill) and step.verifies
    for name in names:
        if name not in step.inputs:
            raise ValueError(f"{place}.inputs lacks the state {name!r}")
        own, output = step.inputs[name], step.outputs[name]
        wanted = own.shape
        if verifies:  # the state after each token
            wanted = [own.shape[0], step.inputs[decode.target].shape[1], *own.shape[1:]]
        _require(own.kind == "cache", f"{place}.inputs.{name}.kind must be 'cache'", own.kind)
        _require(
            (output.shape, output.dtype) == (wanted, own.dtype),
            f"{place}.outputs.{name} must be {wanted}",
            output.shape,
        )
    counts = [(x.shape, x.dtype) for x in step.inputs.values() if x.kind == "count"]
    expected = bool(names) and isinstance(step, Prefill) and not verifies
    _require(
        counts == ([([1], "int32")] if expected else []),
        f"{place}.inputs must have {'one' if expected else 'no'} count, [1] int32",
        counts,
    )


def _check_prefill(place: str, signature: Prefill, decode: Decode) -> None:
    """A prefill beside the signature "decode" that continues it."""
    target, inputs = decode.target, signature.inputs
    if target not in inputs:
        raise ValueError(f"{place}.inputs lacks the target {target!r} of its decode signature")
    shape = _prompts(f"{place}.inputs.{target}", inputs[target]).shape
    batch, most = decode.inputs[target].shape[0], decode.max_length
    if signature.capacity is not None:
        most = min(most, signature.capacity)
    fits = shape[0] == batch and shape[1] <= most
    _require(fits, f"{place}.inputs.{target} must be ({batch}, {most}) at most", shape)
    if signature.verifies:
        _require(signature.capacity is not None, f"{place}, with logits, needs a capacity", "none")
        wanted, found = [*shape, decode.vocabulary_size], signature.outputs["logits"].shape
        _require(found == wanted, f"{place}.outputs.logits must be {wanted}", found)


def _check_encode(place: str, signature: Encode, decode: Decode) -> None:
    """What "encode" returns, beside the arguments of "decode" with these names."""
    axes = decode.column_axes
    for name, x in signature.outputs.items():
        if name not in decode.inputs:
            continue
        wanted = list(decode.inputs[name].shape)
        if name in axes:
            wanted[axes[name]] = decode.prefix
        found, expected = (x.shape, x.dtype), (wanted, decode.inputs[name].dtype)
        _require(found == expected, f"{place}.outputs.{name} must be {expected}", found)
    lacking = [
        name
        for name, x in decode.inputs.items()
        if x.kind in ("cache", "encoded") and name not in decode.outputs
        if name not in signature.outputs
    ]
    _require(not lacking, f"{place}.outputs must have what decode reads", lacking)


def _check_owner(place: str, owner: Manifest | Member, signatures: dict[str, Signature]) -> None:
    """The fields of a file of one model, or of one model of several."""
    predicts = [x for x in signatures.values() if isinstance(x, Predict | Stream)]
    for name, processor in owner.images.items():
        inputs = [x.inputs[name] for x in signatures.values() if name in x.inputs]
        size = [*processor.shape]
        fits = inputs and all(x.dtype == "uint8" and x.shape[1:] == size for x in inputs)
        shapes = [x.shape for x in inputs]
        _require(bool(fits), f"{place}images.{name} must be of an input (B, {size})", shapes)
        resize = processor.resize
        edges = resize if isinstance(resize, tuple) else [resize] if type(resize) is int else []
        most = max(LARGEST_RESIZE, 2 * max(processor.size))
        _require(
            max(edges, default=0) <= most, f"{place}images.{name}.resize: at most {most}", edges
        )
    if owner.labels is not None and predicts:
        first, outputs = predicts[0], predicts[0].outputs
        results = first.results if isinstance(first, Stream) else outputs
        shapes_of_outputs = {name: outputs[name].shape for name in results}
        check_label_count(f"{place}labels", len(owner.labels), shapes_of_outputs)
    if owner.model is not None:
        _check_head(f"{place}model.head", owner.model)
        if owner.model.family == "dalle":
            _check_dalle(f"{place}model.arguments", owner.model.arguments, signatures)


def check_label_count(place: str, count: int, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Raises ValueError unless an output has a class for each label.

    Args:
        place: str, what the labels are called in the error.
        count: int, number of labels.
        shapes: dict by name, the shapes of the outputs of a full pass. A detector's logits, beside
            its boxes, have one class more, "no object".

    >>> from keras_tfm.runtime.manifest.checks import check_label_count
    >>> check_label_count("labels", 3, {"output": [1, 3]})
    >>> check_label_count("labels", 3, {"boxes": [1, 7, 4], "logits": [1, 4]})
    >>> check_label_count("labels", 3, {"output": [1, 4]})
    Traceback (most recent call last):
    ValueError: labels must be as many as an output has classes, [4], got 3
    """
    if {"logits", "boxes"} <= shapes.keys():
        sizes = [(shapes["logits"][-1] or 0) - 1]
    else:
        sizes = sorted({x[-1] or 0 for x in shapes.values() if len(x) > 1})
    if count not in sizes:
        raise ValueError(f"{place} must be as many as an output has classes, {sizes}, got {count}")


def _check_head(place: str, model: Identity) -> None:
    """The arguments of a head that the runtime reads."""
    if model.head is None:
        return
    arguments = model.head.arguments
    if model.head.kind == "sentence_embedding":
        prompts = arguments.get("prompts")
        prompts = {} if prompts is None else prompts
        is_texts = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
        _require(is_texts, f"{place}.arguments.prompts must be an object of texts", prompts)
        default = arguments.get("default_prompt")
        known = default is None or (isinstance(default, str) and default in prompts)
        _require(known, f"{place}.arguments.default_prompt must be among {list(prompts)}", default)
        length = arguments.get("max_seq_length")
        is_length = length is None or (type(length) is int and 1 <= length < 2**31)
        _require(is_length, f"{place}.arguments.max_seq_length must be a positive integer", length)
    scale = arguments.get("scale")
    if scale is not None:
        is_number = type(scale) in (int, float) and 0 < scale <= LARGEST_SCALE
        _require(is_number, f"{place}.arguments.scale must be in 0..{LARGEST_SCALE:g}", scale)
    bias = arguments.get("bias")
    if bias is not None:
        is_number = type(bias) in (int, float) and abs(bias) <= LARGEST_SCALE
        _require(is_number, f"{place}.arguments.bias must be at most {LARGEST_SCALE:g}", bias)


def _check_dalle(place: str, arguments: Json, signatures: dict[str, Signature]) -> None:
    """The numbers of tokens of text and of codes, which are those of the tensors."""
    names = ("text_length", "text_vocabulary_size", "image_vocabulary_size")
    numbers: list[Any] = [arguments.get(name) for name in names]
    for name, value in zip(names, numbers, strict=True):
        is_size = type(value) is int and value >= 1
        _require(is_size, f"{place}.{name} must be a positive integer", value)
    length, text, image = numbers
    for other, signature in signatures.items():
        if not isinstance(signature, Stepped):
            continue
        most = signature.max_length - 1
        _require(length <= most, f"{place}.text_length must be at most {most}", length)
        size: int | None
        if isinstance(signature, Decode):
            size = signature.vocabulary_size
        else:
            target = signature.inputs.get(signature.target)
            size = None if target is None else target.vocabulary_size
        total = length + text + image
        _require(size in (None, total), f"{place} must have the {size} tokens of {other}", total)
