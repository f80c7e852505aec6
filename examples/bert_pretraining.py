"""BERT or ModernBERT pretrained from scratch on a manual: masked words, and BERT's next sentence.

    pip install -e ".[examples]"
    python examples/bert_pretraining.py        # downloads, trains, evaluates
    python examples/text_classification.py     # then: fine-tunes the encoder
    python examples/bert_pretraining.py --model modernbert

If it is interrupted, the same command continues from the last checkpoint.

Data: LibreOffice's help in English (examples/help_data.py), 39,000 paragraphs. A tenth of the pages
is held out, the same pages as in text_classification.py. The model is BERT-tiny (2 layers of width
128) with a WordPiece vocabulary of 6,000, trained on the same pages.
Minutes: 19 on 2 CPU cores of a shared machine, and 16 for text_classification.py. Expected on the
held-out pages: accuracy 15.7 % and loss 5.47 on masked pieces (5.9 % and 6.66 with unigram
frequencies), and accuracy 93.8 % for the next sentence. Such a short training teaches words and
topics, but hardly word order; text_classification.py shows what this is good for.

`--model modernbert` reads the same rows with the same masks, without segments and next sentence. It
was not trained for 20 epochs yet. With KERAS_BACKEND=jax no TensorFlow is needed, nor a network, if
the folder has the corpus.npz of another run.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import help_data
import numpy as np
import progress

from keras_tfm.runtime import native_log

FOLDER = Path("artifacts/bert")
SIZE, SMOKE = "tiny", {"dim": 32, "num_layers": 2, "num_heads": 2, "intermediate_dim": 64}
# The blocks of ModernBERT have a gate: of this width they have as many weights as those of BERT.
GATED = 2 / 3
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
    parser.add_argument("--model", choices=("bert", "modernbert"), default="bert")
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
    folder = FOLDER.with_name(arguments.model)
    arguments.folder = arguments.folder or (folder / "smoke" if arguments.smoke else folder)
    if arguments.epochs is None:
        arguments.epochs = 1 if arguments.smoke else EPOCHS
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    start = time.perf_counter()
    corpus = Corpus(corpus_file(arguments), arguments.model == "bert")
    model = train(corpus, arguments)
    print_scores(corpus, model, arguments.model)
    print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")


def paragraphs(smoke: bool) -> help_data.Parts:
    return help_data.split(help_data.docstrings() if smoke else help_data.help_pages())


def corpus_file(arguments: argparse.Namespace) -> Path:
    """The tokenizer and the ids of all paragraphs, in one file, which is made the first time."""
    path = arguments.folder / "corpus.npz"
    if path.exists():
        return path
    with native_log.remove():
        from keras_tfm import text

    parts = paragraphs(arguments.smoke)
    tokenizer = text.train_word_piece(
        (paragraph.text for paragraph in parts.training),
        SMOKE_VOCABULARY if arguments.smoke else VOCABULARY,
        ["<mask>"],
    )
    arrays = {}
    for name, some in (("training", parts.training), ("test", parts.test)):
        texts = [paragraph.text for paragraph in some]
        ids = [x.ids for x in tokenizer.encode_batch(texts, add_special_tokens=False)]
        arrays[f"{name}_ids"] = np.concatenate(ids).astype("uint16")
        arrays[f"{name}_lengths"] = np.array([len(x) for x in ids])
        arrays[f"{name}_pages"] = np.unique([x.document for x in some], return_inverse=True)[1]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.folder / "tokenizer.json"))
    np.savez_compressed(path, vocabulary_size=tokenizer.get_vocab_size(), **arrays)
    return path


class Corpus:
    """Batches of pairs of passages.

    Attributes:
        vocabulary_size: int.
        training, test: batches for BERT's pretraining; of the tokens alone for ModernBERT's.
        counts: number of occurrences of each piece in training.
    """

    def __init__(self, path: Path, next_sentence: bool):
        with np.load(path) as arrays:
            self.vocabulary_size = int(arrays["vocabulary_size"])
            self.counts = np.bincount(arrays["training_ids"], minlength=self.vocabulary_size)
            self.training, self.test = (
                self._batches(pages_of(arrays, name), next_sentence)
                for name in ("training", "test")
            )

    def _batches(self, pages: list[np.ndarray], next_sentence: bool):
        with native_log.remove():
            from keras_tfm import text

        first, second = [], []
        for page in pages:
            parts = passages(page)
            first += parts[:-1]
            second += parts[1:]
        pairs = text.BucketedBatches(
            {"first": first, "second": second}, boundaries=BOUNDARIES, tokens=BATCH * PASSAGE
        )
        mask = text.MaskTokens(
            self.vocabulary_size,
            mask_id=MASK,
            special_ids=[PADDING, START, END, UNKNOWN],
            name="tokens",
            positions=True,
        )
        made = pairs.map(lambda batch, step: pretraining_batch(batch, step, mask))
        return made if next_sentence else made.map(lambda batch, step: tokens_alone(*batch))


def pages_of(arrays: dict, name: str) -> list[np.ndarray]:
    """The ids of each page; paragraphs of a page follow each other."""
    ids, lengths, pages = (arrays[f"{name}_{x}"] for x in ("ids", "lengths", "pages"))
    ids = np.split(ids.astype("int32"), np.cumsum(lengths)[:-1])
    found: dict[int, list[np.ndarray]] = {}
    for page, paragraph in zip(pages, ids, strict=True):
        found.setdefault(page, []).append(paragraph)
    return [np.concatenate(page) for page in found.values()]


def passages(ids: np.ndarray) -> list[np.ndarray]:
    """Splits a page into at least two passages of about the same length, up to PASSAGE."""
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


def tokens_alone(inputs: dict, labels: dict, weights: dict) -> tuple:
    """A batch for ModernBERT, which has no segments and no next sentence."""
    inputs = {name: x for name, x in inputs.items() if name != "segments"}
    return inputs, labels["tokens"], weights["tokens"]


def train(corpus: Corpus, arguments: argparse.Namespace):
    import keras

    from keras_tfm.models import masked_language_model
    from keras_tfm.training import LinearSchedule, exclude_from_weight_decay

    keras.utils.set_random_seed(0)
    next_sentence = arguments.model == "bert"
    encoder = new_encoder(corpus.vocabulary_size, arguments.smoke, kind=arguments.model)
    model = masked_language_model(encoder, next_sentence=next_sentence, positions=True)
    steps = arguments.epochs * corpus.training.steps
    optimizer = keras.optimizers.AdamW(
        LinearSchedule(PEAK, steps, int(WARMUP * steps)),
        weight_decay=0.01,
        beta_2=0.98,
        global_clipnorm=1.0,
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy
    # The mean is over all masked tokens, not over rows.
    loss = cross_entropy(from_logits=True, reduction="mean_with_sample_weight")
    metrics = ["accuracy"]
    if next_sentence:
        loss = {"tokens": loss, "next_sentence": cross_entropy(from_logits=True)}
        metrics = {"tokens": ["accuracy"], "next_sentence": ["accuracy"]}
    model.compile(exclude_from_weight_decay(optimizer, model), loss=loss, weighted_metrics=metrics)
    print(
        f"{corpus.training.steps:,} batches of {BATCH} or more pairs per epoch; training "
        f"{model.count_params():,} parameters for {arguments.epochs} epochs"
    )
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=progress.every(100))]
    if keras.backend.backend() == "tensorflow":
        from keras_tfm.training import Resume

        batches = corpus.training.dataset(epochs=arguments.epochs)
        folder = (
            arguments.folder / ("smoke" if arguments.smoke else "checkpoints") / arguments.model
        )
        configuration = {"epochs": arguments.epochs}
        callbacks.append(Resume(folder, every_minutes=5, configuration=configuration))
    else:  # without TensorFlow, and from the first step
        batches = (corpus.training.batch(step) for step in range(steps))
    model.fit(
        batches,
        epochs=arguments.epochs,
        steps_per_epoch=corpus.training.steps,
        shuffle=False,
        verbose=2,
        callbacks=callbacks,
    )
    model.save(arguments.folder / f"{arguments.model}.keras")
    return model


def new_encoder(vocabulary_size: int, smoke: bool, segments: bool = True, kind: str = "bert"):
    from keras_tfm import models
    from keras_tfm.models.encoders.bert import SIZES

    size = dict(SMOKE if smoke else SIZES[SIZE])
    if kind == "bert":
        return models.bert(vocabulary_size, max_length=LONGEST, segments=segments, **size)
    size["intermediate_dim"] = round(GATED * size["intermediate_dim"])
    return models.modernbert(vocabulary_size, max_length=LONGEST, pad_id=PADDING, **size)


def print_scores(corpus: Corpus, model, kind: str) -> None:
    """Scores on the held-out pages, and those of a unigram baseline."""
    next_sentence = kind == "bert"
    losses, right, follows, constant, ignorant = [], [], [], [], []
    probabilities = (corpus.counts + 1) / (corpus.counts + 1).sum()
    for step in range(corpus.test.steps):
        inputs, labels, weights = corpus.test.batch(step)
        logits = model.predict_on_batch(inputs)
        if not next_sentence:
            labels, weights, logits = ({"tokens": x} for x in (labels, weights, logits))
        logits = {name: np.asarray(x) for name, x in logits.items()}
        hidden = weights["tokens"] > 0
        answers, scores = labels["tokens"][hidden], logits["tokens"][hidden].astype("float64")
        largest = scores.max(axis=1)
        totals = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        losses += list(totals - scores[np.arange(len(answers)), answers])
        right += list(scores.argmax(axis=1) == answers)
        constant += list(-np.log(probabilities[answers]))
        ignorant += list(answers == probabilities.argmax())
        if next_sentence:
            follows += list(logits["next_sentence"].argmax(axis=1) == labels["next_sentence"])
    print(f"\n{len(right):,} masked pieces of held-out pages")
    names = {"bert": "BERT", "modernbert": "ModernBERT"}
    lines = [
        ("", "loss", "accuracy", "next sentence"),
        (names[kind], f"{np.mean(losses):.2f}", f"{np.mean(right):.1%}", ""),
        ("unigram frequencies", f"{np.mean(constant):.2f}", f"{np.mean(ignorant):.1%}", ""),
    ]
    if next_sentence:
        lines[1] = (*lines[1][:3], f"{np.mean(follows):.1%}")
        lines[2] = (*lines[2][:3], f"{0.5:.1%}")
    for name, *values in lines:
        print(f"{name:24}{values[0]:>8}{values[1]:>12}{values[2] if next_sentence else '':>18}")


if __name__ == "__main__":
    main()
