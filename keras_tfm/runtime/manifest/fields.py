"""The fields of a manifest, checked when a file is loaded, so that later code can rely on them.

The signatures in the manifest are compared with those in the file, which LiteRT runs.

Example:

>>> from keras_tfm.runtime.manifest.fields import of_kind
>>> of_kind({"inputs": {"ids": {"kind": "input"}, "cache_0": {"kind": "cache"}}}, "cache")
['cache_0']
"""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_tfm.runtime.decoding.trailing_padding import PADDINGS
from keras_tfm.runtime.manifest.tensors import check_tensors, column_axis
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate

# The version of the manifest's fields. A change that an older runtime would misread increases it.
FORMAT = 2
# The versions that are written: of a file of one model, and of a file of several models, which
# older runtimes would take for signatures of one model.
ONE_MODEL, SEVERAL_MODELS = 1, 2
# The roles of signatures.
ROLES = ("predict", "generate", "encode", "prefill", "decode")
# The kinds of arguments of signatures. Only those of kind "input", the model's inputs, have names
# from the user.
KINDS = ("input", "padding", "position", "cache", "encoded")
# The formats of KV caches; of a file without the field, float32.
CACHES = ("float32", "int8")
QUANTIZATIONS = ("float32", "float16", "int8", "int8_full", "int4")


class Field(NamedTuple):
    """A field of a manifest: the expected value, in words and as a function that tests it."""

    expected: str
    holds: Callable[[Any], bool]
    optional: bool = False


def _is_integer(x: Any, least: int = 0) -> bool:
    return type(x) is int and x >= least


def _is_shape(x: Any) -> bool:
    return isinstance(x, list) and all(_is_integer(size) for size in x)


def _is_end(x: Any) -> bool:
    ids = x if isinstance(x, list) else [x]
    return x is None or all(_is_integer(one) for one in ids)


def _is_model(x: Any) -> bool:
    if x is None:
        return True
    if not isinstance(x, dict) or not isinstance(x.get("family"), str):
        return False
    head = x.get("head")
    parts = [x] if head is None else [x, head]
    known = head is None or (isinstance(head, dict) and isinstance(head.get("kind"), str))
    return known and all(isinstance(part.get("arguments"), dict) for part in parts)


def _is_names(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(name, str) for name in x)


def _is_chat_template(x: Any) -> bool:
    if not isinstance(x, dict) or x.keys() != {*ChatTemplate._fields}:
        return False
    system = x["system"]
    is_pair = system is None or (_is_names(system) and len(system) == 2)
    return is_pair and _is_names([x["first"], x["answer"], x["next"]])


def _is_adapters(x: Any) -> bool:
    if not isinstance(x, dict) or not isinstance(x.get("base"), str):
        return False
    layers = x.get("layers")
    return isinstance(layers, dict) and all(
        isinstance(layer, dict)
        and all(_is_integer(layer.get(key), 1) for key in ("depth", "width", "rank"))
        and all(_is_shape(layer.get(key)) for key in ("a", "b"))
        for layer in layers.values()
    )


def _is_images(x: Any) -> bool:
    fields = ImageProcessor.__dataclass_fields__.keys()
    if not isinstance(x, dict) or any(
        not isinstance(one, dict) or one.keys() != fields for one in x.values()
    ):
        return False
    try:
        return all(ImageProcessor(**one) for one in x.values())
    except (TypeError, ValueError):
        return False


def _among(names: tuple[str, ...]) -> Field:
    return Field(f"one of {', '.join(names)}", lambda x: x in names)


_SIZE = Field("a positive integer", lambda x: _is_integer(x, 1))
_ID = Field("an id", _is_integer)
_PAD = Field("an id or -1", lambda x: _is_integer(x, -1))
_NAME = Field("a string", lambda x: isinstance(x, str))
_FIELDS = Field("an object", lambda x: isinstance(x, dict))
_TENSORS = Field("an object of tensors", lambda x: isinstance(x, dict) and bool(x))
_TENSOR = {"shape": Field("a list of sizes", _is_shape), "dtype": _NAME}
_INPUT = {
    **_TENSOR,
    "kind": _among(KINDS),
    "padded": Field("true or false", lambda x: isinstance(x, bool)),
    "pad_id": _PAD._replace(optional=True),
    "padding": _among(PADDINGS)._replace(optional=True),
    "segments_of": _NAME._replace(optional=True),
    "mask_of": _NAME._replace(optional=True),
    "vocabulary_size": _SIZE._replace(optional=True),
    "needs_token": Field("true or false", lambda x: isinstance(x, bool), optional=True),
    "end_id": _ID._replace(optional=True),
    "sample_rate": _SIZE._replace(optional=True),
}
_SIGNATURE = {
    "role": _among(ROLES),
    "inputs": _TENSORS,
    "outputs": _TENSORS,
    "model": _NAME._replace(optional=True),
}
_STEPPED = {
    "max_length": _SIZE,
    "start_id": Field("an id or null", lambda x: x is None or _is_integer(x)),
    "end_id": Field("an id, a list of ids, or null", _is_end),
    "pad_id": _PAD,
    "target": _NAME,
}
_STRATEGY = Field(
    "null, or an object with a name", lambda x: x is None or (isinstance(x, dict) and "name" in x)
)
_SETTINGS = {
    # Without a capacity: a file of keras_tfm before 0.1, whose prefill begins at position 0.
    "prefill": {"capacity": _SIZE._replace(optional=True)},
    "generate": {
        **_STEPPED,
        "strategy": _STRATEGY,
        "prompt": _NAME._replace(optional=True),
        "default_prompt": Field(
            "a list of ids", lambda x: isinstance(x, list) and bool(x) and _is_end(x), optional=True
        ),
    },
    "decode": {
        **_STEPPED,
        "vocabulary_size": _SIZE,
        "capacity": _SIZE,
        "transposed": Field("a list of names", _is_names, optional=True),
        "prefix": _SIZE._replace(optional=True),
    },
}
_OF_MODEL = {
    "model": Field("null, or an object with family, arguments and head", _is_model),
    "images": Field("an object of image processors", _is_images, optional=True),
    "labels": Field("a list of names", _is_names, optional=True),
    "tokenizers": Field(
        "an object of strings",
        lambda x: isinstance(x, dict) and all(isinstance(name, str) for name in x.values()),
        optional=True,
    ),
}
_MANIFEST = {
    "keras_tfm": _NAME,
    "quantization": _among(QUANTIZATIONS),
    "cache": _among(CACHES)._replace(optional=True),
    "signatures": Field("an object of signatures", lambda x: isinstance(x, dict) and bool(x)),
    "layers": Field(
        "an object of sizes",
        lambda x: isinstance(x, dict) and all(_is_integer(n) and n >> 63 == 0 for n in x.values()),
    ),
    **_OF_MODEL,
    "adapters": Field("an object with base and layers", _is_adapters, optional=True),
    "chat_template": Field("an object of texts", _is_chat_template, optional=True),
    "models": Field(
        "an object of models", lambda x: isinstance(x, dict) and bool(x), optional=True
    ),
    "tokenizer_options": Field(
        "an object of objects",
        lambda x: isinstance(x, dict) and all(isinstance(one, dict) for one in x.values()),
        optional=True,
    ),
}


def check_format(manifest: dict[str, Any]) -> None:
    """Raises ValueError unless this version reads the manifest's format."""
    version: Any = manifest.get("format")
    if not _is_integer(version, 1):
        raise ValueError(f"format must be a positive integer, got {_shown(version)}")
    if version > FORMAT:
        raise ValueError(
            f"keras_tfm {manifest.get('keras_tfm')} wrote it in format {version}, and this version "
            f"reads formats up to {FORMAT}: update keras_tfm"
        )


def check_fields(manifest: dict[str, Any], stored: dict[str, Any]) -> None:
    """Raises ValueError unless the manifest has every field and describes the file.

    Args:
        manifest: a manifest that passed `check_format`.
        stored: the signatures in the file, from `signature_tensors`.
    """
    _check("", manifest, _MANIFEST)
    signatures = manifest["signatures"]
    _check_models(manifest)
    for name, signature in signatures.items():
        place = f"signatures.{name}"
        _check("signatures", signatures, {name: _FIELDS})
        _check(place, signature, _SIGNATURE)
        _check(place, signature, _SETTINGS.get(signature["role"], {}))
        for kind, fields in (("inputs", _INPUT), ("outputs", _TENSOR)):
            for key, tensor in signature[kind].items():
                _check(f"{place}.{kind}", signature[kind], {key: _FIELDS})
                _check(f"{place}.{kind}.{key}", tensor, fields)
        _check_arguments(place, signature)
        _compare(place, signature, stored.get(name))
    targets = {x["target"] for x in signatures.values() if x["role"] == "decode"}
    for name, signature in signatures.items():
        if signature["role"] == "prefill" and not targets & signature["inputs"].keys():
            raise ValueError(f"signatures.{name}.inputs lacks the target of a decode signature")
    check_tensors(manifest)


def _check_models(manifest: dict[str, Any]) -> None:
    """Raises unless each signature of a file of several models names one of them."""
    models = manifest.get("models", {})
    for name, fields in models.items():
        _check("models", models, {name: _FIELDS})
        _check(f"models.{name}", fields, _OF_MODEL)
    if models:
        known = {"model": _among(tuple(models))}
        for name, signature in manifest["signatures"].items():
            _check("signatures", manifest["signatures"], {name: _FIELDS})
            _check(f"signatures.{name}", signature, known)


def _check(place: str, owner: dict[str, Any], fields: dict[str, Field]) -> None:
    for key, field in fields.items():
        if key not in owner:
            if field.optional:
                continue
            raise ValueError(f"{place or 'it'} lacks {key!r}, {field.expected}")
        if not field.holds(owner[key]):
            full = f"{place}.{key}" if place else key
            raise ValueError(f"{full} must be {field.expected}, got {_shown(owner[key])}")


def _check_arguments(place: str, signature: dict[str, Any]) -> None:
    """Raises unless the signature has the arguments that its role needs."""
    inputs, outputs, role = signature["inputs"], signature["outputs"], signature["role"]
    for name, spec in inputs.items():
        if len(spec["shape"]) < (2 if "pad_id" in spec else 1):
            raise ValueError(f"{place}.inputs.{name}.shape has too few axes: {spec['shape']}")
    needed, kinds, results = [], [], {"decode": ["logits"], "generate": ["tokens"]}.get(role, [])
    if role == "decode":
        needed, kinds = [signature["target"]], ["position"]
    elif role == "prefill" and "capacity" in signature:
        kinds = ["position"]
    elif role == "prefill" and of_kind(signature, "position"):
        raise ValueError(f"{place} lacks 'capacity', {_SIZE.expected}")
    elif role == "generate" and "prompt" in signature:
        needed, kinds = [signature["prompt"]], ["padding"]
    for name in needed:
        if name not in inputs:
            raise ValueError(f"{place}.inputs lacks {name!r}")
    for kind in kinds:
        if not of_kind(signature, kind):
            raise ValueError(f"{place}.inputs lacks one of kind {kind!r}")
    for name in results:
        if name not in outputs:
            raise ValueError(f"{place}.outputs lacks {name!r}")
    reads_caches = role == "decode" or "position" in kinds
    if reads_caches and not outputs.keys() - {"logits"} <= inputs.keys():
        raise ValueError(f"{place}.outputs has caches that are not among its inputs")


def _compare(place: str, signature: dict[str, Any], stored: dict[str, Any] | None) -> None:
    """Raises unless the file has the signature with the same inputs and outputs."""
    if stored is None:
        raise ValueError(f"{place} is not among the signatures of the file")
    for kind in ("inputs", "outputs"):
        described = {name: (x["shape"], x["dtype"]) for name, x in signature[kind].items()}
        found = {name: (x["shape"], x["dtype"]) for name, x in stored[kind].items()}
        for name in [*described, *found]:
            if described.get(name) != found.get(name):
                raise ValueError(
                    f"{place}.{kind}.{name} is {_tensor(described.get(name))}, "
                    f"in the file {_tensor(found.get(name))}"
                )


def _tensor(x: tuple[list[int], str] | None) -> str:
    return "missing" if x is None else f"{x[1]} {tuple(x[0])}"


def _shown(x: Any) -> str:
    try:
        text = json.dumps(x)
    except RecursionError:
        text = f"a deeply nested {type(x).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_rounded(manifest: dict[str, Any]) -> bool:
    """Whether a file's weights or KV caches are rounded."""
    return bool(manifest["quantization"] != "float32" or manifest.get("cache") == "int8")


def of_kind(signature: dict[str, Any], kind: str) -> list[str]:
    """The names of a signature's arguments of a kind of `KINDS`."""
    return [name for name, spec in signature["inputs"].items() if spec["kind"] == kind]


def signature_tensors(schema: Any, model: Any) -> dict[str, Any]:
    """The inputs and outputs of each signature of a .tflite file, with shapes and dtypes.

    Args:
        schema: LiteRT's module `schema_py_generated`.
        model: the file as a `schema.Model`.
    """
    codes = vars(schema.TensorType).items()
    types = {code: name.lower() for name, code in codes if not name.startswith("_")}

    def described(graph: Any, index: int) -> dict[str, Any]:
        tensor = graph.Tensors(index)
        shape = [tensor.Shape(k) for k in range(tensor.ShapeLength())]
        return {"shape": shape, "dtype": types[tensor.Type()]}

    result = {}
    for i in range(model.SignatureDefsLength()):
        signature = model.SignatureDefs(i)
        graph = model.Subgraphs(signature.SubgraphIndex())
        inputs = [signature.Inputs(j) for j in range(signature.InputsLength())]
        outputs = [signature.Outputs(j) for j in range(signature.OutputsLength())]
        result[signature.SignatureKey().decode()] = {
            kind: {x.Name().decode(): described(graph, x.TensorIndex()) for x in tensors}
            for kind, tensors in (("inputs", inputs), ("outputs", outputs))
        }
    return result


def column_axes(decode: dict[str, Any]) -> dict[str, int]:
    """The axis of positions of each growing cache entry of a "decode" signature.

    >>> specs = {name: {"shape": [1, 2, 64, 32]} for name in ("cache_0_key", "cache_0_value")}
    >>> column_axes({"outputs": specs, "transposed": ["cache_0_key"]})
    {'cache_0_key': 3, 'cache_0_value': 2}
    """
    transposed = decode.get("transposed", ())
    return {
        name: column_axis(name, len(spec["shape"]), transposed)
        for name, spec in decode["outputs"].items()
        if name != "logits"
    }


def by_length(signatures: dict[str, dict[str, Any]], role: str) -> list[str]:
    """The signatures of a role, shortest first.

    >>> from keras_tfm.runtime.manifest.fields import by_length
    >>> signatures = {
    ...     f"decode_{n}": {"role": "decode", "inputs": {"cache": {"shape": [1, 2, n, 4]}}}
    ...     for n in (512, 128)
    ... }
    >>> by_length(signatures, "decode")
    ['decode_128', 'decode_512']
    """

    def size(name: str) -> int:
        inputs = signatures[name]["inputs"].values()
        return sum(math.prod(spec["shape"]) for spec in inputs)

    names = (name for name, signature in signatures.items() if signature["role"] == role)
    return sorted(names, key=size)
