"""Trains a small DALL-E to draw emoji from words, and draws with one .tflite file.

pip install -e ".[examples]"
python examples/drawing.py                        # trains, measures, exports, draws
python examples/drawing.py --ask "red apple"      # draws a PNG
"""

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import emoji_data as data
import emoji_names as texts
import numpy as np
from emoji import schedule

from keras_tfm.runtime import native_log

FOLDER = data.FOLDER.with_name("drawing")
SIZE = 32
# The subgroups of Unicode that are drawn, by the start of their names.
DRAWN = ("face-", "animal-", "plant-", "food-", "sky")
# Of the discrete VAE: four groups halve the picture three times, to 4 x 4 codes.
CODES, DIM, GROUPS, CODE_DIM, KL_WEIGHT = 512, 24, 4, 64, 0.5
COOLEST = 1 / 16  # temperature of the Gumbel-softmax at the end
VOCABULARY, TEXT_LENGTH = 1000, 12
DALLE = {
    "dim": 128, "num_layers": 4, "num_heads": 4, "intermediate_dim": 512, "dropout": 0.1,
    "kernel_size": 3,
}  # fmt: skip
TOWER = {"dim": 64, "num_layers": 2, "num_heads": 4, "intermediate_dim": 256, "dropout": 0.1}
BATCH = 64
STEPS = {"dvae": 600, "clip": 600, "dalle": 1000}
PEAKS = {"dvae": 2e-3, "clip": 1e-3, "dalle": 2e-3}
CAPTION_DROPOUT = 0.1
NAME_SHARE = 0.7  # of the captions; the others are further words


class Pairs(NamedTuple):
    """What is trained on, and what is tested.

    Attributes:
        drawn: (N, S, SIZE, SIZE, 3), uint8, each emoji in the styles of the training.
        unseen: (N, SIZE, SIZE, 3), uint8, in the unseen style.
        names: list of N str, the English name of each emoji.
        words: list of N lists of str, further words.
    """

    drawn: np.ndarray
    unseen: np.ndarray
    names: list[str]
    words: list[list[str]]


def read(folder: Path) -> Pairs:
    """The emoji of the drawn subgroups that have an English name, in all styles."""
    styles = data.styles(folder)
    unseen = styles.pop(data.UNSEEN)
    rows = [dict(zip(x.codes.tolist(), x.pixels, strict=True)) for x in styles.values()]
    names = texts.read(unseen.codes.tolist(), folder)["en"]
    kept = [
        i
        for i, group in enumerate(unseen.classes)
        if unseen.names[group].startswith(DRAWN) and names.names[i]
    ]
    # A style without an emoji shows it as the next style that has it.
    drawn = [
        [next(x[code] for x in [*rows[i:], *rows] if code in x) for i in range(len(rows))]
        for code in unseen.codes[kept]
    ]
    pictures = np.array(drawn)
    return Pairs(
        small(pictures.reshape(-1, *pictures.shape[2:])).reshape(
            len(kept), len(rows), SIZE, SIZE, 3
        ),
        small(unseen.pixels[kept]),
        [names.names[i] for i in kept],
        [names.words[i] for i in kept],
    )


def digits() -> Pairs:
    """scikit-learn's digits with their names, for a test run without a network."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    styles = [[x.pixels[x.classes == i][0] for i in range(10)] for x in data.digits().values()]
    drawn = np.array(styles[:-1]).swapaxes(0, 1)
    return Pairs(
        small(drawn.reshape(-1, *drawn.shape[2:])).reshape(10, -1, SIZE, SIZE, 3),
        small(np.array(styles[-1])),
        words,
        [[] for _ in words],
    )


def small(pixels: np.ndarray) -> np.ndarray:
    """Pictures (N, H, W, 3) reduced to (N, SIZE, SIZE, 3)."""
    from keras_tfm import runtime

    return runtime.ImageProcessor((SIZE, SIZE), resample="lanczos")(pixels)


def train_dvae(pairs: Pairs, steps: int):
    """The discrete VAE, on all pictures of the training."""
    import keras

    from keras_tfm import models, training

    model = models.dvae(SIZE, CODES, DIM, GROUPS, num_blocks=1, code_dim=CODE_DIM)
    model.compile(
        keras.optimizers.Adam(schedule(PEAKS["dvae"], steps)),
        training.DiscreteVAELoss(KL_WEIGHT),
        jit_compile=False,
    )
    cooling = keras.optimizers.schedules.ExponentialDecay(1.0, 0.8 * steps, COOLEST)
    temperature = model.get_layer("gumbel_softmax").temperature
    annealing = training.Annealing(temperature, lambda step: max(COOLEST, float(cooling(step))))
    pictures = pairs.drawn.reshape(-1, SIZE, SIZE, 3)
    random = np.random.default_rng(0)

    def batches():
        while True:
            batch = pictures[random.integers(len(pictures), size=BATCH)]
            yield (np.where(random.random((BATCH, 1, 1, 1)) < 0.5, batch, batch[:, :, ::-1]),)

    fit(model, batches(), steps, [annealing])
    return model


def train_clip(pairs: Pairs, steps: int, reader):
    """A CLIP of the same pictures and words: it judges what is drawn."""
    import keras

    from keras_tfm import models, training

    size = min(BATCH * 2, len(pairs.names))
    model = models.clip(
        SIZE, 8, reader.get_vocab_size(), TEXT_LENGTH, reader.token_to_id(texts.END), 64,
        TOWER, TOWER, image_mean=(0.5,) * 3, image_std=(0.5,) * 3,
    )  # fmt: skip
    model.compile(
        keras.optimizers.AdamW(schedule(PEAKS["clip"], steps), weight_decay=0.1, clipnorm=1.0),
        training.ContrastiveLoss(),
        jit_compile=False,
    )
    random = np.random.default_rng(1)

    def batches():
        while True:
            rows = random.permutation(len(pairs.names))[:size]
            style = random.integers(pairs.drawn.shape[1], size=size)
            captions = encode([caption(pairs, i, random) for i in rows], reader)
            tokens = np.zeros((size, TEXT_LENGTH), "int32")
            for row, ids in zip(tokens, captions, strict=True):
                row[: len(ids)] = ids
            yield ({"pixels": pairs.drawn[rows, style], "tokens": tokens},)

    fit(model, batches(), steps)
    return models.clip_towers(model)


def train_dalle(pairs: Pairs, steps: int, reader, encoder):
    """DALL-E on words and the codes of the pictures."""
    import keras

    from keras_tfm import models

    pictures = pairs.drawn.reshape(-1, SIZE, SIZE, 3)
    codes = encoder.predict(pictures, batch_size=BATCH, verbose=0).argmax(-1)
    codes = codes.reshape(*pairs.drawn.shape[:2], -1)
    rows = captioned(reader)
    model = models.dalle(
        reader.get_vocab_size(), CODES, TEXT_LENGTH, SIZE // 2 ** (GROUPS - 1), **DALLE
    )
    model.compile(
        keras.optimizers.AdamW(schedule(PEAKS["dalle"], steps), weight_decay=0.05, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        jit_compile=False,
    )
    random = np.random.default_rng(2)

    def batches():
        step = 0
        while True:
            chosen = random.integers(len(pairs.names), size=BATCH)
            style = random.integers(pairs.drawn.shape[1], size=BATCH)
            captions = encode([caption(pairs, i, random) for i in chosen], reader)
            yield rows(captions, codes[chosen, style], step)
            step += 1

    fit(model, batches(), steps)
    return model


def fit(model, batches, steps: int, callbacks=()) -> None:
    """Trains in ten epochs."""
    import keras

    class _Report(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds = time.perf_counter() - self.start
            print(
                f"{model.name}: {epoch + 1}/10, loss {logs['loss']:.4f}, {seconds:.0f} s",
                flush=True,
            )

    model.fit(
        batches, epochs=10, steps_per_epoch=max(1, steps // 10), verbose=0,
        callbacks=[*callbacks, _Report()],
    )  # fmt: skip


def caption(pairs: Pairs, i: int, random: np.random.Generator) -> str:
    """The name of an emoji, or some of its further words."""
    words = pairs.words[i]
    if not words or random.random() < NAME_SHARE:
        return pairs.names[i]
    return " ".join(random.permutation(words)[: random.integers(1, 3)])


def encode(captions: list[str], reader) -> list[list[int]]:
    """The ids of captions; of longer ones the first and the end token."""
    found = [x.ids for x in reader.encode_batch(captions)]
    return [x if len(x) <= TEXT_LENGTH else [*x[: TEXT_LENGTH - 1], x[-1]] for x in found]


def captioned(reader):
    """Rows of captions and codes."""
    from keras_tfm import text

    return text.CaptionedImages(TEXT_LENGTH, reader.get_vocab_size(), CODES, CAPTION_DROPOUT)


def trained(folder: Path, pairs: Pairs, smoke: bool):
    """The trained models: dVAE, towers of CLIP, DALL-E; loaded if they were trained before."""
    import keras

    from keras_tfm import models

    reader = texts.tokenizer({"en": texts.Names(pairs.names, pairs.words)}, size=VOCABULARY)
    steps = dict.fromkeys(STEPS, 20) if smoke else STEPS
    made = {
        "dvae": lambda: train_dvae(pairs, steps["dvae"]),
        "clip": lambda: train_clip(pairs, steps["clip"], reader),
        "dalle": lambda: train_dalle(pairs, steps["dalle"], reader, parts["encoder"]),
    }
    names = {"dvae": ["dvae"], "clip": ["clip_image", "clip_text"], "dalle": ["dalle"]}
    result = {}
    for part, make in made.items():
        files = [folder / f"{name}.keras" for name in names[part]]
        if smoke or not all(x.exists() for x in files):
            keras.utils.set_random_seed(0)
            found = make()
            found = list(found.values()) if isinstance(found, dict) else [found]
            for model, file in zip(found, files, strict=True):
                model.save(file)
        for name, file in zip(names[part], files, strict=True):
            result[name] = keras.saving.load_model(file)
        if part == "dvae":
            parts = models.dvae_parts(result["dvae"])
    return result, reader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--smoke", action="store_true", help="a short test run on digits, a minute")
    arguments = parser.parse_args()
    folder = arguments.folder / "smoke" if arguments.smoke else arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    pairs = digits() if arguments.smoke else read(data.FOLDER)
    print(f"{len(pairs.names)} emoji in {pairs.drawn.shape[1]} styles")
    with native_log.removed():
        trained(folder, pairs, arguments.smoke)


if __name__ == "__main__":
    main()
