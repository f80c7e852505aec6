"""A file of several models, one of which generates."""

import numpy as np
import pytest
import small_drawing
from execution import tensorflow_only
from small_drawing import LENGTH, ROWS, TEXT, dalle, decoder

from keras_tfm.export import export_tflite
from keras_tfm.runtime import load

pytestmark = tensorflow_only


def test_its_signatures_bear_its_name_and_work_as_those_of_a_file_of_its_own():
    model = load(small_drawing.file())
    assert set(model.signatures) == {"dalle_prefill_3", "dalle_decode", "decoder"}
    assert {x["model"] for x in model.signatures.values()} == {"dalle", "decoder"}
    prompts = ROWS.prompts([[2, 4], [9], [3, 3, 3]])
    found = model.models["dalle"].generate(prompts).tokens
    expected = [prompts[:, i] for i in range(TEXT)]
    rows = prompts
    for _ in range(LENGTH - TEXT):
        chosen = np.asarray(dalle()(rows))[:, -1].argmax(-1).astype("int32")
        expected.append(chosen)
        rows = np.concatenate([rows, chosen[:, None]], axis=1)
    np.testing.assert_array_equal(found, np.stack(expected, axis=1))
    codes = np.array([[0, 6, 3, 3, 1, 5]], "int32")
    decoded = model.models["decoder"].predict(codes)["output"]
    # Values up to 255 in float32, in another order of products.
    np.testing.assert_allclose(decoded, np.asarray(decoder()(codes)), atol=1e-2)


@pytest.mark.parametrize(
    ("signatures", "options", "message"),
    [
        (["decode"], {}, "signatures is for a file of one model"),
        (None, {}, "max_length is for a file of one model, got max_length=9"),
        ({"x": ["decode"]}, {}, r"must be those of models among \['dalle', 'decoder'\], one"),
        ({"dalle": ["decode"], "decoder": ["generate"]}, {}, "one of which may generate"),
        ({"dalle": ["write"]}, {}, "model 'dalle': signatures must be among"),
        ({"dalle": ["decode"]}, {"chat_template": 3}, "chat_template is for a file of one"),
    ],
)
def test_what_does_not_fit_is_refused(signatures, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_tflite(
            {"dalle": dalle(), "decoder": decoder()}, tmp_path / "x.tflite", signatures,
            max_length=LENGTH, **options,
        )  # fmt: skip


def test_signatures_by_model_are_for_several(tmp_path):
    with pytest.raises(ValueError, match="signatures by model are for a file of several models"):
        export_tflite(dalle(), tmp_path / "x.tflite", {"dalle": ["decode"]}, max_length=LENGTH)
