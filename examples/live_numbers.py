"""Trains a recogniser of spoken numbers that writes while one speaks, and exports it to LiteRT.

    pip install -e ".[examples]"
    python examples/live_numbers.py
    python examples/live_numbers.py --listen recording.wav  # as if it came from a microphone
    keras-tfm page artifacts/live_numbers/live_numbers_int8.tflite site  # the microphone

Data: numbers from 0 to 999 in the voices of eSpeak NG, see spoken_numbers_data.py; the test has 21
voices that are not heard in training. A synthesiser speaks more regularly than people do: this
shows the way, not a product. The encoder begins as that of Moonshine v2 does, with frames of 10 ms
and causal convolutions, and its attention sees 120 ms ahead in all. A dense layer with CTC (Graves
et al. 2006) tells words from blanks, so there is no decoder, and a word that is written stays. The
file reads pieces of 80 ms.
Minutes: 20 of CPU time on 2 cores. Expected, on 275 recordings of voices never heard:

word error rate
Keras, whole recordings                                        7.08%
float32 file, in pieces (275 of 275 texts are Keras's)         7.08%
int8 file, in pieces (272 of 275 texts are Keras's)            6.87%

int8, milliseconds of audio                           median   9 of 10
a recording                                             1282      1789
the first word, after the start                          220       780
the last word, after the end                             312       351

The last word needs a third of a second of quiet behind it: of recordings that are cut at their last
sample half of the words are wrong. A piece takes 0.3 ms on one thread, the states are 7,296
numbers, and the int8 file has 0.33 MB.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import numpy as np
import spoken_numbers_data as data
from spoken_numbers import noisy, progress, word_error_rate

from keras_tfm.runtime import native_log

FOLDER = Path("artifacts/live_numbers")
LABELS = ["", *data.WORDS]  # the first is the blank
LATE = data.RATE // 5  # samples: the longest silence before a number in training
BEFORE, AFTER = data.RATE // 10, 6 * data.RATE // 10  # around those of the test
SAMPLES, PIECE, FRAME = int(2.2 * data.RATE), 1280, 160
DIM, WINDOWS, LONGEST = 64, [(16, 3), (16, 2), (16, 1)], 8
COUNT, TESTED, EPOCHS, BATCH, PEAK = 8000, 300, 30, 32, 3e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help=f"default: {FOLDER}, with --smoke {FOLDER / 'smoke'}"
    )
    parser.add_argument("--smoke", action="store_true", help="a short test run, a minute")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="more of them make it better")
    parser.add_argument("--listen", type=Path, help="a WAV file, which is read in pieces")
    arguments = parser.parse_args()
    folder = arguments.folder or (FOLDER / "smoke" if arguments.smoke else FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with native_log.remove():
        if not (arguments.listen and path_in(folder, "int8").exists()):
            start = time.perf_counter()
            train(folder, arguments.epochs, arguments.smoke)
            print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
        if arguments.listen:
            from keras_tfm import runtime
            from keras_tfm.runtime.media.wav import read_wav, resample

            samples = in_quiet(resample(*read_wav(arguments.listen), data.RATE))
            for milliseconds, text in heard(runtime.load(path_in(folder, "int8")), samples):
                print(f"{milliseconds:6} ms  {text}")


def path_in(folder: Path, quantization: str) -> Path:
    return folder / f"live_numbers_{quantization}.tflite"


def train(folder: Path, epochs: int, smoke: bool) -> None:
    """Trains, exports, and prints error rates and when words are written."""
    import keras

    keras.utils.set_random_seed(0)
    count, tested, epochs = (96, 24, 1) if smoke else (COUNT, TESTED, epochs)
    voices, others = data.voices()
    known = fitting(data.recordings(count, voices, seed=0))
    asked = fitting(data.recordings(tested, others, seed=1))
    print(
        f"{len(known)} recordings to train with, {len(asked)} of other voices to test", flush=True
    )
    model = recogniser()
    steps = epochs * -(-len(known) // BATCH)
    model.compile(
        keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(
                0.0, steps - steps // 10, warmup_target=PEAK, warmup_steps=max(1, steps // 10)
            ),
            weight_decay=0.05,
            beta_2=0.98,
            global_clipnorm=1.0,
        ),
        keras.losses.CTC(),
    )
    model.fit(batches(known), epochs=epochs, verbose=0, callbacks=[progress()])
    model.save(folder / "live_numbers.keras")
    measure(model, folder, known, asked, ("int8",) if smoke else ("float32", "int8"))


def measure(model, folder: Path, known: list, asked: list, quantizations: tuple) -> None:
    """Exports, and compares the files, in pieces, with the model over whole recordings."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    answers = [" ".join(x.words) for x in asked]
    audio = [in_quiet(x.samples / np.float32(32768)) for x in asked]
    whole = [text_of(np.asarray(model(x[np.newaxis]))[0]) for x in audio]
    rates = {"Keras, whole recordings": word_error_rate(answers, whole)}
    checked = [x.samples / np.float32(32768) for x in known[:8]]
    for quantization in quantizations:
        report = export_tflite(
            model, path_in(folder, quantization), ["stream"], quantization, piece_length=PIECE,
            labels=LABELS, verify_inputs={"audio": checked},
        )  # fmt: skip
        print(report)
        file = runtime.load(report.path)
        begin = time.perf_counter()
        streamed = [[*heard(file, x)] for x in audio]
        seconds = time.perf_counter() - begin
        found = [x[-1][1] if x else "" for x in streamed]
        equal = sum(a == b for a, b in zip(whole, found, strict=True))
        name = f"{quantization} file, in pieces ({equal} of {len(found)} texts are Keras's)"
        rates[name] = word_error_rate(answers, found)
    print("\nword error rate, of voices never heard")
    for name, rate in rates.items():
        print(f"{name:60}{rate:8.2%}")
    ends = [1000 * (len(x) - AFTER) / data.RATE for x in audio]
    begin = 1000 * BEFORE / data.RATE
    firsts = [x[0][0] - begin for x in streamed if x] or [0]
    lasts = [x[-1][0] - end for x, end in zip(streamed, ends, strict=True) if x] or [0]
    print(f"\nint8, milliseconds of audio{'median':>33}{'9 of 10':>10}")
    for name, values in (
        ("a recording", np.subtract(ends, begin)),
        ("the first word, after the start", firsts),
        ("the last word, after the end", lasts),
    ):
        print(f"{name:50}{np.median(values):10.0f}{np.percentile(values, 90):10.0f}")
    pieces = sum(-(-len(x) // PIECE) for x in audio)
    print(f"{1000 * seconds / pieces:.2f} ms for a piece of {1000 * PIECE / data.RATE:.0f} ms")


def recogniser():
    """(B, samples) to logits of words (B, positions of 40 ms, V)."""
    import keras

    from keras_tfm import layers
    from keras_tfm.models.encoder_decoders.moonshine_streaming import FrameEmbedding

    audio = keras.Input((None,), name="audio")
    x = FrameEmbedding(DIM, FRAME)(audio)
    for i, window in enumerate(WINDOWS):
        x = layers.TransformerEncoderBlock(
            4 * DIM,
            dropout=0.1,
            activation="gelu",
            self_attention=layers.MultiHeadSelfAttention(4, window=window, dropout=0.1),
            normalize_first=True,
            name=f"encoder_{i}",
        )(x)
    # An operation drops the mask of the padding: CTC finds blanks there.
    x = keras.ops.copy(layers.LayerNormalization()(x))
    return keras.Model(audio, keras.layers.Dense(len(LABELS))(x), name="live_numbers")


def heard(file, samples: np.ndarray):
    """Yields (milliseconds of audio, text so far) whenever the text has changed."""
    listener, before = file.listen(), ""
    for start in range(0, len(samples) + PIECE, PIECE):
        part = samples[start : start + PIECE]
        text = listener.append(part) if len(part) else listener.finish()
        if text != before:
            yield round(1000 * min(start + PIECE, len(samples)) / data.RATE), text
        before = text


def in_quiet(samples: np.ndarray) -> np.ndarray:
    """With quiet around it, as from a microphone: the last word is written when it has ended."""
    noise = np.random.default_rng(0).normal(scale=1e-4, size=BEFORE + len(samples) + AFTER)
    noise[BEFORE : BEFORE + len(samples)] = samples
    return noise.astype("float32")


def text_of(logits: np.ndarray) -> str:
    """The words of the best path: repetitions are one word, unless a blank is between them."""
    best = logits.argmax(-1)
    kept = best[np.diff(best, prepend=0) != 0]
    return " ".join(LABELS[i] for i in kept if i)


def fitting(recordings: list) -> list:
    """Those that are short enough for the batches."""
    return [x for x in recordings if len(x.samples) <= SAMPLES - LATE]


def batches(recordings: list):
    """Shuffled batches: a little late, at any loudness, a third of them with noise."""
    import keras

    ids = {word: i for i, word in enumerate(LABELS)}

    class Batches(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=1, use_multiprocessing=False)
            self.rng = np.random.default_rng(0)
            self.on_epoch_end()

        def __len__(self):
            return -(-len(recordings) // BATCH)

        def on_epoch_end(self):
            self.order = self.rng.permutation(len(recordings))

        def __getitem__(self, index):
            rng = np.random.default_rng([index, int(self.order[0])])
            chosen = [recordings[i] for i in self.order[index * BATCH : (index + 1) * BATCH]]
            # Behind a recording is no silence of zeros, which would be padding.
            audio = rng.normal(scale=1e-4, size=(len(chosen), SAMPLES)).astype("float32")
            words = np.zeros((len(chosen), LONGEST), "int32")
            for i, x in enumerate(chosen):
                sound = x.samples / np.float32(32768) * 10 ** rng.uniform(-1.5, 0)
                if rng.random() < 1 / 3:
                    sound = noisy(sound, rng.uniform(5, 30), rng, recordings)
                begin = rng.integers(LATE)
                audio[i, begin : begin + len(sound)] = sound
                words[i, : len(x.words)] = [ids[word] for word in x.words]
            return audio, words

    return Batches()


if __name__ == "__main__":
    main()
