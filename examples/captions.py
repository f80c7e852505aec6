"""Trains a small model that names emoji in two languages: an image encoder and a text decoder.

    pip install -e ".[examples]"
    python examples/emoji_search.py                    # before: trains the image encoder
    python examples/captions.py                        # image features by cross-attention
    python examples/captions.py --by prefix            # image features before the text
    python examples/captions.py --ask picture.png      # from the file alone

Data: the emoji of five styles (emoji_data.py) and their Unicode names in English and German
(emoji_names.py); both need npm. Trained on four styles and tested on the fifth, Twitter's. As in
ClipCap (arXiv:2111.09734) the image encoder is that of a CLIP, frozen, and a dense layer turns its
vector into a few; the decoder is trained from random weights. As the encoder is frozen, its vectors
are computed once, for 12 redrawn versions of each picture. Training adds noise, so that they differ
from the mean of their emoji as much as the vectors of the unseen style do. The first token chooses
the language. The baseline is the name of the nearest training picture, by thumbnails of 8 x 8
pixels.

Minutes: 12 on 2 CPU cores, both kinds at the same time. Expected, exact names and the F1 score of
their words, 1,888 emoji of the unseen style:

unseen style                    en exact  en words  de exact  de words
name of the nearest picture        41.3%     45.3%     41.3%     44.1%
by cross-attention, Keras          48.4%     57.1%     48.4%     54.7%
by cross-attention, int8           48.5%     57.3%     47.7%     54.1%
by prefix, Keras                   48.0%     56.8%     45.2%     52.4%
by prefix, int8                    47.8%     56.8%     45.2%     52.4%

The float32 files write Keras's tokens for all 3,776 captions. 1.7 and 1.6 MB in int8, 1.1 ms a
caption on one thread. For comparison: a classifier that chooses the emoji whose mean vector is the
nearest to the picture's is right for 63 % of the unseen pictures.
"""

import argparse
import collections
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import emoji_data as data
import numpy as np
from emoji import redrawn, schedule
from emoji_search import WIDTH, Pairs, digits, image_tower, read

from keras_tfm.runtime import native_log

FOLDER = data.FOLDER
PAD, END, UNKNOWN = 0, 1, 2
LANGUAGES = {"en": 3, "de": 4}  # and their start tokens
VOCABULARY, LONGEST = 1500, 16  # tokens of a caption, with start and end
FEATURES = 4  # vectors of a picture
DIM, LAYERS, HEADS, DROPOUT = 128, 2, 4, 0.1
REDRAWN = 12  # versions of each picture
NOISE = 0.5  # of each component of an image vector, whose mean square is 1
STEPS, BATCH, PEAK = 6_000, 128, 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--by", choices=["cross-attention", "prefix"], default="cross-attention")
    parser.add_argument("--ask", metavar="PICTURE", type=Path, help="a picture to describe")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--smoke", action="store_true", help="a short test run on scikit-learn's digits, a minute"
    )
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    if arguments.ask and not arguments.ask.is_file():  # before training
        parser.error(f"no such picture: {arguments.ask}")
    stem = f"{'smoke_' if arguments.smoke else ''}captions_{arguments.by}"
    file = arguments.folder / f"{stem}.tflite"
    if not (arguments.ask and file.exists()):
        arguments.folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with native_log.remove():
            compare(file, arguments)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if arguments.ask:
        from keras_tfm import runtime

        loaded = runtime.load(file)
        for language, token in LANGUAGES.items():
            try:
                print(language, loaded.caption(arguments.ask, prompt=[token]))
            except ValueError as error:
                raise SystemExit(str(error)) from None


def compare(file: Path, arguments: argparse.Namespace) -> None:
    """Trains, exports in float32 and int8, and prints what each answers to the unseen style."""
    import keras

    from keras_tfm.training import LabelSmoothedCrossEntropy

    keras.utils.set_random_seed(0)
    pairs = digits() if arguments.smoke else read(arguments.folder)
    names = {language: pairs.names[language].names for language in LANGUAGES}
    reader = tokenizer(names)
    image = image_encoder(arguments.folder, arguments.smoke)
    vectors = vectors_of(image, pairs.drawn, 1 if arguments.smoke else REDRAWN)
    trained, steps = captioner(arguments.by), 100 if arguments.smoke else arguments.steps
    trained.compile(
        keras.optimizers.AdamW(schedule(PEAK, steps), weight_decay=0.05, global_clipnorm=1.0),
        LabelSmoothedCrossEntropy(0.0, ignore_class=PAD),
        jit_compile=False,  # XLA is slower here: it compiles for one core
    )
    print(f"{len(pairs.codes):,} emoji, {trained.count_params():,} weights", flush=True)
    examples = batches(vectors, names, reader)
    share = max(1, steps // 10)
    trained.fit(examples, epochs=10, steps_per_epoch=share, shuffle=False, verbose=2)
    model = captioner(arguments.by, image)
    for layer in trained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
    model.save(file.with_suffix(".keras"))
    report(model, file, pairs, names, reader, arguments.smoke)


def image_encoder(folder: Path, smoke: bool):
    """The image tower of emoji_search.py: from pixels (B, 48, 48, 3) to vectors of length 1."""
    import keras

    from keras_tfm import models  # noqa: F401, its classes are in the file

    if smoke:
        return image_tower()
    file = folder / "image.keras"
    if not file.exists():
        raise SystemExit(f"{file} is missing: run examples/emoji_search.py before")
    return keras.saving.load_model(file)


def captioner(by: str, image=None):
    """From `pixels` (B, 48, 48, 3) and `target` (B, T) to logits of the next token.

    Without `image`, the first input is `vector` (B, WIDTH), the image encoder's output.

    The vector of a picture becomes a few vectors. The decoder either attends to them in each block,
    or continues them: then they stand before the embedded tokens, and no block has cross-attention.
    """
    import keras

    from keras_tfm import layers, models

    if image is None:
        vector = keras.Input((WIDTH,), name="vector")
        source = {"vector": vector}
    else:
        vector, source = image.output, {"pixels": image.input}
    # In training noise stands for what an unseen style changes.
    vector = keras.layers.Rescaling(WIDTH**0.5, name="components")(vector)
    vector = keras.layers.GaussianNoise(NOISE, name="noise")(vector)
    features = keras.layers.Dense(FEATURES * DIM, name="projector")(vector)
    features = keras.layers.Reshape((FEATURES, DIM))(features)
    features = layers.LayerNormalization(name="features_norm")(features)

    target = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(VOCABULARY, DIM, scale=True, mask_zero=True, name="tokens")
    y = layers.Dropout(DROPOUT, name="target_dropout")(embedding(target))
    if by == "prefix":
        y = layers.ConcatenatePrefix()([features, y])
    for i in range(LAYERS):
        cross = by == "cross-attention"
        block = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                HEADS, causal=True, position=layers.RotaryEmbedding()
            ),
            cross_attention=layers.MultiHeadCrossAttention(HEADS) if cross else False,
            feed_forward=layers.FeedForward(4 * DIM, activation="gelu"),
            residual=layers.Residual(
                input_norm=layers.LayerNormalization(epsilon=1e-5), dropout=DROPOUT
            ),
            name=f"decoder_{i}",
        )
        y = block(y, features) if cross else block(y)
    if by == "prefix":
        y = layers.RemovePrefix()([features, y])
    logits = embedding(layers.LayerNormalization(name="decoder_norm")(y), reverse=True)
    return models.Model({**source, "target": target}, logits, name="captioner")


def vectors_of(image, drawn: np.ndarray, count: int) -> np.ndarray:
    """(N, count S, WIDTH), vectors of pictures (N, S, 48, 48, 3), each redrawn `count` times."""
    augment, flat = redrawn(), drawn.reshape(-1, *drawn.shape[2:])
    chunks = np.array_split(flat, -(-len(flat) // 236))
    made = [
        np.concatenate(
            [np.asarray(image(augment(x, training=True), training=False)) for x in chunks]
        )
        for _ in range(count)
    ]
    return np.stack(made, axis=1).reshape(len(drawn), -1, made[0].shape[-1])


def tokenizer(names: dict[str, list[str]]):
    """Byte pair encoding of the captions, in lower case."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
    from tokenizers.models import BPE

    made = Tokenizer(BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["<pad>", "<end>", "<unk>", *(f"<{language}>" for language in LANGUAGES)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, show_progress=False
    )
    made.train_from_iterator((x for of in names.values() for x in of if x), trainer)
    return made


def batches(vectors: np.ndarray, names: dict[str, list[str]], reader):
    """Endless batches of names in both languages, each with one of its emoji's vectors.

    A batch has names of nearly one length, and another selection of them each time.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    examples = [
        (emoji, [first, *reader.encode(name).ids[: LONGEST - 2], END])
        for of, first in zip(names.values(), LANGUAGES.values(), strict=True)
        for emoji, name in enumerate(of)
        if name
    ]
    emoji = np.array([x for x, _ in examples])
    tokens = np.full((len(examples), LONGEST), PAD, "int32")
    for row, (_, caption) in zip(tokens, examples, strict=True):
        row[: len(caption)] = caption
    lengths = np.count_nonzero(tokens != PAD, axis=1)

    def draw():
        while True:
            order = np.argsort(lengths + 2 * random.random(len(examples)))
            cuts = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
            for k in random.permutation(len(cuts)):
                rows = cuts[k]
                version = random.integers(vectors.shape[1], size=len(rows))
                chosen = tokens[rows, : lengths[rows].max()]
                yield (
                    {"vector": vectors[emoji[rows], version], "target": chosen[:, :-1]},
                    chosen[:, 1:],
                )

    ids = tf.TensorSpec((None, None), "int32")
    vector = tf.TensorSpec((None, vectors.shape[-1]), "float32")
    signature = ({"vector": vector, "target": ids}, ids)
    return tf.data.Dataset.from_generator(draw, output_signature=signature).prefetch(4)


def report(model, file: Path, pairs: Pairs, names, reader, smoke: bool) -> None:
    """The table, and whether the file writes the tokens that Keras writes."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Generator

    settings = {
        "max_length": LONGEST, "start_id": LANGUAGES["en"], "end_id": END, "prompt_length": 1,
        "tokenizer": {"target": reader}, "overwrite": True,
        "images": runtime.ImageProcessor((data.SIZE,) * 2, resize="fit", resample="lanczos"),
    }  # fmt: skip
    few = {"pixels": pairs.unseen[:2], "target": np.full((2, 1), LANGUAGES["en"], "int32")}
    exact = file.with_stem(f"{file.stem}_float32")
    export_tflite(model, exact, **settings, verify_inputs=few)
    export_tflite(model, file, quantization="int8", **settings, verify=False)
    loaded = {"float32 file": runtime.load(exact), "int8 file": runtime.load(file)}
    generator = Generator(model, LONGEST, end_id=END, target="target")
    nearest = neighbours(pairs)
    scores: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    same = []
    for language, token in LANGUAGES.items():
        rows = np.flatnonzero([bool(x) for x in names[language]])
        wanted = [plain(names[language][i]) for i in rows]
        given = {"pixels": pairs.unseen[rows], "target": np.full((len(rows), 1), token, "int32")}
        keras_s = generator(given).tokens
        answers = {"nearest": [plain(names[language][i]) for i in nearest[rows]]}
        answers["Keras"] = [plain(reader.decode(row[1:].tolist())) for row in keras_s]
        for name, one in loaded.items():
            tokens = one.generate(given).tokens
            answers[name] = [plain(reader.decode(row[1:].tolist())) for row in tokens]
            if name == "float32 file":
                same.append((tokens == keras_s[:, : tokens.shape[1]]).all(1))
        for name, found in answers.items():
            scores[name].append(np.array([score(*x) for x in zip(wanted, found, strict=True)]))
    heads = [f"{of} {what}" for of in LANGUAGES for what in ("exact", "words")]
    print(f"\n{'unseen style':30}" + "".join(f"{x:>10}" for x in heads))
    for name, of in scores.items():
        label = "name of the nearest picture" if name == "nearest" else name
        print(f"{label:30}" + "".join(f"{x:10.1%}" for part in of for x in part.mean(0)))
    start = time.perf_counter()
    for picture in pairs.unseen[:50]:
        loaded["int8 file"].caption(picture)
    milliseconds = (time.perf_counter() - start) / len(pairs.unseen[:50]) * 1000
    print(
        f"\nthe float32 file writes Keras's tokens for {np.mean(np.concatenate(same)):.2%} of "
        f"{len(np.concatenate(same)):,} captions; int8 {file.stat().st_size / 1e6:.2f} MB, "
        f"{milliseconds:.1f} ms a caption on one thread"
    )


def neighbours(pairs: Pairs) -> np.ndarray:
    """(N,), the emoji whose picture in a training style is nearest to each unseen one."""

    def small(pixels: np.ndarray) -> np.ndarray:
        size = data.SIZE // 6
        x = 1 - pixels.reshape(len(pixels), size, 6, size, 6, 3).mean((2, 4)) / 255
        x = x.reshape(len(x), -1)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)

    asked = small(pairs.unseen)
    cosines = [asked @ small(style).T for style in pairs.drawn.swapaxes(0, 1)]
    return np.max(cosines, axis=0).argmax(1)


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def score(wanted: str, found: str) -> tuple[float, float]:
    """Whether a caption is exactly the name, and the F1 score of its words."""
    a, b = (collections.Counter(x.split()) for x in (wanted, found))
    common = sum((a & b).values())
    return float(wanted == found), 2 * common / max(1, a.total() + b.total())


if __name__ == "__main__":
    main()
