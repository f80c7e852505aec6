"""The numbers of a manifest, checked against the tensors that they are about.

`manifest_fields` checks each field by itself, and that the tensors of the manifest are the file's.
Here the fields are compared with the tensors and with each other, so that later code neither
allocates nor indexes by a number that no tensor bounds.

Example:

>>> from keras_tfm.runtime.manifest.tensors import check_input
>>> ids = {"shape": [1, 4], "dtype": "int32", "kind": "input", "pad_id": 9, "vocabulary_size": 9}
>>> check_input("inputs.ids", ids)
Traceback (most recent call last):
ValueError: inputs.ids.pad_id must be in 0..8, got 9
"""

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

Signature = dict[str, Any]

# Ids are int32 in every step, whatever the dtype of an input.
_IDS = 1 << 31
# Hz. Above the ultrasound of bats; a lie beyond it would make resampling allocate gigabytes.
LARGEST_RATE = 1_000_000
# Pixels of an edge to which a picture is resized before it is cropped to a smaller size.
LARGEST_RESIZE = 4096
# The factor of cosine similarities; CLIP's training limits it to 100.
LARGEST_SCALE = 1e6


def check_tensors(manifest: dict[str, Any]) -> None:
    """Raises ValueError unless the fields agree with the tensors and with each other.

    Args:
        manifest: a manifest whose fields have the right types and whose tensors are the file's.
    """
    for name, signature in manifest["signatures"].items():
        _check_signature(f"signatures.{name}", signature)
    owners = {f"models.{name}": x for name, x in manifest.get("models", {}).items()}
    for place, owner in owners.items() or [("", manifest)]:
        own = {
            f"signatures.{name}": x
            for name, x in manifest["signatures"].items()
            if not place or place == f"models.{x['model']}"
        }
        _check_steps(own)
        _check_owner(place and f"{place}.", owner, own)


def check_input(place: str, spec: dict[str, Any]) -> None:
    """Raises ValueError unless the fields of an input fit its shape and dtype."""
    dtype, shape = np.dtype(spec["dtype"]), spec["shape"]
    is_integer = dtype.kind in "iu"
    largest = min(int(np.iinfo(dtype).max) + 1, _IDS) if is_integer else 0
    for key in ("pad_id", "vocabulary_size"):
        _require(is_integer or key not in spec, f"{place}.{key} is for integers", dtype.name)
    size = spec.get("vocabulary_size", largest)
    _require(size <= largest, f"{place}.vocabulary_size must be at most {largest}", size)
    if "pad_id" in spec:
        _require(len(shape) == 2, f"{place} has ids, which are rows (B, S)", shape)
    # -1 is padding that is no token.
    for key, none in (("pad_id", -1), ("end_id", None)):
        known = [spec[key]] if key in spec and spec[key] != none else ()
        _check_ids(f"{place}.{key}", known, size)
    for key in ("end_id", "needs_token", "padding"):
        _require("pad_id" in spec or not spec.get(key), f"{place}.{key} needs a pad_id", "none")
    if "sample_rate" in spec:
        rate, is_audio = spec["sample_rate"], dtype.kind == "f" and len(shape) == 2
        _require(is_audio, f"{place} has audio, floats (B, samples)", f"{dtype.name} {shape}")
        _require(
            rate <= LARGEST_RATE, f"{place}.sample_rate must be at most {LARGEST_RATE} Hz", rate
        )


def _check_follows(place: str, spec: dict[str, Any], tokens: Any, key: str) -> None:
    """An input that is made of the tokens of another one has a value for each of them."""
    if key in spec:
        fits = tokens is not None and tokens["shape"] == spec["shape"] and "pad_id" in tokens
        _require(fits, f"{place} must be an input of ids of the same shape", spec[key])


def _require(holds: bool, expected: str, found: Any) -> None:
    if not holds:
        text = str(found)
        raise ValueError(f"{expected}, got {text if len(text) <= 60 else text[:60] + '...'}")


def _check_ids(place: str, ids: Iterable[int], size: int) -> None:
    for one in ids:
        _require(0 <= one < size, f"{place} must be in 0..{size - 1}", one)


def _ids(value: Any) -> list[int]:
    """Ids from null, one id or several."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _of_kind(signature: Signature, kind: str) -> dict[str, Any]:
    return {name: x for name, x in signature["inputs"].items() if x["kind"] == kind}


def _check_signature(place: str, signature: Signature) -> None:
    """One signature, with the checks of its role."""
    inputs, role = signature["inputs"], signature["role"]
    for name, spec in inputs.items():
        check_input(f"{place}.inputs.{name}", spec)
        for key in ("segments_of", "mask_of"):
            _check_follows(f"{place}.inputs.{name}.{key}", spec, inputs.get(spec.get(key)), key)
        _require(0 not in spec["shape"], f"{place}.inputs.{name} must not be empty", spec["shape"])
    by_role = {"predict": {"input"}, "encode": {"input"}, "generate": {"input", "padding"}}
    known = by_role.get(role, {"input", "position", "cache", "encoded"})
    for name, spec in inputs.items():
        _require(
            spec["kind"] in known,
            f"{place}.inputs.{name}.kind must be one of {', '.join(sorted(known))}",
            spec["kind"],
        )
    batched = {name: x["shape"][0] for name, x in inputs.items() if x["kind"] != "position"}
    batches = set(batched.values())
    _require(len(batches) == 1, f"{place}.inputs must have one batch size", batched)
    if role == "generate":
        _check_generate(place, signature, *batches)
    elif role in ("prefill", "decode"):
        _check_step(place, signature, *batches)


def _check_generate(place: str, signature: Signature, batch: int) -> None:
    inputs, outputs = signature["inputs"], signature["outputs"]
    tokens, length = outputs["tokens"], signature["max_length"]
    shape = tokens["shape"]
    is_rows = np.dtype(tokens["dtype"]).kind in "iu" and len(shape) in (2, 3) and shape[0] == batch
    _require(is_rows, f"{place}.outputs.tokens must be integers (B, T) or (B, n, T)", shape)
    _require(length <= shape[-1], f"{place}.max_length must be at most {shape[-1]}", length)
    scores = outputs.get("scores", {"shape": shape[:-1] if len(shape) == 2 else None})["shape"]
    _require(scores == shape[:-1], f"{place}.outputs.scores must be {shape[:-1]}", scores)
    target, prompt = signature["target"], signature.get("prompt")
    paddings = _of_kind(signature, "padding")
    wanted = {} if prompt is None else {name: [batch] for name in [*paddings][:1]}
    found = {name: x["shape"] for name, x in paddings.items()}
    _require(found == wanted, f"{place} needs one number of padding ids a row with prompts", found)
    _require(prompt in (None, target), f"{place}.prompt must be the target {target!r}", prompt)
    begins = prompt is not None or signature["start_id"] is not None
    _require(begins, f"{place}.start_id must be an id in a signature without prompts", None)
    size = _IDS
    if prompt is not None:
        spec = _prompts(f"{place}.inputs.{prompt}", inputs[prompt])
        size, count = spec.get("vocabulary_size", _IDS), len(signature.get("default_prompt", ()))
        most = spec["shape"][1]
        _require(count <= most, f"{place}.default_prompt must have at most {most} ids", count)
    _check_special(place, signature, size)


def _check_special(place: str, signature: Signature, size: int) -> None:
    """The ids in the settings of a signature that generates."""
    for key in ("start_id", "pad_id", "default_prompt"):
        known = [] if key == "pad_id" and signature[key] == -1 else _ids(signature.get(key))
        _check_ids(f"{place}.{key}", known, size)
    _check_ids(f"{place}.end_id", _ids(signature["end_id"]), _IDS)


def _prompts(place: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a stepped input, after checking that it takes rows of ids."""
    _require("pad_id" in spec and spec["kind"] == "input", f"{place} must be rows of ids", spec)
    return spec


def _check_step(place: str, signature: Signature, batch: int) -> None:
    """A decode signature or a prefill, by itself."""
    inputs, outputs = signature["inputs"], signature["outputs"]
    lengths = [x["shape"][1] for x in inputs.values() if "pad_id" in x and len(x["shape"]) == 2]
    for name, spec in _of_kind(signature, "position").items():
        # LiteRT-LM has the positions of all tokens.
        is_number = (
            math.prod(spec["shape"]) in (1, *lengths) and np.dtype(spec["dtype"]).kind in "iu"
        )
        _require(is_number, f"{place}.inputs.{name} must be one integer", spec["shape"])
    count = len(_of_kind(signature, "position"))
    most = int("capacity" in signature)
    _require(count == most, f"{place} needs {most} of kind 'position'", count)
    for name in outputs:
        if name != "logits" and name in inputs:
            kind = inputs[name]["kind"]
            _require(kind == "cache", f"{place}.inputs.{name}.kind must be cache", kind)
    if signature["role"] == "decode":
        target, size = signature["target"], signature["vocabulary_size"]
        spec = _prompts(f"{place}.inputs.{target}", inputs[target])
        _require(spec["shape"][1] == 1, f"{place}.inputs.{target} takes one token", spec["shape"])
        shape = outputs["logits"]["shape"]
        is_right = [*shape[:1], math.prod(shape[1:])] == [batch, size] and len(shape) > 1
        _require(is_right, f"{place}.outputs.logits must be (B, {size})", shape)
        _check_special(place, signature, spec.get("vocabulary_size", _IDS))


def _check_steps(signatures: dict[str, Signature]) -> None:
    """The signatures of a decoding loop on the host, which share caches."""
    by_role: dict[str, dict[str, Signature]] = {"decode": {}, "prefill": {}, "encode": {}}
    for place, signature in signatures.items():
        by_role.get(signature["role"], {})[place] = signature
    if not by_role["decode"]:
        return
    place, first = next(iter(by_role["decode"].items()))
    same = ("target", "max_length", "start_id", "end_id", "pad_id", "vocabulary_size")
    for other, signature in by_role["decode"].items():
        for key in (*same, "prefix", "transposed"):
            found, expected = signature.get(key), first.get(key)
            _require(found == expected, f"{other}.{key} must be that of {place}", found)
    capacities = [x["capacity"] for x in by_role["decode"].values()]
    length, largest = first["max_length"], max(capacities)
    _require(length <= largest, f"{place}.max_length must be at most {largest}", length)
    shared = {name: x for name, x in first["inputs"].items() if name not in first["outputs"]}
    steps = by_role["decode"] | by_role["prefill"]
    for other, signature in steps.items():
        capacity = signature.get("capacity")
        _require(
            capacity is None or capacity in capacities,
            f"{other}.capacity must be one of {capacities}",
            capacity,
        )
        _check_caches(other, signature, first, largest)
        for name, spec in signature["inputs"].items():
            wanted = shared.get(name, spec)
            own = name == first["target"] or spec["kind"] == "position"
            if not own and _tensor(spec) != _tensor(wanted):
                raise ValueError(f"{other}.inputs.{name} must be that of {place}, got {spec}")
    for other, signature in by_role["prefill"].items():
        _check_prefill(other, signature, first)
    verified = {
        other: x["inputs"][first["target"]]["shape"][1]
        for other, x in by_role["prefill"].items()
        if "logits" in x["outputs"]
    }
    _require(len({*verified.values()}) < 2, "all steps of a draft must have one length", verified)
    reach = max((by_role["prefill"][x].get("capacity", 0) for x in verified), default=length)
    _require(reach >= length, f"a draft must be verified up to max_length {length}", reach)
    for other, signature in by_role["encode"].items():
        _check_encode(other, signature, first)


def _tensor(spec: dict[str, Any]) -> tuple[Any, Any, Any]:
    return spec["shape"], spec["dtype"], spec.get("kind")


def column_axis(name: str, rank: int, transposed: Collection[str]) -> int:
    """The axis of positions of a growing cache entry.

    >>> from keras_tfm.runtime.manifest.tensors import column_axis
    >>> [column_axis(name, 4, ["cache_0_key"]) for name in ("cache_0_key", "cache_0_value")]
    [3, 2]
    """
    return 3 if name in transposed else 1 if rank == 2 else 2


def _check_caches(place: str, signature: Signature, decode: Signature, largest: int) -> None:
    """The cache entries of a step: those of "decode", of the length that its capacity tells."""
    transposed, prefix = decode.get("transposed", ()), decode.get("prefix", 0)
    inputs, outputs = signature["inputs"], signature["outputs"]
    names = decode["outputs"].keys() - {"logits"}
    found = outputs.keys() - {"logits"}
    _require(found == names, f"{place}.outputs must be the caches {sorted(names)}", sorted(found))
    unknown = sorted({*transposed} - names)
    _require(not unknown, f"{place}.transposed must be among the caches {sorted(names)}", unknown)
    target = inputs.get(decode["target"], {"shape": [0, 0]})["shape"]
    for name in sorted(names):
        shape, dtype = outputs[name]["shape"], outputs[name]["dtype"]
        axis = column_axis(name, len(shape), transposed)
        _require(axis < len(shape), f"{place}.outputs.{name} must have columns", shape)
        width = shape[axis]
        widths = (target[1], prefix + largest)
        _require(width in widths, f"{place}.outputs.{name} must have columns {widths}", shape)
        if name in inputs:
            columns = prefix + signature["capacity"]
            wanted = [*shape[:axis], columns, *shape[axis + 1 :]], dtype
            given = inputs[name]["shape"], inputs[name]["dtype"]
            _require(given == wanted, f"{place}.inputs.{name} must be {wanted}", given)
        here = decode["outputs"][name]["shape"]
        others = [shape[:axis], shape[axis + 1 :]] == [here[:axis], here[axis + 1 :]]
        _require(others, f"{place}.outputs.{name} must be like those of decode, {here}", shape)


def _check_prefill(place: str, signature: Signature, decode: Signature) -> None:
    """A prefill beside the signature "decode" that continues it."""
    target, inputs = decode["target"], signature["inputs"]
    if target not in inputs:
        raise ValueError(f"{place}.inputs lacks the target {target!r} of its decode signature")
    shape = _prompts(f"{place}.inputs.{target}", inputs[target])["shape"]
    batch = decode["inputs"][target]["shape"][0]
    most = min(decode["max_length"], signature.get("capacity", decode["max_length"]))
    fits = shape[0] == batch and shape[1] <= most
    _require(fits, f"{place}.inputs.{target} must be ({batch}, {most}) at most", shape)
    if "logits" in signature["outputs"]:
        _require("capacity" in signature, f"{place}, with logits, needs a capacity", "none")
        wanted, found = [*shape, decode["vocabulary_size"]], signature["outputs"]["logits"]["shape"]
        _require(found == wanted, f"{place}.outputs.logits must be {wanted}", found)


def _check_encode(place: str, signature: Signature, decode: Signature) -> None:
    """What "encode" returns, beside the arguments of "decode" with these names."""
    transposed, prefix = decode.get("transposed", ()), decode.get("prefix", 0)
    for name, spec in signature["outputs"].items():
        if name not in decode["inputs"]:
            continue
        wanted = list(decode["inputs"][name]["shape"])
        if name in decode["outputs"]:
            wanted[column_axis(name, len(wanted), transposed)] = prefix
        found = spec["shape"], spec["dtype"]
        expected = wanted, decode["inputs"][name]["dtype"]
        _require(found == expected, f"{place}.outputs.{name} must be {expected}", found)
    lacking = [
        name
        for name, x in decode["inputs"].items()
        if x["kind"] in ("cache", "encoded") and name not in decode["outputs"]
        if name not in signature["outputs"]
    ]
    _require(not lacking, f"{place}.outputs must have what decode reads", lacking)


def _check_owner(place: str, owner: dict[str, Any], signatures: dict[str, Signature]) -> None:
    """The fields of a file of one model, or of one model of several."""
    predicts = [x for x in signatures.values() if x["role"] == "predict"]
    for name, processor in owner.get("images", {}).items():
        specs = [x["inputs"][name] for x in signatures.values() if name in x["inputs"]]
        size = [*processor["size"], processor["channels"]]
        fits = specs and all(x["dtype"] == "uint8" and x["shape"][1:] == size for x in specs)
        shapes = [x["shape"] for x in specs]
        _require(bool(fits), f"{place}images.{name} must be of an input (B, {size})", shapes)
        resize = processor["resize"]
        edges = resize if isinstance(resize, list) else [resize] if type(resize) is int else []
        most = max(LARGEST_RESIZE, 2 * max(size))
        _require(
            max(edges, default=0) <= most, f"{place}images.{name}.resize: at most {most}", edges
        )
    if "labels" in owner and predicts:
        check_label_count(f"{place}labels", len(owner["labels"]), predicts[0]["outputs"])
    model = owner["model"] or {}
    head = model.get("head") or {}
    _check_head(f"{place}model.head", head.get("kind"), head.get("arguments", {}))
    if model.get("family") == "dalle":
        _check_dalle(f"{place}model.arguments", model["arguments"], signatures)


def check_label_count(place: str, count: int, outputs: dict[str, Any]) -> None:
    """Raises ValueError unless an output has a class for each label.

    Args:
        place: str, what the labels are called in the error.
        count: int, number of labels.
        outputs: dict by name, the outputs of a full pass with their "shape". A detector's logits,
            beside its boxes, have one class more, "no object".

    >>> from keras_tfm.runtime.manifest.tensors import check_label_count
    >>> check_label_count("labels", 3, {"output": {"shape": [1, 3]}})
    >>> check_label_count("labels", 3, {"boxes": {"shape": [1, 7, 4]}, "logits": {"shape": [1, 4]}})
    >>> check_label_count("labels", 3, {"output": {"shape": [1, 4]}})
    Traceback (most recent call last):
    ValueError: labels must be as many as an output has classes, [4], got 3
    """
    if {"logits", "boxes"} <= outputs.keys():
        sizes = [outputs["logits"]["shape"][-1] - 1]
    else:
        sizes = sorted({x["shape"][-1] for x in outputs.values() if len(x["shape"]) > 1})
    if count not in sizes:
        raise ValueError(f"{place} must be as many as an output has classes, {sizes}, got {count}")


def _check_head(place: str, kind: Any, arguments: dict[str, Any]) -> None:
    """The arguments of a head that the runtime reads."""
    if kind == "sentence_embedding":
        prompts = arguments.get("prompts")
        prompts = {} if prompts is None else prompts
        is_texts = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
        _require(is_texts, f"{place}.arguments.prompts must be an object of texts", prompts)
        default = arguments.get("default_prompt")
        known = default is None or (isinstance(default, str) and default in prompts)
        _require(known, f"{place}.arguments.default_prompt must be among {list(prompts)}", default)
    scale = arguments.get("scale")
    if scale is not None:
        is_number = type(scale) in (int, float) and 0 < scale <= LARGEST_SCALE
        _require(is_number, f"{place}.arguments.scale must be in 0..{LARGEST_SCALE:g}", scale)


def _check_dalle(place: str, arguments: dict[str, Any], signatures: dict[str, Signature]) -> None:
    """The numbers of tokens of text and of codes, which are those of the tensors."""
    names = ("text_length", "text_vocabulary_size", "image_vocabulary_size")
    numbers: list[Any] = [arguments.get(name) for name in names]
    for name, value in zip(names, numbers, strict=True):
        is_size = type(value) is int and value >= 1
        _require(is_size, f"{place}.{name} must be a positive integer", value)
    length, text, image = numbers
    for other, signature in signatures.items():
        if signature["role"] not in ("decode", "generate"):
            continue
        most = signature["max_length"] - 1
        _require(length <= most, f"{place}.text_length must be at most {most}", length)
        target = signature["inputs"].get(signature["target"], {})
        size = signature.get("vocabulary_size", target.get("vocabulary_size"))
        total = length + text + image
        _require(size in (None, total), f"{place} must have the {size} tokens of {other}", total)
