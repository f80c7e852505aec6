"""What every model promises: each family, bare and with each head."""

import functools
import inspect
import json

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import saving, tensorflow_only
from families import (
    BUILDERS,
    NAMES,
    SMALL,
    TYPES,
    arguments_of,
    builder_of,
    is_builder,
    small_model,
)
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.models import describe, with_dtype

# Float32 rounds at 6e-8; two blocks, sums of up to 13 terms, outputs of up to 10.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3; some twenty roundings, of which most cancel.
BFLOAT16 = 0.1
# Tokens of a text, and of what is generated.
LENGTH = 7
HEADS = {
    "backbone": {},
    "ctc_classifier": {"num_classes": 3},
    "encoder": {},
    "image_classifier": {"num_classes": 3},
    "without_auxiliary_outputs": {},
    "masked_language_model": {"next_sentence": True},
    "multiple_choice": {},
    "next_sentence": {},
    "question_answering": {},
    "replaced_token_detection": {},
    "sentence_embedding": {},
    "sequence_classifier": {"num_classes": 3},
    "token_classifier": {"num_classes": 5},
    "visual_question_answering": {"num_answers": 3},
    "image_text_pretraining": {
        "num_region_classes": 7,
        "num_region_attributes": 6,
        "region_features": True,
        "num_answers": 3,
    },
    "masked_msa": {},
    "pair_classifier": {"num_classes": 3},
}
WITH_HEADS = {
    "bert": [
        "masked_language_model", "next_sentence", "question_answering", "sentence_embedding",
        "sequence_classifier", "token_classifier",
    ],
    "roberta": ["sequence_classifier"],
    "bart": ["sequence_classifier", "question_answering"],
    "mbart": ["sequence_classifier"],
    "deberta-v2": ["sequence_classifier"],
    "electra": ["replaced_token_detection"],
    "mobilebert": ["masked_language_model", "multiple_choice"],
    "modernbert": ["multiple_choice"],
    "gpt2": ["backbone", "sequence_classifier"],
    "gemma3_text": ["sequence_classifier"],
    "gemma3_text, bidirectional": ["sentence_embedding"],
    "imagegpt": ["sequence_classifier"],
    "t5": ["encoder", "sequence_classifier", "token_classifier", "question_answering"],
    "t5gemma": ["sequence_classifier", "token_classifier"],
    "whisper": ["encoder"],
    "transformer": ["encoder"],
    "wav2vec2": ["ctc_classifier", "sequence_classifier"],
    "vit": ["image_classifier"],
    "resnet": ["image_classifier"],
    "lxmert": ["visual_question_answering", "image_text_pretraining"],
    "vilbert": ["image_text_pretraining"],
    "evoformer, features": ["masked_msa", "pair_classifier"],
    "detr": ["backbone", "without_auxiliary_outputs"],
}  # fmt: skip
CASES = {
    **{name: (name, None) for name in NAMES if name != "evoformer, features"},
    **{f"{name}, {head}": (name, head) for name, heads in WITH_HEADS.items() for head in heads},
}


def is_similar(case):
    """Whether its builder's plain model type, or the one with most options, stands for it."""
    if case not in TYPES:
        return False
    same = [len(x.arguments) for x in TYPES.values() if x.builder == TYPES[case].builder]
    return 0 < len(TYPES[case].arguments) < max(2, *same)


LOOK_ALIKE = {case for case in CASES if is_similar(case)}


def cases(names=CASES, slow=()):
    """Parameters; those in `slow` and what looks like another case are marked slow."""
    return pytest.mark.parametrize(
        "case",
        [pytest.param(x, marks=[pytest.mark.slow] * (x in slow or x in LOOK_ALIKE)) for x in names],
    )


# One of each kind of inputs and outputs: in the default tier it stands for the others wherever
# nothing but the graph and the configurations of layers is asked, which are tested by themselves.
KINDS = {
    *("bert", "bert, masked_language_model", "gpt2", "t5", "whisper", "dinov2_with_registers"),
    *("detr", "clip", "lxmert", "dalle", "dvae", "evoformer, features, pair_classifier"),
}

# The same head on several families, and what a head leaves out.
SAME_HEAD = (
    {
        f"{x}, sequence_classifier"
        for x in (
            "roberta",
            "bart",
            "mbart",
            "deberta-v2",
            "gemma3_text",
            "imagegpt",
            "t5",
            "t5gemma",
        )
    }
    | {"t5, token_classifier", "t5gemma, token_classifier", "t5, question_answering"}
    | {"detr, backbone", "detr, without_auxiliary_outputs", "whisper, features"}
)


# Two images, the last region of the second is padding.
REGIONS = {
    "region_features": np.random.default_rng(1).normal(size=(2, 4, 11)).astype("float32"),
    "region_boxes": np.random.default_rng(2).uniform(size=(2, 4, 4)).astype("float32"),
    "region_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
# Two alignments: one with a short sequence, one with padded residues and a padded row.
ALIGNMENTS = {
    "tokens": [
        [[3, 4, 5, 6, 7], [3, 0, 0, 8, 9], [3, 4, 9, 6, 7]],
        [[8, 9, 3, 0, 0], [8, 1, 3, 0, 0], [0, 0, 0, 0, 0]],
    ],
    "extra_tokens": [[[3, 4, 5, 6, 1], [2, 4, 5, 6, 7]], [[8, 9, 4, 0, 0], [0, 0, 0, 0, 0]]],
    "residue_index": [[0, 1, 2, 3, 4], [0, 1, 5, 0, 0]],
}
# The others' graphs have no other operators than those of their family.
# The default tier: what decodes is exported by the test of `generate` and by tests/export.
EXPORTED = {"vit, image_classifier", "resnet"}
IN_INT8 = {"gpt2", "clip"}
# What is the same code for every model: each part of it has tests of its own.
SAVED = {"bert", "t5", "clip", "dalle"}
COPIED = {"bert", "whisper"}
TRAINED = {"bert", "deberta-v2", "llama", "whisper", "clip", "resnet, image_classifier"}
GENERATING = ("decoder", "encoder-decoder", "speech")
ENCODERS = ("wav2vec2", "hubert")  # of speech, without a decoder
DECODING = [x for x in TYPES if TYPES[x].kind in GENERATING and x not in ENCODERS]
DECODING += ["transformer", "dalle"]
# What transformers has no model for.
OURS_ALONE = {case for case, (name, _) in CASES.items() if name.partition(",")[0] not in TYPES} | {
    "bert, sentence_embedding",
    "gemma3_text, bidirectional, sentence_embedding",
    "whisper, encoder",
}


def make(case, **options):
    name, head = CASES[case]
    if head == "sequence_classifier" and builder_of(name) in ("gpt", "gemma"):
        options["pad_id"] = 0
    model = small_model(name, **options)
    more = {"pooling": "mean"} if case == "imagegpt, sequence_classifier" else {}
    return getattr(models, head)(model, **HEADS[head], **more) if head else model


@functools.cache
def model_of(case):
    """With random weights. Made once: no test may change it."""
    return randomize(make(case))


def padding_of(case):
    """The id that pads: transformers numbers MPNet's positions by 1, whatever a folder says."""
    return 1 if builder_of(CASES[case][0]) == "mpnet" else 0


@functools.cache
def inputs_of(case):
    """Two rows, the second padded; a target starts with the start token and is padded too."""
    pad = padding_of(case)
    arrays = {
        "tokens": [[9, 4, 5, 6, 3], [8, 3, pad, pad, pad]],  # 3 ends a text
        "segments": [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]],
        "source": [[9, 4, 5, 6, 3], [8, 3, 0, 0, 0]],
        "target": [[1, 4, 5, 6, 7], [1, 9, 0, 0, 0]],
        "codes": [[3, 4, 5, 6, 2, 1], [0, 1, 2, 4, 6, 5]],
    }
    if "image_id" in arguments_of(CASES[case][0]):  # with two images and with one
        image = [30] * 4
        arrays["target"] = [[1, *image, *image, 4, 5], [1, 7, *image, 9, 0, 0, 0, 0]]
    inputs = {}
    for x in model_of(case).inputs:
        if x.name == "pixels":
            pixels = np.random.default_rng(0).integers(0, 256, (2, *x.shape[1:]))
            inputs["pixels"] = pixels.astype("uint8")
        elif x.name in REGIONS:
            inputs[x.name] = REGIONS[x.name]
        elif case.startswith("evoformer") and "float" not in x.dtype:
            inputs[x.name] = np.array(ALIGNMENTS[x.name], "int32")
        elif x.name == "alignment_features":
            shape = (2, 3, 5, x.shape[-1])
            inputs[x.name] = np.random.default_rng(0).normal(size=shape).astype("float32")
        elif "float" in x.dtype:
            shape = [2, *(1400 if size is None else size for size in x.shape[1:])]
            inputs[x.name] = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
        else:
            inputs[x.name] = np.array(arrays[x.name], "int32")
    return inputs


def lengths_of(inputs):
    """Those to export for."""
    lengths = {"source_length": inputs["audio"].shape[1] if "audio" in inputs else 5}
    return {**lengths, "max_length": inputs["target"].shape[1]} if "target" in inputs else lengths


def outputs_of(model, inputs):
    """By name, as arrays: what is called without names is called `output`."""
    if not isinstance(model.input, dict):
        (inputs,) = inputs.values()
    outputs = model(inputs, training=False)
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    return {name: to_numpy(x) for name, x in outputs.items()}


def assert_same(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(actual[name], x, tolerance)


@functools.cache
def expected_of(case):
    return outputs_of(model_of(case), inputs_of(case))


def test_every_builder_and_every_head_is_here():
    public = {name: getattr(models, name) for name in models.__all__}
    functions = {name for name, x in public.items() if inspect.isfunction(x) and not is_builder(x)}
    assert functions - {
        *("clip_towers", "decoder", "describe", "dvae_parts", "enable_lora", "features_of"),
        *("resize_vocabulary",),
        *("with_draft_heads", "with_dtype"),
        *("disable_quantization", "enable_quantization", "without_quantization"),
    } == {*HEADS}
    assert {head for _, head in CASES.values() if head} == {*HEADS}
    assert {builder_of(name) for name, _ in CASES.values()} == {*BUILDERS}


@saving
@cases(slow={*CASES} - SAVED)
def test_it_is_saved_and_loaded(case, tmp_path):
    model_of(case).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(outputs_of(loaded, inputs_of(case)), expected_of(case), 0.0)
    assert describe(loaded) == describe(model_of(case))


@cases()
def test_its_description_is_json_and_names_the_family(case):
    name, head = CASES[case]
    described = describe(model_of(case))
    assert json.loads(json.dumps(described)) == described
    assert described["family"] == builder_of(name)
    if head and head not in ("backbone", "encoder", "without_auxiliary_outputs"):
        assert described["head"]["kind"] == head


@cases(slow={*CASES} - KINDS)
def test_weights_go_into_a_model_that_is_made_again(case):
    again = make(case)
    assert [x.path for x in again.weights] == [x.path for x in model_of(case).weights]
    again.set_weights(model_of(case).get_weights())
    assert_same(outputs_of(again, inputs_of(case)), expected_of(case), 0.0)


@cases(slow={*CASES} - KINDS)
def test_a_clone_answers_the_same(case):
    clone = keras.models.clone_model(model_of(case))
    assert describe(clone) == describe(model_of(case))
    clone.set_weights(model_of(case).get_weights())
    assert_same(outputs_of(clone, inputs_of(case)), expected_of(case), 0.0)


@saving
@cases(
    [x for x, (name, _) in CASES.items() if not builder_of(name).startswith(("resnet", "dvae"))],
    slow={*CASES} - COPIED,
)
def test_adapters_are_saved_and_merged(case, tmp_path):
    model, rng = randomize(make(case)), np.random.default_rng(0)
    models.enable_lora(model, rank=2)
    for variable in model.variables:
        if variable.name == "lora_kernel_b":
            variable.assign(rng.normal(scale=0.3, size=variable.shape))
    adapted = outputs_of(model, inputs_of(case))
    assert any(np.any(x != expected_of(case)[name]) for name, x in adapted.items())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    # Keras merges the adapters when it saves: (x A) B is then part of x W, so the last bits differ.
    assert_same(outputs_of(loaded, inputs_of(case)), adapted, FLOAT32)
    merged = with_dtype(model, "float32")
    assert len(merged.weights) == len(model_of(case).weights)
    assert_same(outputs_of(merged, inputs_of(case)), adapted, FLOAT32)


@cases(slow={*CASES} - COPIED)
def test_a_copy_in_half_precision_answers_nearly_as_well(case):
    copy = with_dtype(model_of(case), "mixed_bfloat16")
    found, expected = outputs_of(copy, inputs_of(case)), expected_of(case)
    # Without norms, MobileBERT's features are ten times as large, and its pooler reads them.
    assert_same(found, expected, 2 * BFLOAT16 if CASES[case][0] == "mobilebert" else BFLOAT16)
    assert any(np.any(found[name] != expected[name]) for name in found)
    back = with_dtype(copy, "float32")
    assert_same(outputs_of(back, inputs_of(case)), expected, 0.0)


@pytest.mark.default
@cases(
    # For alignments, tests/models/test_evoformer.py tests it. Images have no padding.
    [
        x
        for x, (name, _) in CASES.items()
        if x == "imagegpt"
        or (
            not x.startswith(("clip", "whisper, features", "evoformer", "dvae"))
            # Without padding, T5Gemma's classifier does not see the last token of a text.
            and x != "t5gemma, sequence_classifier"
            # Its last token reads the padding after it: tests/models/test_mobilebert.py.
            and name != "mobilebert"
            and x not in ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model")
            and getattr(TYPES.get(name), "kind", "") != "images"
        )
    ]
)
def test_more_padding_changes_nothing(case):
    """In a sequence of features, no row that is a token's; in one vector a row, nothing."""
    inputs, expected = inputs_of(case), expected_of(case)
    pad = padding_of(case)
    longer = {
        name: x
        if name in REGIONS or x.ndim > 2
        else np.pad(x, [(0, 0), (0, 2)], constant_values=pad)
        for name, x in inputs.items()
    }
    ids = (x for name, x in inputs.items() if x.dtype == "int32" and name not in REGIONS)
    real = next(ids, np.full((2, 0), pad)) != pad
    for name, x in outputs_of(model_of(case), longer).items():
        wanted = expected[name]
        if wanted.shape[1:2] == real.shape[1:]:
            x, wanted = x[:, : real.shape[1]][real], wanted[real]
        assert_close(x, wanted, FLOAT32)


@tensorflow_only
@cases(slow={*CASES} - TRAINED)
def test_a_step_of_training_changes_every_weight(case):
    """A gradient that is missing is a warning of Keras, and here an error.

    Eager: to trace the step takes longer than to run it. tests/layers/test_contract.py fits graphs.
    """
    model = randomize(make(case))
    before = {x.path: to_numpy(x) for x in model.trainable_weights}
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    inputs, rng = inputs_of(case), np.random.default_rng(0)
    answers = {name: rng.normal(size=x.shape) for name, x in expected_of(case).items()}
    if not isinstance(model.input, dict):
        (inputs,) = inputs.values()
    if not isinstance(model.output, dict):
        (answers,) = answers.values()
    assert np.all(np.isfinite(model.train_on_batch(inputs, answers)))
    unchanged = [x.path for x in model.trainable_weights if np.all(to_numpy(x) == before[x.path])]
    # An expert that no token chose has no gradient; tests/layers has those of the others.
    assert not [path for path in unchanged if "/expert_" not in path]


@tensorflow_only
@cases(slow={*CASES} - EXPORTED)
def test_its_file_answers_as_it_does(case, tmp_path):
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    model, inputs = model_of(case), inputs_of(case)
    lengths = lengths_of(inputs)
    report = export_tflite(model, tmp_path / "x.tflite", ["predict"], verify=False, **lengths)
    found = runtime.load(report.path).predict(inputs)
    expected = expected_of(case)
    if not isinstance(model.output, dict):
        ((_, x),) = expected.items()
        expected = dict.fromkeys(found, x)
    assert_same(found, expected, FLOAT32)


@tensorflow_only
@cases(slow={*CASES} - IN_INT8)
def test_its_file_in_int8_is_verified(case, tmp_path, monkeypatch):
    """Of a wider model: LiteRT leaves matrices of fewer than 1,024 weights in float32."""
    from keras_tfm.export import export_tflite

    monkeypatch.setitem(SMALL, "dim", 40)
    monkeypatch.setitem(SMALL, "intermediate_dim", 48)
    lengths = lengths_of(inputs_of(case))
    path = tmp_path / "x.tflite"
    report = export_tflite(randomize(make(case)), path, ["predict"], "int8", **lengths)
    assert path.exists() and report.verification is not None  # a wrong file is not kept
    assert report.bytes_by_kind["int8"] > 1024


def varied_answer(case):
    """A model with random weights, what it reads, and its tokens: not one again and again.

    The tokens are those of full passes. With large embeddings and biases, a decoder repeats itself.
    """
    model, inputs = make(case), dict(inputs_of(case))
    start = inputs.pop("target", inputs.get("tokens"))[:, :1]
    (source,) = inputs.values()
    if "tokens" in inputs:
        source = start = source[:1, :2]
    first = {"transformer": 13, "whisper": 9}.get(case, 0)  # the ones before take seconds
    for seed in range(first, first + 9):
        randomize(model, seed)
        for weight in model.weights:
            if weight.path.endswith(("embeddings", "beta", "bias")):
                weight.assign(0.2 * weight)
        tokens = start
        while tokens.shape[1] < LENGTH:
            given = (
                tokens
                if "tokens" in inputs
                else {**dict.fromkeys(inputs, source), "target": tokens}
            )
            best = np.argmax(to_numpy(model(given, training=False))[:, -1:], axis=-1)
            tokens = np.concatenate([tokens, best.astype("int32")], axis=1)
        kinds = [len({*row[start.shape[1] :].tolist()}) for row in tokens]
        if max(kinds) > 2 and len({*map(tuple, tokens.tolist())}) == len(tokens):
            return model, source, tokens
    raise AssertionError(f"{case} repeats a token, or does not read its source")


@tensorflow_only
@cases(DECODING, slow={*DECODING} - {"t5", "dalle"})
def test_its_file_generates_what_it_generates(case, tmp_path):
    """And that is what full passes choose, token by token."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite
    from keras_tfm.generation import generate

    model, source, tokens = varied_answer(case)
    if "target" in inputs_of(case):
        lengths = {"source_length": source.shape[1], "start_id": int(tokens[0, 0])}
    else:
        lengths = {"prompt_length": source.shape[1]}
    start = {name: x for name, x in lengths.items() if name == "start_id"}
    found = generate(model, source, LENGTH, **start).tokens
    np.testing.assert_array_equal(found, tokens)
    report = export_tflite(
        model, tmp_path / "x.tflite", ["generate"], verify=False, max_length=LENGTH, **lengths
    )
    np.testing.assert_array_equal(runtime.load(report.path).generate(source).tokens, tokens)


@cases([x for x in CASES if x not in OURS_ALONE], slow=SAME_HEAD)
def test_it_goes_to_hugging_face_and_comes_back(case, tmp_path):
    pytest.importorskip("safetensors")
    from keras_tfm.checkpoints import load_huggingface, save_huggingface

    save_huggingface(model_of(case), tmp_path / "folder")
    options = {"audio": False} if case == "whisper, features" else {}
    if "image_id" in arguments_of(CASES[case][0]):
        options |= {x: model_of(case).arguments[x] for x in ("num_images", "image_size")}
    again = load_huggingface(tmp_path / "folder", **options)
    # Norms that are saved as scale - 1, which rounds scales below 0.5 at 6e-8.
    rounded = {
        "gemma": 1e-6, "gemma3": 5e-6, "qwen3_5": 1e-6, "t5gemma": 5e-6, "t5gemma2": 5e-6,
        "moonshine_streaming": 5e-6,
    }  # fmt: skip
    name = CASES[case][0]
    tolerance = 1e-6 if name == "nemotron" else rounded.get(builder_of(name), 0.0)
    expected = {
        name: x for name, x in expected_of(case).items() if not name.startswith("auxiliary_")
    }
    assert_same(outputs_of(again, inputs_of(case)), expected, tolerance)


@pytest.mark.parametrize("case", sorted(OURS_ALONE))
def test_what_hugging_face_has_no_model_for_is_refused(case, tmp_path):
    pytest.importorskip("safetensors")
    from keras_tfm.checkpoints import save_huggingface

    message = "^expected a model of models.bert, |: the head of a .* checkpoint must be one of "
    with pytest.raises(ValueError, match=message):
        save_huggingface(model_of(case), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    "flags", [[True], [True, 0], "yn", [True, None], ["full_attention", "linear"]], ids=str
)
def test_flags_of_blocks_are_one_bool_each(flags):
    with pytest.raises(
        ValueError, match=r"attends must have one bool for each of 2 blocks, got \["
    ):
        models.lfm2(11, dim=8, num_layers=2, num_heads=2, intermediate_dim=9, attends=flags)
