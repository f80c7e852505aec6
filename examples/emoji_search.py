"""Trains a small CLIP on emoji and their names in 30 languages, and searches with one .tflite file.

    pip install -e ".[examples]"
    python examples/emoji_search.py                       # trains, compares, exports
    python examples/emoji_search.py --ask "ein müdes Gesicht"
    python examples/emoji_search.py --ask picture.png     # names of a picture
    python examples/emoji_search.py --loss sigmoid        # SigLIP's loss instead of a softmax

Data: the emoji of five styles (emoji_data.py) and Unicode's names of them in 33 languages
(emoji_names.py); both need npm. Trained from random weights on four styles and 30 languages, tested
on the fifth style, Twitter's. A tenth of all pairs of an emoji and a language is left out of
training, and so are three languages. The test asks for the name of a picture among all names of a
language, and for the picture of a name among all pictures of the unseen style.

Minutes: 24 on 2 cores beside another training, 22 of them training. Expected, recall on 1,888 emoji
of the unseen style:

                                             name of a picture     picture of a name
                                                 @1         @5         @1         @5
chance                                         0.1%       0.3%       0.1%       0.3%
colour histograms                             11.1%      19.4%      11.1%      19.4%
thumbnails of 8 x 8 pixels                    41.3%      57.8%      41.3%      57.8%
Keras, languages and pairs of training        52.2%      74.8%      56.7%      78.0%
Keras, pairs never seen together              16.0%      29.5%      18.2%      32.7%
Keras, no: never seen                         23.3%      38.8%      24.6%      39.4%
Keras, ca: never seen                         21.1%      30.2%      21.9%      31.6%
Keras, et: never seen                         10.3%      16.3%      10.2%      15.2%
int8, languages and pairs of training         52.2%      74.8%      56.7%      78.0%
int8, pairs never seen together               16.0%      29.4%      18.2%      32.6%
int8, no: never seen                          23.4%      39.0%      24.7%      39.4%
int8, ca: never seen                          21.2%      30.1%      21.9%      31.6%
int8, et: never seen                          10.3%      16.3%      10.2%      15.2%

6.49 MB. Histograms and thumbnails compare a picture with the other styles' pictures of all emoji
and so need to know which emoji these are; no text is read.

With a fifth of the steps and each loss (--share 0.2 --loss softmax or sigmoid), in Keras:

                                             name of a picture     picture of a name
                                                 @1         @5         @1         @5
softmax over all emoji, training's pairs      28.7%      51.3%      34.5%      58.0%
SigmoidLoss, training's pairs                 24.7%      46.4%      24.3%      46.1%
softmax, pairs never seen together            10.7%      21.5%      13.0%      24.6%
SigmoidLoss, pairs never seen together         9.6%      18.7%       9.2%      19.1%

The softmax compares with all 1,888 emoji in each step, SigmoidLoss with those of the batch.

What helped: a third convolution and longer training, on pictures that are redrawn (redrawing.py),
so that by the vectors of the seen styles 65 % of the unseen pictures are found at first place, not
51 %; a vocabulary of 32,000, with which a name has 5 tokens instead of 7 and the texts find 88 % of
the pictures they were trained on instead of 50 %; and a higher temperature for the texts (0.1: 47 %
of the unseen pictures, 0.05: 44 %, after 3,000 steps).
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import emoji_data as data
import emoji_names as texts
import numpy as np
from emoji import redrawn, schedule

from keras_tfm.runtime import native_log

FOLDER = data.FOLDER
WIDTH = 128  # of the vectors
CHANNELS = (32, 64, 128)  # of the image tower's convolutions
# Names are short and their words in any order say the same: the text tower is the mean of the
# embeddings and a dense layer, and learns more names in a minute than with attention.
TEXT_DIM = 128
# Of the training of pictures and of texts: batch size, steps, peak learning rate, temperature.
PICTURES, TEXTS = (236, 2400, 3e-3, 0.07), (472, 8000, 5e-3, 0.1)
TRAINED_LENGTH = 12  # tokens of a text in training
NAME_SHARE = 0.8  # of the texts; the others are further words
LEFT_OUT = 0.1  # share of the pairs of an emoji and a language
SHEET = 44  # pictures in a row of the page's sheet


class Pairs(NamedTuple):
    """What is trained on, and what is tested.

    Attributes:
        codes: list of N str, the emoji.
        drawn: (N, V, H, W, C), uint8, each emoji in the training's styles.
        unseen: (N, H, W, C), uint8, in the unseen style.
        names: the texts by language.
        kept: bool array (languages of the training, N), False for pairs that are left out.
    """

    codes: list[str]
    drawn: np.ndarray
    unseen: np.ndarray
    names: dict[str, texts.Names]
    kept: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", metavar="TEXT", help="a word to search, or a picture to name")
    parser.add_argument(
        "--folder", type=Path, help=f"default: {FOLDER}, with --smoke {FOLDER / 'smoke'}"
    )
    parser.add_argument(
        "--loss", choices=("softmax", "sigmoid"), default="softmax", help="default: softmax"
    )
    parser.add_argument("--share", type=float, default=1.0, help="share of the training's steps")
    parser.add_argument(
        "--smoke", action="store_true", help="a short test run on scikit-learn's digits, a minute"
    )
    arguments = parser.parse_args()
    arguments.folder = arguments.folder or (FOLDER / "smoke" if arguments.smoke else FOLDER)
    file = arguments.folder / ("smoke_search.tflite" if arguments.smoke else "emoji_search.tflite")
    if not (arguments.ask and file.exists()):
        arguments.folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with native_log.remove():
            compare(file, arguments)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if arguments.ask:
        answer(file, arguments.ask)


def compare(file: Path, arguments: argparse.Namespace) -> None:
    """Trains, prints the table, writes the file and the page's data."""
    import keras

    keras.utils.set_random_seed(0)
    pairs = digits() if arguments.smoke else read(arguments.folder)
    share = 0.01 if arguments.smoke else arguments.share
    count, languages = len(pairs.codes), len(pairs.names)
    print(f"{count:,} emoji in {pairs.drawn.shape[1]} styles, names in {languages} languages")
    image, text = image_tower(), text_tower()
    learn_pictures(image, pairs, share, arguments.loss)
    learn_texts(text, vectors_of(image, pairs), pairs, share, arguments.loss)
    image.save(file.with_name("image.keras"))
    text.save(file.with_name("text.keras"))
    report(file, export(image, text, file, pairs, arguments.smoke), image, text, pairs)


def image_tower():
    """From pixels (B, 48, 48, 3) to vectors (B, WIDTH) of length 1."""
    import keras

    from keras_tfm import layers, models

    pixels = keras.Input((data.SIZE, data.SIZE, 3), name="pixels")
    x = layers.ImageNormalization((0.5,) * 3, (0.5,) * 3)(pixels)
    for width in CHANNELS:
        x = keras.layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))
    # Flattened, not averaged: where a colour stands tells most about an emoji, in any style.
    x = keras.layers.Flatten()(x)
    x = keras.layers.BatchNormalization(center=False, scale=False, name="image_norm")(x)
    x = keras.layers.Dropout(0.2, name="image_dropout")(x)
    x = keras.layers.Dense(WIDTH, use_bias=False, name="image_projection")(x)
    x = keras.layers.UnitNormalization(dtype="float32", name="image_vector")(x)
    return models.Model(pixels, x, name="image")


def text_tower():
    """From tokens (B, T), padded with 0, to vectors (B, WIDTH) of length 1."""
    import keras

    from keras_tfm import layers, models

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    y = layers.TokenEmbedding(texts.VOCABULARY, TEXT_DIM, mask_zero=True)(tokens)
    y = layers.SequencePooling("mean")(y)
    y = keras.layers.Dense(8 * TEXT_DIM, activation="gelu", name="text_hidden")(y)
    y = keras.layers.Dense(WIDTH, use_bias=False, name="text_projection")(y)
    y = keras.layers.UnitNormalization(dtype="float32", name="text_vector")(y)
    return models.Model(tokens, y, name="text")


def learn_pictures(image, pairs: Pairs, share: float, loss: str) -> None:
    """Pictures point at a learned vector of their emoji, in any style and redrawn in any way.

    The softmax is over all emoji, where CLIP's is over those of a batch, as is `SigmoidLoss` here.
    """
    import keras

    emoji = keras.layers.Dense(
        len(pairs.codes),
        use_bias=False,
        kernel_initializer=keras.initializers.RandomNormal(stddev=WIDTH**-0.5),
        kernel_constraint=keras.constraints.UnitNorm(axis=0),
        name="emoji",
    )
    size, steps, peak, temperature = PICTURES
    size, random = min(size, len(pairs.codes)), np.random.default_rng(1)

    def draw():
        while True:
            order = random.permutation(len(pairs.codes))
            for start in range(0, len(order) - size + 1, size):
                rows = order[start : start + size]
                style = random.integers(pairs.drawn.shape[1], size=size)
                yield pairs.drawn[rows, style], rows

    fit(image, emoji, draw(), steps, peak, temperature, share, "pictures", loss, redrawn())


def learn_texts(text, vectors: np.ndarray, pairs: Pairs, share: float, loss: str) -> None:
    """Texts point at the vectors of their emoji's pictures, which stay as they are.

    Locked-image tuning (arXiv:2111.07991): most of the time goes to the texts, of which there are
    a hundred times more, and a step on them costs little.
    """
    import keras

    emoji = keras.layers.Dense(len(vectors), use_bias=False, trainable=False, name="emoji")
    emoji.build((None, WIDTH))
    emoji.kernel.assign(vectors.T)
    size, steps, peak, temperature = TEXTS
    random, reader = np.random.default_rng(2), texts.tokenizer(pairs.names)
    trained = [x for x in pairs.names if x not in texts.UNSEEN]
    kinds = []  # the ids and the emoji of all names, and of all further words
    for chosen in range(2):
        known = [
            (written, i)
            for language, kept in zip(trained, pairs.kept, strict=True)
            for i, found in enumerate(pairs.names[language][chosen])
            for written in ([found] if chosen == 0 else found)
            if kept[i] and written
        ]
        ids = texts.encode([x for x, _ in known], reader, TRAINED_LENGTH)
        kinds.append((ids, np.array([x for _, x in known], "int64")))

    def draw():
        while True:
            ids, rows = kinds[random.random() >= NAME_SHARE and len(kinds[1][1]) > 0]
            places = random.integers(len(rows), size=size)
            yield ids[places], rows[places]

    fit(text, emoji, draw(), steps, peak, temperature, share, "texts", loss)


def fit(
    tower, emoji, batches, steps, peak, temperature, share, what: str, loss: str, augment=None
) -> None:
    """Trains a tower on endless batches of inputs and the numbers of their emoji.

    With "softmax", p(emoji | v) = softmax(v . e / temperature), where e is the emoji's vector. With
    "sigmoid", p(v and e are the same emoji) = sigmoid(s v . e + b), with learned s and b.
    """
    import keras
    import tensorflow as tf

    from keras_tfm import models, training

    steps = max(10, int(steps * share) // 10 * 10)
    if loss == "softmax":
        logits = keras.layers.Rescaling(1 / temperature, dtype="float32")(emoji(tower.output))
        model = models.Model(tower.input, logits)
        function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        model, function = pairs_of(tower, emoji), training.SigmoidLoss()
    model.compile(
        keras.optimizers.AdamW(schedule(peak, steps), weight_decay=0.05, clipnorm=1.0),
        function,
        jit_compile=False,  # XLA is slower here: it compiles for one core
    )
    inputs, rows = next(batches)
    signature = tuple(tf.TensorSpec(x.shape, x.dtype) for x in (inputs, rows))
    drawn = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    if augment is not None:
        drawn = drawn.map(lambda x, y: (augment(x, training=True), y), num_parallel_calls=2)
    if loss == "sigmoid":
        drawn = drawn.map(lambda x, y: ({tower.input.name: x, "rows": y}, y))
    history = model.fit(
        drawn.prefetch(2), epochs=10, steps_per_epoch=steps // 10, shuffle=False, verbose=0
    )
    losses = history.history["loss"]
    print(f"{what}: loss {losses[0]:.2f} to {losses[-1]:.2f} in {steps:,} steps", flush=True)


def pairs_of(tower, emoji):
    """A model of inputs and the numbers of their emoji, as `SigmoidLoss` takes: a SigLIP."""
    import keras

    from keras_tfm import models
    from keras_tfm.models.vision.clip import LogitBias, LogitScale

    if not emoji.built:
        emoji.build((None, WIDTH))
    known = keras.layers.Embedding(
        emoji.units,
        WIDTH,
        embeddings_constraint=keras.constraints.UnitNorm(axis=1),
        trainable=emoji.trainable,
        name="emoji_vectors",
    )
    known.build()
    known.embeddings.assign(keras.ops.normalize(keras.ops.transpose(emoji.kernel), axis=1))
    rows = keras.Input((), dtype="int32", name="rows")
    outputs = {
        "image_embedding": tower.output,
        "text_embedding": known(rows),
        "scale": LogitScale(np.log(10.0), maximum=None, name="logit_scale")(tower.output),
        "bias": LogitBias(-10.0, name="logit_bias")(tower.output),
    }
    return models.Model({tower.input.name: tower.input, "rows": rows}, outputs)


def vectors_of(image, pairs: Pairs) -> np.ndarray:
    """The mean vector of each emoji's pictures in the training's styles, of length 1."""
    found = [image.predict(x, batch_size=236, verbose=0) for x in pairs.drawn.swapaxes(0, 1)]
    mean = np.mean(found, axis=0)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def read(folder: Path) -> Pairs:
    """The emoji that all styles have, with their names."""
    styles = data.styles(folder)
    unseen = styles.pop(data.UNSEEN)
    rows = [dict(zip(x.codes.tolist(), x.pixels, strict=True)) for x in styles.values()]
    codes = unseen.codes.tolist()
    # A style without an emoji shows it as the next style that has it.
    drawn = [
        [next(x[code] for x in [*rows[i:], *rows] if code in x) for i in range(len(rows))]
        for code in codes
    ]
    names = texts.read(codes, folder)
    kept = np.random.default_rng(0).random((len(texts.SEEN), len(codes))) >= LEFT_OUT
    return Pairs(codes, np.array(drawn), unseen.pixels, names, kept)


def digits() -> Pairs:
    """scikit-learn's digits and their names in two languages, for a test run without a network."""
    words = {
        "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
        "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
    }
    styles = [[x.pixels[x.classes == i][0] for i in range(10)] for x in data.digits().values()]
    return Pairs(
        [str(i) for i in range(10)],
        np.array(styles[:-1]).swapaxes(0, 1),
        np.array(styles[-1]),
        {language: texts.Names(names, [[]] * 10) for language, names in words.items()},
        np.ones((2, 10), bool),
    )


def export(image, text, file: Path, pairs: Pairs, smoke: bool):
    """Writes both models into one int8 file, and returns it, loaded."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    reader = texts.tokenizer(pairs.names)
    images = runtime.ImageProcessor((data.SIZE, data.SIZE), resize="fit", resample="lanczos")
    # Verified on what the models have learnt, as random pixels and tokens are nothing they know.
    asked = [x.names[i] for x in pairs.names.values() for i in range(0, 10, 5) if x.names[i]]
    export_tflite(
        {"image": image, "text": text},
        file,
        quantization="int8",
        tokenizer=reader,
        images=images,
        source_length=[8, 16, texts.LENGTH],
        verify_inputs={
            "image": {"pixels": pairs.unseen[::100]},
            "text": {"tokens": texts.encode(asked, reader)},
        },
        tolerance=0.2 if smoke else None,
        overwrite=True,
    )
    return runtime.load(file)


def report(file: Path, loaded, image, text, pairs: Pairs) -> None:
    """The table of recalls in Keras and in the file, and the data of the page."""
    reader = texts.tokenizer(pairs.names)
    pictures = {
        "Keras": image.predict(pairs.unseen, verbose=0),
        "int8": loaded.models["image"].predict(pairs.unseen)["output"],
    }
    vectors = {
        language: {
            "Keras": text.predict(texts.encode(names.names, reader), verbose=0),
            "int8": loaded.embed_text([x or "-" for x in names.names]),
        }
        for language, names in pairs.names.items()
    }
    print(f"\n{'':40}{'name of a picture':>22}{'picture of a name':>22}")
    print(f"{'':40}" + f"{'@1':>11}{'@5':>11}" * 2)
    show("chance", [[k / len(pairs.codes) for k in (1, 5)]] * 2)
    show("colour histograms", [colour_ranks(pairs).recalls()] * 2)
    show("thumbnails of 8 x 8 pixels", [thumbnail_ranks(pairs).recalls()] * 2)
    groups = [("languages and pairs of training", True), ("pairs never seen together", False)]
    for run in ("Keras", "int8"):
        for label, kept in groups:
            if not (pairs.kept == kept).any():
                continue
            found = (Ranks(), Ranks())
            for i, language in enumerate(x for x in pairs.names if x not in texts.UNSEEN):
                rows = pairs.kept[i] == kept
                add(found, pictures[run], vectors[language][run], pairs.names[language], rows)
            show(f"{run}, {label}", [x.recalls() for x in found])
        for language in (x for x in pairs.names if x in texts.UNSEEN):
            found = (Ranks(), Ranks())
            every = np.ones(len(pairs.codes), bool)
            add(found, pictures[run], vectors[language][run], pairs.names[language], every)
            show(f"{run}, {language}: never seen", [x.recalls() for x in found])
    start = time.perf_counter()
    asked = pairs.names["en"].names[:100]
    for name in asked:
        loaded.embed_text(name)
    milliseconds = (time.perf_counter() - start) / len(asked) * 1000
    print(f"\n{file.stat().st_size / 1e6:.2f} MB; a query {milliseconds:.2f} ms")
    page_data(file, pictures["int8"], pairs)


class Ranks:
    """At which place what was looked for was found, over many queries."""

    def __init__(self) -> None:
        self.places: list[np.ndarray] = []

    def recalls(self) -> list[float]:
        """The shares of the queries whose answer is the first, and among the first five."""
        places = np.concatenate(self.places)
        return [float(np.mean(places < k)) for k in (1, 5)]


def add(found: tuple[Ranks, Ranks], pictures, names, texts_of: texts.Names, rows) -> None:
    """Adds the places of the asked rows among all that have a name in a language."""
    named = np.array([bool(x) for x in texts_of.names])
    scores = pictures[named] @ names[named].T
    for ranks, table in zip(found, (scores, scores.T), strict=True):
        places = (table > np.diag(table)[:, None]).sum(1)
        ranks.places.append(places[rows[named]])


def colour_ranks(pairs: Pairs) -> Ranks:
    """The emoji of a picture by the nearest histogram of 4 x 4 x 4 colours, whose name is known."""

    def histograms(pixels: np.ndarray) -> np.ndarray:
        bins = (pixels // 64).astype(int) @ [16, 4, 1]
        return np.stack([np.bincount(x.ravel(), minlength=64) for x in bins]) / bins[0].size

    asked = histograms(pairs.unseen)
    seen = np.stack([histograms(x) for x in pairs.drawn.swapaxes(0, 1)])
    # Of each picture to the nearest style of each emoji.
    return ranks_of(np.stack([np.abs(seen - x).sum(-1).min(0) for x in asked]))


def thumbnail_ranks(pairs: Pairs) -> Ranks:
    """The emoji of a picture by the angle to the nearest thumbnail, whose name is known."""

    def thumbnails(pixels: np.ndarray) -> np.ndarray:
        cell = data.SIZE // 8
        x = 1 - pixels.reshape(len(pixels), 8, cell, 8, cell, 3).mean((2, 4)).reshape(-1, 192) / 255
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)

    asked = thumbnails(pairs.unseen)
    seen = [thumbnails(x) for x in pairs.drawn.swapaxes(0, 1)]
    return ranks_of(-np.max([asked @ x.T for x in seen], axis=0))


def ranks_of(distances: np.ndarray) -> Ranks:
    """The place of each picture's own emoji, from the distances (N, N) to all emoji."""
    ranks = Ranks()
    ranks.places.append((distances < np.diag(distances)[:, None]).sum(1))
    return ranks


def show(label: str, recalls: list[list[float]]) -> None:
    print(f"{label:40}" + "".join(f"{x:11.1%}" for pair in recalls for x in pair), flush=True)


def page_data(file: Path, vectors: np.ndarray, pairs: Pairs) -> None:
    """For examples/web/emoji.html: a sheet of the pictures of the unseen style, their vectors."""
    from PIL import Image

    rows = -(-len(pairs.codes) // SHEET)
    sheet = np.full((rows * data.SIZE, SHEET * data.SIZE, 3), 255, "uint8")
    for i, picture in enumerate(pairs.unseen):
        y, x = (data.SIZE * n for n in divmod(i, SHEET))
        sheet[y : y + data.SIZE, x : x + data.SIZE] = picture
    Image.fromarray(sheet).save(file.with_suffix(".png"))
    vectors.astype("<f4").tofile(file.with_suffix(".f32"))
    layout = {"columns": SHEET, "size": data.SIZE, "emoji": [character(x) for x in pairs.codes]}
    file.with_suffix(".json").write_text(json.dumps(layout))


def character(code: str) -> str:
    """The emoji of code points in hexadecimal, joined by "-"."""
    return "".join(chr(int(x, 16)) for x in code.split("-"))


def answer(file: Path, asked: str) -> None:
    """The best emoji for a text, or the best English names for a picture, from the file alone."""
    from keras_tfm import runtime

    loaded = runtime.load(file)
    pairs = digits() if file.stem.startswith("smoke") else read(file.parent)
    names = next(iter(pairs.names.values())).names
    if Path(asked).is_file():
        found = loaded.embed_text(names) @ loaded.embed_image(asked)
    else:
        found = loaded.models["image"].predict(pairs.unseen)["output"] @ loaded.embed_text(asked)
    for i in np.argsort(-found)[:5]:
        print(f"{found[i]:6.3f}  {character(pairs.codes[i])}  {names[i]}")


if __name__ == "__main__":
    main()
