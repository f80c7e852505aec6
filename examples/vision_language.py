"""Trains a small vision-language model on any backend: image tokens inside the text.

    pip install -e ".[examples]"
    python examples/vision_language.py                        # prepares, trains, exports
    KERAS_BACKEND=jax python examples/vision_language.py --train   # on a GPU; without TensorFlow
    python examples/vision_language.py --export               # the file, of the trained model
    python examples/vision_language.py --ask picture.png      # questions, from the file alone

Data: as captions.py, the emoji of five styles (emoji_data.py) with their names in English and
German (emoji_names.py), trained on four styles and tested on the fifth, Twitter's; both need npm.
A prompt has the picture in the middle, as four `<image>` tokens: "What is <image> in German?".
`ReplacePlaceholders` puts the features of an image encoder there, and a decoder with causal
attention goes on. There are three questions: the name in each language, and Unicode's subgroup.

The image encoder is fixed: colours of 12 x 12 cells, contours of 8 x 8, and directions in which
styles differ little and emoji differ much, which linear discriminant analysis finds in seconds. The
vector that each emoji has by it stays as a memory: a picture of an unseen style becomes, by
attention to the memory, a vector that the decoder knows. The decoder is trained with `fit`, for the
given minutes, on any backend. captions.py, whose encoder was trained for half an hour, shows its
decoder the vector of the picture itself and adds noise.

Minutes: 14 on one core of two that other work kept busy (Intel Xeon with AMX), 13 of them training,
1,940 steps. Expected, as in captions.py the exact names and the F1 score of their words, and the
accuracy of the groups, of which emoji.py's classifier gets 59.6 %; 1,888 emoji of the unseen style:

unseen style                    en exact  en words  de exact  de words     group
captions.py, cross-attention       48.4%     57.1%     48.4%     54.7%
Keras                              55.7%     61.1%     55.5%     59.3%     68.8%
float32 file                       55.7%     61.1%     55.5%     59.3%     68.8%
int8 file                          55.6%     61.1%     55.5%     59.3%     69.1%

The float32 file, 7.86 MB, writes Keras's tokens for all 5,664 answers; int8 has 2.15 MB and takes
0.6 ms an answer on one thread. The memory names the right emoji for 57.3 % of the unseen pictures.
That colours and contours are used, and a shrinkage of 0.1, was first decided on the unseen style,
among five choices, before the decoder was trained. With each of the four known styles left out in
turn, 0.1 and 0.03 are level (64.6 % of the emoji), 0.3 has 64.0 %.
"""

import argparse
import collections
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import numpy as np

FOLDER, SIZE = Path("artifacts/emoji"), 48
PAD, END, UNKNOWN, IMAGE = 0, 1, 2, 3
QUESTIONS = {
    "en": "What is <image> in English?",
    "de": "What is <image> in German?",
    "group": "Which group is <image> in?",
}
GROUPS = 0.2  # share of the emoji about whose group a pass asks
VOCABULARY, LONGEST = 1500, 16  # tokens, and of an answer with its end
FEATURES = 4  # image tokens of a picture
WIDTH, SHRINKAGE = 256, 0.1  # of an image vector; of the scatter of styles
DIM, LAYERS, HEADS, DROPOUT = 128, 2, 4, 0.0
BATCH, PEAK, EPOCH = 256, 3e-3, 20  # an epoch has this many steps
RECALL, NOISE = 0.02, 0.1  # temperature of the memory, and noise on what it returns
MINUTES = 13.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true", help="only train; needs no TensorFlow")
    parser.add_argument("--export", action="store_true", help="only export the trained model")
    parser.add_argument("--ask", metavar="PICTURE", type=Path, help="a picture to ask about")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of training")
    parser.add_argument(
        "--smoke", action="store_true", help="a short test run on scikit-learn's digits, a minute"
    )
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error(f"--minutes must be positive, got {arguments.minutes}")
    if arguments.ask and not arguments.ask.is_file():  # before training
        parser.error(f"no such picture: {arguments.ask}")
    stem = f"{'smoke_' if arguments.smoke else ''}vision_language"
    model, file = (arguments.folder / f"{stem}{x}" for x in (".keras", ".tflite"))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    if not (arguments.ask and file.exists()):
        rows = prepare(arguments.folder / f"{stem}_data.npz", arguments)
        if not (arguments.export and model.exists()):
            learn(rows, arguments).save(model)
        if not arguments.train:
            export(model, file, rows, arguments.smoke)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if arguments.ask:
        from keras_tfm import runtime

        loaded = runtime.load(file)
        for question in QUESTIONS.values():
            try:
                print(question, loaded.caption(arguments.ask, prompt=question))
            except ValueError as error:
                raise SystemExit(str(error)) from None


# Data


def prepare(file: Path, arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Pictures, questions and answers as arrays, made once: training needs nothing else.

    `drawn` (N, 4, 48, 48, 3) and `unseen` (N, 48, 48, 3), uint8; the tokens of the questions,
    `prompt_en` and so on, and those of the answers, `en` (N, LONGEST); and the tokenizer.
    """
    if not file.exists():
        np.savez_compressed(file, **_rows(arguments))
    with np.load(file) as stored:
        return dict(stored)


def _rows(arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    import emoji_data
    from emoji_search import digits, read

    pairs = digits() if arguments.smoke else read(arguments.folder)
    answers = {language: pairs.names[language].names for language in ("en", "de")}
    if arguments.smoke:
        answers["group"] = ["even" if int(x) % 2 == 0 else "odd" for x in pairs.codes]
    else:
        twitter = emoji_data.styles(arguments.folder)[emoji_data.UNSEEN]
        answers["group"] = [twitter.names[i].replace("-", " ") for i in twitter.classes]
    reader = tokenizer(answers)
    arrays = {"drawn": pairs.drawn, "unseen": pairs.unseen}
    for kind, texts in answers.items():
        arrays[f"prompt_{kind}"] = np.array(reader.encode(QUESTIONS[kind]).ids, "int32")
        arrays[kind] = np.full((len(texts), LONGEST), PAD, "int32")
        for row, text in zip(arrays[kind], texts, strict=True):
            ids = [*reader.encode(text).ids[: LONGEST - 1], END] if text else []
            row[: len(ids)] = ids
        arrays[f"text_{kind}"] = np.array(texts)
    pieces = {i: piece for piece, i in reader.get_vocab().items()}
    arrays["pieces"] = np.array([pieces[i] for i in range(len(pieces))])
    arrays["tokenizer"] = np.array(reader.to_str())
    return arrays


def tokenizer(answers: dict[str, list[str]]):
    """Byte pair encoding of questions and answers, in lower case, with a token for a picture."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
    from tokenizers.models import BPE

    made = Tokenizer(BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = [AddedToken(x, normalized=False) for x in ("<pad>", "<end>", "<unk>", "<image>")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, show_progress=False
    )
    texts = [x.replace("<image>", "") for x in QUESTIONS.values()] * 100
    made.train_from_iterator([*texts, *(x for of in answers.values() for x in of if x)], trainer)
    return made


def prompt(rows: dict[str, np.ndarray], kind: str) -> np.ndarray:
    """The tokens of a question, with the image token as often as a picture has features."""
    ids = rows[f"prompt_{kind}"]
    return np.repeat(ids, np.where(ids == IMAGE, FEATURES, 1))


def questions(vectors: np.ndarray, rows: dict[str, np.ndarray]):
    """Endless batches: a vector of an emoji's (N, V, WIDTH), and a question about it.

    The labels of a row are its next tokens in the answer, and padding in the question. A batch has
    rows of nearly one length, and another selection of them each time.
    """
    random = np.random.default_rng(2)
    longest = max(len(prompt(rows, kind)) for kind in QUESTIONS) + LONGEST
    tokens, labels, kinds = [], [], []
    for kind in QUESTIONS:
        before = np.tile(prompt(rows, kind), (len(vectors), 1))
        whole = np.concatenate([before, rows[kind]], axis=1)
        whole = np.pad(whole, [(0, 0), (0, longest - whole.shape[1])])
        tokens.append(whole[:, :-1])
        labels.append(np.where(np.arange(1, longest) < before.shape[1], PAD, whole[:, 1:]))
        kinds += [kind] * len(vectors)
    tokens, labels, kinds = np.concatenate(tokens), np.concatenate(labels), np.array(kinds)
    lengths = np.count_nonzero(tokens != PAD, axis=1)
    widths = -(-lengths // 4) * 4  # few shapes, for the compilers
    first = [int(widths.argmin()), int(widths.argmax())]  # Keras learns from two that widths differ
    while True:
        drawn = np.flatnonzero((kinds != "group") | (random.random(len(kinds)) < GROUPS))
        order = drawn[np.argsort(widths[drawn] + random.random(len(drawn)))]
        cuts = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
        cuts = [[k] * BATCH for k in first] + [cuts[k] for k in random.permutation(len(cuts))]
        first = []
        for chosen in cuts:
            emoji = np.array(chosen) % len(vectors)
            given = vectors[emoji, random.integers(vectors.shape[1], size=len(emoji))]
            width = min(longest - 1, widths[chosen].max())
            yield {"vector": given, "target": tokens[chosen, :width]}, labels[chosen, :width]


# Model


def image_features():
    """From pixels (B, 48, 48, 3) to colours of 12 x 12 cells and contours of 8 x 8, flattened.

    Contours are the strength of edges in eight directions: fixed filters, the largest of the three
    channels, averaged in cells (histograms of oriented gradients, Dalal and Triggs 2005).
    """
    import keras
    from keras import ops

    from keras_tfm import layers, models

    pixels = keras.Input((SIZE, SIZE, 3), name="pixels")
    ink = 1.0 - layers.ImageNormalization((0.0,) * 3, (1.0,) * 3)(pixels)  # 0 for white
    colours = keras.layers.Flatten()(keras.layers.AveragePooling2D(4)(ink))
    x = keras.layers.AveragePooling2D(2)(ink)
    x = keras.layers.DepthwiseConv2D(
        3, depth_multiplier=8, padding="same", use_bias=False, trainable=False, name="edges"
    )(x)
    x = ops.max(ops.abs(keras.layers.Reshape((SIZE // 2, SIZE // 2, 3, 8))(x)), axis=3)
    x = keras.layers.Flatten()(ops.sqrt(keras.layers.AveragePooling2D(3)(x) + 1e-4))
    parts = [keras.layers.UnitNormalization()(y) for y in (colours, x)]
    model = models.Model(pixels, keras.layers.Concatenate()(parts), name="image_features")
    angle = np.arange(8) * np.pi / 8
    filters = np.zeros((3, 3, 3, 8), "float32")
    for (row, column), values in {
        (1, 2): np.cos(angle), (1, 0): -np.cos(angle),
        (2, 1): np.sin(angle), (0, 1): -np.sin(angle),
    }.items():  # fmt: skip
        filters[row, column] = values
    model.get_layer("edges").set_weights([filters])
    return model


def image_encoder(drawn: np.ndarray):
    """From pixels (B, 48, 48, 3) to vectors (B, WIDTH) of length 1, and those of the emoji.

    Linear discriminant analysis, in closed form: directions in which styles differ little and emoji
    differ much. `drawn` (N, S, 48, 48, 3) are the pictures of N emoji in S styles.
    """
    import keras

    from keras_tfm import models

    features = image_features()
    count, styles = drawn.shape[:2]
    # Moved copies, too: how styles differ is more than four pictures tell.
    moved = [drawn, *(np.roll(drawn, x, axis=(2, 3)) for x in ((2, 0), (-2, 0), (0, 2), (0, -2)))]
    found = [
        features.predict(x.reshape(-1, SIZE, SIZE, 3), batch_size=236, verbose=0).astype("float64")
        for x in moved
    ]
    x = np.concatenate([y.reshape(count, styles, -1) for y in found], axis=1)
    center = x.mean((0, 1))
    means = x[:, :styles].mean(1)
    inside = (x - x.mean(1, keepdims=True)).reshape(-1, x.shape[-1])
    scatter = inside.T @ inside / len(inside)
    scatter += SHRINKAGE * np.trace(scatter) / len(scatter) * np.eye(len(scatter))
    values, directions = np.linalg.eigh(scatter)
    whiten = directions * values**-0.5
    values, directions = np.linalg.eigh(np.cov(((means - center) @ whiten).T))
    kernel = (whiten @ directions[:, ::-1][:, :WIDTH]).astype("float32")
    dense = keras.layers.Dense(kernel.shape[1], trainable=False, name="discriminants")
    vector = keras.layers.UnitNormalization(dtype="float32")(dense(features.output))
    dense.set_weights([kernel, (-center @ kernel).astype("float32")])
    known = (means - center) @ kernel
    known = (known / np.linalg.norm(known, axis=1, keepdims=True)).astype("float32")
    return models.Model(features.input, vector, name="image_encoder"), known


def similarities(count: int):
    """A layer from vectors (B, WIDTH) to their cosines with a vector of each emoji, (B, count)."""
    import keras

    return keras.layers.Dense(
        count,
        use_bias=False,
        kernel_initializer=keras.initializers.RandomNormal(stddev=WIDTH**-0.5),
        kernel_constraint=keras.constraints.UnitNorm(axis=0),
        name="similarities",
    )


def answerer(count: int, image=None):
    """From `pixels` (B, 48, 48, 3) and `target` (B, T) to logits of the next token.

    Without `image`, the first input is `vector` (B, WIDTH), the image encoder's output.
    """
    import keras

    from keras_tfm import layers, models

    if image is None:
        vector = keras.Input((WIDTH,), name="vector")
        source = {"vector": vector}
    else:
        vector, source = image.output, {"pixels": image.input}
    # Attention to a memory of what the encoder has learnt: the vector of an unseen style becomes
    # one that the decoder knows.
    weights = keras.layers.Rescaling(1 / RECALL, dtype="float32")(similarities(count)(vector))
    weights = keras.layers.Softmax(dtype="float32")(weights)
    recalled = keras.layers.Dense(WIDTH, use_bias=False, name="memory")(weights)
    recalled = keras.layers.GaussianNoise(NOISE)(keras.layers.Rescaling(WIDTH**0.5)(recalled))
    features = keras.layers.Dense(FEATURES * DIM, name="connector")(recalled)
    features = keras.layers.Reshape((FEATURES, DIM))(features)
    features = layers.LayerNormalization(name="features_norm")(features)

    target = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(VOCABULARY, DIM, scale=True, mask_zero=True, name="tokens")
    x = layers.Dropout(DROPOUT, name="target_dropout")(embedding(target))
    x = layers.ReplacePlaceholders(IMAGE)(x, target, features)
    for i in range(LAYERS):
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                HEADS, causal=True, position=layers.RotaryEmbedding()
            ),
            cross_attention=False,
            feed_forward=layers.FeedForward(4 * DIM, activation="gelu"),
            residual=layers.Residual(
                input_norm=layers.LayerNormalization(epsilon=1e-5), dropout=DROPOUT
            ),
            name=f"decoder_{i}",
        )(x)
    logits = embedding(layers.LayerNormalization(name="decoder_norm")(x), reverse=True)
    return models.Model({**source, "target": target}, logits, name="vision_language")


# Training


def learn(rows: dict[str, np.ndarray], arguments: argparse.Namespace):
    """Trains for some minutes, and prints what the model answers about the unseen style."""
    import keras

    from keras_tfm.training import LabelSmoothedCrossEntropy

    keras.utils.set_random_seed(0)
    count, styles = rows["drawn"].shape[:2]
    minutes = 0.05 if arguments.smoke else arguments.minutes
    print(f"{count:,} emoji in {styles} styles, backend {keras.backend.backend()}", flush=True)

    image, known = image_encoder(rows["drawn"])
    found = image.predict(rows["unseen"], batch_size=236, verbose=0)
    right = np.mean((found @ known.T).argmax(1) == np.arange(count))
    print(f"which emoji of the unseen style: {right:.1%}", flush=True)

    # The decoder learns on the vectors of the pictures, and on those of the emoji.
    flat = rows["drawn"].reshape(-1, SIZE, SIZE, 3)
    vectors = image.predict(flat, batch_size=236, verbose=0).reshape(count, styles, -1)
    vectors = np.concatenate([vectors, known[:, None]], axis=1)
    trained = answerer(count)
    for name, values in (("similarities", known.T), ("memory", known)):
        trained.get_layer(name).set_weights([values])
        trained.get_layer(name).trainable = False
    loss = LabelSmoothedCrossEntropy(0.0, ignore_class=PAD)
    fit(trained, questions(vectors, rows), loss, minutes)
    model = answerer(count, image)
    for layer in trained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
    print(f"{model.count_params():,} weights", flush=True)
    report({"Keras": written(model, rows)}, rows)
    return model


def fit(model, batches, loss, minutes: float) -> None:
    import keras

    model.compile(
        keras.optimizers.AdamW(PEAK, weight_decay=0.01, global_clipnorm=1.0),
        loss,
        # On a CPU, TensorFlow's XLA compiles for one core.
        jit_compile="auto" if keras.backend.backend() == "jax" else False,
    )
    found = model.fit(
        batches,
        epochs=1_000_000,
        steps_per_epoch=EPOCH,
        shuffle=False,
        verbose=0,
        callbacks=[by_the_clock(minutes)],
    )
    losses = found.history["loss"]
    steps = len(losses) * EPOCH
    print(f"loss {losses[0]:.2f} to {losses[-1]:.3f} in {steps:,} steps of {BATCH}", flush=True)


def by_the_clock(minutes: float):
    """Warm-up, then a cosine to 0 over the minutes of training after the first epoch.

    The first epoch, at a small rate, has the compilation in it and is not counted.
    """
    import keras

    class Clock(keras.callbacks.Callback):
        start = None

        def done(self) -> float:
            return 0.0 if self.start is None else (time.perf_counter() - self.start) / 60 / minutes

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.start = time.perf_counter()
            done = min(1.0, self.done())
            rate = min(1.0, 0.1 + done / 0.1) * (0.5 + 0.5 * np.cos(np.pi * done))
            self.model.optimizer.learning_rate = PEAK * rate

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = self.done() >= 1.0
            if epoch % 10 == 0:
                print(f"  {self.done():4.0%}  loss {logs['loss']:.3f}", flush=True)

    return Clock()


def written(model, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tokens that Keras answers to each question about the unseen style, (N, T)."""
    from keras_tfm.generation import Generator

    result, count = {}, len(rows["unseen"])
    generator = Generator(model, end_id=END, target="target", max_new_tokens=LONGEST)
    for kind in QUESTIONS:
        before = prompt(rows, kind)
        parts = []
        for some in np.array_split(rows["unseen"], max(1, count // 944)):
            given = {"pixels": some, "target": np.tile(before, (len(some), 1))}
            tokens = generator(given).tokens[:, len(before) :]
            parts.append(np.pad(tokens, [(0, 0), (0, LONGEST - tokens.shape[1])]))
        result[kind] = np.concatenate(parts)
    return result


# Scores


def text_of(tokens: np.ndarray, pieces: np.ndarray) -> str:
    """The text of an answer, in lower case and with single spaces."""
    kept = [pieces[i] for i in tokens if i > IMAGE]
    return plain("".join(kept).replace("\u2581", " "))


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def score(wanted: str, found: str) -> tuple[float, float]:
    """Whether an answer is exactly the name, and the F1 score of its words, as in captions.py."""
    a, b = (collections.Counter(x.split()) for x in (wanted, found))
    common = sum((a & b).values())
    return float(wanted == found), 2 * common / max(1, a.total() + b.total())


def report(answers: dict[str, dict[str, np.ndarray]], rows: dict[str, np.ndarray]) -> None:
    """The table of scores on the unseen style."""
    heads = [f"{of} {what}" for of in ("en", "de") for what in ("exact", "words")]
    print(f"\n{'unseen style':30}" + "".join(f"{x:>10}" for x in [*heads, "group"]))
    for name, of in answers.items():
        cells = []
        for kind, tokens in of.items():
            texts = rows[f"text_{kind}"]
            kept = [i for i, text in enumerate(texts) if text]
            pairs = [(plain(texts[i]), text_of(tokens[i], rows["pieces"])) for i in kept]
            found = np.mean([score(*x) for x in pairs], axis=0)
            cells += found.tolist() if kind != "group" else [found[0]]
        print(f"{name:30}" + "".join(f"{x:10.1%}" for x in cells), flush=True)


# File


def export(saved: Path, file: Path, rows: dict[str, np.ndarray], smoke: bool) -> None:
    """Exports the trained model in float32 and int8, and compares what they answer with Keras."""
    import keras
    from tokenizers import Tokenizer

    from keras_tfm import models, runtime  # noqa: F401, the classes of the model are in `models`
    from keras_tfm.export import export_tflite

    model = keras.saving.load_model(saved)
    longest = max(len(prompt(rows, kind)) for kind in QUESTIONS)
    settings = {
        "max_length": longest + LONGEST, "prompt_length": longest, "end_id": END,
        "target": "target", "tokenizer": {"target": Tokenizer.from_str(str(rows["tokenizer"]))},
        "images": runtime.ImageProcessor((SIZE,) * 2, resize="fit", resample="lanczos"),
        "verify_inputs": {
            "pixels": rows["unseen"][:4], "target": np.tile(prompt(rows, "en"), (4, 1))
        },
        "overwrite": True,
    }  # fmt: skip
    exact = file.with_stem(f"{file.stem}_float32")
    print(export_tflite(model, exact, **settings))
    export_tflite(
        model, file, quantization="int8", **settings, **({"tolerance": 0.5} if smoke else {})
    )
    answers = {"Keras": written(model, rows)}
    for name, path in (("float32 file", exact), ("int8 file", file)):
        loaded, start = runtime.load(path), time.perf_counter()
        answers[name] = {}
        for kind in QUESTIONS:
            before = np.tile(prompt(rows, kind), (len(rows["unseen"]), 1))
            given = {"pixels": rows["unseen"], "target": before}
            tokens = loaded.generate(given).tokens[:, before.shape[1] :]
            short = max(0, LONGEST - tokens.shape[1])
            answers[name][kind] = np.pad(tokens, [(0, 0), (0, short)])[:, :LONGEST]
        count = len(QUESTIONS) * len(rows["unseen"])
        same = [np.all(x == answers["Keras"][kind], 1).mean() for kind, x in answers[name].items()]
        milliseconds = (time.perf_counter() - start) / count * 1000
        print(
            f"{name}: {path.stat().st_size / 1e6:.2f} MB, the tokens of Keras for "
            f"{np.mean(same):.2%} of {count:,} answers, {milliseconds:.1f} ms an answer"
        )
    report(answers, rows)


if __name__ == "__main__":
    main()
