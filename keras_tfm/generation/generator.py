"""Tokens from a model: `generate`, and `Generator`, which keeps what it compiled."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.generation.model_inputs import (
    find_target,
    input_names,
    input_specs,
    vocabulary_sizes,
    with_features,
)
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Greedy, Strategy

# How many generators a model keeps for `generate`.
MOST_KEPT = 8


class Generated(NamedTuple):
    """What was generated.

    Attributes:
        tokens: (B, T), int32, start token or prompt first, 0 after the end; (B, n, T) where the
            strategy returns n hypotheses a row.
        scores: (B,) or (B, n), float32: the sum of the log-probabilities of the generated tokens,
            of a `Beam` divided by its length penalty.
    """

    tokens: np.ndarray
    scores: np.ndarray


class Generator:
    """Generates tokens with a trained model, compiled once for each shape of input.

    Args:
        model: a functional model whose output is logits (B, T, V) over the ids of the input that is
            stepped.
        max_length: the most tokens a row gets, prompt included.
        start_id: the token that every row begins with, where `inputs` bring no prompt.
        end_id: the token that ends a row, or several of them; None never stops early.
        strategy: how the next token is chosen; `Greedy()` by default.
        target: the name of the input that is stepped; "target", or the only one, by default.
        max_new_tokens: instead of `max_length`, the most tokens a row gets after its prompt.
        jit_compile: whether XLA compiles the loop: twice as fast, after a few seconds for each new
            shape of inputs. Without it, on TensorFlow, one graph serves inputs of many shapes.

    Raises:
        ValueError: the model cannot be stepped (the error names the layer), or an argument is out
            of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Beam, Generator
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generator = Generator(model, max_length=5, start_id=1, strategy=Beam(2))
    >>> generator({"source": np.array([[3, 4, 5], [6, 7, 0]])}).tokens.shape
    (2, 5)

    Prompts may differ in length; each row goes on from its own end:

    >>> prompts = {"source": np.array([[3, 4], [6, 7]]), "target": [[1], [1, 5, 6]]}
    >>> generator(prompts).tokens[1, :3].tolist()
    [1, 5, 6]
    """

    def __init__(
        self,
        model: keras.Model,
        max_length: int | None = None,
        start_id: int | None = None,
        end_id: int | Sequence[int] | None = None,
        strategy: Strategy | None = None,
        target: str | None = None,
        max_new_tokens: int | None = None,
        jit_compile: bool = False,
    ):
        self.model = model
        self.target = find_target(model, target)
        if (max_length is None) == (max_new_tokens is None):
            raise ValueError(
                "give max_length or max_new_tokens, one of the two, "
                f"got {max_length} and {max_new_tokens}"
            )
        check_integer("max_new_tokens", max_new_tokens, optional=True)
        if jit_compile and keras.backend.backend() != "tensorflow":
            raise ValueError(
                "jit_compile=True needs Keras's TensorFlow backend, "
                f"got {keras.backend.backend()!r}"
            )
        self.jit_compile = jit_compile
        self.max_length, self.max_new_tokens = max_length, max_new_tokens
        length = max_length if max_new_tokens is None else max_new_tokens + 1
        assert length is not None
        self.start_id, self.end_ids = start_id, end_ids_of(end_id)
        check_ids(model, self.target, length, start_id, self.end_ids)
        check_stepping(model, self.target, length=length)
        self.strategy = strategy or Greedy()
        self.strategy.check(model.outputs[0].shape[-1])
        self._stepped = with_features(model) if self.strategy.reads_features else model
        self._specs = input_specs(model)
        self._vocabulary_sizes = vocabulary_sizes(model)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, inputs: Any) -> Generated:
        """Generates a row for each row of `inputs`.

        Args:
            inputs: the model's inputs by name, without the stepped one, or with it as a prompt; or
                one array, where the model has one input besides the stepped one (or none: the
                prompt). A prompt is an array (B, P), or a list of rows of any lengths; beside other
                inputs it forces how the answers begin.

        Raises:
            ValueError: an input of a wrong name, shape or range, an empty prompt or one that leaves
                no room, or logits whose softmax is NaN.
        """
        prepared = self._prepare(inputs)
        if not len(prepared.prompt):
            hypotheses = self.strategy.hypotheses
            shape = (0,) if hypotheses == 1 else (0, hypotheses)
            return Generated(
                np.zeros((*shape, prepared.longest), "int32"), np.zeros(shape, "float32")
            )
        result = self._function("run", prepared)(*prepared.tensors)
        result = {name: ops.convert_to_numpy(x) for name, x in result.items()}
        _check_finite(int(result["failed"]), prepared)
        tokens = result["tokens"]
        if prepared.padding is not None:
            for row, padding in enumerate(prepared.padding):
                tokens[row] = np.roll(tokens[row], -padding, axis=-1)
        return Generated(np.ascontiguousarray(tokens[..., : prepared.longest]), result["scores"])

    def stream(self, inputs: Any) -> Iterator[np.ndarray]:
        """Yields the tokens (B,), int32, of every step as soon as they are chosen; 0 after an end.

        The arguments and errors are those of a call.

        >>> import keras
        >>> from keras_tfm import layers
        >>> from keras_tfm.generation import Generator
        >>> ids = keras.Input((None,), dtype="int32")
        >>> embedding = layers.TokenEmbedding(7, dim=8)
        >>> block = layers.TransformerDecoderBlock(16, 2, cross_attention=False)
        >>> model = keras.Model(ids, embedding(block(embedding(ids)), reverse=True))
        >>> len(list(Generator(model, max_length=6).stream([[3, 4]])))
        4
        """
        if not self.strategy.streams:
            raise ValueError(
                f"{type(self.strategy).__name__} cannot be streamed: "
                "what it chooses first may change later"
            )
        prepared = self._prepare(inputs)
        if not len(prepared.prompt):
            return
        state = self._function("start", prepared)(*prepared.tensors)
        step = self._function("step", prepared)
        for column in range(prepared.prompt.shape[1], prepared.length):
            changes, more = step(state, *prepared.tensors)
            cache = {**state["cache"], **changes["cache"]}
            state = {**state, **changes, "cache": cache}
            _check_finite(int(state["failed"]), prepared)
            yield ops.convert_to_numpy(state["strategy"].tokens[:, column])
            if not bool(more):
                return

    def _prepare(self, inputs: Any) -> "_Prepared":
        """The inputs checked, the prompts made equally long."""
        arrays, rows = self._named(inputs)
        if rows is None:
            if self.start_id is None:
                raise ValueError(f"give a start_id, or a prompt as the input {self.target!r}")
            if not arrays:
                raise ValueError(f"inputs must have a prompt, {self.target!r}: got none")
            rows = np.full((len(next(iter(arrays.values()))), 1), self.start_id, "int32")
        counts = {name: len(x) for name, x in {**arrays, self.target: rows}.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {counts}")
        lengths = np.array([len(row) for row in rows], "int32")
        longest = int(lengths.max(initial=1))
        # A few widths serve prompts of all lengths: fewer graphs.
        width = 1 << (longest - 1).bit_length()
        padding = width - lengths
        if self.max_new_tokens is None:
            assert self.max_length is not None
            if len(lengths) and not (lengths.min() > 0 and longest < self.max_length):
                raise ValueError(
                    "a prompt must have at least one token and fewer than max_length "
                    f"({self.max_length}), got {lengths.min()} to {longest}"
                )
            ends = np.full(len(lengths), self.max_length, "int32")
            length = self.max_length
            if padding.any():
                length += 1 << int(padding.max() - 1).bit_length()
        else:
            if len(lengths) and not lengths.min():
                raise ValueError("a prompt must have at least one token, got one of none")
            ends = lengths + np.int32(self.max_new_tokens)
            length = width + self.max_new_tokens
        prompt = np.zeros((len(lengths), width), "int32")
        for row, tokens, before in zip(prompt, rows, padding, strict=True):
            row[before:] = tokens
        is_padded = bool(padding.any())
        return _Prepared(
            arrays,
            prompt,
            padding.astype("int32") if is_padded else None,
            (padding + ends).astype("int32") if is_padded else None,
            np.random.SeedSequence(self.strategy.seed).generate_state(2).astype("int64")
            % (2**31 - 1),
            length,
            int(ends.max(initial=self.max_length or 1)),
        )

    def _function(self, name: str, prepared: "_Prepared") -> Callable[..., Any]:
        """The loop, its start or its step, compiled for the lengths of what was prepared."""
        key = (name, prepared.prompt.shape[1], prepared.length, prepared.padding is not None)
        if key not in self._compiled:

            def loop(arrays: Any, prompt: Any, padding: Any, limit: Any, seed: Any) -> Any:
                return GenerationLoop(
                    self._stepped,
                    arrays,
                    self.target,
                    prompt,
                    prepared.length,
                    self.end_ids,
                    self.strategy,
                    padding=padding,
                    limit=limit,
                    seed=seed,
                    xla=self.jit_compile or keras.backend.backend() == "jax",
                )

            def start(*tensors: Any) -> Any:
                this = loop(*tensors)
                state = this.start()
                return {**state, "encoded": this.encoded}

            def step(state: Any, *tensors: Any) -> Any:
                this = loop(*tensors)
                this.encoded = state["encoded"]
                after = this.step(state)
                # Not what stays as it is: a compiled function copies all that it returns.
                changes = {**after, "cache": this.growing_entries(after["cache"])}
                return changes, this.unfinished({**state, **after})

            functions: dict[str, Callable[..., Any]] = {
                "run": lambda *tensors: loop(*tensors).run(),
                "start": start,
                "step": step,
            }
            self._compiled[key] = _compile(functions[name], self.jit_compile)
        return self._compiled[key]

    def _named(self, inputs: Any) -> tuple[dict[str, np.ndarray], Any]:
        """The inputs by name, and the rows of the prompt, or None."""
        names = input_names(self.model)
        others = [name for name in names if name != self.target]
        if not isinstance(inputs, dict):
            if len(others) > 1:
                raise ValueError(f"the model has inputs {others}: give a dictionary of arrays")
            inputs = {(others or [self.target])[0]: inputs}
        missing = [name for name in others if name not in inputs]
        surplus = [name for name in inputs if name not in names]
        if missing or surplus:
            raise ValueError(
                f"inputs must be {others} and may have {self.target!r}; "
                f"missing: {missing}, unknown: {surplus}"
            )
        inputs = dict(inputs)
        rows = inputs.pop(self.target, None)
        if rows is not None:
            rows = self._rows(rows)
        arrays = {}
        for name, x in inputs.items():
            array, wanted = np.asarray(ops.convert_to_numpy(x)), self._specs[name].dtype
            if "int" in wanted and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"input {name!r} must be integers, got {array.dtype}")
            if wanted == "bool" and array.dtype.kind not in "biu":
                raise TypeError(f"input {name!r} must be bool, got {array.dtype}")
            if array.ndim != len(self._specs[name].shape):
                raise ValueError(
                    f"input {name!r} must have shape {tuple(self._specs[name].shape)}, "
                    f"got {array.shape}"
                )
            self._check_range(name, array)
            arrays[name] = array.astype(wanted)
        return arrays, rows

    def _rows(self, rows: Any) -> list[np.ndarray]:
        """The prompts, each (P,), int32."""
        if not isinstance(rows, list | tuple):
            rows = ops.convert_to_numpy(rows)
            if rows.ndim != 2:
                raise ValueError(f"a prompt must have shape (B, P), got {rows.shape}")
        result = []
        for row in rows:
            array = np.asarray(row)
            if array.size and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"input {self.target!r} must be integers, got {array.dtype}")
            if array.ndim != 1:
                raise ValueError(
                    f"a prompt must have shape (B, P) or be a list of rows, got a row {array.shape}"
                )
            self._check_range(self.target, array)
            result.append(array.astype("int32"))
        return result

    def _check_range(self, name: str, ids: np.ndarray) -> None:
        size = self._vocabulary_sizes.get(name)
        if size is not None and ids.size and (ids.min() < 0 or ids.max() >= size):
            raise ValueError(f"{name}: ids must be in 0..{size - 1}, got {ids.min()}..{ids.max()}")


def generate(
    model: keras.Model,
    inputs: Any,
    max_length: int | None = None,
    start_id: int | None = None,
    end_id: int | Sequence[int] | None = None,
    strategy: Strategy | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
) -> Generated:
    """Generates tokens; the arguments are those of `Generator` and of its call.

    The model keeps the generators of the last calls with their compiled loops, so a second call
    with the same arguments compiles nothing.

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, np.array([[3, 4, 5]]), max_length=4, start_id=1).tokens[0, 0]
    np.int32(1)
    """
    arguments = (max_length, start_id, _hashable(end_id), strategy, target, max_new_tokens)
    return _kept_generator(model, arguments)(inputs)


def _kept_generator(model: keras.Model, arguments: tuple[Any, ...]) -> Generator:
    """The generator of an earlier call with the same arguments, or a new one."""
    # Beside the attributes that Keras tracks. What was compiled reads these very variables: LoRA
    # and `quantize` make others.
    kept = vars(model).setdefault("_keras_tfm_generators", {})
    variables = tuple(id(variable) for variable in model.variables)
    try:
        generator = kept.pop((variables, arguments), None)
    except TypeError:  # a strategy of one's own that cannot be hashed
        return Generator(model, *arguments)
    if generator is None:
        generator = Generator(model, *arguments)
    kept[variables, arguments] = generator  # the last used is the last
    while len(kept) > MOST_KEPT:
        kept.pop(next(iter(kept)))
    return generator


def _hashable(end_id: Any) -> Any:
    return end_id if end_id is None or np.ndim(end_id) == 0 else tuple(end_id)


def end_ids_of(end_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """None, one or several end tokens as a tuple."""
    if end_id is None:
        return ()
    try:
        return (operator.index(end_id),)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return tuple(operator.index(value) for value in end_id)  # type: ignore[union-attr]
    except TypeError as error:
        raise TypeError(f"end_id must be an integer, several or None, got {end_id!r}") from error


def check_ids(
    model: keras.Model, target: str, max_length: int, start_id: int | None, end_ids: Sequence[int]
) -> None:
    """Raises unless lengths and special tokens can be right for the model's logits."""
    if max_length < 2:
        raise ValueError(
            f"max_length must be at least 2, the start token included, got {max_length}"
        )
    if len(model.outputs) != 1:
        raise ValueError(
            f"a model that generates has one output, its logits; got {len(model.outputs)}"
        )
    size = model.outputs[0].shape[-1]
    taken = vocabulary_sizes(model).get(target, size)
    if taken < size:
        raise ValueError(
            f"the logits are over {size} ids, but the input {target!r} takes only {taken}"
        )
    for name, value in (("start_id", start_id), *(("end_id", end_id) for end_id in end_ids)):
        if value is not None and not 0 <= value < size:
            raise ValueError(f"{name} must be in 0..{size - 1}, got {value}")


class _Prepared(NamedTuple):
    """Inputs of a loop: arrays by name, the prompt (B, P), and how far the loop goes."""

    arrays: dict[str, np.ndarray]
    prompt: np.ndarray
    padding: np.ndarray | None
    limit: np.ndarray | None
    seed: np.ndarray
    length: int  # the columns of the loop
    longest: int  # the columns of the result

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The arguments of what is compiled."""
        seed = ops.convert_to_tensor(self.seed, dtype="int32")
        return self.arrays, self.prompt, self.padding, self.limit, seed


def _check_finite(failed: int, prepared: _Prepared) -> None:
    if failed >= 0:
        raise ValueError(
            "the softmax of the model's logits is NaN for new token "
            f"{failed - prepared.prompt.shape[1]}: "
            "its weights or inputs hold NaN, or its activations overflow"
        )


def _compile(function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
    """A graph on TensorFlow, of which other shapes are made general. Elsewhere as it is."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function, autograph=False, reduce_retracing=True, jit_compile=jit_compile)
