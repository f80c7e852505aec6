"""The arguments of an export, checked before anything is traced."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import keras
import tensorflow as tf

from keras_tfm.export.signatures.cache_format import checked_cache
from keras_tfm.export.signatures.default_prompt import checked_prompt
from keras_tfm.export.signatures.draft_length import checked_draft_length
from keras_tfm.export.signatures.invisible_padding import invisibly_padded, needing_a_token
from keras_tfm.export.signatures.source_lengths import (
    index,
    inputs_with_open_length,
    integer,
    lengths_of,
    source_lengths,
)
from keras_tfm.generation.model_inputs import (
    audio_inputs,
    end_tokens,
    find_target,
    image_inputs,
    input_names,
    input_specs,
    inputs_of_tokens,
    vocabulary_sizes,
)
from keras_tfm.generation.pad_ids import masked_ids, pad_ids, paddings
from keras_tfm.generation.preparation import check_ids, end_ids_of
from keras_tfm.generation.side_inputs import check_side_inputs
from keras_tfm.generation.strategies import Strategy
from keras_tfm.runtime.manifest.manifest import ROLES


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
            `Beam`, or a custom one that draws no random numbers; with its processors.

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


def check_keywords(
    function: Callable[..., Any], given: Mapping[str, Any], known: type[Any]
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
        arguments: see `ExportArguments`.

    Attributes:
        vocabulary_sizes: the number of ids of each input that an embedding reads.
        pad_ids: the padding id of each input of ids (B, S); see `generation.pad_ids`.
        paddings: where it is padding, of inputs in which it may be a token.
        source_lengths: the lengths of the inputs with an open length, in ascending order.
        own_lengths: the lengths of inputs that have one of their own.
        inputs_of_tokens: the inputs that follow from the tokens of another one, such as segments.
        end_tokens: the id that rows of an input must contain, where a layer reads its features.
        images: the inputs of pixels, uint8 in the file.
        audio: the inputs of audio with the layer that reads them.
    """

    def __init__(
        self,
        model: keras.Model,
        roles: Sequence[str] | None = None,
        *,
        static: bool = True,
        **arguments: Unpack[ExportArguments],
    ):
        check_keywords(Request, arguments, ExportArguments)
        max_length, start_id = arguments.get("max_length"), arguments.get("start_id")
        prompt_length = arguments.get("prompt_length")
        strategy = arguments.get("strategy")
        input_names(model)  # raises unless the model is functional
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
        self.batch_size = index("batch_size", arguments.get("batch_size", 1 if static else None))
        given = source_lengths(model, self.roles, arguments)
        self.source_lengths, self.own_lengths = given.each, given.own
        self.prompt_lengths = lengths_of("prompt_length", prompt_length)
        self.max_length = None if max_length is None else integer("max_length", max_length)
        self.start_id = None if start_id is None else integer("start_id", start_id)
        self.end_ids = end_ids_of(arguments.get("end_id"))
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy such as Beam(4), got {strategy!r}")
        if strategy is not None and strategy.processors and "generate" not in self.roles:
            raise ValueError(
                "processors are a part of the signature 'generate'; 'decode' returns logits, which "
                f"the host has to process, got the signatures {self.roles}"
            )
        self.default_prompt = checked_prompt(
            arguments.get("default_prompt"), model, self.roles, max(self.prompt_lengths, default=0)
        )
        self.strategy = strategy
        self.static = static
        self.whole_caches = arguments.get("whole_caches", False)
        self.draft_length = checked_draft_length(arguments, self.roles)
        self.accelerator = arguments.get("accelerator", "cpu")
        if self.accelerator not in ("cpu", "gpu"):
            raise ValueError(f"accelerator must be 'cpu' or 'gpu', got {self.accelerator!r}")
        if self.accelerator == "gpu" and "generate" in self.roles:
            raise ValueError(
                "accelerator='gpu' is for the signatures 'predict', 'encode', 'prefill' and "
                f"'decode': a GPU delegate refuses the loop of 'generate', got {self.roles}"
            )
        self.cache = checked_cache(arguments, self.roles)
        self.vocabulary_sizes = vocabulary_sizes(model)
        self.pad_ids = pad_ids(model)
        self.paddings = paddings(model)
        self.inputs_of_tokens = inputs_of_tokens(model)
        self.end_tokens = end_tokens(model)
        self.images = image_inputs(model)
        self.audio = audio_inputs(model)
        self._target = arguments.get("target")
        steps = [role for role in self.roles if role != "predict"]
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
    def target(self) -> str:
        """The name of the input that is stepped."""
        return find_target(self.model, self._target)

    @property
    def others(self) -> list[str]:
        """The names of the inputs that are not stepped."""
        return [name for name in input_names(self.model) if name != self.target]

    def own_name(self, name: str) -> str:
        """`name`, with underscores appended until no input of the model has this name."""
        while name in input_names(self.model):
            name += "_"
        return name

    @functools.cached_property
    def padded(self) -> frozenset[str]:
        """The inputs whose rows may be padded. Found by calling the model, at the first use."""
        names = input_names(self.model) if "predict" in self.roles else self.others
        found = invisibly_padded(self.model, names, self.vocabulary_sizes, self.pad_ids)
        masks = {
            name
            for name, (kind, tokens) in self.inputs_of_tokens.items()
            if kind == "mask_of" and tokens in found
        }
        return found | masks

    @property
    def masked_target(self) -> frozenset[str]:
        """The stepped input, if its embedding masks the padding id; otherwise empty."""
        return frozenset({self.target} & masked_ids(self.model).keys())

    @functools.cached_property
    def needing_a_token(self) -> frozenset[str]:
        """The inputs whose rows need at least one token. Found by calling the model."""
        names = input_names(self.model) if self.roles == ["predict"] else self.others
        return needing_a_token(self.model, names, self.vocabulary_sizes, self.pad_ids)

    def _check_steps(self, roles: list[str]) -> None:
        if not self.static and {"encode", "prefill", "decode"} & set(roles):
            raise ValueError(
                "a SavedModel has the signatures 'predict' and 'generate'; only .tflite files have "
                f"signatures with caches, got {roles}"
            )
        check_side_inputs(self.model, self.target)
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
            if self.strategy.draws:
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
        self.specs(self.others)  # raises if a length is missing

    def _check_outputs(self) -> None:
        outputs = self.model.output
        for name, x in outputs.items() if isinstance(outputs, dict) else ():
            if not isinstance(x, keras.KerasTensor):
                raise ValueError(
                    "outputs by name must be tensors: a signature has no nested outputs, but "
                    f"{name!r} of {self.model.name} is a {type(x).__name__}"
                )

    def _check_several(self) -> None:
        fixed = () if self.roles == ["predict"] else (self.target,)
        others = {*fixed, *self.own_lengths, *self.padded}
        open_ = inputs_with_open_length(self.model, others)
        if open_:
            raise ValueError(
                f"several source_lengths need a model that masks padding, but {open_[0]!r} of "
                f"{self.model.name} is not masked: use mask_zero=True or mask_id, or one length"
            )

    def specs(
        self,
        names: Sequence[str],
        length: int | None = None,
        lengths: Mapping[str, int | None] = MappingProxyType({}),
    ) -> dict[str, tf.TensorSpec]:
        """The specs of inputs by name; open axes get `length`, by default the longest.

        `lengths` overrides the length of some inputs.
        """
        longest = max(self.source_lengths, default=None)
        specs = {}
        for name, x in input_specs(self.model).items():
            if name not in names:
                continue
            here = longest if length is None else length
            here = lengths.get(name, self.own_lengths.get(name, here))
            if here is None and self.static and name in self.audio:
                here = self.audio[name].length  # what the layer pads to
            shape = [self.batch_size, *(here if d is None else d for d in x.shape[1:])]
            if self.static and None in shape:
                raise ValueError(
                    f"input {name!r} has shape {tuple(x.shape)}: give source_length, the length to "
                    "export it for"
                    + (" (and max_length, the target's)" if len(self.model.inputs) > 1 else "")
                )
            specs[name] = tf.TensorSpec(shape, "uint8" if name in self.images else x.dtype)
        return specs

    def named_lengths(self, role: str) -> list[tuple[str, int | None]]:
        """Names and lengths of a role's signatures: one, or one per source length."""
        if len(self.source_lengths) < 2:
            return [(role, next(iter(self.source_lengths), None))]
        return [(f"{role}_{length}", length) for length in self.source_lengths]

    def end_id_setting(self) -> int | list[int] | None:
        """The end tokens as the manifest stores them."""
        return self.end_ids[0] if len(self.end_ids) == 1 else list(self.end_ids) or None
