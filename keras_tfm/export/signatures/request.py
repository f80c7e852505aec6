"""The arguments of an export, checked before anything is traced."""

import functools
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple, SupportsIndex, TypedDict, Unpack

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.arguments import check_integer
from keras_tfm.export.signatures.signature import Argument
from keras_tfm.generation.interface import Interface, interface_of
from keras_tfm.generation.preparation import check_ids, end_ids_of
from keras_tfm.generation.processors import RepetitionPenalty
from keras_tfm.generation.strategies import Sample, Strategy
from keras_tfm.runtime.manifest.manifest import CACHES, ROLES
from keras_tfm.runtime.manifest.records import Json

# The roles of signatures that do not generate.
WITHOUT_STEPS = ("predict", "stream")
# Keras 3.15's text. It warns at each call, and an export calls a layer dozens of times.
_LOST_MASK = r"Layer .* was passed an input with a mask attached to it\."


@contextmanager
def without_mask_warnings() -> Iterator[None]:
    """Leaves out Keras's warning of a lost mask, which building the model has shown.

    It is also a decorator.

    >>> import warnings
    >>> from keras_tfm.export.signatures.request import without_mask_warnings
    >>> with without_mask_warnings():
    ...     warnings.warn("Layer 'x' (of type X) was passed an input with a mask attached to it.")
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _LOST_MASK, UserWarning)
        yield


class GenerationArguments(TypedDict, total=False):
    """The arguments of `export_saved_model` and `export_tflite` that describe generation.

    All are optional keyword arguments.

    Attributes:
        max_length: int (T), the maximum number of tokens of a row, start token or prompt included;
            in "predict" the length of the stepped input. Required by every signature but "predict".
            If T is much larger than 128, a .tflite file has several decode signatures with growing
            caches: "decode_128", "decode_512"... up to T.
        start_id: int, the first token of every row without a prompt.
        end_id: int, the token that ends a row, or a list of several; None (default) never stops
            early. Columns after the end hold the padding id of the stepped input.
        target: str, name of the stepped input; default "target", or the only input.
        strategy: `Strategy`, how "generate" chooses tokens: `generation.Greedy()` (default),
            `Beam`, or a custom one that draws no random numbers; with its processors. With "decode"
            alone, a `Sample` is how `runtime.Model.sampler` chooses tokens. Of a folder of
            transformers, a strategy without processors gets the folder's; one with its own is
            complete.

    >>> from keras_tfm.export import GenerationArguments
    >>> generation: GenerationArguments = {"max_length": 5, "start_id": 1, "end_id": 2}
    """

    max_length: int | None
    start_id: int | None
    end_id: int | Sequence[int] | None
    target: str | None
    strategy: Strategy | None


class ExportArguments(GenerationArguments, total=False):
    """The arguments of `export_tflite` that set shapes, and those of `GenerationArguments`.

    All are optional keyword arguments.

    Attributes:
        batch_size: int, rows per call; default 1.
        source_length: int or list of int (S), the length of every input with an open length. For
            audio: samples, by default the length to which the model pads.
            Shorter rows are padded with the input's padding id (`mask_id` of its embedding), which
            the model must mask. With several lengths, each gets its own signatures ("predict_32",
            "encode_128"), and the runtime picks the shortest that fits. Or a dictionary of the
            lengths by input, {"text": 8, "frames": 30}, of which one input may have several.
        prompt_length: int or list of int (N), the maximum length of a prompt for the stepped input,
            or several lengths: one "prefill_N" each, and "generate" continues prompts of up to N
            tokens.
        default_prompt: list of int, the first tokens of rows without a prompt, in the place of
            `start_id`, such as the language and the task of a speech model. It needs a
            `prompt_length`, and is for "generate".
        accelerator: str, "cpu" (default) or "gpu": a graph for LiteRT's GPU delegate, which has
            transposed keys in its KV caches, and no "generate", whose loop the delegate refuses.
            For `quantization` "float32", "float16" and "int8". The export compares the delegate
            with the CPU where the machine has a Vulkan driver, see docs/export.md.
        whole_caches: bool, whether "prefill" and "decode" return whole caches of max_length, for
            hosts that pass results on as arguments. By default they return only the new entries,
            which the host writes into its caches, so no cache is copied.
        cache: str, the format of the KV caches, "float32" (default) or "int8": a scale for each
            token and head, a quarter of the memory; worth it for long texts and long sources. For
            "generate", "encode", "prefill" and "decode" on a CPU, with any `quantization`.
        piece_length: int, for "stream": number of positions of the source in a piece, such as
            samples of audio, a multiple of the model's strides.
        draft_length: int (n), with "decode": the file also gets "verify_<n + 1>", a prefill that
            returns the logits of n + 1 tokens, for n drafted ones: see `runtime.Model.stream`.

    >>> from keras_tfm.export import ExportArguments
    >>> sizes: ExportArguments = {"source_length": 6, "max_length": 5, "start_id": 1, "end_id": 2}
    """

    batch_size: int
    source_length: int | Sequence[int] | Mapping[str, int | Sequence[int]] | None
    prompt_length: int | Sequence[int] | None
    default_prompt: Sequence[int] | None
    accelerator: str
    whole_caches: bool
    cache: str
    draft_length: int | None
    piece_length: int | None


def check_keywords(
    function: Callable[..., object], given: Mapping[str, object], known: type[object]
) -> None:
    """Raises a TypeError unless `known`, a `TypedDict`, has every keyword in `given`.

    >>> from keras_tfm.export.signatures.request import GenerationArguments, check_keywords
    >>> def write(path, **arguments): check_keywords(write, arguments, GenerationArguments)
    >>> write("model", max_len=5)
    Traceback (most recent call last):
    TypeError: write has no argument 'max_len'; it has path, max_length, start_id, end_id, \
target, strategy
    """
    unknown = [name for name in given if name not in known.__annotations__]
    if unknown:
        own = inspect.signature(function).parameters.values()
        names = [x.name for x in own if x.kind is not inspect.Parameter.VAR_KEYWORD]
        raise TypeError(
            f"{function.__name__} has no argument {unknown[0]!r}; "
            f"it has {', '.join([*names, *known.__annotations__])}"
        )


class Request:
    """The arguments of an export, checked before anything is traced.

    Args:
        model: functional `keras.Model`.
        roles: some of `ROLES`; None: "generate" with a `start_id` or a `prompt_length`, otherwise
            "predict".
        static: whether every axis must have a size. If not, a `batch_size` or `source_length` that
            is not given leaves its axis open.
        pictures: the shape (H, W, C) of the pictures of an input, by name, which its open axes get.
        arguments: see `ExportArguments`.

    Attributes:
        interface: what the model takes.
        source_lengths: the lengths of the inputs with an open length, in ascending order.
        own_lengths: the lengths of inputs that have one of their own.
    """

    def __init__(
        self,
        model: keras.Model,
        roles: Sequence[str] | None = None,
        *,
        static: bool = True,
        pictures: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        **arguments: Unpack[ExportArguments],
    ):
        self.pictures = pictures
        check_keywords(Request, arguments, ExportArguments)
        max_length, start_id = arguments.get("max_length"), arguments.get("start_id")
        prompt_length = arguments.get("prompt_length")
        strategy = arguments.get("strategy")
        self.interface = interface_of(model)  # raises unless the model is functional
        if roles is None:
            generates = start_id is not None or prompt_length is not None
            roles = ["generate"] if generates else ["predict"]
        unknown = [role for role in roles if role not in ROLES]
        if unknown or not roles or len(set(roles)) < len(roles):
            got = f"the string {roles!r}" if isinstance(roles, str) else list(roles)
            raise ValueError(f"signatures must be among {list(ROLES)}, got {got}")
        self.model = model
        self.roles = list(roles)
        # NumPy's integers become Python's, since the manifest is JSON.
        batch_size = arguments.get("batch_size", 1 if static else None)
        if static and batch_size is None:
            raise TypeError(
                "batch_size must be an integer, got None: a .tflite file has fixed axes"
            )
        self.batch_size = _positive("batch_size", batch_size)
        lengths = source_lengths(self.interface, self.roles, arguments, pictures)
        self.source_lengths, self.own_lengths = lengths.each, lengths.own
        self.prompt_lengths = _lengths("prompt_length", prompt_length)
        self.max_length = None if max_length is None else _integer("max_length", max_length)
        self.start_id = None if start_id is None else _integer("start_id", start_id)
        self.end_ids = end_ids_of(arguments.get("end_id"))
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy such as Beam(4), got {strategy!r}")
        if "generate" not in self.roles:
            self._check_processors(strategy)
        self.default_prompt = self._default_prompt(arguments.get("default_prompt"))
        self.strategy = strategy
        self.static = static
        self.whole_caches = arguments.get("whole_caches", False)
        self.draft_length = self._draft_length(arguments.get("draft_length"))
        self.accelerator = arguments.get("accelerator", "cpu")
        if self.accelerator not in ("cpu", "gpu"):
            raise ValueError(f"accelerator must be 'cpu' or 'gpu', got {self.accelerator!r}")
        if self.accelerator == "gpu" and "generate" in self.roles:
            raise ValueError(
                "accelerator='gpu' is for the signatures 'predict', 'encode', 'prefill' and "
                f"'decode': a GPU delegate refuses the loop of 'generate', got {self.roles}"
            )
        self.cache = str(arguments.get("cache", "float32"))
        self._check_cache()
        self._target = arguments.get("target")
        self.piece_length = self._piece_length(arguments.get("piece_length"))
        steps = [role for role in self.roles if role not in WITHOUT_STEPS]
        if steps:
            self._check_steps(steps)
        if "predict" in self.roles:
            self._check_outputs()
        if self.whole_caches and "decode" not in self.roles:
            raise ValueError(
                f"whole_caches is for the signatures 'prefill' and 'decode', got {self.roles}"
            )
        if len(self.source_lengths) > 1:
            self._check_several()

    @property
    def is_stepped(self) -> bool:
        """Whether a signature generates."""
        return not set(self.roles) <= set(WITHOUT_STEPS)

    @property
    def target(self) -> str:
        """The name of the input that is stepped."""
        return self.interface.find_target(self._target)

    @property
    def others(self) -> list[str]:
        """The names of the inputs that are not stepped."""
        return [name for name in self.interface.inputs if name != self.target]

    @property
    def pad_id(self) -> int:
        """The padding id of the input that is stepped."""
        return self.interface.inputs[self.target].pad_id or 0

    def own_name(self, name: str) -> str:
        """`name`, with underscores appended until no input of the model has this name."""
        while name in self.interface.inputs:
            name += "_"
        return name

    @functools.cached_property
    def padded(self) -> frozenset[str]:
        """The inputs whose rows may be padded. Found by calling the model, at the first use."""
        inputs = self.interface.inputs
        found = self.interface.invisibly_padded(
            [*inputs] if "predict" in self.roles else self.others
        )
        audio = {name for name, x in inputs.items() if x.audio and x.audio.masks_padding}
        return found | audio | {name for name, x in inputs.items() if x.mask_of in found}

    @property
    def masked_target(self) -> frozenset[str]:
        """The stepped input, if its embedding masks the padding id; otherwise empty."""
        is_masked = self.interface.inputs[self.target].masked_id is not None
        return frozenset([self.target] if is_masked else [])

    @functools.cached_property
    def needing_a_token(self) -> frozenset[str]:
        """The inputs whose rows need at least one token. Found by calling the model."""
        names = self.others if self.is_stepped else self.interface.names
        return self.interface.needing_a_token(names)

    def _default_prompt(self, ids: Sequence[int] | None) -> list[int]:
        """The ids of the default prompt; empty for None."""
        if ids is None:
            return []
        for x in ids:
            check_integer("default_prompt", x, minimum=0)
        prompt = [operator.index(x) for x in ids]
        size, longest = self.model.outputs[0].shape[-1], max(self.prompt_lengths, default=0)
        if "generate" not in self.roles or not 1 <= len(prompt) <= longest:
            raise ValueError(
                "default_prompt is for 'generate' with a prompt_length of at least its length, "
                f"got {len(prompt)} ids, prompt_length {longest or None} and {self.roles}"
            )
        if max(prompt) >= size:
            raise ValueError(f"default_prompt must be ids in 0..{size - 1}, got {prompt}")
        return prompt

    def _check_processors(self, strategy: Strategy | None) -> None:
        """Raises if "decode" has processors that the runtime's sampler lacks."""
        allowed = RepetitionPenalty if isinstance(strategy, Sample) else ()
        others = () if strategy is None else strategy.processors
        others = tuple(x for x in others if not isinstance(x, allowed))
        if others:
            raise ValueError(
                "processors are a part of the signature 'generate'; 'decode' returns logits, which "
                f"the host has to process, got {others} and the signatures {self.roles}"
            )

    @property
    def sampling(self) -> Json | None:
        """The arguments of the `runtime.Sampler` of "decode"; None without a `Sample`."""
        given = self.strategy
        if "generate" in self.roles or not isinstance(given, Sample) or given.hypotheses > 1:
            return None
        names = ("temperature", "top_k", "top_p", "min_p", "seed")
        sampling = {name: x for name in names if (x := getattr(given, name)) is not None}
        penalties = [x.penalty for x in given.processors if isinstance(x, RepetitionPenalty)]
        if penalties:
            sampling["repetition_penalty"] = math.prod(penalties)
        return sampling

    def _draft_length(self, length: int | None) -> int | None:
        """The number of drafted tokens that one step verifies."""
        check_integer("draft_length", length, optional=True)
        if length is None:
            return None
        if "decode" not in self.roles or self.whole_caches:
            raise ValueError(
                "draft_length is for the signature 'decode' without whole_caches, got "
                f"{self.roles}, whole_caches={self.whole_caches}"
            )
        if self.max_length is not None and length > self.max_length - 2:
            raise ValueError(
                f"draft_length={length} does not fit max_length={self.max_length}: give at most "
                f"{max(1, self.max_length - 2)}"
            )
        return int(length)

    def _piece_length(self, length: int | None) -> int | None:
        """The number of positions of the source in a piece."""
        check_integer("piece_length", length, optional=True)
        if (length is None) == ("stream" in self.roles):
            raise ValueError(
                f"the signature 'stream' and piece_length need each other, got {self.roles} and "
                f"piece_length={length}"
            )
        if length is None:
            return None
        if not self.static or self.accelerator == "gpu" or self.batch_size != 1:
            raise ValueError(
                "the signature 'stream' is for .tflite files with accelerator='cpu' and "
                f"batch_size=1, got {self.accelerator!r} and {self.batch_size}"
            )
        return int(length)

    def _check_cache(self) -> None:
        """Raises unless the format of the KV caches is known, and int8 applies."""
        if self.cache not in CACHES:
            raise ValueError(f"cache must be one of {list(CACHES)}, got {self.cache!r}")
        if self.cache == "float32":
            return
        if not self.is_stepped:
            raise ValueError(
                f"cache={self.cache!r} is for the KV caches of 'generate' and 'decode': 'predict' "
                "has none; leave it out, or export one of these signatures"
            )
        if self.accelerator == "gpu":
            raise ValueError(
                f"cache={self.cache!r} is for accelerator='cpu': the graphs for a GPU delegate are "
                "in float32; leave it out"
            )

    def _check_steps(self, roles: list[str]) -> None:
        if not self.static and {"encode", "prefill", "decode"} & set(roles):
            raise ValueError(
                "a SavedModel has the signatures 'predict' and 'generate'; only .tflite files have "
                f"signatures with caches, got {roles}"
            )
        stepped = self.interface.inputs[self.target]
        if not stepped.takes_ids:
            raise ValueError(
                f"the stepped input {self.target!r} of {self.model.name} must be rows of token "
                f"ids, keras.Input((None,), dtype='int32'), got {stepped.spec.dtype} "
                f"{stepped.spec.shape}"
            )
        self.interface.check_side_inputs(self.target)
        if stepped.sees_later and "decode" in roles:
            raise ValueError(
                f"the tokens of a picture see each other in {self.model.name}, and a host reads "
                f"prompts in pieces, which could divide a picture: export 'generate', got {roles}"
            )
        if self.max_length is None:
            raise ValueError(f"the signature {roles[0]!r} needs max_length, got None")
        if "generate" in roles and self.start_id is None and not self.prompt_lengths:
            raise ValueError(
                "a generate signature needs a start_id or a prompt_length, got neither"
            )
        if "generate" in roles and not self.others and not self.prompt_lengths:
            raise ValueError(
                f"{self.model.name} has no input but {self.target!r}: generation from a start_id "
                "alone would always return the same tokens; give a prompt_length"
            )
        if "prefill" in roles and not self.prompt_lengths:
            raise ValueError("a prefill signature needs a prompt_length, or several, got None")
        if self.prompt_lengths and max(self.prompt_lengths) >= self.max_length:
            raise ValueError(
                f"a prompt_length must be less than max_length ({self.max_length}), "
                f"got {max(self.prompt_lengths)}"
            )
        unpaired = [role for role in roles if role in ("encode", "prefill")]
        if unpaired and "decode" not in roles:
            raise ValueError(
                f"the signature {unpaired[0]!r} computes caches for 'decode': export both, "
                f"got {self.roles}"
            )
        if "encode" in roles and not self.others:
            raise ValueError(
                f"{self.model.name} has no input but {self.target!r}: there is nothing to encode; "
                "use a prefill signature for prompts"
            )
        check_ids(self.model, self.target, self.max_length, self.start_id, self.end_ids)
        if self.strategy is not None:
            if self.strategy.draws and self.sampling is None:
                raise ValueError(
                    f"{type(self.strategy).__name__} draws random numbers, which LiteRT's builtin "
                    "operators do not support: export 'decode', and sample from its logits on the "
                    "host"
                )
            if self.strategy.reads_features:
                raise ValueError(
                    f"{type(self.strategy).__name__} reads the features before the logits, which "
                    "an exported model does not return"
                )
            self.strategy.check(self.model.outputs[0].shape[-1])
            for processor in self.strategy.processors:
                if getattr(processor, "calls_python", False):
                    raise ValueError(
                        f"{type(processor).__name__} calls Python in each step, which a file "
                        "cannot: use a processor of tensor operations, such as processors.Grammar, "
                        "or export 'decode', and choose tokens on the host"
                    )
        self.arguments(self.others)  # raises if a length is missing

    def _check_outputs(self) -> None:
        outputs = self.model.output
        for name, x in outputs.items() if isinstance(outputs, dict) else ():
            if not isinstance(x, keras.KerasTensor):
                raise ValueError(
                    "outputs by name must be tensors: a signature has no nested outputs, but "
                    f"{name!r} of {self.model.name} is a {type(x).__name__}"
                )

    def _check_several(self) -> None:
        fixed = {*self.own_lengths, *self.pictures}
        fixed |= {self.target} if self.is_stepped else set()
        inputs = self.interface.inputs
        open_ = [name for name, x in inputs.items() if x.is_open and name not in fixed]
        if not open_:
            raise ValueError(
                f"several source_lengths need an input with an open length, but {self.model.name} "
                f"has none, got {list(self.source_lengths)}"
            )
        unmasked = [name for name in open_ if name not in self.padded]
        if unmasked:
            cause = "it is not masked: use mask_zero=True or mask_id"
            if not inputs[unmasked[0]].takes_ids:
                cause = "only rows of ids are padded"
            elif inputs[unmasked[0]].masked_id is not None:
                cause = (
                    "its embedding masks padding, but a layer after it loses or ignores the mask"
                )
            raise ValueError(
                "several source_lengths need padding that does not change the outputs, but that of "
                f"{unmasked[0]!r} changes those of {self.model.name}: {cause}, or use one length"
            )

    def arguments(
        self,
        names: Collection[str],
        length: int | None = None,
        lengths: Mapping[str, int | None] = MappingProxyType({}),
    ) -> dict[str, Argument]:
        """Inputs of the model as arguments; open axes get `length`, by default the longest.

        `lengths` overrides the length of some inputs. `with_padding` tells which have padded rows.
        """
        longest = max(self.source_lengths, default=None)
        result = {}
        for name, known in self.interface.inputs.items():
            if name not in names:
                continue
            x = known.spec
            here = longest if length is None else length
            here = lengths.get(name, self.own_lengths.get(name, here))
            if here is None and self.static and known.audio is not None:
                here = known.audio.length  # what the layer pads to
            sizes = self.pictures.get(name, (here,) * (len(x.shape) - 1))
            own = zip(x.shape[1:], sizes, strict=True)
            shape = [self.batch_size, *(size if d is None else d for d, size in own)]
            if self.static and None in shape:
                if shape.count(None) > 1:  # a picture
                    raise ValueError(
                        f"input {name!r} has shape {tuple(x.shape)}: build the model with its "
                        "sizes, as of keras.Input((240, 320, 3)), or give images, whose size it "
                        "gets, or source_length, the length of each open axis"
                    )
                raise ValueError(
                    f"input {name!r} has shape {tuple(x.shape)}: give source_length, the length to "
                    "export it for"
                    + (" (and max_length, the target's)" if len(self.model.inputs) > 1 else "")
                )
            dtype = "uint8" if known.is_pixels else x.dtype
            result[name] = Argument(tf.TensorSpec(shape, dtype), input=known)
        return result

    def named_lengths(self, role: str) -> list[tuple[str, int | None]]:
        """Names and lengths of a role's signatures: one, or one per source length."""
        if len(self.source_lengths) < 2:
            return [(role, next(iter(self.source_lengths), None))]
        return [(f"{role}_{length}", length) for length in self.source_lengths]

    def end_id_setting(self) -> int | list[int] | None:
        """The end tokens as the manifest stores them."""
        return self.end_ids[0] if len(self.end_ids) == 1 else list(self.end_ids) or None


class SourceLengths(NamedTuple):
    """The argument `source_length`, checked.

    Attributes:
        each: tuple of int, ascending: the lengths of inputs that are not in `own`.
        own: dict of int by input.
    """

    each: tuple[int, ...]
    own: dict[str, int]


def source_lengths(
    interface: Interface,
    roles: Sequence[str],
    arguments: ExportArguments,
    pictures: Collection[str] = (),
) -> SourceLengths:
    """The lengths of the inputs with an open axis: one for all, several, or by input.

    Args:
        interface: that of the model.
        roles: those of the signatures.
        arguments: of the export, with "source_length" and "target".
        pictures: inputs whose axes have the size of their pictures.

    Raises:
        ValueError: a length is out of range, or by input: an input is unknown, has no open axis, or
            is missing; or several inputs have several lengths.
    """
    given = arguments.get("source_length")
    if not isinstance(given, Mapping):
        return SourceLengths(_lengths("source_length", given), {})
    inputs, target = interface.inputs, arguments.get("target")
    is_stepped = not set(roles) <= set(WITHOUT_STEPS)
    stepped = interface.find_target(target) if is_stepped else None
    open_ = [name for name, x in inputs.items() if x.is_open and name not in (stepped, *pictures)]
    unknown = [name for name in given if name not in open_]
    known_otherwise = [name for name, x in inputs.items() if x.audio and x.audio.length]
    if arguments.get("max_length") is not None and len(inputs) > 1:
        known_otherwise.append(interface.find_target(target))
    missing = [name for name in open_ if name not in given and name not in known_otherwise]
    if unknown or missing or not given:
        raise ValueError(
            f"source_length must have the inputs with an open length, {open_}, got {list(given)}"
        )
    known = {name: _lengths(f"source_length of {name!r}", x) for name, x in given.items()}
    if () in known.values():
        raise ValueError(f"source_length must have a length for each input, got {dict(given)}")
    several = [name for name, x in known.items() if len(x) > 1]
    if len(several) > 1:
        raise ValueError(f"one input may have several source_lengths, got several for {several}")
    own = {name: x[0] for name, x in known.items() if name not in several}
    return SourceLengths(known[several[0]] if several else (), own)


def _positive(name: str, value: SupportsIndex | None) -> int | None:
    """Returns `value` as an int; raises unless it is positive. None stays None."""
    if value is None:
        return None
    value = _integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def _integer(name: str, value: SupportsIndex) -> int:
    """An integer of Python or NumPy as one of Python, since the manifest is JSON."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _lengths(name: str, values: int | Sequence[int] | None) -> tuple[int, ...]:
    """The lengths as an ascending tuple; empty for None."""
    if values is None:
        return ()
    several = list(np.atleast_1d(np.asarray(values, object)))
    result = sorted({_positive(name, value) or 0 for value in several})
    if len(result) < len(several) or not result:
        raise ValueError(f"{name} must be one length or several different ones, got {values}")
    return tuple(result)
