"""An int8 classifier with three input lengths in one file: the language that a name is written in.

    pip install -e ".[examples]"
    python export/classifier.py                          # two minutes
    python export/classifier.py --ask "Neuseeland"       # runs the file, without Keras
    python export/classifier.py --quantize int4          # one more epoch, with rounded weights

To export your own classifier, copy this script, and replace `examples_of` by your texts and `build`
by your model (or `keras_tfm.load_model(path)`). Data: Babel's names of countries, cities,
currencies and languages in 30 languages; a tenth of them is held out, in all languages.
"""

import argparse
import os
import sys
from pathlib import Path

# Set before TensorFlow is imported: log only errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[1] / "examples"))

import names as data
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from keras_tfm import runtime
from keras_tfm.runtime import native_log

PATH = Path("artifacts/export/classifier.tflite")
LENGTHS = (8, 16, 32)  # the runtime uses the shortest that fits
PRECISIONS = ("float32", "float16", "int8", "int4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", metavar="NAME", help="classify a name; exports first if necessary")
    parser.add_argument("--smoke", action="store_true", help="a short test run, half a minute")
    parser.add_argument("--quantize", choices=PRECISIONS, default="int8")
    arguments = parser.parse_args()
    if not (arguments.ask and PATH.exists()):
        export(arguments.smoke, arguments.quantize)
    if arguments.ask:
        scores = runtime.load(PATH).predict_text(arguments.ask)["output"][0]
        for i in np.argsort(scores)[:-4:-1]:
            print(f"{data.LANGUAGES[i]} {np.exp(scores[i] - np.logaddexp.reduce(scores)):.1%}")


def examples_of(names: list) -> tuple[list[str], np.ndarray]:
    """Texts, and the indices of their classes."""
    return [x.text for x in names], np.array([data.LANGUAGES.index(x.language) for x in names])


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """A tokenizer of characters: id 0 is padding, 1 an unknown character."""
    vocabulary = ["<padding>", "<unknown>", *sorted(set("".join(texts)))]
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unknown>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def build(vocabulary_size: int, classes: int, dim: int, num_layers: int):
    """A functional Keras model: ids in, logits out. Padding is masked, also in the average.

    `keras_tfm.Model` is a `keras.Model` that can be trained with rounded weights.
    """
    import keras

    import keras_tfm
    from keras_tfm import layers

    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.TokenEmbedding(vocabulary_size, dim, scale=True, mask_zero=True)(ids)
    x = layers.PositionalEncoding()(x)
    for i in range(num_layers):
        block = layers.TransformerEncoderBlock(
            4 * dim, num_heads=4, dropout=0.1, normalize_first=True, name=f"encoder_{i}"
        )
        x = block(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras_tfm.Model(ids, keras.layers.Dense(classes, name="head")(x), name="classifier")


def export(smoke: bool, quantization: str) -> None:
    with native_log.remove():
        import keras

        from keras_tfm.export import export_tflite
        from keras_tfm.models import enable_quantization

        keras.utils.set_random_seed(0)
    train, test = data.split(data.names())
    np.random.default_rng(0).shuffle(train)
    np.random.default_rng(1).shuffle(test)
    texts, classes = examples_of(train)
    test_texts, test_classes = examples_of(test)
    tokenizer = make_tokenizer(texts)

    def ids_of(texts: list[str]) -> np.ndarray:
        rows = np.zeros((len(texts), LENGTHS[-1]), "int32")
        for row, encoded in zip(rows, tokenizer.encode_batch(texts), strict=True):
            row[: len(encoded.ids)] = encoded.ids
        return rows

    model = build(tokenizer.get_vocab_size(), len(data.LANGUAGES), *((16, 1) if smoke else (64, 2)))
    rows, rows_classes = (x[: 2_000 if smoke else None] for x in (ids_of(texts), classes))

    def train(rate: float, epochs: int) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        model.fit(rows, rows_classes, batch_size=64, epochs=epochs, verbose=2)

    train(0.002, 1 if smoke else 3)
    if quantization == "int4":
        # Rounding to 4 bits costs accuracy. A short training with the rounded weights, at a lower
        # learning rate, regains it; the file then holds exactly these weights.
        enable_quantization(model, "int4")
        train(0.0005, 1)

    # Convert. Before the file is kept, it is compared with the model on held-out names.
    PATH.parent.mkdir(parents=True, exist_ok=True)
    report = export_tflite(
        model,
        PATH,
        quantization=quantization,
        source_length=LENGTHS,
        tokenizer=tokenizer,
        verify_inputs={"ids": [encoded.ids for encoded in tokenizer.encode_batch(test_texts[:20])]},
    )
    print(report)

    file = runtime.load(PATH)
    few = slice(300 if smoke else 2000)
    in_keras = model.predict(ids_of(test_texts[few]), verbose=0).argmax(-1)
    in_litert = file.predict_text(test_texts[few])["output"].argmax(-1)
    right = [np.mean(x == test_classes[few]) for x in (in_keras, in_litert)]
    print(
        f"\n{len(in_keras):,} held-out names: {right[0]:.1%} right in Keras, "
        f"{right[1]:.1%} in {quantization}; "
        f"the same answer for {np.mean(in_keras == in_litert):.1%}"
    )


if __name__ == "__main__":
    main()
