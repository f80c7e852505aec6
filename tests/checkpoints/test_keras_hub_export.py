"""Tasks and presets of KerasHub become files that answer as they do."""

import json
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
from grids import first_of
from real_lines import lines, sentence_pieces, word_pieces
from small_hub_tasks import (
    LENGTH,
    add_noise,
    bart,
    classifier,
    gemma4,
    gpt2,
    qwen3_5,
    short_texts,
    t5,
    t5gemma,
    t5gemma2,
)

import keras_tfm
from keras_tfm import export, runtime
from keras_tfm.checkpoints import from_keras_hub

keras_hub = pytest.importorskip("keras_hub")
hub, ImageConverter = keras_hub.models, keras_hub.layers.ViTImageConverter
# Warnings of KerasHub's own layers.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* (does not support masking|looks like it has unbuilt state)"
)


def test_a_classifier_of_texts(tmp_path):
    """The tokenizer, its [CLS] and [SEP], and the length are the task's."""
    task = classifier()
    report = export.export_tflite(task, tmp_path / "x.tflite")
    texts = short_texts(task, 7)
    file = runtime.load(report.path)
    assert file.signatures["predict"]["inputs"]["tokens"]["shape"] == [1, LENGTH]
    # float32, two blocks.
    expected = task.predict(texts, verbose=0)
    np.testing.assert_allclose(file.predict_text(texts)["output"], expected, atol=1e-5)
    pairs = task.predict(tuple([x] for x in texts[:2]), verbose=0)
    found = file.predict_text([(texts[0], texts[1])])["output"]
    np.testing.assert_allclose(found, pairs, atol=1e-5)
    assert report.notes == ["of the task: its tokenizer; source_length=48"]
    assert export.verify(task, report.path).checks


def test_probabilities_become_logits_which_is_said(tmp_path):
    report = export.export_tflite(classifier(activation="softmax"), tmp_path / "x.tflite")
    assert report.notes[0] == "the model returns logits, without the task's softmax"
    assert report.notes[0] in str(report)


@pytest.mark.parametrize("make", first_of([gpt2, t5, bart, gemma4, t5gemma, t5gemma2]))
def test_generated_texts_are_those_of_keras_hub(make, tmp_path):
    """`generate` of the task, greedy, and of its file: prompts of real text."""
    task = make()
    task.compile(sampler="greedy")
    texts = short_texts(task, 4)
    report = export.export_tflite(task, tmp_path / "x.tflite")
    file = runtime.load(report.path)
    continues = make in (gpt2, gemma4)
    length = {"max_length": LENGTH} if continues else {}
    for text in texts:
        assert file.generate_text(text) == task.generate([text], **length)[0]
    assert ("no chat template" in str(report)) == continues


@pytest.mark.slow  # `from_keras_hub` itself compares the tokens
def test_qwen3_5_writes_what_its_logits_say(tmp_path):
    """KerasHub's own `generate` does not: its states have seen padding, and a token twice."""
    task = qwen3_5()
    report = export.export_tflite(task, tmp_path / "x.tflite", max_length=22)
    assert report.notes[0].startswith("KerasHub's own generate leaves the most probable tokens")
    file, preprocessor = runtime.load(report.path), task.preprocessor
    for text in short_texts(task, 2):
        row = preprocessor.generate_preprocess([text], sequence_length=22)
        tokens, mask = (np.array(row[x]) for x in ("token_ids", "padding_mask"))
        for i in range(int(mask.sum()), 22):
            logits = task({"token_ids": tokens, "padding_mask": mask.astype("int32")})
            tokens[0, i], mask[0, i] = np.argmax(logits[0, i - 1]), True
            if tokens[0, i] == preprocessor.tokenizer.end_token_id:
                break
        written = preprocessor.generate_postprocess({"token_ids": tokens, "padding_mask": mask})
        assert file.generate_text(text) == written[0]


def test_what_the_caller_gives_wins(tmp_path):
    report = export.export_tflite(
        gpt2(), tmp_path / "x.tflite", ["generate"], max_length=9, end_id=[3, 4], prompt_length=5
    )
    (signature,) = runtime.load(report.path).signatures.values()
    assert (signature["end_id"], signature["max_length"]) == ([3, 4], 9)
    assert signature["inputs"]["tokens"]["shape"] == [1, 5]


def test_a_preset_as_a_folder(run, tmp_path):
    task = gpt2()
    task.save_to_preset(str(tmp_path / "preset"))
    task.compile(sampler="greedy")
    text = short_texts(task, 1)[0]
    expected = task.generate([text], max_length=20)[0]
    report = export.export_tflite(tmp_path / "preset", tmp_path / "x.tflite", max_length=20)
    assert runtime.load(report.path).generate_text(text) == expected
    code, _, err = run("export", tmp_path / "preset", tmp_path / "y.tflite", "--max-length", 20)
    assert code == 0, err
    assert run("verify", tmp_path / "preset", tmp_path / "y.tflite")[0] == 0
    export.export_tflite(task, tmp_path / "z.tflite", max_length=20, verify=False)
    x, y, z = (runtime.load(tmp_path / f"{name}.tflite").file.manifest for name in "xyz")
    assert replace(x, sha256="") == replace(y, sha256="") == replace(z, sha256="")
    said = "its tokenizer; --signatures prefill,decode; --prompt-lengths 10; --end 0"
    assert f"of the preset: {said.replace('--end 0', '--start 1; --end 1')}" in err
    assert {"prefill", "decode"} <= {x[:7] for x in runtime.load(tmp_path / "y.tflite").signatures}
    code, out, err = run("import", tmp_path / "preset", tmp_path / "x.keras")
    assert code == 0, err
    assert "inputs tokens" in out
    assert keras_tfm.load_model(tmp_path / "x.keras").family == "gpt"
    code, _, err = run("import", tmp_path / "preset", tmp_path / "y.keras", "--architecture", "X")
    assert code == 2
    assert "it is for a folder of transformers" in err


def test_a_family_that_is_not_here_is_exported_as_it_is(tmp_path):
    backbone = hub.VGGBackbone([1, 1], [3, 5], image_shape=(32, 32, 3))
    task = hub.VGGImageClassifier(backbone, num_classes=4, pooling="avg")
    report = export.export_tflite(task, tmp_path / "x.tflite")
    assert list(report.signatures) == ["predict"]
    assert report.verification.checks[0].relative_error < 1e-5


class OwnPreprocessor(hub.BertTextClassifierPreprocessor):
    pass


def test_a_preprocessor_of_the_users_own_is_said(tmp_path):
    task = classifier()
    task.preprocessor = OwnPreprocessor(task.preprocessor.tokenizer, sequence_length=LENGTH)
    (note,) = from_keras_hub(task, verify=False).notes
    assert note.startswith("OwnPreprocessor is not KerasHub's own: ")


def test_presets_that_cannot_be_read(tmp_path):
    folder = tmp_path / "preset"
    classifier().save_to_preset(str(folder))
    weights = folder / "model.weights.h5"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(OSError, match="preset: its weights cannot be read: "):
        export.export_tflite(folder, tmp_path / "x.tflite")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "module": "my_module"}))
    with pytest.raises(ValueError, match="module must be one of keras_hub, got 'my_module'"):
        export.export_tflite(folder, tmp_path / "x.tflite")
    assert not (tmp_path / "x.tflite").exists()


def test_a_preprocessor_that_cannot_be_stored(tmp_path):
    """The weights come all the same; a file needs another tokenizer."""
    task = classifier()
    task.preprocessor.tokenizer = hub.BertTokenizer(
        word_pieces(), lowercase=True, strip_accents=True
    )
    found = from_keras_hub(task, verify=False)
    assert found.preprocessing is None
    assert found.notes[0].startswith("no preprocessing: ")
    with pytest.raises(ValueError, match=r"no preprocessing: .*; or give tokenizer=") as caught:
        export.export_tflite(task, tmp_path / "x.tflite")
    assert "\n" not in str(caught.value)
    own = from_keras_hub(classifier(), verify=False).preprocessing.tokenizer
    export.export_tflite(task, tmp_path / "x.tflite", tokenizer=own, source_length=8, verify=False)


@pytest.mark.parametrize("use", [export.export_tflite, export.export_litertlm])
def test_a_folder_that_is_none(use, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json|no such folder"):
        use(tmp_path / "missing", tmp_path / "x.litertlm")


# Files of each kind of model, in float32 and int8, verified as every file is


def decoder(name, **more):
    """A language model without a preprocessor."""
    arguments = {"vocabulary_size": 97, "num_layers": 2, "num_query_heads": 4}
    arguments |= {"num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 64}
    backbone = getattr(hub, f"{name}Backbone")(**arguments, **more)
    return add_noise(getattr(hub, f"{name}CausalLM")(backbone=backbone, preprocessor=None))


def whisper():
    arguments = {"vocabulary_size": 97, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}
    lengths = {"max_encoder_sequence_length": 60, "max_decoder_sequence_length": 20}
    return add_noise(hub.WhisperBackbone(intermediate_dim=32, num_mels=10, **arguments, **lengths))


def vit():
    backbone = hub.ViTBackbone((16, 16, 3), 4, 2, 2, 16, 32)
    converter = ImageConverter(image_size=(16, 16), scale=1 / 127.5, offset=-1.0)
    preprocessor = hub.ViTImageClassifierPreprocessor(converter)
    return add_noise(hub.ViTImageClassifier(backbone, num_classes=3, preprocessor=preprocessor))


def clip():
    vision = hub.CLIPVisionEncoder(4, 24, 2, 3, 48, image_shape=(12, 12, 3), name="vision")
    text = hub.CLIPTextEncoder(31, 18, 18, 3, 2, 36, max_sequence_length=9)
    return add_noise(hub.CLIPBackbone(vision, text, projection_dim=6))


PROMPT = {"prompt_length": 8, "max_length": 24, "end_id": 1}
KINDS = {
    "bert": (classifier, {}),
    "t5": (t5, {}),
    "gpt2": (gpt2, {}),
    "gemma3": (lambda: decoder("Gemma3", image_size=16, head_dim=8), PROMPT),
    "llama": (lambda: decoder("Llama"), PROMPT),
    "gemma4": (gemma4, {}),
    "qwen3.5": (qwen3_5, {}),
    "t5gemma": (t5gemma, {}),
    "t5gemma2": (t5gemma2, {}),
    "whisper": (whisper, {"start_id": 1, "end_id": 2, "max_length": 12}),
    "vit": (vit, {}),
    "clip": (clip, {"source_length": 9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_each_kind(kind, quantization, tmp_path):
    make, options = KINDS[kind]
    task = make()
    report = export.export_tflite(task, tmp_path / "x.tflite", quantization=quantization, **options)
    assert report.verification.checks
    if kind == "vit":
        pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
        found = runtime.load(report.path).predict_images(list(pixels))["output"]
        expected = task.predict(pixels, verbose=0)
        scale = np.abs(expected).max()
        tolerance = scale * (1e-5 if quantization == "float32" else 0.1)  # of int8, as verified
        np.testing.assert_allclose(found, expected, atol=tolerance)


# A tutorial of KerasHub from end to end

STOCK = """
import json, sys, litert_lm
path, prompts = json.load(sys.stdin)
greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
answers = []
with litert_lm.Engine(path, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
    for prompt in prompts:
        with engine.create_session(
            apply_prompt_template=False, sampler_config=greedy
        ) as session:
            session.run_prefill([prompt])
            answers.append(session.run_decode().texts[0])
print(json.dumps(answers))
"""
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>"}
GEMMA |= {"bos_piece": "<bos>", "eos_piece": "<eos>", "model_type": "bpe", "byte_fallback": True}
GEMMA |= {"user_defined_symbols": ["<start_of_turn>", "<end_of_turn>"]}
GEMMA |= {"normalization_rule_name": "identity", "add_dummy_prefix": False}
GEMMA |= {"remove_extra_whitespaces": False}


def halves(texts):
    """Prompts, and how they continue."""
    prompts = [x[: len(x) // 2].rsplit(" ", 1)[0] for x in texts]
    return {
        "prompts": prompts,
        "responses": [x[len(y) :] for x, y in zip(texts, prompts, strict=True)],
    }


def train(task, texts, steps, rate):
    """One epoch of as many batches: each epoch of KerasHub's `fit` costs half a second."""
    task.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["sparse_categorical_accuracy"],
        sampler="greedy",
    )
    task.fit(halves(texts * steps), batch_size=len(texts), verbose=0)
    return task.evaluate(halves(texts), batch_size=len(texts), verbose=0, return_dict=True)


@pytest.mark.slow  # examples/kerashub.ipynb is the same with less training
# KerasHub's `fit` makes a tf.data.Dataset of the texts, and then warns about its own `shuffle`.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_gemma_3_with_lora_from_fit_to_litert_lm(tmp_path):
    """German sentences of Django: half of them for all weights, half for the adapters."""
    pytest.importorskip("litert_lm")
    keras.utils.set_random_seed(0)
    texts = [x for x in lines()[200:400] if 30 < len(x) < 50 and x.isprintable()][:16]
    tokenizer = hub.Gemma3Tokenizer(
        sentence_pieces(tuple(texts), 400, **GEMMA), has_vision_tokens=False
    )
    backbone = hub.Gemma3Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        image_size=16,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=48,
        intermediate_dim=96,
        head_dim=16,
        use_query_key_norm=True,
        sliding_window_size=16,
        vision_encoder=None,
    )
    preprocessor = hub.Gemma3CausalLMPreprocessor(tokenizer, sequence_length=48)
    task = hub.Gemma3CausalLM(backbone=backbone, preprocessor=preprocessor)
    train(task, texts[:8], 100, 5e-3)
    backbone.enable_lora(16)
    assert train(task, texts[8:], 300, 2e-2)["sparse_categorical_accuracy"] > 0.95

    prompts = halves(texts[8:])["prompts"]
    answers = task.generate({"prompts": prompts}, max_length=48)
    # Adapters of two blocks learn more than 95 % of the tokens, and whole sentences.
    assert sum(x == y for x, y in zip(answers, texts[8:], strict=True)) >= 4
    report = export.export_tflite(task, tmp_path / "gemma.tflite")
    assert any("LoRA" in note for note in report.notes)
    file = runtime.load(report.path)
    assert [file.generate_text(x) for x in prompts] == answers
    export.export_litertlm(task, tmp_path / "gemma.litertlm")
    done = subprocess.run(
        [sys.executable, "-c", STOCK],
        input=json.dumps([str(tmp_path / "gemma.litertlm"), prompts]),
        capture_output=True,
        text=True,
        check=True,
    )
    stock = [x + y for x, y in zip(prompts, json.loads(done.stdout), strict=True)]
    assert stock == answers
