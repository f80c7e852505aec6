"""A loaded file with all its tasks: `Model`, and `load`, which creates one."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_tfm.runtime.checked_inputs import Inputs
from keras_tfm.runtime.decoding import host_loop
from keras_tfm.runtime.decoding.drafts import Draft
from keras_tfm.runtime.decoding.generate import Generated, generate
from keras_tfm.runtime.decoding.sampling import Choose, Sampler
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode, of_role
from keras_tfm.runtime.manifest.storage import File
from keras_tfm.runtime.media.decoded_picture import Picture
from keras_tfm.runtime.media.image_processor import ImageProcessor, Pictures
from keras_tfm.runtime.tasks import drawing, embedding, pictures, speech, text
from keras_tfm.runtime.tasks.drawing import Drawing
from keras_tfm.runtime.tasks.listener import Listener, listener_of
from keras_tfm.runtime.tasks.pictures import Detection, PicturesByInput
from keras_tfm.runtime.tasks.session import Session
from keras_tfm.runtime.tasks.source_stream import FileStream
from keras_tfm.runtime.tasks.speech import Audio
from keras_tfm.runtime.tasks.text import Answer, Texts
from keras_tfm.runtime.tasks.zero_shot import ZeroShotClassifier
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate, Message
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer


class Model:
    """A file that `keras_tfm.export.export_tflite` wrote, ready to run; returned by `load`.

    LiteRT's memory is released by `close`, at the end of a `with` block, or with the object. A
    forked process can use the model of its parent. A pickle, as `multiprocessing` sends it, holds
    the path, or the bytes if the model was loaded from bytes: the receiver loads the file again.

    Attributes:
        path: Path, the absolute path of the file; of bytes `<bytes>`, for messages.
        manifest: dict, the manifest of the file: signatures, quantization, versions.
        signatures: dict by name: the inputs and outputs with their shapes and dtypes; the `pad_id`
            of an input is the id that shorter rows are padded with.
        labels: list of str, the names of the classes, in order; None if the file has none.
        file: `LoadedFile`, what runs the signatures; it has the manifest as dataclasses.
    """

    def __init__(self, file: LoadedFile):
        if not isinstance(file, LoadedFile):
            raise TypeError(f"Model takes what `runtime.load` reads: call load({file!r})")
        self.file, self.path = file, file.path
        self.manifest = file.manifest.to_json()
        self.signatures: dict[str, Any] = self.manifest["signatures"]
        self.labels = file.manifest.labels

    @functools.cached_property
    def models(self) -> dict[str, "Model"]:
        """The models of a file with several, by name; empty for a file of one model.

        Each works as if it were loaded from a file of its own: `models["text"].predict_text(...)`.
        They share the weights and LiteRT's memory, which `close` of any of them releases.
        """
        return {name: Model(x) for name, x in self.file.models.items()}

    def close(self) -> None:
        """Releases LiteRT's memory and the mapped file; a second call does nothing.

        A stream that has not ended, or a session, keeps its memory until it is used again, which
        raises a ValueError, as does every later call that runs the model.
        """
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type["Model"], tuple[LoadedFile]]:
        """A pickle holds what the pickle of the file does."""
        return Model, (self.file,)

    def content(self) -> bytes:
        """The bytes of the file, with the constants of its adapter."""
        return self.file.content()

    def run(self, name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name; `inputs` as in `predict`."""
        return self.file.run(name, inputs)

    def predict(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs of one full pass, by name.

        Args:
            inputs: array for a model with one input, or a dictionary of arrays. Rows of ids may
                be shorter than the exported length: they are padded with the `pad_id` of their
                input. Outputs have the exported length; of several, the shortest that fits.
        """
        return self.file.predict(inputs)

    def generate(self, inputs: Inputs) -> Generated:
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
        return generate(self.file, inputs)

    def stream(
        self,
        inputs: Inputs,
        choose: Choose | Sampler | None = None,
        draft: Draft | None = None,
    ) -> Iterator[np.ndarray]:
        """Yields the tokens (B,), int32, of each step as soon as they are chosen.

        A row that has ended gets the pad id of the stepped input. The file needs a "decode"
        signature, and "encode" if the model has a source.

        Args:
            inputs: as in `generate`, up to the exported batch size. Prompts must have the same
                length.
            choose: `Sampler`, or a function from logits (B, V), float32, to integer tokens (B,),
                where B is the exported batch size; default: the most probable token. The logits are
                a copy that it may keep. It may run signatures of this model other than "decode".
            draft: `PromptLookup()`, or a function of the tokens so far (B, n), a number of tokens,
                and the inputs by name as lists of rows, that returns guesses of the next tokens
                (B, number). A step then reads several tokens, those that `choose` would not have
                chosen are dropped, and the tokens are those without a draft. The file must have
                been exported with a `draft_length`.

        Raises:
            ValueError: as in `generate`; or `choose` or `draft` returned a token outside the
                vocabulary; a draft for a file without a `draft_length`.
            TypeError: as in `generate`; or `choose` did not return integer tokens (B,), or `draft`
                not (B, number).
            RuntimeError: another stream has begun, or "decode" has run, and overwrote the caches.
        """
        return host_loop.stream(self.file, inputs, choose, draft=draft)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers in the file, by input; read at the first use.

        Each has `encode(text)`, which returns ids, `decode(ids)`, which returns text, and
        `control_tokens()`, the tokens that a text should not contain if a user wrote it.

        Raises:
            ValueError: the file was replaced by another one since it was loaded.
            ModuleNotFoundError: `tokenizers` or `sentencepiece` is missing; the message says how to
                install it.
        """
        return self.file.tokenizers

    def generate_text(self, texts: Texts) -> Answer | list[Answer]:
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
        return text.generate_text(self.file, texts)

    def stream_text(
        self,
        texts: Texts,
        choose: Choose | Sampler | None = None,
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """Yields the generated text piece by piece: `stream` with the tokenizers of the file.

        The pieces, joined, are what `generate_text` returns after the prompt. A piece ends at the
        end of a character: bytes of an incomplete character are held back.

        Args:
            texts: str; or dict with one text for each input.
            choose, draft: as in `stream`.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`.
        """
        return text.stream_text(self.file, texts, choose, draft)

    def predict_text(self, texts: Texts) -> dict[str, np.ndarray]:
        """The outputs of one full pass over texts, by name: (B, ...), as `predict` returns them.

        Args:
            texts: str, or list of B texts and pairs of texts, [("a question", "a passage")]; or, by
                name, texts and arrays. The tokenizer joins the texts of a pair. It also fills the
                inputs that follow from the tokens: segments (token types), and a padding mask.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`; or the file has a
                SentencePiece model, which does not say how two texts are joined.
        """
        return text.predict_text(self.file, texts)

    def chat_prompt(self, messages: str | Sequence[Message]) -> str:
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
        return self.file.manifest.chat_template

    @property
    def sampler(self) -> Sampler | None:
        """How the texts of the model are meant to be chosen; None if the file does not say.

        It is an argument like any other: `stream`, `stream_text` and sessions are greedy without
        `choose=model.sampler`. The file has that of `export_tflite(strategy=Sample(...))`, or of
        the `generation_config.json` of a folder.
        """
        for decode in of_role(self.file.manifest.signatures, Decode).values():
            return None if decode.sampling is None else Sampler(**decode.sampling)
        return None

    def session(
        self, inputs: Inputs | None = None, *, restore: str | Path | None = None
    ) -> Session:
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
        return Session(self.file, inputs, restore)

    def open_stream(self) -> FileStream:
        """A source that is read in pieces: audio or readings of a sensor, as they come.

        The file needs a signature "stream". Any number of streams may be open at once; each keeps
        its own states.

        Raises:
            ValueError: the file has no "stream".

        Example, with a Keras model:

        >>> import tempfile, keras
        >>> import numpy as np
        >>> from keras_tfm import layers, runtime
        >>> from keras_tfm.export import export_tflite
        >>> x = keras.Input((None, 3), name="readings")
        >>> y = layers.MultiHeadSelfAttention(num_heads=1, window=(4, 2))(x)
        >>> model = keras.Model(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_tflite(model, folder + "/s.tflite", ["stream"], piece_length=1)
        ...     stream = runtime.load(report.path).open_stream()
        ...     counts = [len(stream.append(np.ones((2, 3)))["output"]) for _ in range(3)]
        ...     counts, len(stream.finish()["output"])  # one later reading is awaited
        ([1, 2, 2], 1)
        """
        return FileStream(self.file)

    @property
    def image_processors(self) -> dict[str, ImageProcessor]:
        """The image processors in the file, by input; empty if it was exported without `images`."""
        return self.file.manifest.images

    def predict_images(self, images: PicturesByInput) -> dict[str, np.ndarray]:
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
        return self.predict(pictures.as_pixels(self.file, images))

    def detect(self, image: Picture, threshold: float = 0.5) -> list[Detection]:
        """The objects in a picture, found by a model such as `models.detr`.

        Args:
            image: as in `predict_images`, one picture.
            threshold: float, the least probability of a detection.

        Returns:
            A list of `Detection`, the most probable first, with boxes in pixels of the picture.

        Raises:
            ValueError: the file has no outputs "logits" and "boxes", or as `predict_images`.
        """
        return pictures.detect(self.file, image, threshold, self.labels)

    def caption(
        self, images: Pictures, prompt: str | Sequence[int] | None = None
    ) -> str | list[str]:
        """The text that a model of pictures and text writes for a picture.

        Args:
            images: path, bytes of a file, `PIL.Image.Image` or uint8 array, a picture of any size
                as in `predict_images`; or a list of them.
            prompt: str or list of int, the first tokens of the text, such as a start token of a
                language, or a question. They are not a part of the text. In a model that reads
                pictures inside the text, a str has the placeholder once ("What is <image>?"), and
                a list has it once for each feature. Default: the `default_prompt` with which the
                file was exported, or its `start_id`. In a file with a `TileProcessor` a str has
                `<image>` for each picture of a row, of which several are a list in the list; or it
                is a message about the picture, for which the chat template of the file is used.

        Returns:
            A text for a picture, a list for a list.

        Raises:
            ValueError: the file has no signature that generates, no tokenizer, or was exported
                without `images`; there is no picture; or as `predict_images`.
            FileNotFoundError, TypeError, ModuleNotFoundError: as `predict_images`.
        """
        return pictures.caption(self.file, images, prompt)

    def draw(
        self,
        texts: str | Sequence[str],
        candidates: int = 1,
        judge: "Model | None" = None,
        guidance: float = 1.0,
        sampler: Sampler | None = None,
    ) -> list[Drawing] | list[list[Drawing]]:
        """Draws pictures of texts, with a file of `models.dalle` and `models.dvae_decoder`.

        Codes are sampled step by step with the signature "decode"; a file with "generate" alone
        draws the one picture of its strategy. With guidance, each picture takes two rows of
        "decode": the text's and one without a caption (arXiv:2207.12598).

        Args:
            texts: str, or list of B.
            candidates: int, number of pictures per text.
            judge: `runtime.Model`, a file such as one of `models.clip_towers`, by which the
                pictures of a text are sorted, the best first (arXiv:2102.12092, section 2.6).
                Default: this file, if it holds the two models of `models.clip_towers`; otherwise
                the pictures are not sorted.
            guidance: float, scale of classifier-free guidance. 1: none. Otherwise the file must
                have been exported with a `batch_size` of at least 2.
            sampler: `Sampler`, by which codes are chosen. `Sampler(temperature=0)` takes the most
                probable one. Default: `Sampler()`.

        Returns:
            A list of `Drawing` for a text; for a list of texts, a list of such lists.

        Raises:
            TypeError: a text that is no str, or an argument of the wrong type.
            ValueError: a text is empty, or has more tokens than the model has positions of text;
                the file lacks one of the two models, a tokenizer or a large enough batch; the
                judge's vectors of texts and pictures have different widths.
            ModuleNotFoundError: Pillow or the tokenizer's package is missing.
        """
        return drawing.draw(self.file, texts, candidates, judge, guidance, sampler)

    def embed(
        self,
        texts: str | Sequence[str],
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """Sentence embeddings (B, D) of texts, float32; (D,) for a single text.

        The model needs the head `keras_tfm.models.sentence_embedding`. Each text runs in the
        shortest exported length that fits. A text of more tokens than the head's `max_seq_length`,
        if it has one, is truncated, prompt included, as in sentence-transformers. If the longest
        exported length is shorter, a text that does not fit is an error.

        Args:
            texts: str, or list of B.
            prompt: str, name of a prompt in the file, "query" for instance, whose text is put
                before each text; default: the file's default prompt, if it has one.
            dimensions: int, only the first numbers of each vector, scaled to length 1 again if the
                head normalises: for models trained so (Matryoshka embeddings, arXiv:2205.13147).
                Default: D.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`; or the file has no such
                head, no such prompt, or fewer dimensions.
        """
        return embedding.embed(self.file, texts, prompt, dimensions)

    def embed_text(self, texts: str | Sequence[str]) -> np.ndarray:
        """The vectors (B, D) of texts, float32, as the model returns them; (D,) for a single text.

        For a file such as one of `models.clip_towers`: of several models, the one with a tokenizer
        and a full pass reads the texts. Each text runs in the shortest exported length that fits.

        Args:
            texts: str, or list of B.

        Raises:
            TypeError, ModuleNotFoundError: as `generate_text`.
            ValueError: as `generate_text`; a text is empty; no model, or several models, of the
                file have a tokenizer and a full pass; or the model returns something other than one
                vector a text.
        """
        return embedding.embed_text(self.file, texts)

    def embed_image(self, images: Pictures) -> np.ndarray:
        """The vectors (B, D) of pictures, float32, as the model returns them; (D,) for one.

        Of several models in the file, the one with an image processor reads the pictures.

        Args:
            images: array (H, W, 3), picture or list of B, as in `predict_images`.

        Raises:
            FileNotFoundError, TypeError, ModuleNotFoundError: as `predict_images`.
            ValueError: as `predict_images`; no model, or several models, of the file have an image
                processor; or the model returns something other than one vector a picture.
        """
        return embedding.embed_image(self.file, images)

    def zero_shot(
        self,
        labels: Sequence[str],
        template: str | Sequence[str] = "a photo of a {}",
        scale: float | None = None,
    ) -> ZeroShotClassifier:
        """A classifier of pictures whose classes are given as words, by a model such as CLIP.

        A picture's class is the one whose text has the most similar vector (arXiv:2103.00020,
        section 3.1). The texts are embedded once, here. With a SigLIP, the probability of a class
        does not depend on the others (arXiv:2303.15343): all may be near 0.

        Args:
            labels: list of C str, names of the classes.
            template: str, the text of a class, in which {} stands for its name; or a list of
                several, whose vectors are averaged.
            scale: float, factor of the cosine similarities before the softmax or sigmoid, the
                inverse of the temperature. Default: the learned one in the file, see
                `models.clip_towers`, or 100.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `embed_text`; a template without {}; the
                same label twice; or vectors of texts and pictures of different widths.
        """
        return ZeroShotClassifier(self.file, labels, template, scale)

    def listen(self) -> Listener:
        """Hears audio as it comes: `append` gives the text of all that was heard so far.

        The file holds two models, an encoder with the signature "stream", and a decoder with
        "generate" for the encoder's features:

        ```python
        export_tflite(
            {"encoder": models.encoder(model), "decoder": models.decoder(model)}, "live.tflite",
            {"encoder": ["stream"], "decoder": ["generate"]}, piece_length=1280,
            source_length={"decoder": 500}, max_length=64, start_id=1, end_id=2,
            tokenizer=tokenizer,
        )
        listener = runtime.load("live.tflite").listen()
        for samples in microphone:
            print(listener.append(samples))
        print(listener.finish())
        ```

        Or it holds one model of audio with CTC and the signature "stream", whose outputs are scores
        of V labels, of which the first is the blank, "". Its text only grows:

        ```python
        export_tflite(
            model, "live.tflite", ["stream"], piece_length=1280, labels=["", "yes", "no"]
        )
        ```

        Raises:
            ValueError: the file has no such models, or features of another width.
        """
        return listener_of(self.file)

    @property
    def sample_rates(self) -> dict[str, int]:
        """The sample rate of each input of audio, in Hz; empty for a file without one."""
        return speech.sample_rates(self.file)

    def transcribe(
        self,
        audio: Audio,
        sample_rate: int | None = None,
        prompt: str | Sequence[int] | None = None,
    ) -> str:
        """The text of speech, as a model such as `models.whisper` hears it.

        Of a model with CTC, such as `models.wav2vec2` with `ctc_classifier`, whose file has labels
        with a blank, "", it is the best path; see `runtime.best_path`.

        Audio at another rate is resampled, several channels are averaged, and audio shorter than
        the file was exported for is padded with silence. Silence is given to the model like any
        other sound: what it then writes depends on its training.

        Args:
            audio: path or bytes of a WAV file, or array (samples,) or (samples, channels): floats
                from -1 to 1, or int16.
            sample_rate: int, that of an array, in Hz. Default: that of the file's input.
            prompt: str or list of int, the first tokens of the answer: for Whisper the start
                token, the language and the task. They are not a part of the text. Default: the
                `default_prompt` with which the file was exported, or its `start_id`.

        Raises:
            ValueError: there are no samples, or more than the file takes; samples that are NaN, or
                not from -1 to 1; a sample rate over 10 MHz; a file that is no WAV file; the .tflite
                file has no input of audio, or neither a tokenizer nor labels of CTC; a prompt for a
                model with CTC; or as `generate_text`.
            TypeError: the samples are not numbers of a known kind.
            FileNotFoundError: there is no such WAV file.
        """
        return speech.transcribe(self.file, audio, sample_rate, prompt, self.labels)

    def predict_audio(self, audio: Audio, sample_rate: int | None = None) -> dict[str, np.ndarray]:
        """The outputs of one full pass over audio, by name: (1, ...), as from `predict`.

        Args:
            audio, sample_rate: as in `transcribe`.

        Raises:
            ValueError, TypeError, FileNotFoundError: as `transcribe`.
        """
        return speech.predict_audio(self.file, audio, sample_rate)


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
            memory; in a file of 32 MiB and more once for all signatures, which then run as
            `CompiledModel`, too.
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
    return Model(LoadedFile(path, threads, weight_cache, adapter))
