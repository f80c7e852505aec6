"""`Generator`: token generation with compiled loops."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.loop import GenerationLoop, State
from keras_tfm.generation.preparation import Preparation, Prepared, check_ids, end_ids_of
from keras_tfm.generation.stepped_model import positions_to_check
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Greedy, Strategy
from keras_tfm.generation.strategies.beam import IMPOSSIBLE
from keras_tfm.generation.tokenizers.texts import Texts
from keras_tfm.layers.types import Tensor
from keras_tfm.models.features import with_features
from keras_tfm.models.quantization.state import TrainedQuantization, quantization_of, rounded_reads
from keras_tfm.models.without_storage import allocate_if_missing
from keras_tfm.runtime.tasks.text import Hypothesis, pieces


class Generated(NamedTuple):
    """The generated tokens and their scores.

    Attributes:
        tokens: (B, T), int32, starting with the start token or the prompt. Columns after the end
            hold the padding id of the stepped input, by default 0. (B, n, T) if the strategy
            returns n hypotheses per row.
        scores: (B,) or (B, n), float32, the sum of the log-probabilities of the generated tokens;
            `Beam` divides it by its length penalty.
    """

    tokens: np.ndarray
    scores: np.ndarray


class Generator:
    """Generates tokens with a trained model, compiled once for each shape of input.

    Args:
        model: functional `keras.Model` whose output is logits (B, T, V) over the ids of the stepped
            input.
        max_length: int, maximum number of tokens of a row, including the prompt.
        start_id: int, the first token of every row without a prompt.
        end_id: int or list of int, the tokens that end a row. Default: no early stop.
        strategy: `Strategy`, how the next token is chosen. Default: `Greedy()`.
        target: str, name of the stepped input, which gets the generated tokens. Default:
            "target", or the only input.
        max_new_tokens: int, maximum number of tokens after a row's prompt, instead of `max_length`.
        jit_compile: bool, whether XLA compiles the loop, which makes it twice as fast but takes a
            few seconds for each new shape of inputs. Without XLA, on TensorFlow, one graph serves
            inputs of many shapes.
        tokenizer: tokenizer for `generate_text` and `stream_text`: a `tokenizers.Tokenizer`, a
            `sentencepiece.SentencePieceProcessor`, a tokenizer of keras-hub, or the path of such a
            file; one for all inputs of ids, or a dictionary by input.

    Raises:
        ValueError: the model cannot be stepped (the error names the layer), an argument is out of
            range, or a tokenizer does not fit the model.
        TypeError: an unsupported tokenizer, or `strategy` is not a `Strategy`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Beam, Generator
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generator = Generator(model, max_length=5, start_id=1, strategy=Beam(2))
    >>> generator({"source": np.array([[3, 4, 5], [6, 7, 0]])}).tokens.shape
    (2, 5)

    Prompts may differ in length; each row continues from its own end:

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
        tokenizer: Any = None,
    ):
        self.model = model
        self.target = interface_of(model).find_target(target)
        if (max_length is None) == (max_new_tokens is None):
            raise ValueError(
                "give either max_length or max_new_tokens, "
                f"got max_length={max_length} and max_new_tokens={max_new_tokens}"
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
        allocate_if_missing(model)  # each call takes all weights
        check_stepping(model, self.target, length=positions_to_check(model, self.target, length))
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy such as Beam(4), got {strategy!r}")
        self.strategy = strategy or Greedy()
        self.strategy.check(model.outputs[0].shape[-1])
        for processor in self.strategy.processors:
            if jit_compile and getattr(processor, "calls_python", False):
                raise ValueError(
                    f"{type(processor).__name__} calls Python in each step, which XLA cannot: "
                    "use jit_compile=False"
                )
        self._stepped = with_features(model) if self.strategy.reads_features else model
        self._texts = None
        if tokenizer is not None:
            self._texts = Texts(model, self.target, tokenizer, start_id, self.end_ids)
        self._preparation = Preparation(model, self.target, max_length, max_new_tokens, start_id)
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._variables: tuple[keras.Variable, ...] = ()
        self._rounding: TrainedQuantization | None = None

    def __call__(self, inputs: Any) -> Generated:
        """Generates a row for each row of `inputs`.

        Args:
            inputs: dict of the model's inputs by name, in which the stepped input is optional and
                holds prompts. Or one array, if the model has one input besides the stepped one, or
                only the stepped one (the prompts). Prompts are an array (B, P) or a list of rows of
                any lengths. In an encoder-decoder model they are the first tokens of the answers.

        Returns:
            A `Generated` of tokens and scores.

        Raises:
            ValueError: an input has a wrong name, shape or range; a prompt is empty or not shorter
                than `max_length`; the softmax of the logits is NaN; or the processors allow no
                token.
            TypeError: an input has the wrong dtype.
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
        self._check_finite(int(result["failed"]), prepared)
        if self.strategy.processors:
            self._check_allowed(result["scores"])
        tokens = result["tokens"]
        if prepared.padding is not None:
            for row, padding in enumerate(prepared.padding):
                tokens[row] = np.roll(tokens[row], -padding, axis=-1)
        tokens = np.ascontiguousarray(tokens[..., : prepared.longest])
        if self.strategy.copies == 1:
            return Generated(tokens, result["scores"])
        shape = (-1, self.strategy.copies)
        return Generated(tokens.reshape(*shape, tokens.shape[-1]), result["scores"].reshape(shape))

    def stream(self, inputs: Any) -> Iterator[np.ndarray]:
        """Yields the tokens (B,), int32, of each step; finished rows get the padding id.

        With n hypotheses per row, (B, n). Arguments and errors are those of a call.

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
                "its first tokens may change later"
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
            self._check_finite(int(state["failed"]), prepared)
            if self.strategy.processors:
                self._check_allowed(ops.convert_to_numpy(state["strategy"].scores))
            tokens = ops.convert_to_numpy(state["strategy"].tokens[:, column])
            yield tokens if self.strategy.copies == 1 else tokens.reshape(-1, self.strategy.copies)
            if not bool(more):
                return

    def generate_text(self, texts: Any) -> Any:
        """Generates a text for each text, with the generator's tokenizer.

        Args:
            texts: str or list of str, texts for the source, or the prompts of a decoder-only model;
                or a dictionary of texts by input, with prompts for the stepped input, and arrays
                for inputs without a tokenizer.

        Returns:
            The prompt, if any, and the generated text up to the end, without special tokens; a text
            for a text, a list for a list. With several hypotheses per row, each is a list of
            `Hypothesis(text, score)`.

        Raises:
            TypeError: an argument is not a text.
            ValueError: there is no tokenizer, or an error of a call.
        """
        converter = self._converter()
        given = converter.inputs_of(texts)
        tokens, scores = self(given.inputs)
        result: list[Any] = []
        for prompt, rows, several in zip(given.prompts, tokens, scores, strict=True):
            if rows.ndim == 1:
                result.append(converter.text_of(prompt, rows))
            else:
                written = [converter.text_of(prompt, row) for row in rows]
                result.append([*map(Hypothesis, written, several.tolist())])
        return result[0] if given.single else result

    def stream_text(self, text: Any) -> Iterator[str]:
        """Yields the generated text piece by piece; joined, `generate_text` after the prompt.

        Args:
            text: str, or dict with one text for each input.

        Raises:
            TypeError, ValueError: as `generate_text`; or there are several texts or hypotheses.
        """
        converter = self._converter()
        given = converter.inputs_of(text)
        if len(given.prompts) * self.strategy.hypotheses != 1:
            raise ValueError(
                "one text is streamed at a time, "
                f"got {len(given.prompts)} with {self.strategy.hypotheses} hypotheses each"
            )
        tokens = (int(token[0]) for token in self.stream(given.inputs))
        before = converter.before(given.prompts[0])
        return pieces(tokens, converter.target, before, self.end_ids)

    def _converter(self) -> Texts:
        if self._texts is None:
            raise ValueError("texts need a tokenizer: give the generator tokenizer=")
        return self._texts

    def _prepare(self, inputs: Any) -> Prepared:
        prepared = self._preparation(inputs, self._seed()).repeat_rows(self.strategy.copies)
        self.strategy.check_length(prepared.shortest)
        return prepared

    def _function(self, name: str, prepared: Prepared) -> Callable[..., Any]:
        """The loop, its start or its step, compiled for the lengths of the prepared inputs."""
        self._drop_outdated_loops()
        key = (name, prepared.prompt.shape[1], prepared.length, prepared.padding is not None)
        if key not in self._compiled:

            def loop(
                arrays: dict[str, Tensor],
                prompt: Tensor,
                padding: Tensor | None,
                limit: Tensor | None,
                seed: Tensor,
            ) -> GenerationLoop:
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
                    pad_id=self._preparation.pad_id,
                )

            def start(*tensors: Tensor) -> State:
                this = loop(*tensors)
                state = this.start()
                return {**state, "encoded": this.encoded}

            def step(state: State, *tensors: Tensor) -> tuple[State, Tensor]:
                this = loop(*tensors)
                this.encoded = state["encoded"]
                after = this.step(state)
                # Only the entries that change: a compiled function copies everything it returns.
                changes = {**after, "cache": this.changing_entries(after["cache"])}
                return changes, this.is_unfinished({**state, **after})

            functions: dict[str, Callable[..., Any]] = {
                "run": lambda *tensors: loop(*tensors).run(),
                "start": start,
                "step": step,
            }
            function = functions[name]

            def run_rounded(*tensors: Any) -> Any:
                with rounded_reads(self.model):  # once for all steps of a loop
                    return function(*tensors)

            compiled = compile_function(run_rounded, self._variables, self.jit_compile)
            self._compiled[key] = compiled
        return self._compiled[key]

    def _drop_outdated_loops(self) -> None:
        """Drops the compiled loops if LoRA or `quantize` replaced the variables that they read.

        And if the rounding of `models.enable_quantization` changed.
        """
        variables = (*self.model.variables, *self.strategy.variables)
        rounding = quantization_of(self.model)
        same = [*map(id, variables)] == [*map(id, self._variables)]
        if not same or rounding is not self._rounding:
            self._compiled.clear()
            self._variables, self._rounding = variables, rounding

    def _seed(self) -> int | None:
        """The strategy's seed, or one from Keras's global generator; None if it does not draw."""
        if self.strategy.seed is not None or not self.strategy.draws:
            return self.strategy.seed
        drawn = keras.random.randint((), 0, 2**31 - 1, dtype="int32")
        return int(ops.convert_to_numpy(drawn))

    def _check_allowed(self, scores: np.ndarray) -> None:
        """Raises if the processors allowed no token in a row, given the scores (B,) or (B, n)."""
        best = scores if scores.ndim == 1 else scores[:, 0]
        rows = np.flatnonzero(np.isnan(best) | (best == IMPOSSIBLE)) // self.strategy.copies
        if len(rows):
            raise ValueError(
                f"the processors allow no token in row {rows[0]}: some contradict each other, or "
                "one returns NaN"
            )

    def _check_finite(self, failed: int, prepared: Prepared) -> None:
        """Raises if the softmax is NaN for the token of column `failed`; -1: for none."""
        if failed < 0:
            return
        token = failed - prepared.prompt.shape[1]
        padding = 0 if prepared.padding is None else int(prepared.padding.min())
        table_length = self._preparation.table_length
        if table_length is not None and failed - 1 - padding >= table_length:
            ahead = 1 - self.strategy.lookahead
            raise ValueError(
                f"a row of {failed - padding + ahead} tokens does not fit the position table, "
                f"which has {table_length} positions: give shorter prompts, or generate fewer than "
                f"{token + ahead} new tokens"
            )
        raise ValueError(
            f"the softmax of the model's logits is NaN for new token {token}: "
            "its weights or inputs hold NaN, or its activations overflow"
        )


def compile_function(
    function: Callable[..., Any],
    variables: Sequence[keras.Variable],
    jit_compile: bool = False,
) -> Callable[..., Any]:
    """The function, compiled on TensorFlow and JAX; each call reads the variables' values."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Retraced with open shapes if shapes vary.
        compiled = tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile
        )
        # TensorFlow takes the functions of all generators for one, and warns of the fifth.
        compiled._omit_frequent_tracing_warning = True
        return compiled
    if keras.backend.backend() != "jax":
        return function
    import jax

    # The values are arguments, because JAX compiles a variable that a function reads as a constant.
    def stateless(values: list[Tensor], *arguments: Any) -> Any:
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(*arguments)

    compiled = jax.jit(stateless)
    return lambda *arguments: compiled([x.value for x in variables], *arguments)


# The maximum number of generators that a model keeps for `generate`.
MAX_KEPT = 8


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
    """Generates tokens with a trained model.

    The model keeps the generators of the last calls with their compiled loops, so a second call
    with the same arguments compiles nothing.

    Args:
        model: see `Generator`.
        inputs: see `Generator.__call__`.
        max_length, start_id, end_id, strategy, target, max_new_tokens: see `Generator`.

    Returns:
        A `Generated` of tokens and scores.

    Raises:
        ValueError: the model cannot be stepped, or an argument or input is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> int(generate(model, np.array([[3, 4, 5]]), max_length=4, start_id=1).tokens[0, 0])
    1
    """
    arguments = (max_length, start_id, _hashable(end_id), strategy, target, max_new_tokens)
    return _kept_generator(model, arguments)(inputs)


def _kept_generator(model: keras.Model, arguments: tuple[Any, ...]) -> Generator:
    """The generator of an earlier call with the same arguments, or a new one."""
    # In `vars`, because Keras would track an attribute.
    kept = vars(model).setdefault("_keras_tfm_generators", {})
    try:
        generator = kept.pop(arguments, None)
    except TypeError:  # a custom strategy that cannot be hashed
        return Generator(model, *arguments)
    if generator is None:
        generator = Generator(model, *arguments)
    kept[arguments] = generator  # the most recently used is last
    while len(kept) > MAX_KEPT:
        kept.pop(next(iter(kept)))
    return generator


def _hashable(end_id: int | Sequence[int] | None) -> Any:
    return end_id if end_id is None or np.ndim(end_id) == 0 else tuple(end_id)  # type: ignore[arg-type]
