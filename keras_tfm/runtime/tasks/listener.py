"""Live speech: audio in, as it comes, and the text of all that was heard so far out."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Generate, Stream, of_role
from keras_tfm.runtime.tasks.best_path import join
from keras_tfm.runtime.tasks.source_stream import FileStream
from keras_tfm.runtime.tasks.text import answers

# The class of CTC that is no label, as of `keras.losses.CTC`.
_BLANK = 0


def listener_of(file: LoadedFile) -> "Listener":
    """The listener for a file of an encoder and a decoder, or of a model with CTC; `Model.listen`.

    Raises:
        ValueError: the file is neither.
    """
    labels = file.manifest.labels
    is_ctc = labels is not None and labels[:1] == [""] and bool(file.of_role(Stream))
    return CTCListener(file) if is_ctc else FeatureListener(file)


class Listener(ABC):
    """Hears audio as it comes; returned by `Model.listen`.

    Of an encoder and a decoder it has the attribute `features` (n, D), float32: those that are
    final so far.

    Args:
        encoder: `LoadedFile`, a model with the signature "stream" and one output.

    Example, with an untrained model and a tokenizer of words:

    >>> import tempfile
    >>> import numpy as np
    >>> import tokenizers
    >>> from keras_tfm import models, runtime
    >>> from keras_tfm.export import export_tflite
    >>> words = ["<pad>", "<start>", "<end>", "on", "off", "light", "music"]
    >>> ids = {word: i for i, word in enumerate(words)}
    >>> tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids))
    >>> _ = tokenizer.add_special_tokens(words[:3])
    >>> model = models.moonshine_streaming(
    ...     7, dim=16, num_layers=1, num_heads=2, intermediate_dim=16, windows=[(5, 3)]
    ... )
    >>> both = {"encoder": models.encoder(model), "decoder": models.decoder(model)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(
    ...         both, folder + "/live.tflite", {"encoder": ["stream"], "decoder": ["generate"]},
    ...         piece_length=640, source_length={"decoder": 20}, max_length=4, start_id=1,
    ...         end_id=2, tokenizer=tokenizer, verify=False,
    ...     )
    ...     listener = runtime.load(report.path).listen()
    ...     sounds = np.random.default_rng(0).normal(scale=0.1, size=(3, 1600)).astype("float32")
    ...     texts = [listener.append(sound) for sound in sounds] + [listener.finish()]
    >>> listener.features.shape, all(word in words for text in texts for word in text.split())
    ((15, 16), True)
    """

    def __init__(self, encoder: LoadedFile):
        self._stream = FileStream(encoder)
        (self._output,) = self._stream.empty
        self._text = ""

    def append(self, audio: npt.ArrayLike) -> str:
        """Hears the next samples; the text so far, "" as long as no output is final.

        Args:
            audio: (samples,), floats from -1 to 1, or int16, at the rate of the file's input; any
                number of them.

        Raises:
            ValueError, TypeError: as `FileStream.append`; or there are more features than a decoder
                takes.
        """
        return self._heard(self._stream.append(audio))

    def finish(self) -> str:
        """Ends the audio: the text of all of it.

        Raises:
            ValueError: the audio has ended, or there was none.
        """
        return self._heard(self._stream.finish())

    def _heard(self, found: dict[str, np.ndarray]) -> str:
        new = found[self._output]
        if len(new):
            self._text = self._write(new)
        return self._text

    @abstractmethod
    def _write(self, new: np.ndarray) -> str:
        """The text after the outputs (n, ...) that have become final."""


class CTCListener(Listener):
    """Hears audio with a model whose outputs are classes of CTC; returned by `Model.listen`.

    The text is the best path (Graves et al. 2006, section 3.2): the most probable class of each
    output, of which repetitions are one, and the blank none. So the text only grows. Labels are
    joined by spaces, unless one of them has a space: then they are joined as they are.

    Args:
        file: `LoadedFile` of one model of audio, with the signature "stream", one output (1, N, V),
            and V labels, of which the first is the blank, "".

    Example, with an untrained model:

    >>> import keras, tempfile
    >>> import numpy as np
    >>> from keras_tfm import layers, runtime
    >>> from keras_tfm.export import export_tflite
    >>> from keras_tfm.models.encoder_decoders.moonshine_streaming import FrameEmbedding
    >>> audio = keras.Input((None,), name="audio")
    >>> x = keras.layers.Dense(3)(keras.ops.copy(FrameEmbedding(8)(audio)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(
    ...         keras.Model(audio, x), folder + "/ctc.tflite", ["stream"], piece_length=640,
    ...         labels=["", "on", "off"], verify=False,
    ...     )
    ...     listener = runtime.load(report.path).listen()
    ...     sound = np.random.default_rng(0).normal(scale=0.1, size=3000).astype("float32")
    ...     texts = [listener.append(sound), listener.finish()]
    >>> texts[1].startswith(texts[0]) and {*texts[1].split()} <= {"on", "off"}
    True
    """

    def __init__(self, file: LoadedFile):
        ((_, signature),) = list(file.of_role(Stream).items())[:1]
        (name,) = signature.of_kind("input")
        shapes = {key: signature.outputs[key].shape for key in signature.results}
        if not signature.inputs[name].is_audio or [len(x) for x in shapes.values()] != [3]:
            raise ValueError(
                f"{file.path}: listening needs audio and one output (1, N, V) with the classes of "
                f"CTC, got {name} and {shapes}"
            )
        super().__init__(file)
        self._labels = file.manifest.labels or []
        self._heard_labels: list[str] = []
        self._last = _BLANK

    def _write(self, new: np.ndarray) -> str:
        for best in new.argmax(axis=-1).tolist():
            if best not in (_BLANK, self._last):
                self._heard_labels.append(self._labels[best])
            self._last = best
        return join(self._heard_labels, self._labels)


class FeatureListener(Listener):
    """Hears audio with an encoder and a decoder; returned by `Model.listen`.

    The encoder reads each piece once, and its features are kept. When there are new ones, the
    decoder writes the text anew from all features so far, so an early text may change.

    Args:
        file: `LoadedFile` of two models: an encoder with the signature "stream", and a decoder
            with "generate" whose source are the encoder's features.

    Attributes:
        features: (n, D), float32, the features that are final so far.
    """

    def __init__(self, file: LoadedFile):
        encoders = {name: x for name, x in file.models.items() if of_role(x.signatures, Stream)}
        decoders = {name: x for name, x in file.models.items() if of_role(x.signatures, Generate)}
        if len(encoders) != 1 or len(decoders) != 1:
            raise ValueError(
                f"{file.path}: listening needs an encoder with the signature 'stream' and a "
                f"decoder with 'generate', got {list(encoders)} and {list(decoders)}; or a model "
                "with 'stream' and labels of CTC, of which the first is the blank, ''"
            )
        (encoder,), (self._decoder,) = encoders.values(), decoders.values()
        super().__init__(encoder)
        ((_, signature),) = list(of_role(self._decoder.signatures, Generate).items())[-1:]
        sources = {
            name: x.shape for name, x in signature.inputs.items() if name != signature.target
        }
        sources = {name: x for name, x in sources.items() if signature.inputs[name].kind == "input"}
        self.features = self._stream.empty[self._output]
        width = self.features.shape[-1]
        if len(sources) != 1 or [x[2:] for x in sources.values()] != [[width]]:
            raise ValueError(
                f"{file.path}: the decoder must read features (B, S, {width}), got {sources}"
            )
        ((self._source, shape),) = sources.items()
        self._longest = shape[1]

    def _write(self, new: np.ndarray) -> str:
        self.features = np.concatenate([self.features, new])
        count = len(self.features)
        if count > self._longest:
            raise ValueError(
                f"the decoder takes at most {self._longest} features, got {count}: begin another "
                "listener at a pause"
            )
        padded = np.pad(self.features, ((0, self._longest - count), (0, 0)))
        (text,) = answers(self._decoder, {self._source: padded[np.newaxis]})
        return text
