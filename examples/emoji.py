"""Trains a Vision Transformer on emoji and tests it on the style of a vendor it has not seen.

    pip install -e ".[examples]"
    python examples/emoji.py                        # trains, compares, exports, draws
    python examples/emoji.py --ask picture.png      # the classes of a picture
    python examples/emoji.py --dino                 # without labels, by self-distillation

Data: the emoji of five styles (examples/emoji_data.py; needs npm), 48 x 48 pixels, in 90 classes,
Unicode's subgroups. Trained on four styles, tested on the fifth, Twitter's. Beside it, logistic
regression and nearest neighbours on pixels. The model is composed here: three convolutions instead
of one make the patches, which learns faster from few pictures (arXiv:2106.14881).

Minutes: 19 on 2 CPU cores. Expected, accuracy on 1,888 emoji:

majority class                   13.7%
nearest neighbours of pixels     39.5%
logistic regression on pixels    32.6%
ViT, with labels                 59.6%    int8 59.7%

--dino trains the same kind of model without labels (DINO): two crops of a picture, redrawn in other
colours, light, contours and proportions (examples/redrawing.py), must get the same features. A
picture then gets the class of its nearest neighbours among the training pictures, by the angle of
features. Minutes: 17 on 2 calm CPU cores. Expected:

nearest neighbours of pixels             39.5%
nearest neighbours of DINO's features    57.2%
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import emoji_data as data
import numpy as np
from emoji_data import Pictures

from keras_tfm.runtime import native_log

FOLDER = data.FOLDER
PATCH, DIM, LAYERS, HEADS, DROP_PATH = 8, 128, 4, 4, 0.1
# Epochs, batch size and peak learning rate, with labels and without them.
SUPERVISED = (40, 64, 1.5e-3)
DINO = (25, 64, 1.5e-3)
DINO_LAYERS = 2
NEIGHBOURS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", metavar="PICTURE", type=Path, help="a picture to classify")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--dino", action="store_true", help="train without labels, nothing else")
    parser.add_argument(
        "--smoke", action="store_true", help="a short test run on scikit-learn's digits, a minute"
    )
    arguments = parser.parse_args()
    file = arguments.folder / ("smoke.tflite" if arguments.smoke else "emoji.tflite")
    if arguments.ask and arguments.dino:
        parser.error("--ask needs the classes, which --dino does not learn")
    if not (arguments.ask and file.exists()):
        arguments.folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with native_log.remove():
            compare(file, arguments)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if arguments.ask:
        answer(file, arguments.ask)


def compare(file: Path, arguments: argparse.Namespace) -> None:
    """Trains, prints the table, writes the file and the pictures."""
    import keras

    keras.utils.set_random_seed(0)
    styles = data.digits() if arguments.smoke else data.styles(arguments.folder)
    unseen = styles.pop(data.UNSEEN)
    seen = data.together(list(styles.values()))
    print(
        f"{len(seen.pixels):,} pictures, {len(seen.names)} classes; {len(unseen.pixels):,} to test"
    )
    epochs = (SUPERVISED[0], DINO[0])
    if arguments.smoke:
        epochs = (1, 1)
    show("majority class", majority(seen, unseen))
    show("nearest neighbours of pixels", neighbours(flat(seen), flat(unseen), seen, unseen))
    if arguments.dino:
        backbone = self_distilled(seen, epochs[1])
        backbone.save(file.with_name(f"{file.stem}_dino.keras"))
        found, asked = (backbone.predict(x.pixels, verbose=0) for x in (seen, unseen))
        show("nearest neighbours of DINO's features", neighbours(found, asked, seen, unseen))
        draw_attention(backbone, unseen, file.with_name("attention_dino.png"))
        return
    show("logistic regression on pixels", regression(seen, unseen))
    model = supervised(seen, epochs[0])
    draw_attention(model, unseen, file.with_name("attention.png"))
    answers = model.predict(unseen.pixels, verbose=0).argmax(-1)
    show("ViT, with labels", accuracy(answers, unseen))
    export(model, file, seen, unseen, answers, arguments.smoke)


def vision_transformer(size: int | None = None, num_layers: int = LAYERS):
    """Convolutions that halve the picture three times, then a transformer over the cells.

    Returns a functional model from pixels (B, size, size, 3), None for any size, to features
    (B, 1 + N, DIM) of a class token and N patches.
    """
    import keras

    from keras_tfm import layers, models

    pixels = keras.Input((size, size, 3), name="pixels")
    x = layers.ImageNormalization((0.5,) * 3, (0.5,) * 3)(pixels)
    for width in (32, 64, DIM):
        x = keras.layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))
    cells = layers.PatchEmbedding(DIM, 1)(x)
    x = layers.PrefixTokens(1)(cells)
    grid = (data.SIZE // PATCH,) * 2
    x = layers.PositionEmbedding2D(grid, 1)(x, cells)
    for i in range(num_layers):
        x = layers.TransformerEncoderBlock(
            self_attention=layers.MultiHeadSelfAttention(HEADS),
            feed_forward=layers.FeedForward(4 * DIM, activation="gelu"),
            residual=layers.Residual(
                input_norm=layers.LayerNormalization(epsilon=1e-5),
                drop_path=DROP_PATH * i / max(1, num_layers - 1),
            ),
            name=f"encoder_{i}",
        )(x)
    return models.Model(pixels, layers.LayerNormalization(name="final_norm")(x))


def supervised(seen: Pictures, epochs: int):
    """A ViT with labels: augmentation, stochastic depth, label smoothing, a cosine schedule."""
    import keras

    from keras_tfm import models

    _, batch, peak = SUPERVISED
    model = models.image_classifier(
        vision_transformer(data.SIZE),
        len(seen.names),
        labels=seen.names,
        features="final_norm",
    )
    steps = epochs * -(-len(seen.pixels) // batch)
    model.compile(
        keras.optimizers.AdamW(schedule(peak, steps), weight_decay=0.05, clipnorm=1.0),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
    )
    labels = keras.utils.to_categorical(seen.classes, len(seen.names))
    model.fit(batches(seen.pixels, labels, redrawn(0.5), batch), epochs=epochs, verbose=2)
    return model


def self_distilled(seen: Pictures, epochs: int):
    """The backbone of DINO's teacher, trained on the same pictures without their labels.

    Its features are those of all tokens side by side, (B, (1 + N) DIM): an emoji is known by what
    is where. So the crops are large, and there are no local ones; what differs is how it is drawn.
    """
    import keras

    from keras_tfm import models, training

    _, batch, peak = DINO
    steps = epochs * (len(seen.pixels) // batch)
    tokens = vision_transformer(data.SIZE, DINO_LAYERS)
    x = keras.layers.Flatten()(tokens.output)
    # Without their means, the features of different pictures differ from the start.
    x = keras.layers.BatchNormalization(momentum=0.9, center=False, scale=False)(x)
    dino = training.DINO(
        models.Model(tokens.input, x),
        redrawn(),
        num_local_crops=0,
        num_prototypes=512,
        hidden_dim=512,
        bottleneck_dim=128,
        teacher_temperature=0.01,
        teacher_momentum=keras.optimizers.schedules.CosineDecay(0.98, steps, alpha=1 / 0.98),
        centering="sinkhorn_knopp",
        head_batch_norm=True,
    )
    dino.compile(keras.optimizers.AdamW(schedule(peak, steps), weight_decay=0.05, clipnorm=3.0))
    pixels = seen.pixels[np.random.default_rng(0).permutation(len(seen.pixels))]
    dino.fit(pixels[: len(pixels) // batch * batch], batch_size=batch, epochs=epochs, verbose=2)
    return dino.backbone


def redrawn(least: float = 0.6):
    """Random crops of at least this share of a picture, as if another artist had drawn them."""
    import keras
    from redrawing import RandomInk, RandomOutline, RandomShading, RandomWarp

    from keras_tfm import layers

    return keras.Sequential(
        [
            layers.RandomResizedCrop(data.SIZE, (least, 1.0), (0.8, 1.25)),
            RandomWarp(),
            keras.layers.RandomGrayscale(0.2),
            RandomInk(),
            RandomShading(),
            RandomOutline(),
            keras.layers.RandomGaussianBlur(0.3, 5, sigma=1.0, value_range=(0, 255)),
        ]
    )


def batches(pixels: np.ndarray, labels: np.ndarray, augment, batch: int):
    """Shuffled batches, augmented while the model trains."""
    import tensorflow as tf

    drawn = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(len(pixels)).batch(batch)
    changed = drawn.map(lambda x, y: (augment(x, training=True), y), num_parallel_calls=2)
    return changed.prefetch(2)


def schedule(peak: float, steps: int):
    """Linear warm-up over a tenth of the steps, then a cosine to 0."""
    import keras

    warmup = max(1, steps // 10)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warmup), warmup_target=peak, warmup_steps=warmup
    )


def neighbours(seen_features, unseen_features, seen: Pictures, unseen: Pictures) -> float:
    """The accuracy of the vote of the nearest training pictures, by the angle of features."""
    from sklearn.neighbors import KNeighborsClassifier

    nearest = KNeighborsClassifier(NEIGHBOURS, weights="distance", metric="cosine")
    nearest.fit(seen_features, seen.classes)
    return accuracy(nearest.predict(unseen_features), unseen)


def regression(seen: Pictures, unseen: Pictures) -> float:
    """Logistic regression on the pixels of pictures at half the size."""
    from sklearn.linear_model import LogisticRegression

    x, y = (p.pixels[:, ::2, ::2].reshape(len(p.pixels), -1) / 255 for p in (seen, unseen))
    with native_log.remove():
        model = LogisticRegression(C=0.1, max_iter=300, tol=1e-3).fit(x, seen.classes)
    return accuracy(model.predict(y), unseen)


def majority(seen: Pictures, unseen: Pictures) -> float:
    return accuracy(np.bincount(seen.classes).argmax(), unseen)


def flat(pictures: Pictures) -> np.ndarray:
    """Pixels (N, 3 H W), 0 for white, so that angles compare what is drawn."""
    return 1.0 - pictures.pixels.reshape(len(pictures.pixels), -1) / 255


def accuracy(classes: np.ndarray, pictures: Pictures) -> float:
    return float(np.mean(classes == pictures.classes))


def show(name: str, score: float) -> None:
    print(f"{name:40} {score:7.1%}", flush=True)


def export(model, file: Path, seen: Pictures, unseen: Pictures, answers: np.ndarray, smoke: bool):
    """Writes the file in int8 and compares it with Keras on the test."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    images = runtime.ImageProcessor((data.SIZE, data.SIZE), resize="fit", resample="lanczos")
    # Verified on pictures: the default, random pixels, is nothing that this model has seen. A smoke
    # run's outputs hardly differ from each other, so their errors are relatively large.
    checks = {"verify_inputs": {"pixels": seen.pixels[::100]}, "tolerance": 0.2 if smoke else None}
    export_tflite(model, file, quantization="int8", images=images, **checks)
    loaded, start = runtime.load(file), time.perf_counter()
    found = loaded.predict(unseen.pixels)["output"].argmax(-1)
    milliseconds = (time.perf_counter() - start) / len(found) * 1000
    print(
        f"\nint8: {accuracy(found, unseen):.1%}, Keras {accuracy(answers, unseen):.1%}, the same "
        f"class for {np.mean(found == answers):.1%}; {file.stat().st_size / 1e6:.2f} MB, "
        f"{milliseconds:.2f} ms a picture"
    )


def draw_attention(backbone, pictures: Pictures, file: Path) -> None:
    """What the class token looks at, in each head of the last block, over some test pictures."""
    from PIL import Image

    from keras_tfm.layers import AttentionProbe

    chosen = pictures.pixels[np.linspace(20, len(pictures.pixels) - 60, 10).astype(int)]
    with AttentionProbe() as probe:
        backbone(chosen)
    weights = np.asarray(list(probe.maps.values())[-1])[:, :, 0, 1:]  # (N, H, patches)
    rows, side = weights.shape[1] + 1, data.SIZE // PATCH
    scale, gap = 2, 4
    cell = data.SIZE * scale + gap
    sheet = Image.new("RGB", (len(chosen) * cell + gap, rows * cell + gap), "white")
    for column, (picture, heads) in enumerate(zip(chosen, weights, strict=True)):
        large = Image.fromarray(picture).resize((data.SIZE * scale,) * 2, Image.Resampling.LANCZOS)
        sheet.paste(large, (column * cell + gap, gap))
        for row, head in enumerate(heads, 1):
            grid = (head / head.max() * 255).astype("uint8").reshape(side, side)
            mask = Image.fromarray(grid).resize(large.size, Image.Resampling.BICUBIC)
            dark = Image.new("RGB", large.size, (20, 24, 60))
            sheet.paste(Image.composite(large, dark, mask), (column * cell + gap, row * cell + gap))
    sheet.save(file)
    print(f"attention maps: {file}", flush=True)


def answer(file: Path, picture: Path) -> None:
    """The three most probable classes of a picture, from the file alone."""
    from keras_tfm import runtime

    model = runtime.load(file)
    (logits,) = model.predict_images(picture)["output"]
    probabilities = np.exp(logits - np.logaddexp.reduce(logits))
    for i in np.argsort(-logits)[:3]:
        print(f"{model.labels[i]:24} {probabilities[i]:6.1%}")


if __name__ == "__main__":
    main()
