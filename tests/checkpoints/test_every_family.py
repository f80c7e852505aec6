"""Every class of every model type, saved here, read and saved by transformers, and read here.

And the tokens that language models generate here and there.
"""

import shutil

import numpy as np
import pytest
from families import TYPES
from keras_weights import randomize
from saved_folders import CASES, architecture_of, inputs_of, outputs_of, save

from keras_tfm import generation
from keras_tfm.checkpoints import huggingface, load_huggingface, save_huggingface
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.checkpoints.image_settings import FILE as PREPROCESSOR

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # noqa: E402

# The class with most heads; the others are slow.
FAST = {f"{name}, {architecture_of(name)}" for name in TYPES}


def not_saved(model):
    """The arguments of a model that its folder does not tell."""
    names = huggingface.model_family(model)[0].not_saved
    return {x: model.arguments[x] for x in names if x in model.arguments}


@pytest.mark.default  # a table has rows, and few branches
@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.slow] * (x not in FAST)) for x in CASES]
)
@pytest.mark.filterwarnings(
    "ignore:.*transformers before version 5 (does not read is_causal|has one rope)"
)
def test_both_ways(case, tmp_path):
    """With noise on every weight; transformers must know every tensor."""
    from read_by_transformers import TOLERANCE, answer, error_of, read

    model = save(case, tmp_path)
    assert error_of(tmp_path, answer(tmp_path)) <= TOLERANCE
    theirs = read(tmp_path)
    expected = case.partition(",")[0]
    if theirs.config.architectures[0].endswith("ForImageClassification"):
        # That of SigLIP's images is under the type of both encoders.
        expected = expected.replace("siglip_vision_model", "siglip")
        expected = expected.replace("siglip2_vision_model", "siglip2")
    assert theirs.config.model_type == expected
    theirs.save_pretrained(tmp_path / "again")
    if (tmp_path / PREPROCESSOR).exists():  # which a processor would save
        shutil.copy(tmp_path / PREPROCESSOR, tmp_path / "again")
    again = load_huggingface(tmp_path / "again", **not_saved(model))
    inputs = inputs_of(model)
    expected, found = outputs_of(model, inputs), outputs_of(again, inputs)
    assert found.keys() == expected.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=1e-5 * max(1, np.abs(x).max()))


RENAMED = [x for x in FAMILIES if get_checkpoint_conversion_mapping(x)]


@pytest.mark.parametrize("model_type", RENAMED)
def test_names_that_transformers_changes_in_files(model_type, tmp_path):
    """A folder of a model that transformers made: one that it has read keeps the names it had."""
    from read_by_transformers import TOLERANCE, answer, class_of, error_of, read

    saved_model = save(f"{model_type}, {architecture_of(model_type)}", tmp_path)
    theirs = read(tmp_path)
    made = class_of(tmp_path)(theirs.config)
    made.load_state_dict(theirs.state_dict())
    made.save_pretrained(tmp_path)
    assert error_of(tmp_path, answer(tmp_path)) <= TOLERANCE
    model = load_huggingface(tmp_path, **not_saved(saved_model))
    expected = answer(tmp_path)
    for name, x in outputs_of(model, inputs_of(model)).items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=3e-5 * np.abs(x).max())


def test_tensors_with_the_names_that_classes_of_transformers_have(tmp_path):
    """Gates of LFM3, which files have by another name."""
    from safetensors.numpy import load_file, save_file

    model, file = save("lfm3, Lfm3ForCausalLM", tmp_path), tmp_path / "model.safetensors"
    tensors = {x.replace(".gate_proj.", ".g_proj."): y for x, y in load_file(file).items()}
    assert any(".g_proj." in x for x in tensors)
    save_file(tensors, file)
    inputs = inputs_of(model)
    for name, x in outputs_of(load_huggingface(tmp_path), inputs).items():
        np.testing.assert_array_equal(x, outputs_of(model, inputs)[name])


DECODERS = [f"{x}, {architecture_of(x)}" for x in TYPES if TYPES[x].kind == "decoder"]
DECODERS.append("llama, llama3")
FAST_BEAMS = {"llama, llama3", "gemma2, Gemma2ForCausalLM"}


@pytest.mark.parametrize(
    ("case", "beams"),
    [
        pytest.param(
            case, beams, id=f"{case}, {beams}",
            marks=[pytest.mark.slow] * (beams > 1 and case not in FAST_BEAMS),
        )
        for case in DECODERS
        for beams in (1, 4)
    ],
)  # fmt: skip
def test_generated_tokens(case, beams, tmp_path):
    """With a cache on both sides, from a prompt that is shorter than the windows."""
    import torch
    from read_by_transformers import read

    model = randomize(CASES[case](), seed=4)
    for x in model.get_layer("embedding").weights:
        if x.path.endswith("embeddings"):
            x.assign(0.2 * x)  # with large ones a decoder repeats its last token
    save_huggingface(model, tmp_path, end_id=None)
    prompt = inputs_of(model)["tokens"][:, :3]
    with torch.no_grad():
        expected = read(tmp_path).generate(
            torch.from_numpy(prompt.astype("int64")), max_length=16, num_beams=beams,
            do_sample=False, eos_token_id=None, pad_token_id=0, length_penalty=0.0,
            early_stopping=False,
        ).numpy()  # fmt: skip
    strategy = None if beams == 1 else generation.Beam(beams, length_penalty=0.0)
    actual = generation.generate(model, prompt, max_length=16, strategy=strategy)
    # Small and random, some know few tokens: GPT-1 is post-norm, GPT-NeoX untied.
    few = {"openai-gpt": 1, "gpt_neox": 2}
    assert len(np.unique(expected[:, 3:])) > few.get(case.partition(",")[0], 3)
    np.testing.assert_array_equal(np.asarray(actual.tokens)[:, :16], expected)
