"""A decoder-only model with the decoding loop on the host: prefill, decode and KV caches.

    pip install -e ".[examples]"
    python export/language_model.py                         # three minutes
    python export/language_model.py --write "[de][city]"    # runs the file, without Keras

To export your own language model, copy this script, and replace `texts_of` and the tokenizer by
yours, and `build` by your model (or `keras_tfm.load_model(path)`). The host chooses each token,
here by sampling. "prefill" reads a prompt in one pass, "decode" reads one token; both return only
their new cache entries. The model learns names in 30 languages, from Babel.
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
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from keras_tfm import runtime
from keras_tfm.runtime import native_log

PATH = Path("artifacts/export/language_model.tflite")
END = 1
LENGTH = data.LONGEST + 3  # two tags, the characters, the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", metavar="PROMPT", help='continue a prompt: "[de][city]Neu"')
    parser.add_argument("--smoke", action="store_true", help="a short test run, one minute")
    parser.add_argument("--quantize", choices=("float32", "float16", "int8"), default="int8")
    arguments = parser.parse_args()
    if not (arguments.write and PATH.exists()):
        export(arguments.smoke, arguments.quantize)
    write(arguments.write or "[de][city]")


def texts_of(names: list) -> list[str]:
    return [f"[{name.language}][{name.kind}]{name.text}" for name in names]


def make_tokenizer(names: list) -> Tokenizer:
    """A tokenizer of tags and characters: id 0 is padding, 1 the end, 2 an unknown character."""
    tags = [f"[{tag}]" for tag in (*data.LANGUAGES, *data.KINDS)]
    characters = sorted({character for name in names for character in name.text})
    vocabulary = ["<padding>", "<end>", "<unknown>", *tags, *characters]
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unknown>"))
    special = ["<padding>", "<end>", *tags]
    tokenizer.add_special_tokens([AddedToken(tag, normalized=False) for tag in special])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def build(vocabulary_size: int, dim: int, num_layers: int):
    """From "tokens", ids with padding 0, to logits, with the embedding's table as output layer."""
    import keras

    from keras_tfm import layers

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(vocabulary_size, dim, mask_zero=True, name="embedding")
    x = embedding(tokens)
    for i in range(num_layers):
        block = layers.TransformerDecoderBlock(
            4 * dim,
            dropout=0.1,
            normalize_first=True,
            self_attention=layers.MultiHeadSelfAttention(
                num_heads=4,
                causal=True,
                dropout=0.1,
                position=layers.RotaryEmbedding(),
                name="self_attention",
            ),
            cross_attention=False,
            name=f"decoder_{i}",
        )
        x = block(x)
    x = layers.LayerNormalization(name="norm")(x)
    return keras.Model(tokens, embedding(x, reverse=True), name="names")


def export(smoke: bool, quantization: str) -> None:
    with native_log.remove():
        import keras

        from keras_tfm.export import export_tflite
        from keras_tfm.training import LabelSmoothedCrossEntropy, MaskedAccuracy

        keras.utils.set_random_seed(0)
    train, test = data.split(data.names())
    np.random.default_rng(0).shuffle(train)
    tokenizer = make_tokenizer(train)

    def rows_of(names: list) -> np.ndarray:
        rows = np.zeros((len(names), LENGTH), "int32")
        for row, encoded in zip(rows, tokenizer.encode_batch(texts_of(names)), strict=True):
            ids = [*encoded.ids, END]
            row[: len(ids)] = ids
        return rows

    model = build(tokenizer.get_vocab_size(), *((16, 1) if smoke else (128, 3)))
    model.compile(
        keras.optimizers.Adam(0.002),
        LabelSmoothedCrossEntropy(label_smoothing=0.0),
        metrics=[MaskedAccuracy()],
    )
    rows = rows_of(train[:2_000] if smoke else train)
    model.fit(rows[:, :-1], rows[:, 1:], batch_size=64, epochs=1 if smoke else 3, verbose=2)

    # Convert. Before the file is kept, all signatures are compared with the model on held-out data.
    PATH.parent.mkdir(parents=True, exist_ok=True)
    report = export_tflite(
        model,
        PATH,
        ["prefill", "decode"],
        quantization=quantization,
        prompt_length=(4, 16),  # the runtime uses the shortest that fits
        max_length=LENGTH,
        end_id=END,
        tokenizer=tokenizer,
        verify_inputs={"tokens": rows_of(test[:10])},
    )
    print(report)


def write(prompt: str, count: int = 10, temperature: float = 0.8) -> None:
    """Prints names that continue a prompt, piece by piece."""
    file, generator = runtime.load(PATH), np.random.default_rng()

    def choose(logits: np.ndarray) -> np.ndarray:
        """Logits (B, V) -> tokens (B,): argmax(logits / t + Gumbel noise) samples the softmax."""
        noise = generator.gumbel(size=logits.shape)
        return np.argmax(logits / temperature + noise, axis=-1)

    for _ in range(count):
        for piece in file.stream_text(prompt, choose):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
