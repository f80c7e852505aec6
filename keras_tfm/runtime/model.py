"""A loaded file: `Model`, and `load`, which creates one."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_tfm.runtime.decoding import stepped
from keras_tfm.runtime.decoding.generate_signature import Generated, run_generate
from keras_tfm.runtime.manifest.fields import by_length
from keras_tfm.runtime.manifest.storage import File
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.signature_runner import SignatureRunner
from keras_tfm.runtime.tasks import text
from keras_tfm.runtime.tasks.captions import Captions
from keras_tfm.runtime.tasks.detection import Detection, as_pixels, detect
from keras_tfm.runtime.tasks.drawing import Drawings
from keras_tfm.runtime.tasks.embedding import Embeddings
from keras_tfm.runtime.tasks.session import Session
from keras_tfm.runtime.tasks.speech import Speech
from keras_tfm.runtime.tasks.streams import Streams
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer


class Model(Captions, Drawings, Embeddings, Speech, Streams):
    """A file that `keras_tfm.export.export_tflite` wrote, ready to run; returned by `load`.

    LiteRT's memory is released by `close`, at the end of a `with` block, or with the object. A
    forked process can use the model of its parent. A pickle, as `multiprocessing` sends it, holds
    the path, or the bytes if the model was loaded from bytes: the receiver loads the file again.

    Attributes:
        path: Path, the absolute path of the file; of bytes `<bytes>`, for messages.
        manifest: dict, the manifest of the file: signatures, quantization, versions.
        signatures: dict by name: the inputs and outputs with their shapes and dtypes; the `pad_id`
            of an input is the id that shorter rows are padded with.
    """

    def __init__(
        self,
        path: File,
        threads: int = 1,
        weight_cache: str | Path | None = None,
        adapter: str | Path | None = None,
    ):
        # A pickle is read where another folder may be the current one.
        paths = [x and Path(x).absolute() for x in (weight_cache, adapter)]
        self._loaded_with = (threads, *paths)
        self._runner = SignatureRunner(path, threads, weight_cache, adapter)
        self.path = self._runner.path
        self.manifest = self._runner.manifest
        self.signatures = self._runner.signatures
        self._whole: tuple[Model, str] | None = None

    @functools.cached_property
    def models(self) -> dict[str, "Model"]:
        """The models of a file with several, by name; empty for a file of one model.

        Each works as if it were loaded from a file of its own: `models["text"].predict_text(...)`.
        They share the weights and LiteRT's memory, which `close` of any of them releases.
        """
        return {name: _model_in(self, name) for name in self.manifest.get("models", {})}

    def close(self) -> None:
        """Releases LiteRT's memory and the mapped file; a second call does nothing.

        A stream that has not ended, or a session, keeps its memory until it is used again, which
        raises a ValueError, as does every later call that runs the model.
        """
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the path, or the bytes, and loads the file again."""
        _ = self._runner.runners  # raises if the model was closed
        if self._whole is not None:
            return _model_in, self._whole
        return Model, (self._runner.file, *self._loaded_with)

    def content(self) -> bytes:
        """The bytes of the file, with the constants of its adapter."""
        return self._runner.content()

    def generate(self, inputs: Any) -> Generated:
        """Generates one row of tokens for each row of `inputs`.

        Of several exported lengths, the shortest that fits is used. If the file has no "generate"
        signature, tokens are chosen greedily on the host, step by step, with "decode".

        Args:
            inputs: (B, S) or (S,), ids as an array or as lists of any length; or a dictionary of
                all inputs except the stepped one. It may have prompts for the stepped input if the
                file was exported with a prompt_length; without prompts, rows begin with the start
                token. Shorter rows are padded with the `pad_id` of their input.

        Raises:
            ValueError: ids longer than the file was exported for, or outside the vocabulary; no
                rows; unknown or missing inputs.
            TypeError: an input is not rows of integers.
        """
        if not by_length(self.signatures, "generate"):
            return Generated(stepped.generate(self._runner, inputs))
        return self.generate_by(*self._runner.choose("generate", inputs))

    def generate_by(self, name: str, inputs: dict[str, Any]) -> Generated:
        """`generate` with the signature `name`, even if a shorter one fits."""
        return run_generate(self._runner, name, inputs)

    def predict(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of one full pass, by name.

        Args:
            inputs: array for a model with one input, or a dictionary of arrays. Rows of ids may
                be shorter than the exported length: they are padded with the `pad_id` of their
                input. Outputs have the exported length; of several, the shortest that fits.
        """
        return self.run(*self._runner.choose("predict", inputs))

    @functools.cached_property
    def image_processors(self) -> dict[str, ImageProcessor]:
        """The image processors in the file, by input; empty if it was exported without `images`."""
        return {x: ImageProcessor(**one) for x, one in self.manifest.get("images", {}).items()}

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes, in order; None if the file has none."""
        return self.manifest.get("labels")

    def predict_images(self, images: Any) -> dict[str, np.ndarray]:
        """The outputs of one full pass over pictures, by name: (B, ...), as from `predict`.

        Args:
            images: path, bytes of a file, `PIL.Image.Image` or uint8 array, a picture of any size
                as in `ImageProcessor`; or a list of B; or a dictionary by input, with arrays for
                the inputs that take no pictures.

        Raises:
            ValueError: a picture is damaged or of an unknown format; the file was exported without
                `images`.
            FileNotFoundError, TypeError, ModuleNotFoundError: as `ImageProcessor`.
        """
        return self.predict(as_pixels(self, images))

    def detect(self, image: Any, threshold: float = 0.5) -> list[Detection]:
        """The objects in a picture, found by a model such as `models.detr`.

        Args:
            image: as in `predict_images`, one picture.
            threshold: float, the least probability of a detection.

        Returns:
            A list of `Detection`, the most probable first, with boxes in pixels of the picture.

        Raises:
            ValueError: the file has no outputs "logits" and "boxes", or as `predict_images`.
        """
        return detect(self, image, threshold)

    @functools.cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers in the file, by input; read at the first use.

        Each has `encode(text)`, which returns ids, `decode(ids)`, which returns text, and
        `control_tokens()`, the tokens that a text should not contain if a user wrote it.

        Raises:
            ValueError: the file was replaced by another one since it was loaded.
            ModuleNotFoundError: `tokenizers` or `sentencepiece` is missing; the message says how to
                install it.
        """
        return text.tokenizers_of(self)

    def generate_text(self, texts: Any) -> Any:
        """Generates a text for each text: `generate` with the tokenizers of the file.

        Args:
            texts: str or list of str for the source, or the prompts of a decoder-only model;
                or a dictionary of texts by input, with prompts for the stepped input, and arrays
                for inputs without a tokenizer.

        Returns:
            The prompt, if any, and the generated text up to the end, without special tokens; a text
            for a text, a list for a list. If the file was exported with several hypotheses, each is
            a list of `Hypothesis(text, score)`.

        Raises:
            TypeError: an argument is not a text.
            ValueError: a text has more tokens than the file was exported for (texts are never
                truncated), a lone surrogate, or an input has no tokenizer in the file.
            ModuleNotFoundError: the package that reads the tokenizer is missing.

        Example, with a Keras model and a tokenizer of letters:

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
        """The outputs of one full pass over texts, by name: (B, ...), as `predict` returns them.

        Args:
            texts: str, or list of B texts and pairs of texts, [("a question", "a passage")]; or, by
                name, texts and arrays. The tokenizer joins the texts of a pair. It also fills the
                inputs that follow from the tokens: segments (token types), and a padding mask.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`; or the file has a
                SentencePiece model, which does not say how two texts are joined.
        """
        return text.predict_text(self, texts)

    def chat_prompt(self, messages: str | Sequence[dict[str, Any]]) -> str:
        """The prompt of a conversation, in the model's chat template, for `stream_text`.

        Args:
            messages: see `ChatTemplate.prompt`: the user's text, or dictionaries with a "role" and
                a "content".

        Raises:
            TypeError, ValueError: as `ChatTemplate.prompt`; or the file has no chat template.

        Example, of a file with SmolLM2-Instruct:

        ```python
        print(*model.stream_text(model.chat_prompt("What is the capital of France?")), sep="")
        ```
        """
        if self.chat_template is None:
            raise ValueError(
                f"{self.path} has no chat template: export it with chat_template="
                "checkpoints.load_chat_template(folder)"
            )
        return self.chat_template.prompt(messages)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template in the file; None if it has none."""
        stored = self.manifest.get("chat_template")
        if stored is None:
            return None
        system = stored["system"]
        return ChatTemplate(**{**stored, "system": system and (system[0], system[1])})

    def session(self, inputs: Any = None, *, restore: str | Path | None = None) -> Session:
        """A text that is continued call by call; its tokens and KV caches are kept.

        The file needs a "decode" signature; with "prefill", texts are read in chunks. A file may
        have any number of sessions; streams of the model end when a session runs.

        Args:
            inputs: dict or array, one row of the inputs of a model with a source, as in `stream`; a
                decoder-only model has none.
            restore: str or Path, a file that `Session.save` wrote: the session continues there.

        Raises:
            ValueError: the file has no "decode"; inputs are unknown or missing; `restore` is
                damaged, or was saved with another .tflite file.
            FileNotFoundError: there is no file `restore`.

        Example, of a file with SmolLM2-Instruct:

        ```python
        session = model.session()
        session.append(model.chat_prompt("What is the capital of France?"))
        print(session.generate(max_tokens=100, choose=runtime.Sampler(temperature=0.7)).text)
        session.append(model.chat_template.turn("And of Italy?"))
        print(*session.stream(max_tokens=100), sep="")
        ```
        """
        return Session(self, self._runner, inputs, restore)

    def run(self, name: str, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name; `inputs` as in `predict`."""
        return self._runner.run(name, inputs)


def load(
    path: File,
    threads: int = 1,
    *,
    weight_cache: str | Path | None = None,
    adapter: str | Path | None = None,
) -> Model:
    """Loads a file that `keras_tfm.export.export_tflite` wrote, and checks its checksum.

    Args:
        path: str or Path, the .tflite file. A later change of the current folder does not matter.
            Or bytes, `bytearray`, `memoryview`, a binary file that is open for reading, or
            `zipfile.Path`, with the content of the file, of which the model keeps a copy.
        threads: int, number of threads that LiteRT uses, 1 to 1024.
        weight_cache: str or Path, a folder for XNNPACK's packed weights, created if it is missing.
            A cache takes as much space as its file; above 4 GiB in total, the least recently used
            caches are deleted. The first load writes a cache. Later loads map it instead of
            packing, which saves most of the process's private memory. A damaged cache, or one of
            another LiteRT or processor, is not used; where the folder cannot be written, weights
            are packed in memory, with a warning. LiteRT then runs as `CompiledModel`, which writes
            some twenty lines of INFO to standard error per process. None: weights are packed in
            memory.
        adapter: str or Path, a LoRA adapter that `keras_tfm.export.save_adapter` wrote, for a file
            exported with `separate_adapters=True`. It is written into a copy of the file in memory.

    The checksum detects accidents, not malice: anyone can compute it. A crafted file can crash the
    process, and with `weight_cache` also through a crafted cache in a folder that others can write
    to. Load only files from sources you trust, and keep the folder private.

    LiteRT writes an INFO line to standard error when the first file is loaded, and has no setting
    to turn it off. A program can remove it with `keras_tfm.runtime.native_log`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or keras_tfm did not write it; `threads` is out of range;
            `weight_cache` is empty; the adapter is damaged, or does not fit the file.
        TypeError: `threads` is not an integer; `path` is neither a path nor bytes.
        OSError: `weight_cache` is a file, or cannot be created.
        ModuleNotFoundError: LiteRT is missing; the message names the extra to install.

    Example, with a Keras model:

    >>> import tempfile, keras
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/sum.tflite")
    ...     with runtime.load(folder + "/sum.tflite") as loaded:
    ...         loaded.predict([[3.0, 4.0]])["output"].tolist()
    [[7.0]]
    """
    return Model(path, threads, weight_cache, adapter)


def _model_in(whole: Model, name: str) -> Model:
    """One model of a file of several."""
    model = object.__new__(Model)
    model.path, model._loaded_with, model._whole = whole.path, whole._loaded_with, (whole, name)
    model._runner = whole._runner.part(name)
    model.signatures = model._runner.signatures
    own = {**whole.manifest["models"][name], "signatures": model.signatures}
    model.manifest = {**whole.manifest, **own}
    del model.manifest["models"]
    return model
