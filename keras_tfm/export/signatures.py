"""What an exported file offers: functions over the one model, with their inputs spelled out."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.generation.generator import check_ids, end_ids_of
from keras_tfm.generation.loop import generation_loop
from keras_tfm.generation.model_inputs import (
    call_model,
    find_target,
    input_names,
    input_specs,
    vocabulary_sizes,
)
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Strategy
from keras_tfm.layers.decoding_scope import exporting

# What a signature is for. In a file of several lengths its name ends with one of them.
ROLES = ("predict", "generate", "encode", "prefill", "decode")


@dataclass
class Signature:
    """A named function of tensors, ready for `keras.export.ExportArchive`."""

    name: str
    role: str
    function: Callable[..., dict[str, Any]]
    inputs: dict[str, tf.TensorSpec]
    vocabulary_sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    padded: frozenset[str] = frozenset()

    def manifest(self) -> dict[str, Any]:
        """The signature for the manifest of a file."""
        described = {}
        for name, spec in self.inputs.items():
            described[name] = {"shape": list(spec.shape), "dtype": spec.dtype.name}
            described[name]["padded"] = name in self.padded
            if name in self.vocabulary_sizes:
                described[name]["vocabulary_size"] = self.vocabulary_sizes[name]
        return {"role": self.role, "inputs": described, **self.settings}


class Request:
    """What is asked of an export, checked before anything is traced.

    Args:
        model: functional.
        roles: of `ROLES`; None: "generate" where a `start_id` or a `prompt_length` is given,
            otherwise "predict".
        batch_size, source_length, prompt_length, max_length: the static sizes; None leaves an axis
            open. Of `source_length` and `prompt_length` there may be several.
        start_id, end_id, target, strategy: as in `generation.Generator`.
        static: whether every axis must have a size.
        whole_caches: whether "prefill" and "decode" return the caches and not what they add.
    """

    def __init__(
        self,
        model: keras.Model,
        roles: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        source_length: int | Sequence[int] | None = None,
        prompt_length: int | Sequence[int] | None = None,
        max_length: int | None = None,
        start_id: int | None = None,
        end_id: int | Sequence[int] | None = None,
        target: str | None = None,
        strategy: Strategy | None = None,
        static: bool = True,
        whole_caches: bool = False,
    ):
        input_names(model)  # refuses what is not functional
        if roles is None:
            generates = start_id is not None or prompt_length is not None
            roles = ["generate"] if generates else ["predict"]
        unknown = [role for role in roles if role not in ROLES]
        if unknown or not roles or len(set(roles)) < len(roles):
            got = f"the string {roles!r}" if isinstance(roles, str) else list(roles)
            raise ValueError(f"signatures must be among {list(ROLES)}, got {got}")
        self.model = model
        self.roles = list(roles)
        # NumPy's integers become Python's: the manifest is JSON.
        self.batch_size = _index("batch_size", batch_size)
        self.source_lengths = _lengths("source_length", source_length)
        self.prompt_lengths = _lengths("prompt_length", prompt_length)
        self.max_length = None if max_length is None else _integer("max_length", max_length)
        self.start_id = None if start_id is None else _integer("start_id", start_id)
        self.end_ids = end_ids_of(end_id)
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy as Beam(4), got {strategy!r}")
        self.strategy = strategy
        self.static = static
        self.whole_caches = whole_caches
        self.vocabulary_sizes = vocabulary_sizes(model)
        self._target = target
        steps = [role for role in self.roles if role != "predict"]
        if steps:
            self._check_steps(steps)
        if whole_caches and "decode" not in self.roles:
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

    @functools.cached_property
    def padded(self) -> frozenset[str]:
        """The inputs whose ids may be followed by zeros. Found out at the first use: by calling."""
        names = input_names(self.model) if "predict" in self.roles else self.others
        return invisibly_padded(self.model, names, self.vocabulary_sizes)

    def _check_steps(self, roles: list[str]) -> None:
        if not self.static and {"encode", "prefill", "decode"} & set(roles):
            raise ValueError(
                "a SavedModel has the signatures 'predict' and 'generate'; caches are passed in "
                "and out of .tflite files only"
            )
        if self.max_length is None:
            raise ValueError(f"the signature {roles[0]!r} needs max_length, got None")
        if "generate" in roles and self.start_id is None and not self.prompt_lengths:
            raise ValueError(
                "a generate signature needs a start_id, or a prompt_length where prompts are given"
            )
        if "generate" in roles and not self.others and not self.prompt_lengths:
            raise ValueError(
                f"{self.model.name} has no input but {self.target!r}: a generate signature that "
                "begins with start_id would always give the same tokens; give a prompt_length"
            )
        if "prefill" in roles and not self.prompt_lengths:
            raise ValueError("a prefill signature needs a prompt_length, or several")
        if self.prompt_lengths and max(self.prompt_lengths) >= self.max_length:
            raise ValueError(
                f"a prompt_length must be less than max_length ({self.max_length}), "
                f"got {max(self.prompt_lengths)}"
            )
        lonely = [role for role in roles if role in ("encode", "prefill")]
        if lonely and "decode" not in roles:
            raise ValueError(
                f"the signature {lonely[0]!r} makes caches for 'decode': export that too, "
                f"got {self.roles}"
            )
        if "encode" in roles and not self.others:
            raise ValueError(
                f"{self.model.name} has no input but {self.target!r}: there is nothing to encode; "
                "a prefill signature reads a prompt"
            )
        check_ids(self.model, self.target, self.max_length, self.start_id, self.end_ids)
        if self.strategy is not None:
            if self.strategy.draws:
                raise ValueError(
                    f"{type(self.strategy).__name__} draws random numbers, which no file of "
                    "builtin operators can: export 'decode', and choose among its logits"
                )
            if self.strategy.reads_features:
                raise ValueError(
                    f"{type(self.strategy).__name__} reads the features before the logits, which "
                    "a signature of this model does not have"
                )
            self.strategy.check(self.model.outputs[0].shape[-1])
        self.specs(self.others)  # raises if a length is missing

    def _check_several(self) -> None:
        open_ = [name for name in self._with_open_length() if name not in self.padded]
        if open_:
            raise ValueError(
                f"several source_lengths need a model to which padding is invisible, but "
                f"{open_[0]!r} of {self.model.name} is not masked: use mask_zero=True, or one "
                "length"
            )

    def _with_open_length(self) -> list[str]:
        fixed = () if self.roles == ["predict"] else (self.target,)
        return [
            name
            for name, x in input_specs(self.model).items()
            if None in x.shape[1:] and name not in fixed
        ]

    def specs(
        self, names: Sequence[str], length: int | None = None, **lengths: int | None
    ) -> dict[str, tf.TensorSpec]:
        """Of inputs by name; axes of unknown size get `length`, the longest by default."""
        longest = max(self.source_lengths, default=None)
        specs = {}
        for name, x in input_specs(self.model).items():
            if name not in names:
                continue
            here = lengths.get(name, longest if length is None else length)
            shape = [self.batch_size, *(here if d is None else d for d in x.shape[1:])]
            if self.static and None in shape:
                raise ValueError(
                    f"input {name!r} has shape {tuple(x.shape)}: give source_length, the length it "
                    "is exported for"
                    + (" (and max_length, the target's)" if len(self.model.inputs) > 1 else "")
                )
            specs[name] = tf.TensorSpec(shape, x.dtype, name=name)
        return specs

    def named_lengths(self, role: str) -> list[tuple[str, int | None]]:
        """A signature's names and lengths: `role`, or one for each of several source lengths."""
        if len(self.source_lengths) < 2:
            return [(role, next(iter(self.source_lengths), None))]
        return [(f"{role}_{length}", length) for length in self.source_lengths]

    def end_id_setting(self) -> int | list[int] | None:
        """The end tokens as the manifest has them."""
        return self.end_ids[0] if len(self.end_ids) == 1 else list(self.end_ids) or None


def make_signatures(request: Request) -> list[Signature]:
    """The signatures asked for; nothing is traced yet. Raises if the model cannot be stepped."""
    from keras_tfm.export import stepped_signatures as stepped

    if request.roles != ["predict"]:
        assert request.max_length is not None
        check_stepping(request.model, request.target, length=request.max_length)

    caches = stepped.Caches(request)
    makers: dict[str, Callable[[], list[Signature]]] = {
        "predict": lambda: predict(request),
        "generate": lambda: generate(request),
        "encode": lambda: stepped.encode(caches),
        "prefill": lambda: stepped.prefill(caches),
        "decode": lambda: stepped.decode(caches),
    }
    return [signature for role in request.roles for signature in makers[role]()]


def predict(request: Request) -> list[Signature]:
    """One full pass."""
    model, names = request.model, input_names(request.model)
    lengths: dict[str, int | None] = {}
    if request.static and request.max_length is not None and len(names) > 1:
        lengths = {request.target: request.max_length}
    return [
        Signature(
            name,
            "predict",
            _predict(model),
            request.specs(names, length, **lengths),
            request.vocabulary_sizes,
            padded=request.padded,
        )
        for name, length in request.named_lengths("predict")
    ]


def generate(request: Request) -> list[Signature]:
    """Ids in, tokens out, the loop and its caches inside."""
    settings: dict[str, Any] = {
        "max_length": request.max_length,
        "start_id": request.start_id,
        "end_id": request.end_id_setting(),
        "pad_id": 0,
        "target": request.target,
        "strategy": _described(request.strategy),
    }
    result = []
    for name, length in request.named_lengths("generate"):
        specs = request.specs(request.others, length)
        for prompt_length in request.prompt_lengths or (None,):
            inputs, here, full_name = dict(specs), dict(settings), name
            if prompt_length is not None:
                batch = request.batch_size
                inputs[request.target] = tf.TensorSpec((batch, prompt_length), "int32")
                inputs["padding"] = tf.TensorSpec((batch,), "int32")
                here["prompt"] = request.target
                if len(request.prompt_lengths) > 1:
                    full_name = f"{name}_{prompt_length}"
            result.append(
                Signature(
                    full_name,
                    "generate",
                    _generate(request),
                    inputs,
                    request.vocabulary_sizes,
                    here,
                    request.padded - {request.target},
                )
            )
    return result


def _described(strategy: Strategy | None) -> dict[str, Any] | None:
    """A strategy's name and those of its settings that are numbers; None is greedy."""
    if strategy is None:
        return None
    numbers: dict[str, float] = {}
    if dataclasses.is_dataclass(strategy):
        settings = dataclasses.asdict(strategy).items()
        numbers = {key: x for key, x in settings if isinstance(x, int | float)}
    return {"name": type(strategy).__name__, **numbers}


def invisibly_padded(
    model: keras.Model, names: Sequence[str], sizes: dict[str, int]
) -> frozenset[str]:
    """Of the inputs `names`, those of ids whose outputs stay as they are when zeros follow them.

    Where inputs must have one length, ids of the others get as many zeros.
    """
    specs = input_specs(model)
    ids = tuple(key for key, x in specs.items() if "int" in x.dtype and x.shape[1:] == (None,))

    @functools.cache
    def outputs(difference: int, longer: tuple[str, ...]) -> list[np.ndarray] | None:
        """With zeros after the ids of `longer`; None where inputs must have one length."""
        inputs = {
            key: np.pad(x, ((0, 0), (0, 3))) if key in longer else x
            for key, x in _some_rows(specs, sizes, difference).items()
        }
        try:
            flat = keras.tree.flatten(call_model(model, inputs))
            return [keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in flat]
        except Exception:
            return None

    def is_invisible(name: str) -> bool:
        for difference, longer in ((1, (name,)), (0, ids)):
            short, long = outputs(difference, ()), outputs(difference, longer)
            if short is not None and long is not None:
                return all(_as_before(*pair) for pair in zip(short, long, strict=True))
        return False

    return frozenset(name for name in names if name in ids and is_invisible(name))


def _some_rows(specs: dict[str, Any], sizes: dict[str, int], difference: int) -> dict[str, Any]:
    """Rows of every input, of lengths that differ by so much: ids at random, and one id alone."""
    generator = np.random.default_rng(0)
    inputs = {}
    for i, (key, x) in enumerate(specs.items()):
        shape = (12, *(5 + i * difference if d is None else d for d in x.shape[1:]))
        if "int" in x.dtype or key in sizes:
            size = sizes.get(key, 3)  # unknown inside a nested model: ids that any has
            values: Any = generator.integers(min(1, size - 1), size, shape)
            if len(shape) == 2:
                values[4:] = np.linspace(min(1, size - 1), size - 1, 8).astype(int)[:, np.newaxis]
        else:
            values = generator.normal(size=shape)
        inputs[key] = values.astype(x.dtype)
    return inputs


def _as_before(short: np.ndarray, long: np.ndarray) -> bool:
    """Whether outputs are the same, as far as float32 and how much they differ by rows tell."""
    if short.shape != long.shape:
        long = long[:, : short.shape[1]]
    finite = np.isfinite(short)
    if not np.array_equal(short[~finite], long[~finite]):
        return False
    numbers = short[finite]
    allowed = 1e-3 * (numbers.std() if numbers.size else 0.0) + 1e-5 * np.abs(numbers)
    return bool((np.abs(numbers - long[finite]) <= allowed).all())


def _generate(request: Request) -> Callable[..., dict[str, Any]]:
    def generate(**inputs: Any) -> dict[str, Any]:
        assert request.max_length is not None
        prompt, padding = inputs.pop(request.target, None), inputs.pop("padding", None)
        length, limit = request.max_length, None
        if prompt is None:
            first = next(iter(inputs.values()))
            batch = first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]
            prompt = tf.fill((batch, 1), tf.constant(request.start_id, tf.int32))
        else:
            # Padding lies before a prompt, so that all rows end together: room for the most of it.
            length += prompt.shape[1] - 1
            limit = padding + request.max_length
        return generation_loop(
            request.model,
            inputs,
            request.target,
            prompt,
            length,
            request.end_ids,
            request.strategy,
            score=False,
            padding=padding,
            limit=limit,
            # LiteRT copies the caches at every step, so small ones are worth a loop of their own;
            # how small for a beam of 4 was measured, see benchmarks/NOTES.md.
            room=32 if request.strategy is None or request.strategy.width == 1 else 96,
        )

    return generate


def _predict(model: keras.Model) -> Callable[..., dict[str, Any]]:
    def predict(**inputs: Any) -> dict[str, Any]:
        with exporting():
            outputs = call_model(model, inputs)
        return named_outputs(model, outputs)

    return predict


def named_outputs(model: keras.Model, outputs: Any) -> dict[str, Any]:
    """A model's outputs by the names they have in a file."""
    if isinstance(outputs, dict):
        return outputs
    flat = keras.tree.flatten(outputs)
    if len(flat) == 1:
        return {"output": flat[0]}
    names: list[str] = []
    for name in model.output_names:  # one layer's outputs have one name
        unique, number = name, 1
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return dict(zip(names, flat, strict=True))


def _index(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    value = _integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _lengths(name: str, values: int | Sequence[int] | None) -> tuple[int, ...]:
    """None, one or several lengths, ascending."""
    if values is None:
        return ()
    several: list[Any] = list(np.atleast_1d(np.asarray(values, object)))
    result = sorted({_index(name, value) or 0 for value in several})
    if len(result) < len(several) or not result:
        raise ValueError(f"{name} must be one length or several different ones, got {values}")
    return tuple(result)
