"""Manifests that disagree with the tensors of their file, with right checksums, are refused."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from kinds_of_files import KINDS, file_of
from manifest_lies import lie, outcome, read_manifest, with_manifest

from keras_tfm import runtime

# Whose files other tests share.
COMMON = ("classifier", "captions", "prefix", "drawing")
SAMPLE = [pytest.param(kind, marks=() if kind in COMMON else pytest.mark.slow) for kind in KINDS]


@functools.cache
def content_of(kind):
    return Path(file_of(kind)).read_bytes()


def refusal(tmp_path, kind, changes):
    """Why a file is not loaded whose manifest has other values at some places."""
    manifest = read_manifest(content_of(kind))
    for place, value in changes.items():
        *owners, key = place.split("/")
        owner = functools.reduce(lambda x, name: x[name], owners, manifest)
        owner[key] = value
    path = tmp_path / "lie.tflite"
    path.write_bytes(with_manifest(content_of(kind), manifest))
    with pytest.raises(ValueError, match="has a manifest that cannot be read: ") as caught:
        runtime.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


DECODE, CHUNK = "signatures/decode_200", "signatures/prefill_6_200"
GENERATE, WRITE = "signatures/generate", "signatures/decode"
KEY = "cache_000_self_attention_key"
HUGE = 10**9


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("prefix", {f"{WRITE}/max_length": 12}, "decode.max_length must be at most 11, got 12"),
        ("prefix", {f"{WRITE}/prefix": 7}, r"key must be \(\[1, 5, 18, 2\]"),
        ("prefix", {f"{WRITE}/vocabulary_size": 12}, r"logits must be \(B, 12\), got \[1, 13"),
        ("prefix", {f"{WRITE}/start_id": 13}, "decode.start_id must be in 0..12, got 13"),
        ("prefix", {f"{WRITE}/end_id": [2, 2**63]}, "end_id must be in 0..2147483647, got 9223"),
        ("prefix", {f"{WRITE}/pad_id": HUGE}, "decode.pad_id must be in 0..12"),
        ("prefix", {f"{WRITE}/sampling": {"top_p": 2}}, "sampling must be an object of a s"),
        ("prefix", {f"{WRITE}/sampling": [1]}, "sampling must be an object of a s"),
        ("prefix", {f"{WRITE}/transposed": ["x"]}, "transposed must be among the caches"),
        ("prefix", {f"{WRITE}/inputs/position/kind": "cache"}, "one of kind 'position'"),
        ("captions", {f"{GENERATE}/max_length": 14}, "max_length must be at most 13, got 14"),
        ("captions", {f"{GENERATE}/default_prompt": [1] * 4}, "must have at most 3 ids, got 4"),
        ("captions", {f"{GENERATE}/default_prompt": [1, 13]}, "default_prompt must be in 0..12"),
        ("captions", {f"{GENERATE}/prompt": "pixels"}, "prompt must be the target 'target'"),
        ("captions", {f"{GENERATE}/inputs/padding/kind": "input"}, "lacks one of kind 'padding'"),
        ("captions", {"images/pixels/size": [10**6, 10**6]}, r"images.pixels must be of an input"),
        ("captions", {"images/pixels/resize": 10**6}, "resize: at most 4096"),
        (
            "classifier",
            {"chat_template": {"first": "", "answer": "", "next": "", "system": []}},
            "chat_template must be an object of texts",
        ),
        (
            "classifier",
            {"chat_template": {"first": "", "answer": "", "next": "", "system": 5}},
            "chat_template must be an object of texts",
        ),
        (
            "classifier",
            {"chat_template": {"first": "", "answer": "", "next": "", "system": None, "trim": 5}},
            "chat_template must be an object of texts",
        ),
        ("classifier", {"labels": ["a", "b"]}, r"as many as an output has classes, \[3\], got 2"),
        ("classifier", {"labels": [*"abcd"]}, r"as many as an output has classes, \[3\], got 4"),
        (
            "classifier",
            {"signatures/predict_4/inputs/tokens/pad_id": 13},
            "pad_id must be in 0..12, got 13",
        ),
        (
            "classifier",
            {"signatures/predict_4/inputs/tokens/vocabulary_size": 2**31 + 1},
            "vocabulary_size must be at most 2147483648",
        ),
        (
            "classifier",
            {"signatures/predict_4/inputs/tokens/sample_rate": 16000},
            r"has audio, floats \(B, samples\), got int32 \[1, 4\]",
        ),
        (
            "drawing",
            {"models/dalle/model/arguments/text_length": HUGE},
            "text_length must be at most 8",
        ),
        (
            "drawing",
            {"models/dalle/model/arguments/image_vocabulary_size": 8},
            "must have the 23 tokens of signatures.dalle_decode, got 24",
        ),
        (
            "drawing",
            {"models/image/model/head/arguments/scale": 10**400},
            "scale must be in 0..1e",
        ),
    ],
)  # fmt: skip
def test_numbers_that_no_tensor_has_are_refused(tmp_path, kind, changes, message):
    assert re.search(message, refusal(tmp_path, kind, changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DECODE}/max_length": HUGE}, "max_length must be that of"),
        ({f"{DECODE}/capacity": 201}, r"inputs.cache_\w+key must be \(\[1, 2, 201, 4\]"),
        ({f"{CHUNK}/capacity": 64}, r"capacity must be one of \[128, 200\], got 64"),
        ({f"{DECODE}/end_id": [7]}, "decode_200.end_id must be that of"),
        ({f"{DECODE}/inputs/{KEY}/kind": "position"}, f"inputs.{KEY} must be one integer"),
    ],
)  # fmt: skip
def test_capacities_and_drafts_agree(tmp_path, changes, message):
    assert re.search(message, refusal(tmp_path, "chat", changes))


@pytest.mark.parametrize("kind", SAMPLE)
def test_no_lie_is_worse_than_an_error(tmp_path, kind):
    """`python tests/manifest_lies.py` tries 10,000, with limits of memory and time."""
    honest, path = read_manifest(content_of(kind)), tmp_path / "lie.tflite"
    path.write_bytes(content_of(kind))
    found = outcome(path, honest)
    assert found.loaded and not found.wrong
    refused = 0
    for number in range(40):
        told, manifest = lie(honest, (kind, number))
        path.write_bytes(with_manifest(content_of(kind), manifest))
        found = outcome(path, honest)
        assert not found.wrong, told
        refused += not found.loaded
    assert 5 < refused < 40


def test_an_id_that_no_table_has_is_one_error(tmp_path):
    """The vocabulary of a manifest can be larger than the table, whose size no tensor tells."""
    manifest = read_manifest(content_of("classifier"))
    for signature in manifest["signatures"].values():
        signature["inputs"]["tokens"]["vocabulary_size"] = 2**31
    path = tmp_path / "lie.tflite"
    path.write_bytes(with_manifest(content_of("classifier"), manifest))
    with runtime.load(path) as model:
        with pytest.raises(ValueError, match="LiteRT cannot run the file on these inputs: "):
            model.predict([[2**31 - 1]])
        assert np.isfinite(model.predict([[3, 4]])["output"]).all()
