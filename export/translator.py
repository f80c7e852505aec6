"""An encoder-decoder with beam search inside the file: text in, the three best texts out.

    pip install -e ".[examples]"
    python export/translator.py                              # three minutes
    python export/translator.py --ask "3 de marzo de 2026"   # runs the file, without Keras

To export your own translator, copy this script, and replace the tokenizers and the pairs by yours,
and `build` by your model (or `keras_tfm.load_model(path)`). This one translates dates in 29
languages to ISO 8601 (examples/dates_data.py); examples/dates.py trains the same model longer.
"""

import argparse
import os
import sys
from pathlib import Path

# Set before TensorFlow is imported: log only errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[1] / "examples"))

import dates_data as data

from keras_tfm import runtime
from keras_tfm.runtime import native_log

PATH = Path("artifacts/export/translator.tflite")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ask", metavar="TEXT", help="translate a date; exports first if necessary"
    )
    parser.add_argument("--smoke", action="store_true", help="a short test run, one minute")
    parser.add_argument("--quantize", choices=("float32", "float16", "int8"), default="int8")
    arguments = parser.parse_args()
    if not (arguments.ask and PATH.exists()):
        export(arguments.smoke, arguments.quantize)
    if arguments.ask:
        for text, score in runtime.load(PATH).generate_text(data.question(arguments.ask, data.ANY)):
            print(f"{text} {score:.3f}")


def build(source_size: int, target_size: int, dim: int, num_layers: int):
    """From "source" and "target", ids with padding 0, to logits."""
    from keras_tfm.models import transformer

    return transformer(
        source_size,
        target_size,
        dim=dim,
        num_layers=num_layers,
        num_heads=4,
        intermediate_dim=4 * dim,
        normalize_first=True,
        dropout=0.0,
    )


def export(smoke: bool, quantization: str) -> None:
    with native_log.remove():
        import keras

        from keras_tfm.export import export_tflite
        from keras_tfm.generation import Beam
        from keras_tfm.training import LabelSmoothedCrossEntropy, MaskedAccuracy

        keras.utils.set_random_seed(0)
    source_tokenizer, target_tokenizer = data.source_tokenizer(), data.target_tokenizer()
    source, target = data.arrays(data.training_examples(2_000 if smoke else 50_000))
    sizes = source_tokenizer.get_vocab_size(), target_tokenizer.get_vocab_size()
    model = build(*sizes, *((16, 1) if smoke else (128, 2)))
    model.compile(
        keras.optimizers.Adam(0.001),
        LabelSmoothedCrossEntropy(label_smoothing=0.0),
        metrics=[MaskedAccuracy()],
    )
    # The decoder sees the target without its last token and predicts it without its first.
    model.fit({"source": source, "target": target[:, :-1]}, target[:, 1:], batch_size=64, verbose=2)

    # Convert. Before the file is kept, it is compared with the model on held-out dates.
    PATH.parent.mkdir(parents=True, exist_ok=True)
    tests = data.test_dates()[:200]
    questions = [data.question(example.text, example.tag) for example in tests]
    rows = [encoded.ids for encoded in source_tokenizer.encode_batch(questions)]
    report = export_tflite(
        model,
        PATH,
        ["generate"],
        quantization=quantization,
        source_length=(20, data.SOURCE_LENGTH),  # the runtime uses the shortest that fits
        max_length=data.TARGET_LENGTH,
        start_id=data.START,
        end_id=data.END,
        strategy=Beam(4, hypotheses=3),
        tokenizer=source_tokenizer,
        detokenizer=target_tokenizer,
        verify_inputs={"source": rows[:10]},
    )
    print(report)

    file = runtime.load(PATH)
    found = [file.generate_text(question) for question in questions]
    first = sum(x[0].text == example.iso for x, example in zip(found, tests, strict=True))
    among = sum(example.iso in [y.text for y in x] for x, example in zip(found, tests, strict=True))
    print(f"\n{len(tests)} held-out dates: {first} right, {among} right among the three best")
    for question, hypotheses in list(zip(questions, found, strict=True))[:3]:
        print(f"{question} -> {', '.join(f'{x.text} {x.score:.2f}' for x in hypotheses)}")


if __name__ == "__main__":
    main()
