"""An exported file, loaded."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime import manifest as manifests
from keras_tfm.runtime import native_log, text
from keras_tfm.runtime.host_loop import Buffers, CopiedBuffers, by_length, prompt_of, step
from keras_tfm.runtime.tokenizer import Tokenizer
from keras_tfm.runtime.weight_cache import Runner, cached_runners


class Generated(NamedTuple):
    """What was generated.

    Attributes:
        tokens: (B, T), int32, start token or prompt first, 0 after the end; of a file that was
            exported with several hypotheses (B, n, T).
        scores: (B,) or (B, n), of a file whose strategy is a beam search; None elsewhere.
    """

    tokens: np.ndarray
    scores: np.ndarray | None = None


class Model:
    """A file written by `keras_tfm.export.export_tflite`, ready to run; made by `load`.

    Attributes:
        path: the file.
        manifest: what it says of itself, a dictionary.
        signatures: by name, the inputs and outputs with their shapes and dtypes.
    """

    def __init__(self, path: str | Path, threads: int = 1, weight_cache: str | Path | None = None):
        if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
            raise TypeError(f"threads must be an integer of at least 1, got {threads!r}")
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.path = Path(path)
        self.manifest = manifests.read(path)
        self.signatures: dict[str, dict[str, Any]] = self.manifest["signatures"]
        if weight_cache is None:
            self._runners = self._interpreted(threads)
        else:
            if Path(weight_cache).is_file():
                raise NotADirectoryError(
                    f"weight_cache must be a folder, got the file {weight_cache}"
                )
            self._runners = cached_runners(self.path, self.manifest, threads, weight_cache)
        # LiteRT's interpreter is one set of buffers: two threads would mix their answers.
        # Reentrant: what chooses tokens inside a step may ask the same model.
        self._lock = threading.RLock()
        self._streams = 0

    def _interpreted(self, threads: int) -> dict[str, Runner]:
        interpreter_module = manifests.import_litert("interpreter")
        with native_log.captured():
            interpreter = interpreter_module.Interpreter(str(self.path), num_threads=threads)
            interpreter.allocate_tensors()  # or the first answer would log the delegate
            return {name: interpreter.get_signature_runner(name) for name in self.signatures}

    def generate(self, inputs: Any) -> Generated:
        """Generates a row of tokens for each row of `inputs`.

        With several exported lengths the shortest that fits is run. A file without a "generate"
        signature is stepped from here, greedily, by its "decode".

        Args:
            inputs: ids (B, S) or (S,), as an array or as lists of any length; or, by name, all
                inputs of the model but the stepped one, and prompts for that where the file was
                exported with a prompt_length; without them rows begin with the start token, where
                the file has one. Shorter ids are padded.

        Raises:
            ValueError: ids longer than the file was exported for, or outside the vocabulary; no
                rows; inputs of other names.
            TypeError: what was given are no rows of integers.
        """
        if not by_length(self.signatures, "generate"):
            return Generated(self._stepped(inputs))
        return self.generate_by(*self._choose("generate", inputs))

    def generate_by(self, name: str, inputs: dict[str, Any]) -> Generated:
        """`generate` by one signature of several, whether or not a shorter one would do."""
        padding = None
        if "prompt" in self.signatures[name]:
            inputs = self._prompted(name, inputs)
            padding = inputs["padding"]
        results = self.run(name, inputs)
        tokens = results["tokens"]
        if padding is not None:
            for row, count in enumerate(padding):
                tokens[row] = np.roll(tokens[row], -count, axis=-1)
            tokens = np.ascontiguousarray(tokens[..., : self.signatures[name]["max_length"]])
        return Generated(tokens, results.get("scores"))

    def _prompted(self, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs with the prompts padded on the left; without prompts, the start tokens."""
        signature = self.signatures[name]
        prompt, specs = signature["prompt"], dict(signature["inputs"])
        del specs["padding"]
        if not set(specs) - {prompt} <= set(inputs) <= set(specs):
            raise ValueError(f"{name} takes the inputs {list(specs)}, got {list(inputs)}")
        prompts = inputs.get(prompt)
        if prompt not in inputs:
            if signature["start_id"] is None or not inputs:
                raise ValueError(
                    f"{name} needs a prompt, {prompt!r}: got none"
                    + ("" if signature["start_id"] is not None else " and there is no start_id")
                )
            key, x = next(iter(inputs.items()))
            prompts = [[signature["start_id"]]] * len(_fit(key, x, specs[key]))
        tokens, padding = _left_padded(prompt, prompts, specs[prompt])
        return {**inputs, prompt: tokens, "padding": padding}

    def stream(
        self, inputs: Any, choose: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Iterator[np.ndarray]:
        """Yields the tokens (B,), int32, of each step as soon as they are chosen; 0 after an end.

        For a file with a "decode" signature, and "encode" where the model has a source.

        Args:
            inputs: as in `generate`, of at most as many rows as the file was exported for. Prompts
                have one length.
            choose: logits (B, V), float32, a copy to keep -> integer tokens (B,), with B the rows
                that the file steps at once, as it was exported; the most probable by default. It
                may ask this model, but for "decode".

        Raises:
            ValueError: as in `generate`; or `choose` gave a token outside the vocabulary.
            TypeError: as in `generate`; or `choose` gave no tokens (B,).
            RuntimeError: another stream has begun, or "decode" has run: it has these caches now.
        """
        names = self._names("decode")
        decode = self.signatures[names[-1]]
        target, batch = decode["target"], decode["inputs"][decode["target"]]["shape"][0]
        inputs = self._by_name(inputs, target)
        given = inputs.pop(target, None)
        known = self._known(decode, inputs)
        rows = next((len(x) for x in known.values()), batch)
        if given is not None:
            checked = _rows(target, given, _prompts(decode))
            prompt, rows = prompt_of(checked, target), len(checked)
        elif decode["start_id"] is None:
            raise ValueError(f"{self.path} was exported without a start_id: give {target!r}")
        else:
            prompt = np.full((rows, 1), decode["start_id"], "int32")
        for x in known.values():
            if len(x) != rows:
                raise ValueError(
                    f"all inputs must have the same number of rows, got {len(x)} and {rows}"
                )
        if not 0 < rows <= batch:
            raise ValueError(f"{self.path} steps {batch} rows at once, got {rows}")
        _check_prompt(prompt.shape[1], decode["max_length"])
        known = {key: _fill(x, batch) for key, x in known.items()}
        steps = step(
            self.signatures,
            self._buffers,
            known,
            _fill(prompt, batch),
            choose or _most_probable,
        )
        with self._lock:
            number = self._streams = self._streams + 1
        while True:
            with self._lock:
                if number != self._streams:
                    raise RuntimeError(
                        "another stream has begun, or 'decode' has run, and one file has one set "
                        "of caches: load it twice to run two side by side"
                    )
                tokens = next(steps, None)
            if tokens is None:
                return
            yield tokens[:rows]

    def _known(self, decode: dict[str, Any], inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """What every step is given beside its token: what was encoded, and inputs it reads."""
        known = {}
        encoders = by_length(self.signatures, "encode")
        results = {key for key in decode["outputs"] if key != "logits"}
        contexts = [x for x in decode["inputs"] if x.startswith("cache_") and x not in results]
        if contexts and not encoders:
            raise ValueError(f"{self.path} has no signature 'encode', which its 'decode' needs")
        if encoders:
            name, inputs = self._choose("encode", inputs)
            known.update(self.run(name, inputs))
        fed = ("position", decode["target"])
        read = [x for x in decode["inputs"] if x not in fed and not x.startswith("cache_")]
        if not encoders and set(inputs) != set(read):
            raise ValueError(
                f"the steps take the inputs {read} and {decode['target']!r}, got {list(inputs)}"
            )
        known.update({key: _fit(key, inputs[key], decode["inputs"][key]) for key in read})
        return known

    def _stepped(self, inputs: Any) -> np.ndarray:
        """All rows, some at a time: (B, T)."""
        names = by_length(self.signatures, "decode")
        if not names:
            raise ValueError(
                f"{self.path} has no signature 'generate', it has {list(self.signatures)}"
            )
        decode = self.signatures[names[-1]]
        target, length = decode["target"], decode["max_length"]
        inputs = self._by_name(inputs, target)
        batch = decode["inputs"][target]["shape"][0]
        specs = {k: x for s in self.signatures.values() for k, x in s["inputs"].items()}
        specs[target] = _prompts(decode)
        arrays = {key: _several(key, x, specs.get(key)) for key, x in inputs.items()}
        counts = {key: len(x) for key, x in arrays.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"all inputs must have the same number of rows, got {counts}")
        rows = next(iter(counts.values()), batch)
        if rows == 0:
            raise ValueError("got no rows")
        result = np.zeros((rows, length), "int32")
        # Prompts that are stepped together have one length.
        lengths = [len(row) for row in arrays[target]] if target in arrays else [1] * rows
        for count in lengths:
            _check_prompt(count, length)
        stop = 0
        while stop < rows:
            start = stop
            while stop < min(rows, start + batch) and lengths[stop] == lengths[start]:
                stop += 1
            chunk = {key: x[start:stop] for key, x in arrays.items()}
            part = result[start:stop]
            column = 1
            if target in chunk:
                column = len(chunk[target][0])
                part[:, :column] = chunk[target]
            elif decode["start_id"] is not None:
                part[:, 0] = decode["start_id"]
            with self._lock:  # to the end, or another thread's rows would take the caches
                for tokens in self.stream(chunk):
                    part[:, column] = tokens
                    column += 1
        return result

    def _buffers(self, name: str) -> Any:
        runner = self._runners[name]
        if hasattr(runner, "_interpreter_wrapper"):
            with native_log.captured():
                return Buffers(runner)
        return CopiedBuffers(runner, self.signatures[name])

    def _by_name(self, inputs: Any, only: str) -> dict[str, Any]:
        """`inputs` as a dictionary; where they are not, those of the one input there is."""
        if isinstance(inputs, dict):
            return dict(inputs)
        names = by_length(self.signatures, "encode") or by_length(self.signatures, "generate")
        first = next(iter(self.signatures[names[0]]["inputs"])) if names else only
        return {first: inputs}

    def _names(self, role: str) -> list[str]:
        """The signatures of a role, the shortest first; there is one at least."""
        names = by_length(self.signatures, role)
        if not names:
            raise ValueError(
                f"{self.path} has no signature {role!r}, it has {list(self.signatures)}"
            )
        return names

    def _choose(self, role: str, inputs: Any) -> tuple[str, Any]:
        """The signature of the shortest lengths that `inputs` fit, and these by name."""
        names = self._names(role)
        if not isinstance(inputs, dict):
            inputs = {next(iter(self.signatures[names[0]]["inputs"])): inputs}
        for name in names:
            expected = self.signatures[name]["inputs"]
            if all(
                _longest(x) <= expected[key]["shape"][1]
                for key, x in inputs.items()
                if key in expected and _is_rows(expected[key])
            ):
                return name, inputs
        return names[-1], inputs

    def predict(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of one full pass, by name.

        Args:
            inputs: an array for a model of one input, or arrays by name. Ids may be shorter than
                the exported length: they are padded with 0, and outputs are of the exported length,
                of several the shortest that fits.
        """
        return self.run(*self._choose("predict", inputs))

    @functools.cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers that the file carries, by input; read when they are first asked for.

        Each has `encode(text)`, the ids, and `decode(ids)`, the text.

        Raises:
            ValueError: the file was replaced by another one since it was loaded.
            ModuleNotFoundError: `tokenizers` or `sentencepiece` is missing; the message says how to
                install it.
        """
        return text.tokenizers_of(self)

    def generate_text(self, texts: Any) -> Any:
        """Generates a text for each text: `generate`, with the tokenizers of the file around it.

        Args:
            texts: a text, or a list of texts, for the source, or for a model without one the
                prompts; or, by name, texts for several inputs, among them prompts for the stepped
                one, and arrays for inputs without a tokenizer.

        Returns:
            What was generated up to the end, after its prompt if there was one, without special
            tokens; a text for a text, a list for a list. Of a file that was exported with several
            hypotheses each is a list of `Hypothesis(text, score)`.

        Raises:
            TypeError: what was given is no text.
            ValueError: a text has more tokens than the file was exported for (it is never cut) or
                half of a surrogate pair, or the file has no tokenizer for an input.
            ModuleNotFoundError: the package that reads the tokenizer is missing.

        Example, with a model that Keras made, and a tokenizer of letters:

        >>> import tempfile
        >>> from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        >>> from keras_tfm import runtime
        >>> from keras_tfm.export import export_tflite
        >>> from keras_tfm.models import transformer
        >>> ids = {token: i for i, token in enumerate(["<pad>", "<start>", "<end>", *"abcdefgh"])}
        >>> tokenizer = Tokenizer(models.WordLevel(ids))
        >>> _ = tokenizer.add_special_tokens(["<pad>", "<start>", "<end>"])
        >>> tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        >>> tokenizer.decoder = decoders.Fuse()
        >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_tflite(
        ...         model, folder + "/letters.tflite", source_length=6, max_length=5, start_id=1,
        ...         end_id=2, tokenizer=tokenizer,
        ...     )
        ...     loaded = runtime.load(report.path)
        ...     text = loaded.generate_text("abba")
        >>> set(text) <= set("abcdefgh")
        True
        """
        return text.generate_text(self, texts)

    def predict_text(self, texts: Any) -> dict[str, np.ndarray]:
        """The outputs of one full pass over texts, by name: (B, ...), as of `predict`.

        Args:
            texts: a text, or a list of B texts; or, by name, texts and arrays.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`.
        """
        return text.predict_text(self, texts)

    def stream_text(
        self, texts: Any, choose: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Iterator[str]:
        """Yields what is generated for one text, piece by piece: `stream`, with tokenizers.

        Together the pieces are what `generate_text` writes after the prompt. A piece ends where a
        character does: bytes that are not yet one are held back.

        Args:
            texts: a text; or, by name, a text for each input.
            choose: as in `stream`.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`.
        """
        return text.stream_text(self, texts, choose)

    def run(self, name: str, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name; `inputs` as in `predict`."""
        if name not in self.signatures:
            raise ValueError(
                f"{self.path} has no signature {name!r}, it has {list(self.signatures)}"
            )
        expected = self.signatures[name]["inputs"]
        if not isinstance(inputs, dict):
            inputs = {next(iter(expected)): inputs}
        if set(inputs) != set(expected):
            raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
        arrays = {key: _fit(key, inputs[key], expected[key]) for key in expected}
        # A step has one position for all its rows.
        of_step = expected.get("position") if self.signatures[name]["role"] == "decode" else None
        lengths = {key: len(x) for key, x in arrays.items() if expected[key] is not of_step}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {lengths}")
        rows, batch = lengths[next(iter(expected))], next(iter(expected.values()))["shape"][0]
        if rows == 0:
            raise ValueError("got no rows")
        results = []
        for start in range(0, rows, batch):
            chunk = {key: arrays[key][start : start + batch] for key in lengths}
            filled = {**arrays, **{key: _fill(array, batch) for key, array in chunk.items()}}
            with self._lock:
                if self.signatures[name]["role"] == "decode":
                    self._streams += 1  # it overwrites the caches of a stream
                results.append(self._runners[name](**filled))
        return {key: np.concatenate([r[key] for r in results])[:rows] for key in results[0]}


def load(path: str | Path, threads: int = 1, *, weight_cache: str | Path | None = None) -> Model:
    """Loads a file written by `keras_tfm.export.export_tflite` and checks its checksum.

    Args:
        path: the .tflite file.
        threads: how many threads LiteRT uses.
        weight_cache: a folder, made where it is missing, in which the weights are kept as
            XNNPACK's kernels read them: as large as the file. The first load fills it; a later one
            maps it and packs nothing, which saves most of the memory that is the process's own.
            None: weights are packed in memory. LiteRT then runs as its `CompiledModel`, which
            writes a few lines to standard error when the process ends.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or keras_tfm did not write it; `threads` is below 1.
        TypeError: `threads` is no integer.
        OSError: the folder of the cache cannot be written, or is a file.
        ModuleNotFoundError: LiteRT is missing; the message names the extra that brings it.

    Example, with a model that Keras made:

    >>> import tempfile, keras
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/sum.tflite")
    ...     runtime.load(folder + "/sum.tflite").predict([[3.0, 4.0]])["output"].tolist()
    [[7.0]]
    """
    return Model(path, threads, weight_cache)


def _fit(name: str, values: Any, expected: dict[str, Any]) -> np.ndarray:
    """`values` as an array (N, ...) of the shape and dtype that the file takes."""
    shape, dtype = tuple(expected["shape"]), np.dtype(expected["dtype"])
    if dtype.kind in "iu":
        array = _ids(name, values, shape, expected)
    else:
        array = _array(name, values)
        if dtype.kind == "b" and array.dtype.kind not in "biu":
            raise TypeError(f"{name} must be bool, True = attend, got {array.dtype}")
        array = array.astype(dtype)
        if array.ndim == len(shape) - 1:
            array = array[np.newaxis]
    if array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        wanted = ", ".join(["B", *map(str, shape[1:])])
        raise ValueError(f"{name} must have shape ({wanted}), got {array.shape}")
    return array.astype(dtype)


def _ids(name: str, values: Any, shape: tuple[int, ...], expected: dict[str, Any]) -> np.ndarray:
    """Integers, in range; rows of unequal length padded with 0 on the right, where that may be."""
    arrays = _rows(name, values, expected)
    if len(shape) != 2 or any(array.ndim != 1 for array in arrays):
        return np.stack(arrays)
    lengths = {len(array) for array in arrays}
    if max(lengths, default=0) > shape[1]:
        raise ValueError(
            f"{name} has {max(lengths)} ids, but the file was exported for at most {shape[1]}"
        )
    if lengths - {shape[1]} and not expected.get("padded", True):
        raise ValueError(
            f"{name} must have shape (B, {shape[1]}), got rows of {sorted(lengths)} ids; "
            "the model sees padding as ids like others (no mask_zero)"
        )
    result = np.zeros((len(arrays), shape[1]), expected["dtype"])
    for i, array in enumerate(arrays):
        result[i, : len(array)] = array
    return result


def _rows(name: str, values: Any, expected: dict[str, Any]) -> list[np.ndarray]:
    """Rows of integers in range, of any lengths."""
    shape = expected["shape"]
    if not _is_sequence(values):
        raise TypeError(f"{name} must be rows of ids, got {type(values).__name__}")
    rows: Sequence[Any] = values
    if not len(rows):
        raise ValueError(f"{name}: got no rows")
    if len(shape) > 1 and not _is_sequence(rows[0]):
        rows = [values]
    arrays = [_array(name, row) for row in rows]
    for array in arrays:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{name} must be integer ids, got {array.dtype}")
        wrong = array.ndim != 1 if len(shape) == 2 else array.shape != tuple(shape[1:])
        if wrong:
            wanted = ", ".join(["B", *map(str, shape[1:])])
            raise ValueError(f"{name} must have shape ({wanted}), got a row of {array.shape}")
    # Before they are cast: 2**32 + 3 in 32 bits is 3.
    limits = np.iinfo(expected["dtype"])
    size = expected.get("vocabulary_size", int(limits.max) + 1)
    low = 0 if "vocabulary_size" in expected else int(limits.min)
    found = [
        bound for array in arrays if array.size for bound in (int(array.min()), int(array.max()))
    ]
    if found and (min(found) < low or max(found) >= size):
        raise ValueError(
            f"{name}: ids must be in {low}..{size - 1}, got {min(found)}..{max(found)}"
        )
    return arrays


def _several(name: str, values: Any, expected: dict[str, Any] | None) -> list[Any]:
    """The rows of an input, of which one may come alone."""
    if expected is not None and _is_rows(expected):
        return list(_rows(name, values, expected))
    array = _array(name, values)
    alone = expected is not None and array.ndim == len(expected["shape"]) - 1
    return [array] if alone or not array.ndim else list(array)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's words are of its own insides
        raise ValueError(f"{name} must be an array, got rows of different shapes") from None


def _is_sequence(values: Any) -> bool:
    return isinstance(values, (list, tuple)) or np.ndim(values) > 0


def _prompts(decode: dict[str, Any]) -> dict[str, Any]:
    """What prompts are like that `decode` reads, which itself takes one token."""
    spec = dict(decode["inputs"][decode["target"]])
    return {**spec, "shape": [spec["shape"][0], decode["max_length"] - 1]}


def _check_prompt(count: int, max_length: int) -> None:
    if not 0 < count < max_length:
        raise ValueError(
            "a prompt must have at least one token and fewer than max_length "
            f"({max_length}), got {count}"
        )


def _left_padded(name: str, values: Any, expected: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts padded before their first token: (B, N), and by how much: (B,), int32."""
    rows, length = _rows(name, values, expected), expected["shape"][1]
    if min(map(len, rows)) < 1 or max(map(len, rows)) > length:
        raise ValueError(
            f"{name}: a prompt must have 1 to {length} tokens, as the file was exported, "
            f"got {sorted({len(row) for row in rows})}"
        )
    padding = np.array([length - len(row) for row in rows], "int32")
    return np.stack(
        [np.pad(row, (count, 0)) for row, count in zip(rows, padding, strict=True)]
    ), padding


def _is_rows(expected: dict[str, Any]) -> bool:
    return len(expected["shape"]) == 2 and np.dtype(expected["dtype"]).kind in "iu"


def _longest(values: Any) -> int:
    """Of rows of ids; 0 where they are none, which is for `_ids` to say."""
    if not _is_sequence(values) or not len(values):
        return 0
    if not _is_sequence(values[0]):
        return len(values)
    return max(len(row) if _is_sequence(row) else 0 for row in values)


def _most_probable(logits: np.ndarray) -> np.ndarray:
    """Greedy search."""
    return np.argmax(logits, axis=-1)


def _fill(array: np.ndarray, batch: int) -> np.ndarray:
    """A last, smaller chunk, filled up by its own last row."""
    missing = batch - len(array)
    return array if missing == 0 else np.concatenate([array, np.repeat(array[-1:], missing, 0)])
