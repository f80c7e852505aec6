"""English to German: a translator from pairs of sentences to one .tflite file, with its BLEU.

    pip install -e ".[examples]"
    python examples/translation.py                       # fetches, trains, exports, scores
    python examples/translation.py --ask "Choose a color for the border."
    python examples/translation.py --pairs mine.tsv      # source<TAB>target of your own

Data: LibreOffice's help, 33,000 pairs of paragraphs (examples/translation_data.py fetches 5 MB with
`apt-get download`, without root).
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import translation_data as data

from keras_tfm import runtime
from keras_tfm.runtime import native_log

FOLDER = Path("artifacts/translation")
SIZE = {"dim": 192, "num_layers": 3, "num_heads": 4, "intermediate_dim": 768, "dropout": 0.1}
SMOKE = {"dim": 32, "num_layers": 1, "num_heads": 2, "intermediate_dim": 64, "dropout": 0.1}
VOCABULARY, SMOKE_VOCABULARY = 6_000, 600
PADDING, START, END = 0, 1, 2
# Pairs of more pieces than the last are left out of training.
BOUNDARIES = (*range(4, 32, 4), *range(32, 64, 8), 64, 80, 96)
TOKENS = 1_536  # of source and of target in a batch, padding included
EPOCHS = 11
PEAK, WARMUP = 1.5e-3, 600


def main() -> None:
    parser = argparse.ArgumentParser(description="Translates English to German; see the file.")
    parser.add_argument("--ask", metavar="TEXT", help="a text to translate; trains first if need be")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="source<TAB>target[<TAB>document]"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where all is written")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--smoke", action="store_true", help="a minute, to see that all runs")
    arguments = parser.parse_args()
    train(arguments)


def train(arguments) -> None:
    with native_log.captured():
        import keras

    pairs = data.read(arguments.pairs or data.fetch())
    corpus = Corpus(pairs, SMOKE_VOCABULARY if arguments.smoke else VOCABULARY)
    print(
        f"{len(corpus.parts.training):,} pairs to train on: {corpus.training.steps:,} batches an "
        f"epoch, {corpus.training.padding().share:.0%} padding"
    )
    model = build(corpus, arguments.smoke, arguments.epochs * corpus.training.steps)
    print(f"training {model.count_params():,} parameters for {arguments.epochs} epochs")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    corpus.tokenizer.save(str(arguments.folder / "tokenizer.json"))
    model.fit(
        corpus.training.dataset(epochs=arguments.epochs),
        epochs=arguments.epochs,
        steps_per_epoch=corpus.training.steps,
        validation_data=corpus.validation.dataset(epochs=1),
        shuffle=False,
        verbose=2,
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                arguments.folder / "epoch.weights.h5", save_weights_only=True
            ),
            keras.callbacks.LambdaCallback(on_train_batch_end=progress()),
        ],
    )
    model.save(arguments.folder / "translation.keras")


def build(corpus: "Corpus", smoke: bool, steps: int):
    """The model, compiled for so many steps."""
    import keras

    from keras_tfm.models import transformer
    from keras_tfm.training import LabelSmoothedCrossEntropy, MaskedAccuracy

    keras.utils.set_random_seed(0)
    model = transformer(
        corpus.tokenizer.get_vocab_size(), normalize_first=True, **(SMOKE if smoke else SIZE)
    )
    warmup = min(WARMUP, steps // 4)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, alpha=0.01, warmup_target=PEAK, warmup_steps=warmup
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0
        ),
        loss=LabelSmoothedCrossEntropy(label_smoothing=0.1),
        metrics=[MaskedAccuracy(name="accuracy")],
    )
    return model


def progress(every: int = 100):
    """Prints a line each so many batches: Keras's own are of the whole epoch so far."""
    start, steps = time.perf_counter(), 0

    def show(_, logs) -> None:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            minutes = (time.perf_counter() - start) / 60
            print(
                f"step {steps:,}: {minutes:.1f} minutes, loss {logs['loss']:.3f} and accuracy "
                f"{logs['accuracy']:.1%} in this epoch",
                flush=True,
            )

    return show


class Corpus:
    """The tokenizer, and each part as texts and as batches.

    Attributes:
        parts: pairs of texts to train on, to choose by and to score on.
        tokenizer: one for both languages: names and terms are often the same.
        training, validation: batches of ids.
    """

    def __init__(self, pairs: list, vocabulary_size: int):
        from keras_tfm import text

        self.parts = data.split(pairs)
        self.tokenizer = text.train_word_piece(
            (side for pair in self.parts.training for side in (pair.source, pair.target)),
            vocabulary_size,
        )
        self.training = self._batches(self.parts.training)
        self.validation = self._batches(self.parts.validation, shuffle=False)

    def _batches(self, pairs: list, shuffle: bool = True):
        """Batches of the pairs that are not too long, shifted for teacher forcing."""
        from keras_tfm import text

        sources = [x.ids for x in self.tokenizer.encode_batch([pair.source for pair in pairs])]
        targets = [x.ids for x in self.tokenizer.encode_batch([pair.target for pair in pairs])]
        kept = [
            i
            for i, (source, target) in enumerate(zip(sources, targets, strict=True))
            if max(len(source), len(target) - 1) <= BOUNDARIES[-1]
        ]
        return text.BucketedBatches(
            {"source": [sources[i] for i in kept], "target": [targets[i][:-1] for i in kept]},
            [targets[i][1:] for i in kept],
            boundaries=BOUNDARIES,
            tokens=TOKENS,
            shuffle=shuffle,
        )


if __name__ == "__main__":
    main()
