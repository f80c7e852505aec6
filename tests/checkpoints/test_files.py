"""Models of checkpoints as .tflite files: what transformers made, on the device."""

import shutil

import keras
import numpy as np
import pytest
from compare import assert_close
from huggingface_cases import FOLDER, expected, inputs_of, loaded, outputs_of
from keras_weights import randomize

from keras_tfm import models, runtime
from keras_tfm.checkpoints import load_huggingface, load_tokenizer, save_huggingface
from keras_tfm.export import export_tflite
from keras_tfm.generation import Beam

pytest.importorskip("ai_edge_litert")

# As in Keras; a device's kernels take sums in an order of their own.
FLOAT32 = 1e-5
LENGTH = 7


def some(*fast, slow=()):
    return [*fast, *(pytest.param(x, marks=pytest.mark.slow) for x in slow)]


@pytest.mark.parametrize(
    "case",
    some(
        "bert_pretraining",
        slow=[
            "t5_gated", "gpt2_scaled",
            "bert_model", "bert_masked", "bert_next", "bert_sequence", "bert_token",
            "bert_question", "gpt1", "gpt2", "gpt2_unscaled", "t5", "t5_encoder",
        ],
    ),
)  # fmt: skip
def test_outputs_of_a_file_are_those_of_transformers(case, tmp_path):
    model, inputs = loaded(case), inputs_of(case)
    lengths = {"max_length": 5} if "target" in expected(case) else {}
    export_tflite(
        model, tmp_path / "x.tflite", ["predict"], source_length=LENGTH, verify=False, **lengths
    )
    if not isinstance(inputs, dict):
        inputs = {model.inputs[0].name: inputs}
    found = runtime.load(tmp_path / "x.tflite").predict(inputs)
    names = list(model.output) if isinstance(model.output, dict) else list(found)
    outputs = {name: found[name] for name in names}
    if not isinstance(model.output, dict):
        (outputs,) = outputs.values()
    for name, x in outputs_of(case, outputs).items():
        assert_close(x, expected(case)[name], FLOAT32)


def up_to_end(row, end):
    """What follows an end token means nothing."""
    row = [int(x) for x in row]
    return row[: row.index(end, 1) + 1] if end in row[1:] else row


@pytest.mark.parametrize("case", some("t5", slow=["t5_gated"]))
@pytest.mark.parametrize("kind", some("beam", slow=["greedy", "steps"]))
def test_t5_in_a_file_generates_what_transformers_does(case, kind, tmp_path):
    """The start token is the padding token: nothing of it may be masked."""
    wanted, end = expected(case), int(expected(case)["end_id"])
    signatures = ["encode", "decode"] if kind == "steps" else ["generate"]
    export_tflite(
        loaded(case), tmp_path / "t5.tflite", signatures, source_length=LENGTH,
        max_length=int(wanted["max_length"]), start_id=0, end_id=end, verify=False,
        strategy=Beam(3, length_penalty=0.0, hypotheses=3) if kind == "beam" else None,
    )  # fmt: skip
    result = runtime.load(tmp_path / "t5.tflite").generate({"source": wanted["source"]})
    found = result.tokens if kind == "beam" else result.tokens[:, np.newaxis]
    others = wanted["beam"] if kind == "beam" else wanted["greedy"][:, np.newaxis]
    for row, other in zip(found, others, strict=True):
        assert [up_to_end(x, end) for x in row] == [up_to_end(x, end) for x in other]
    if kind == "beam":
        np.testing.assert_allclose(result.scores, wanted["beam_scores"], atol=1e-4)


@pytest.mark.parametrize("case", some(slow=["gpt2_scaled", "gpt1", "gpt2"]))
def test_gpt_in_a_file_goes_on_as_transformers_does(case, tmp_path):
    """By the loop in the file, and by a host that drives prefill and decode."""
    wanted, end = expected(case), int(expected(case)["end_id"])
    export_tflite(
        loaded(case), tmp_path / "gpt.tflite", ["generate", "prefill", "decode"],
        prompt_length=3, max_length=int(wanted["max_length"]), end_id=end, verify=False,
    )  # fmt: skip
    file = runtime.load(tmp_path / "gpt.tflite")
    tokens = file.generate({"tokens": wanted["prompt"]}).tokens
    for i, other in enumerate(wanted["greedy"]):
        assert up_to_end(tokens[i], end) == up_to_end(other, end)
        steps = [int(x[0]) for x in file.stream({"tokens": wanted["prompt"][i : i + 1]})]
        row = [*wanted["prompt"][i].tolist(), *steps]
        assert up_to_end(row, end) == up_to_end(other, end)


def test_a_classifier_with_its_vocabulary_in_int8(tmp_path, tiny_bert):
    """Several lengths, text in, the class out: the same as in Keras."""
    model, tokenizer = tiny_bert
    report = export_tflite(
        model, tmp_path / "classifier.tflite", quantization="int8", source_length=[8, 24],
        tokenizer=tokenizer,
    )  # fmt: skip
    file = runtime.load(tmp_path / "classifier.tflite")
    assert list(file.signatures) == ["predict_8", "predict_24"]
    found, whole = [], []
    for text in ("the fox", "größere Wörter über Äpfel", "", "the quick brown fox jumps"):
        ids = tokenizer.encode(text).ids
        assert len(ids) <= 24
        found += file.predict_text(text).values()
        whole.append(np.asarray(model({"tokens": np.array([ids])}, training=False)))
    # 1/254 of the largest weight of a row, and of the largest activation, in two blocks.
    tolerance = 0.02
    assert np.ptp(whole, axis=0).min() > 10 * tolerance  # another text's logits would not pass
    assert_close(np.array(found), np.array(whole), tolerance)
    assert report.verification is not None and not report.verification.failures


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A classifier of texts of one segment, from a folder of weights and vocabulary."""
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("bert")
    keras.utils.set_random_seed(0)
    bert = models.bert(256, dim=32, num_layers=2, num_heads=4, intermediate_dim=64, max_length=32)
    # With initial weights all texts have the same logits, to 1e-4.
    save_huggingface(randomize(models.sequence_classifier(bert, 3)), folder)
    shutil.copy(FOLDER.with_name("huggingface_tokenizers") / "bert" / "vocab.txt", folder)
    return load_huggingface(folder, segments=False), load_tokenizer(folder)
