"""The manifest of an exported file: its signatures, models, tokenizers and images, as dataclasses.

`export` writes them, `runtime` reads them. `from_json` checks each field by itself; `checks` then
compares the fields with each other and with the tensors of the file.

Example:

>>> from keras_tfm.runtime.manifest.manifest import Input
>>> Input(shape=[1, 4], dtype="int32", kind="input", padded=True, pad_id=0).to_json()
{'shape': [1, 4], 'dtype': 'int32', 'kind': 'input', 'padded': True, 'pad_id': 0}
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, ClassVar, Self, TypeVar

from keras_tfm.runtime.decoding.sampling import is_sampler
from keras_tfm.runtime.manifest.records import (
    Json,
    Record,
    Rule,
    among,
    is_integer,
    is_integers,
    is_names,
    one,
    several,
    short_json,
)
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.media.tile_processor import TileProcessor
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate

# The version of the manifest's fields. A change that an older runtime would misread increases it.
FORMAT = 4
# The versions that are written: of a file of one model; of a file of several models, which older
# runtimes would take for signatures of one model; of a file with recurrent states, which they
# would take for caches with a column for each token; and of a file that reads its source in pieces.
ONE_MODEL, SEVERAL_MODELS, WITH_STATES, WITH_STREAMS = 1, 2, 3, 4
# The kinds of arguments of signatures. Only those of kind "input", the model's inputs, have names
# from the user.
KINDS = ("input", "padding", "position", "count", "end", "cache", "encoded")
# Those of one number for all rows.
NUMBERS = ("position", "count", "end")
# Where the padding id is padding, see `trailing_padding.with_real_pads`.
PADDINGS = ("ends", "after_end", "by_id")
# The formats of KV caches; of a file without the field, float32.
CACHES = ("float32", "int8")
QUANTIZATIONS = ("float32", "float16", "int8", "int8_full", "int4")

Size = Annotated[int, Rule("a positive integer", lambda x: is_integer(x, 1))]
Id = Annotated[int, Rule("an id", is_integer)]
# -1 is padding that is no token.
PadId = Annotated[int, Rule("an id or -1", lambda x: is_integer(x, -1))]
Name = Annotated[str, Rule("a string", lambda x: isinstance(x, str))]
Names = Annotated[list[str], Rule("a list of names", is_names)]
Integers = Annotated[list[int], Rule("a list of sizes", is_integers)]
Flag = Annotated[bool, Rule("true or false", lambda x: isinstance(x, bool))]
Strings = Annotated[
    dict[str, str],
    Rule(
        "an object of strings",
        lambda x: isinstance(x, dict) and all(isinstance(name, str) for name in x.values()),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Tensor(Record):
    """The shape and dtype of an input or output of a signature."""

    shape: Integers
    dtype: Name


@dataclass(frozen=True, kw_only=True)
class Input(Tensor):
    """An argument of a signature.

    Attributes:
        kind: str, one of `KINDS`.
        padded: bool, whether rows may be shorter than the exported length.
        pad_id: int, the id that shorter rows are padded with, or -1, which is no token; None for an
            input that takes no rows of ids.
        padding: str, one of `PADDINGS`, if the padding id may be a token, too.
        segments_of, mask_of: str, the input of whose tokens these are the segments, or the mask.
        needs_token: bool, whether a row of padding alone gives NaN.
        end_id: int, the id that each row must contain.
        sample_rate: int, that of audio, in Hz.
        shortest: int, the fewest samples of audio.
        vocabulary_size: int, the number of ids.
        placeholder_id: int, the id that stands for features, such as those of a picture.
        placeholders: int, the number of the features: a row has the id as often, or never.
        placeholder_group: int, the number of those of one picture: a row may have the first
            pictures alone.
        sees_later: bool, whether the placeholders of a picture see each other, also later ones: a
            prompt has a token after its last picture.
    """

    kind: Annotated[str, among(KINDS)]
    padded: Flag
    pad_id: PadId | None = None
    padding: Annotated[str, among(PADDINGS)] | None = None
    segments_of: Name | None = None
    mask_of: Name | None = None
    needs_token: Flag = False
    end_id: Id | None = None
    sample_rate: Size | None = None
    shortest: Size | None = None
    vocabulary_size: Size | None = None
    placeholder_id: Id | None = None
    placeholders: Size | None = None
    placeholder_group: Size | None = None
    sees_later: Flag = False

    @property
    def is_ids(self) -> bool:
        """Whether it takes rows of ids (B, S), which may be padded."""
        return self.pad_id is not None

    @property
    def is_audio(self) -> bool:
        """Whether it takes audio, (B, samples)."""
        return self.sample_rate is not None

    @property
    def is_pixels(self) -> bool:
        """Whether it takes the pixels of pictures, (B, H, W, C) or (B, N, H, W, C), uint8."""
        return self.dtype == "uint8" and len(self.shape) in (4, 5)


@dataclass(frozen=True, kw_only=True)
class Signature(Record):
    """A function in the file. Its class tells its role.

    Attributes:
        inputs, outputs: by name.
        model: str, the model that it belongs to in a file of several.
    """

    role: ClassVar[str]
    inputs: Annotated[dict[str, Input], several(Input, "an object of tensors", 1)]
    outputs: Annotated[dict[str, Tensor], several(Tensor, "an object of tensors", 1)]
    model: Name | None = None

    def to_json(self) -> Json:
        """The signature as a JSON object, with its role."""
        fields = super().to_json()
        ends: Json = {key: fields.pop(key) for key in ("model", "outputs") if key in fields}
        return {"role": self.role, **fields, **ends}

    def of_kind(self, kind: str) -> list[str]:
        """The names of the arguments of a kind of `KINDS`."""
        return [name for name, x in self.inputs.items() if x.kind == kind]


@dataclass(frozen=True, kw_only=True)
class Predict(Signature):
    """One full pass."""

    role: ClassVar[str] = "predict"


@dataclass(frozen=True, kw_only=True)
class Encode(Signature):
    """What the steps need of the inputs that are not stepped."""

    role: ClassVar[str] = "encode"


@dataclass(frozen=True, kw_only=True)
class Prefill(Signature):
    """Reads several tokens, and with "logits" verifies a draft.

    Attributes:
        capacity: int, the columns of its caches. None: a file of keras_tfm before 0.1, whose
            prefill begins at position 0.
    """

    role: ClassVar[str] = "prefill"
    capacity: Size | None = None

    @property
    def verifies(self) -> bool:
        """Whether it returns the logits after each token."""
        return "logits" in self.outputs


def _is_end(x: object) -> bool:
    return x is None or is_integer(x) or is_integers(x)


@dataclass(frozen=True, kw_only=True)
class Stepped(Signature):
    """A signature that writes tokens.

    Attributes:
        max_length: int, the most tokens of a row.
        start_id: int or None, the first token of a row without a prompt.
        end_id: int, list of int or None, the tokens that end a row.
        pad_id: int, what a row has after its end.
        target: str, the stepped input.
    """

    max_length: Size
    start_id: Annotated[int | None, Rule("an id or null", lambda x: x is None or is_integer(x))]
    end_id: Annotated[int | list[int] | None, Rule("an id, a list of ids, or null", _is_end)]
    pad_id: PadId
    target: Name

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a row."""
        if self.end_id is None:
            return []
        return self.end_id if isinstance(self.end_id, list) else [self.end_id]


@dataclass(frozen=True, kw_only=True)
class Generate(Stepped):
    """The decoding loop.

    Attributes:
        strategy: the name of a strategy and its settings; None is greedy search.
        prompt: str, the input of prompts.
        default_prompt: list of int, the prompt of rows that have none.
    """

    role: ClassVar[str] = "generate"
    strategy: Annotated[
        Json | None,
        Rule(
            "null, or an object with a name",
            lambda x: x is None or (isinstance(x, dict) and "name" in x),
        ),
    ]
    prompt: Name | None = None
    default_prompt: (
        Annotated[list[int], Rule("a list of ids", lambda x: bool(x) and is_integers(x))] | None
    ) = None


@dataclass(frozen=True, kw_only=True)
class Decode(Stepped):
    """One step of a decoding loop on the host.

    Attributes:
        vocabulary_size: int, the number of logits.
        transposed: list of str, the caches whose last axis is that of positions.
        states: list of str, the cache entries that each step replaces; before the first, zeros.
        prefix: int, the columns of the caches before the first token.
        capacity: int, the columns of tokens in the caches.
        sampling: dict, the arguments of a `Sampler`: how the model's texts are meant to be chosen.
    """

    role: ClassVar[str] = "decode"
    vocabulary_size: Size
    transposed: Names = field(default_factory=list)
    states: Names = field(default_factory=list)
    prefix: Size = 0
    capacity: Size
    sampling: Annotated[Json, Rule("an object of a sampler's arguments", is_sampler)] | None = None

    @property
    def caches(self) -> list[str]:
        """The cache entries that grow with each step."""
        return [name for name in self.outputs if name not in ("logits", *self.states)]

    @property
    def column_axes(self) -> dict[str, int]:
        """The axis of positions of each growing cache entry.

        >>> from keras_tfm.runtime.manifest.manifest import Decode, Tensor
        >>> key = Tensor(shape=[1, 2, 64, 32], dtype="float32")
        >>> decode = Decode(
        ...     inputs={}, outputs={"key": key, "value": key}, transposed=["key"], capacity=64,
        ...     max_length=64, start_id=1, end_id=None, pad_id=0, target="x", vocabulary_size=9,
        ... )
        >>> decode.column_axes
        {'key': 3, 'value': 2}
        """
        ranks = {name: len(self.outputs[name].shape) for name in self.caches}
        return {
            name: 3 if name in self.transposed else 1 if rank == 2 else 2
            for name, rank in ranks.items()
        }


@dataclass(frozen=True, kw_only=True)
class Stream(Signature):
    """Reads a piece of a source of any length; returns the outputs that have become final.

    Of each output (1, N, ...) those from the first to the second number of `final` continue those
    of the pieces before. The first piece gets zeros as states.

    Attributes:
        states: list of str, the arguments that are the results of the piece before.
        final: str, the output with the two numbers, (1, 2) int32.
        delay: int, the number of positions of the source by which outputs are late.
        stride: int, the number of positions of the source for one of the outputs.
    """

    role: ClassVar[str] = "stream"
    states: Names
    final: Name
    delay: Annotated[int, Rule("an integer of at least 0", is_integer)]
    stride: Size

    @property
    def results(self) -> list[str]:
        """The names of the model's outputs."""
        return [name for name in self.outputs if name not in (self.final, *self.states)]

    @property
    def floats(self) -> int:
        """How many numbers the states have."""
        return sum(math.prod(self.inputs[name].shape) for name in self.states)


SIGNATURES: dict[str, type[Signature]] = {
    x.role: x for x in (Predict, Generate, Encode, Prefill, Decode, Stream)
}
# The roles of signatures.
ROLES = tuple(SIGNATURES)
AnySignature = TypeVar("AnySignature", bound=Signature)


def of_role(
    signatures: Mapping[str, Signature], role: type[AnySignature]
) -> dict[str, AnySignature]:
    """The signatures of a role, such as `Decode`, by name; those of the smallest inputs first."""

    def size(item: tuple[str, Signature]) -> int:
        return sum(math.prod(x.shape) for x in item[1].inputs.values())

    found = {name: x for name, x in signatures.items() if isinstance(x, role)}
    return dict(sorted(found.items(), key=size))


def _read_signatures(value: Json, place: str) -> dict[str, Signature]:
    result, rule = {}, among(ROLES)
    for name, x in value.items():
        role = x.get("role") if isinstance(x, dict) else None
        if isinstance(x, dict) and not rule.holds(role):
            if "role" not in x:
                raise ValueError(f"{place}.{name} lacks 'role', {rule.expected}")
            raise ValueError(f"{place}.{name}.role must be {rule.expected}, got {short_json(role)}")
        result[name] = SIGNATURES.get(str(role), Predict).from_json(x, f"{place}.{name}")
    return result


@dataclass(frozen=True, kw_only=True)
class Head(Record):
    """The head of a model: the function that made it, and its arguments."""

    kind: Name
    arguments: Annotated[Json, Rule("an object", lambda x: isinstance(x, dict))]


@dataclass(frozen=True, kw_only=True)
class Identity(Record):
    """The builder of a model, its arguments, and the head."""

    family: Name
    arguments: Annotated[Json, Rule("an object", lambda x: isinstance(x, dict))]
    head: Annotated[Head | None, one(Head, "null, or an object with kind and arguments", True)] = (
        None
    )

    def to_json(self) -> Json:
        """The identity as a JSON object; its head is null without one."""
        return {**super().to_json(), "head": None if self.head is None else self.head.to_json()}


_MODEL = one(Identity, "null, or an object with family, arguments and head", nullable=True)


@dataclass(frozen=True, kw_only=True)
class AdaptedLayer(Record):
    """Where a file has the adapter of a projection: its sizes, and the buffers of A and B."""

    depth: Size
    width: Size
    rank: Size
    a: Integers
    b: Integers


@dataclass(frozen=True, kw_only=True)
class Adapters(Record):
    """Where a file has its adapters, and the fingerprint of the weights that they are for."""

    base: Name
    layers: Annotated[dict[str, AdaptedLayer], several(AdaptedLayer, "an object of layers")]


def _is_images(x: object) -> bool:
    if not isinstance(x, dict):
        return False
    try:
        return all(_processor(y) for y in x.values())
    except (TypeError, ValueError):
        return False


def _processor(fields: Json) -> ImageProcessor:
    """The processor of a picture, or of its tiles; raises a ValueError if fields are missing."""
    for kind in (ImageProcessor, TileProcessor):
        if isinstance(fields, dict) and fields.keys() == kind.__dataclass_fields__.keys():
            return kind(**fields)
    raise ValueError("not the fields of an image processor")


def _processor_to_json(processor: ImageProcessor) -> Json:
    fields = asdict(processor)
    return {key: list(x) if isinstance(x, tuple) else x for key, x in fields.items()}


Images = Annotated[
    dict[str, ImageProcessor],
    Rule(
        "an object of image processors",
        _is_images,
        lambda x, place: {name: _processor(y) for name, y in x.items()},
        lambda x: {name: _processor_to_json(y) for name, y in x.items()},
    ),
]


# Fields of a `ChatTemplate` that a file has only if they are not empty.
_OPTIONAL = ("gap", "trim")


def _is_chat_template(x: object) -> bool:
    if not isinstance(x, dict) or {*x, *_OPTIONAL} != {*ChatTemplate._fields}:
        return False
    system = x["system"]
    is_pair = system is None or (is_names(system) and len(system) == 2)
    texts = [x["first"], x["answer"], x["next"], x.get("gap", "")]
    return is_pair and is_names(texts) and is_names(x.get("trim", []))


def _read_template(x: Json, place: str) -> ChatTemplate:
    pairs = {"system": x["system"] and tuple(x["system"]), "trim": tuple(x.get("trim", ()))}
    return ChatTemplate(**{**x, **pairs})


def _template_to_json(x: ChatTemplate) -> Json:
    fields = {**x._asdict(), "system": x.system and list(x.system), "trim": list(x.trim)}
    return {key: y for key, y in fields.items() if y or key not in _OPTIONAL}


@dataclass(frozen=True, kw_only=True)
class Member(Record):
    """One model of a file of several.

    Attributes:
        model: `Identity`; None for a model that no builder made.
        images: `ImageProcessor` by input.
        labels: list of str, the names of the classes, in order.
        tokenizers: the name of a metadata entry by input.
    """

    model: Annotated[Identity | None, _MODEL]
    images: Images = field(default_factory=dict)
    labels: Names | None = None
    tokenizers: Strings = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """What a file says of itself.

    Attributes:
        keras_tfm, keras, tensorflow: str, the versions that wrote it.
        format: int, see `FORMAT`.
        quantization: str, the preset of the weights.
        cache: str, the format of the KV caches.
        signatures: by name.
        layers: the bytes of each layer's weights, by its path in the model.
        model, images, labels, tokenizers: as of a `Member`, of a file of one model.
        models: `Member` by name, of a file of several.
        tokenizer_options: the options of tokenizers, by metadata entry.
        chat_template: `ChatTemplate`, if the file has one.
        adapters: `Adapters`, if they are separate.
        sha256: str, the checksum of the file.
        other: fields of newer versions.
    """

    keras_tfm: Name
    format: Size
    keras: Name | None = None
    tensorflow: Name | None = None
    quantization: Annotated[str, among(QUANTIZATIONS)]
    cache: Annotated[str, among(CACHES)] = "float32"
    signatures: Annotated[
        dict[str, Signature],
        Rule(
            "an object of signatures",
            lambda x: isinstance(x, dict) and bool(x),
            _read_signatures,
            lambda x: {name: y.to_json() for name, y in x.items()},
        ),
    ]
    layers: Annotated[
        dict[str, int],
        Rule(
            "an object of sizes",
            lambda x: (
                isinstance(x, dict) and all(is_integer(n) and n >> 63 == 0 for n in x.values())
            ),
        ),
    ]
    model: Annotated[Identity | None, _MODEL]
    models: Annotated[dict[str, Member], several(Member, "an object of models", 1)] = field(
        default_factory=dict
    )
    tokenizers: Strings = field(default_factory=dict)
    tokenizer_options: Annotated[
        dict[str, Json],
        Rule(
            "an object of objects",
            lambda x: isinstance(x, dict) and all(isinstance(y, dict) for y in x.values()),
        ),
    ] = field(default_factory=dict)
    images: Images = field(default_factory=dict)
    labels: Names | None = None
    chat_template: (
        Annotated[
            ChatTemplate,
            Rule("an object of texts", _is_chat_template, _read_template, _template_to_json),
        ]
        | None
    ) = None
    adapters: Annotated[Adapters, one(Adapters, "an object with base and layers")] | None = None
    sha256: Name = ""
    other: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object, place: str = "") -> Self:
        """The manifest of a JSON object, whose format `check_format` has accepted."""
        result = super().from_json(value, place)
        assert isinstance(value, dict)  # or the line above has raised
        known = cls.__dataclass_fields__.keys() - {"other"}
        return replace(result, other={key: x for key, x in value.items() if key not in known})

    def to_json(self) -> Json:
        """The manifest as a JSON object, without the checksum if it has none yet."""
        return {**super().to_json(), **self.other}

    @property
    def is_rounded(self) -> bool:
        """Whether weights or KV caches are rounded."""
        return self.quantization != "float32" or self.cache == "int8"

    def part(self, name: str) -> Self:
        """The manifest of one model of several."""
        own = self.models[name]
        return replace(
            self,
            models={},
            signatures={key: x for key, x in self.signatures.items() if x.model == name},
            model=own.model,
            images=own.images,
            labels=own.labels,
            tokenizers=own.tokenizers,
        )


def check_format(value: Json) -> None:
    """Raises ValueError unless this version reads the format of a manifest in JSON."""
    version = value.get("format")
    if type(version) is not int or version < 1:
        raise ValueError(f"format must be a positive integer, got {short_json(version)}")
    if version > FORMAT:
        raise ValueError(
            f"keras_tfm {value.get('keras_tfm')} wrote it in format {version}, and this version "
            f"reads formats up to {FORMAT}: update keras_tfm"
        )
