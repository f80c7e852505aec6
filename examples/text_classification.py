"""Fine-tunes BERT to classify texts and words, and exports int8 files for LiteRT.

    pip install -e ".[examples]"
    python examples/bert_pretraining.py        # first: the encoder
    python examples/text_classification.py     # trains, compares, exports
    python examples/text_classification.py --ask "Choose Insert - Chart to open the dialog."

Data: LibreOffice's help in English (examples/help_data.py), labelled by its authors. "subject":
which of eight applications a paragraph is about (accuracy). "words": which of its words are screen
texts, code or keys (F1 over these words). The pretrained encoder of bert_pretraining.py, which has
not seen the test pages, is compared with the same encoder from random weights, and with logistic
regression on TF-IDF features: words and pairs of words, or for words their spelling and neighbours.
Minutes: 16 on 2 CPU cores. Expected, on 1,782 and 2,681 paragraphs:

              paragraphs    TF-IDF    random  pretrained
subject            1,000     69.4%     59.5%       69.8%
subject           15,946     76.4%     73.6%       76.6%
words              1,000     70.4%     62.0%       67.3%
words             24,042     79.2%     78.2%       80.0%

              Keras, float32  TFLite, int8      MB ms per text
subject               76.60%        76.71%    1.57        0.41
words                 80.02%        80.02%    1.55        0.41
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import bert_pretraining
import help_data
import numpy as np
from help_data import Paragraph

from keras_tfm.runtime import native_log

LONGEST = bert_pretraining.LONGEST
LENGTHS = [32, 64, LONGEST]  # input lengths of the exported file
BOUNDARIES = [16, 32, 48, 64, 96, LONGEST]
TOKENS = 1_024  # per batch, including padding
IGNORED = -1  # the label of a piece that is not the first of its word
PEAK = 5e-4
EPOCHS = {1_000: 15, None: 5}  # by the number of training paragraphs; None: all
SMOKE_EPOCHS = {300: 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", metavar="TEXT", help="a text to classify; trains first if needed")
    parser.add_argument("--folder", type=Path, help="default: that of bert_pretraining.py")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a short test run on docstrings of Python, one minute",
    )
    arguments = parser.parse_args()
    arguments.folder = arguments.folder or (
        bert_pretraining.FOLDER / ("smoke" if arguments.smoke else "")
    )
    files = {task: arguments.folder / f"{task}.tflite" for task in ("subject", "words")}
    if not (arguments.ask and all(file.exists() for file in files.values())):
        encoder = arguments.folder / "bert.keras"
        if not encoder.exists():
            parser.error(f"{encoder} is missing: run examples/bert_pretraining.py first")
        start = time.perf_counter()
        compare(bert_pretraining.paragraphs(arguments.smoke), files, arguments)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if arguments.ask:
        answer(arguments.ask, files)


class Task(NamedTuple):
    """A classification task: its classes and data."""

    name: str
    classes: list[str]
    parts: help_data.Parts

    @property
    def of_words(self) -> bool:
        return self.name == "words"

    def labels(self, some: list[Paragraph]) -> list[str]:
        """The labels of the paragraphs, or of all their words in one list."""
        if self.of_words:
            return [kind for paragraph in some for kind in paragraph.kinds]
        return [paragraph.subject for paragraph in some]

    def score(self, answers: list[str], some: list[Paragraph]) -> float:
        """Accuracy for subjects; micro-averaged F1 for words that have a kind."""
        labels = self.labels(some)
        if self.of_words:
            from sklearn.metrics import f1_score

            kinds = self.classes[1:]
            return f1_score(labels, answers, labels=kinds, average="micro", zero_division=0)
        return float(np.mean([a == b for a, b in zip(answers, labels, strict=True)]))


def tasks(parts: help_data.Parts, tokenizer) -> list[Task]:
    """Both tasks, without paragraphs that are too long for the file."""

    def short(some: list[Paragraph]) -> list[Paragraph]:
        encoded = tokenizer.encode_batch([paragraph.text for paragraph in some])
        return [x for x, ids in zip(some, encoded, strict=True) if len(ids) <= LONGEST]

    once = help_data.Parts(*map(short, help_data.once(parts)))
    about_one = help_data.Parts(*([x for x in part if x.subject] for part in once))
    subjects = sorted({paragraph.subject for paragraph in about_one.training})
    kinds = {kind for paragraph in once.training for kind in paragraph.kinds}
    return [Task("subject", subjects, about_one), Task("words", sorted(kinds), once)]


def compare(parts: help_data.Parts, files: dict[str, Path], arguments: argparse.Namespace) -> None:
    """Trains each task from random and pretrained weights, and prints the table."""
    from tokenizers import Tokenizer

    with native_log.remove():
        import keras
    import keras_tfm

    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    pretrained = keras_tfm.load_model(arguments.folder / "bert.keras", compile=False)
    rows, exported = [], []
    for task in tasks(parts, tokenizer):
        print(
            f"{task.name}: {', '.join(kind or 'plain' for kind in task.classes)}; "
            f"{len(task.parts.training):,} paragraphs for training, "
            f"{len(task.parts.validation):,} for validation, {len(task.parts.test):,} for the test"
        )
        order = np.random.default_rng(0).permutation(len(task.parts.training))
        for count, epochs in (SMOKE_EPOCHS if arguments.smoke else EPOCHS).items():
            some = [task.parts.training[i] for i in order[:count]]
            scores = {"TF-IDF": task.score(regression(task, some), task.parts.test)}
            for weights in ("random", "pretrained"):
                keras.utils.set_random_seed(0)
                model = classifier(pretrained, task, weights == "random", arguments.smoke)
                name = f"{task.name}, {len(some):,} paragraphs, {weights} weights"
                fit(model, task, some, tokenizer, epochs, name)
                found = predicted(model, task, task.parts.test, tokenizer)
                scores[weights] = task.score(found, task.parts.test)
            rows.append((task.name, len(some), scores))
            print_table(rows[-1:])
        # The last model is the one with pretrained weights and all labels.
        after, size, ms = export(model, task, files[task.name], tokenizer)
        exported.append(
            f"{task.name:12}{scores['pretrained']:>16.2%}{after:>14.2%}{size:>8.2f}{ms:>12.2f}"
        )
    print()
    print_table(rows)
    print(f"\n{'':12}{'Keras, float32':>16}{'TFLite, int8':>14}{'MB':>8}{'ms per text':>12}")
    print("\n".join(exported))


def print_table(rows: list) -> None:
    print(f"{'':12}{'paragraphs':>12}{'TF-IDF':>10}{'random':>10}{'pretrained':>12}")
    for name, count, scores in rows:
        cells = "".join(
            f"{score:>{n}.1%}" for score, n in zip(scores.values(), (10, 10, 12), strict=True)
        )
        print(f"{name:12}{count:>12,}{cells}", flush=True)


def regression(task: Task, some: list[Paragraph]) -> list[str]:
    """The predictions of logistic regression on TF-IDF features."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    if task.of_words:
        features = TfidfVectorizer(analyzer=lambda described: described)
        describe = word_features
    else:
        features = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
        describe = texts
    model = make_pipeline(features, LogisticRegression(C=30.0, max_iter=1_000))
    model.fit(describe(some), task.labels(some))
    return list(model.predict(describe(task.parts.test)))


def texts(some: list[Paragraph]) -> list[str]:
    return [paragraph.text for paragraph in some]


def word_features(some: list[Paragraph]) -> list[list[str]]:
    """Features of each word: its spelling, its form, and two neighbours on each side."""
    result = []
    for paragraph in some:
        words = ["", "", *paragraph.words, "", ""]
        for i, word in enumerate(words[2:-2], 2):
            form = "".join(
                "A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c
                for c in word
            )
            around = [f"{place:+d} {words[i + place]}" for place in (-2, -1, 0, 1, 2)]
            begins, ends = (
                [f"begins {word[:n]}" for n in (1, 2, 3)],
                [f"ends {word[-n:]}" for n in (1, 2, 3)],
            )
            pairs = [f"{words[i - 1]} {word}", f"{word} {words[i + 1]}"]
            result.append([*around, *begins, *ends, *pairs, f"form {form}", word.lower()])
    return result


# The encoder


def classifier(pretrained, task: Task, fresh: bool, smoke: bool):
    """The encoder for single texts, with the task's head."""
    from keras_tfm import models

    size = pretrained.get_layer("embedding").vocabulary_size
    encoder = bert_pretraining.new_encoder(size, smoke, segments=False)
    if not fresh:
        for layer in encoder.layers:
            if layer.weights:
                layer.set_weights(pretrained.get_layer(layer.name).get_weights())
    head = models.token_classifier if task.of_words else models.sequence_classifier
    return head(encoder, len(task.classes))


def fit(
    model,
    task: Task,
    some: list[Paragraph],
    tokenizer,
    epochs: int,
    name: str,
    peak: float = PEAK,
    callbacks: Sequence = (),
) -> None:
    """Trains, and keeps the weights of the epoch with the best validation score."""
    import keras

    from keras_tfm.training import (
        LabelSmoothedCrossEntropy,
        LinearSchedule,
        exclude_from_weight_decay,
    )

    batches = labelled_batches(task, some, tokenizer)
    steps = epochs * batches.steps
    optimizer = keras.optimizers.AdamW(
        LinearSchedule(peak, steps, steps // 10), weight_decay=0.01, global_clipnorm=1.0
    )
    model.compile(
        exclude_from_weight_decay(optimizer, model),
        LabelSmoothedCrossEntropy(label_smoothing=0.0, ignore_class=IGNORED),
    )

    class Choice(keras.callbacks.Callback):
        best, weights = -1.0, None

        def on_epoch_end(self, epoch, logs=None):
            validation = task.parts.validation
            score = task.score(predicted(model, task, validation, tokenizer), validation)
            print(
                f"  {name}: epoch {epoch + 1}, loss {logs['loss']:.3f}, score {score:.1%}",
                flush=True,
            )
            if score > self.best:
                self.best, self.weights = score, model.get_weights()

        def on_train_end(self, logs=None):
            model.set_weights(self.weights)

    model.fit(
        batches.dataset(epochs=epochs),
        epochs=epochs,
        steps_per_epoch=batches.steps,
        shuffle=False,
        verbose=0,
        callbacks=[Choice(), *callbacks],
    )


def labelled_batches(task: Task, some: list[Paragraph], tokenizer):
    """Batches of ids and labels: one label per paragraph, or for the first piece of each word."""
    from keras_tfm import text

    encoded = encodings(some, tokenizer)
    numbers = {name: i for i, name in enumerate(task.classes)}
    if task.of_words:
        labels = [
            [IGNORED if i is None else numbers[paragraph.kinds[i]] for i in first_pieces(encoding)]
            for paragraph, encoding in zip(some, encoded, strict=True)
        ]
    else:
        labels = [[numbers[paragraph.subject]] for paragraph in some]
    # Rows are padded with 0, which is a class, so classes are counted from 1 while batching.
    batches = text.BucketedBatches(
        {"tokens": [x.ids for x in encoded], "labels": [[x + 1 for x in row] for row in labels]},
        boundaries=BOUNDARIES,
        tokens=TOKENS,
    )

    def divided(batch: dict, _: int) -> tuple:
        labels = batch["labels"] - 1
        return {"tokens": batch["tokens"]}, labels if task.of_words else labels[:, 0]

    return batches.map(divided)


def encodings(some: list[Paragraph], tokenizer) -> list:
    return tokenizer.encode_batch(
        [list(paragraph.words) for paragraph in some], is_pretokenized=True
    )


def first_pieces(encoding) -> list[int | None]:
    """For each piece that is the first of a word, the word's number; None for other pieces."""
    words = encoding.word_ids
    return [
        word if word is not None and word != before else None
        for before, word in zip([None, *words], words, strict=False)
    ]


def predicted(model, task: Task, some: list[Paragraph], tokenizer, rows: int = 64) -> list[str]:
    """A Keras model's predictions for paragraphs or words, in batches of similar lengths."""
    encoded = encodings(some, tokenizer)
    order = sorted(range(len(some)), key=lambda i: len(encoded[i]))
    answers: list[list[str]] = [[] for _ in some]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        # Few shapes, since each one is compiled.
        length = next(n for n in LENGTHS if n >= len(encoded[chosen[-1]]))
        ids = np.zeros((rows, length), "int32")
        for row, i in zip(ids, chosen, strict=False):
            row[: len(encoded[i])] = encoded[i].ids
        logits = model.predict_on_batch({"tokens": ids})
        for i, one in zip(chosen, logits, strict=False):
            answers[i] = classes_of(task, one, encoded[i])
    return [name for some in answers for name in some]


def classes_of(task: Task, logits: np.ndarray, encoding) -> list[str]:
    """The classes for the logits of a paragraph, or of its pieces."""
    best = np.atleast_1d(logits.argmax(axis=-1))
    if task.of_words:
        best = [
            best[place] for place, word in enumerate(first_pieces(encoding)) if word is not None
        ]
    return [task.classes[i] for i in best]


# The file


def export(model, task: Task, path: Path, tokenizer) -> tuple[float, float, float]:
    """Exports the model and evaluates the file on the test set, one text at a time.

    Returns:
        The score, megabytes, and milliseconds per text.
    """
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    print(
        export_tflite(model, path, quantization="int8", source_length=LENGTHS, tokenizer=tokenizer)
    )
    path.with_suffix(".json").write_text(json.dumps(task.classes))
    loaded = runtime.load(path)
    some = task.parts.test
    start, answers = time.perf_counter(), []
    for paragraph, encoding in zip(some, encodings(some, tokenizer), strict=True):
        answers += classes_of(task, logits_of(loaded, paragraph.text), encoding)
    ms = (time.perf_counter() - start) / len(some) * 1e3
    return task.score(answers, some), path.stat().st_size / 1e6, ms


def logits_of(loaded, text: str) -> np.ndarray:
    """The logits of a text, or of its pieces."""
    (logits,) = loaded.predict_text([text]).values()
    return logits[0]


def answer(text: str, files: dict[str, Path]) -> None:
    """Prints the classes of a text and its words, with the exported files."""
    from tokenizers import Tokenizer

    from keras_tfm import runtime

    for name, path in files.items():
        task = Task(
            name, json.loads(path.with_suffix(".json").read_text()), help_data.Parts([], [], [])
        )
        tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
        encoding = tokenizer.encode(text.split(), is_pretokenized=True)
        found = classes_of(task, logits_of(runtime.load(path), text), encoding)
        if task.of_words:
            found = [
                f"{word} [{kind}]" if kind else word
                for word, kind in zip(text.split(), found, strict=True)
            ]
        print(f"{name}: {' '.join(found)}")


if __name__ == "__main__":
    main()
