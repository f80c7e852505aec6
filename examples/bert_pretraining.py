"""BERT pretrained from scratch on a manual: masked language model and next sentence prediction.

    pip install -e ".[examples]"
    python examples/bert_pretraining.py        # downloads, trains, evaluates
    python examples/text_classification.py     # then: fine-tunes the encoder

If it is interrupted, the same command continues from the last checkpoint.

Data: LibreOffice's help in English (examples/help_data.py), 39,000 paragraphs. A tenth of the pages
is held out, the same pages as in text_classification.py. The model is BERT-tiny (2 layers of width
128) with a WordPiece vocabulary of 6,000, trained on the same pages.
Minutes: 19 on 2 CPU cores of a shared machine, and 16 for text_classification.py. Expected on the
held-out pages: accuracy 15.7 % and loss 5.47 on masked pieces (5.9 % and 6.66 with unigram
frequencies), and accuracy 93.8 % for the next sentence. Such a short training teaches words and
topics, but hardly word order; text_classification.py shows what this is good for.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import help_data
import numpy as np
import progress

from keras_tfm.runtime import native_log

FOLDER = Path("artifacts/bert")
SIZE, SMOKE = "tiny", {"dim": 32, "num_layers": 2, "num_heads": 2, "intermediate_dim": 64}
VOCABULARY, SMOKE_VOCABULARY = 6_000, 1_000
PADDING, START, END, UNKNOWN, MASK = range(5)  # the ids of text.train_word_piece
LONGEST = 128  # pieces per row: start, passage, end, passage, end
PASSAGE = (LONGEST - 3) // 2
BOUNDARIES = [PASSAGE // 2, 3 * PASSAGE // 4, PASSAGE]
BATCH = 32  # pairs per batch, for the longest passages
EPOCHS = 20
PEAK, WARMUP = 2e-3, 0.05  # peak learning rate; the share of warm-up steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help=f"default: {FOLDER}, with --smoke {FOLDER / 'smoke'}"
    )
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a short test run on docstrings of Python, one minute",
    )
    arguments = parser.parse_args()
    arguments.folder = arguments.folder or (FOLDER / "smoke" if arguments.smoke else FOLDER)
    if arguments.epochs is None:
        arguments.epochs = 1 if arguments.smoke else EPOCHS
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    start = time.perf_counter()
    corpus = Corpus(
        paragraphs(arguments.smoke), SMOKE_VOCABULARY if arguments.smoke else VOCABULARY
    )
    model = train(corpus, arguments)
    print_scores(corpus, model)
    print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")


def paragraphs(smoke: bool) -> help_data.Parts:
    return help_data.split(help_data.docstrings() if smoke else help_data.help_pages())


class Corpus:
    """The tokenizer, and batches of pairs of passages.

    Attributes:
        tokenizer: a WordPiece tokenizer that keeps capitals and spaces.
        training, test: batches for BERT's pretraining.
        counts: number of occurrences of each piece in training.
    """

    def __init__(self, parts: help_data.Parts, vocabulary_size: int):
        with native_log.remove():
            from keras_tfm import text

        self.tokenizer = text.train_word_piece(
            (paragraph.text for paragraph in parts.training), vocabulary_size, ["<mask>"]
        )
        self.counts = np.zeros(self.tokenizer.get_vocab_size(), int)
        for paragraph in self._encoded(parts.training):
            np.add.at(self.counts, paragraph, 1)
        self.training = self._batches(parts.training)
        self.test = self._batches(parts.test)

    def _batches(self, some: list[help_data.Paragraph]):
        from keras_tfm import text

        first, second = [], []
        for page in self._pages(some):
            parts = passages(page)
            first += parts[:-1]
            second += parts[1:]
        pairs = text.BucketedBatches(
            {"first": first, "second": second}, boundaries=BOUNDARIES, tokens=BATCH * PASSAGE
        )
        mask = text.MaskTokens(
            self.tokenizer.get_vocab_size(),
            mask_id=MASK,
            special_ids=[PADDING, START, END, UNKNOWN],
            name="tokens",
            positions=True,
        )
        return pairs.map(lambda batch, step: pretraining_batch(batch, step, mask))

    def _pages(self, some: list[help_data.Paragraph]) -> Iterator[list[list[int]]]:
        """The ids of the paragraphs of each page."""
        pages: dict[str, list[list[int]]] = {}
        for paragraph, ids in zip(some, self._encoded(some), strict=True):
            pages.setdefault(paragraph.document, []).append(ids)
        yield from pages.values()

    def _encoded(self, some: list[help_data.Paragraph]) -> list[list[int]]:
        texts = [paragraph.text for paragraph in some]
        return [x.ids for x in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


def passages(page: list[list[int]]) -> list[np.ndarray]:
    """Splits a page into at least two passages of about the same length, up to PASSAGE."""
    ids = np.concatenate(page)
    return np.array_split(ids, max(2, -(-len(ids) // PASSAGE)))


def pretraining_batch(batch: dict, step: int, mask) -> tuple:
    """Pairs of passages -> inputs, labels and weights for BERT (arXiv:1810.04805, section 3.1).

    Half of the second passages are swapped within the batch; their label is 1.
    """
    first, second = batch["first"], batch["second"]
    moved = np.flatnonzero(np.random.default_rng([1, step]).random(len(first)) < 0.5)
    other = np.arange(len(first))
    other[moved] = np.roll(moved, 1)
    second = second[other]
    rows, columns = first.shape[0], first.shape[1] + second.shape[1] + 3
    tokens, segments = np.zeros((2, rows, columns), "int32")
    for row, (one, two) in enumerate(zip(first, second, strict=True)):
        one, two = one[one != PADDING], two[two != PADDING]
        tokens[row, : len(one) + len(two) + 3] = [START, *one, END, *two, END]
        segments[row, len(one) + 2 : len(one) + len(two) + 3] = 1
    inputs, labels, weights = mask({"tokens": tokens, "segments": segments}, step)
    moved_on = (other != np.arange(rows)).astype("int32")
    return (
        inputs,
        {"tokens": labels, "next_sentence": moved_on},
        {"tokens": weights, "next_sentence": np.ones(rows, "float32")},
    )


def train(corpus: Corpus, arguments: argparse.Namespace):
    import keras

    from keras_tfm.models import masked_language_model
    from keras_tfm.training import LinearSchedule, Resume, exclude_from_weight_decay

    keras.utils.set_random_seed(0)
    encoder = new_encoder(corpus.tokenizer.get_vocab_size(), arguments.smoke)
    model = masked_language_model(encoder, next_sentence=True, positions=True)
    steps = arguments.epochs * corpus.training.steps
    optimizer = keras.optimizers.AdamW(
        LinearSchedule(PEAK, steps, int(WARMUP * steps)),
        weight_decay=0.01,
        beta_2=0.98,
        global_clipnorm=1.0,
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy
    model.compile(
        exclude_from_weight_decay(optimizer, model),
        loss={
            # The mean is over all masked tokens, not over rows.
            "tokens": cross_entropy(from_logits=True, reduction="mean_with_sample_weight"),
            "next_sentence": cross_entropy(from_logits=True),
        },
        weighted_metrics={"tokens": ["accuracy"], "next_sentence": ["accuracy"]},
    )
    print(
        f"{corpus.training.steps:,} batches of {BATCH} or more pairs per epoch; training "
        f"{model.count_params():,} parameters for {arguments.epochs} epochs"
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    corpus.tokenizer.save(str(arguments.folder / "tokenizer.json"))
    model.fit(
        corpus.training.dataset(epochs=arguments.epochs),
        epochs=arguments.epochs,
        steps_per_epoch=corpus.training.steps,
        shuffle=False,
        verbose=2,
        callbacks=[
            Resume(
                arguments.folder / ("smoke" if arguments.smoke else "checkpoints"),
                every_minutes=5,
                configuration={"epochs": arguments.epochs},
            ),
            keras.callbacks.LambdaCallback(on_train_batch_end=progress.every(100)),
        ],
    )
    model.save(arguments.folder / "bert.keras")
    return model


def new_encoder(vocabulary_size: int, smoke: bool, segments: bool = True):
    from keras_tfm.models import bert
    from keras_tfm.models.encoders.bert import SIZES

    size = SMOKE if smoke else SIZES[SIZE]
    return bert(vocabulary_size, max_length=LONGEST, segments=segments, **size)


def print_scores(corpus: Corpus, model) -> None:
    """Scores on the held-out pages, and those of a unigram baseline."""
    losses, right, follows, constant, ignorant = [], [], [], [], []
    probabilities = (corpus.counts + 1) / (corpus.counts + 1).sum()
    for step in range(corpus.test.steps):
        inputs, labels, weights = corpus.test.batch(step)
        logits = {name: np.asarray(x) for name, x in model.predict_on_batch(inputs).items()}
        hidden = weights["tokens"] > 0
        answers, scores = labels["tokens"][hidden], logits["tokens"][hidden].astype("float64")
        largest = scores.max(axis=1)
        totals = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        losses += list(totals - scores[np.arange(len(answers)), answers])
        right += list(scores.argmax(axis=1) == answers)
        constant += list(-np.log(probabilities[answers]))
        ignorant += list(answers == probabilities.argmax())
        follows += list(logits["next_sentence"].argmax(axis=1) == labels["next_sentence"])
    print(f"\n{len(right):,} masked pieces and {len(follows):,} pairs of held-out pages")
    print(f"{'':24}{'loss':>8}{'accuracy':>12}{'next sentence':>18}")
    unigrams = "unigram frequencies"
    print(f"{'BERT':24}{np.mean(losses):>8.2f}{np.mean(right):>12.1%}{np.mean(follows):>18.1%}")
    print(f"{unigrams:24}{np.mean(constant):>8.2f}{np.mean(ignorant):>12.1%}{0.5:>18.1%}")


if __name__ == "__main__":
    main()
