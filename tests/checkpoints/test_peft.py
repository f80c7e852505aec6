"""Adapters of PEFT, merged into their base model, give the logits of PEFT.

`tests/parity/make_peft.py` writes the folders.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_tfm import export
from keras_tfm.checkpoints import load_huggingface
from keras_tfm.export.checkpoints import load_checkpoint

FOLDERS = Path(__file__).parents[2] / "tests/parity/peft"
IDS = np.array([[3, 4, 5, 6, 7]])
NAMES = ("llama", "gpt2", "bert")


def logits(model):
    names = [x.name for x in model.inputs]
    inputs = {"tokens": IDS, "segments": np.zeros_like(IDS)}
    return np.asarray(model({x: inputs[x] for x in names} if len(names) > 1 else IDS))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_logits_are_those_of_peft(name, lazy):
    folder = FOLDERS / name
    expected = np.load(folder / "logits.npy")
    model = load_huggingface(folder / "base", peft=folder / "adapter", lazy=lazy)
    np.testing.assert_allclose(logits(model), expected, atol=2e-6 * abs(expected).max())
    base = logits(load_huggingface(folder / "base"))
    assert abs(base - expected).max() > 0.1 * abs(expected).max()


def test_a_file_of_adapters_in_the_older_format(tmp_path):
    """`adapter_model.bin`, as PEFT wrote until 2023."""
    torch = pytest.importorskip("torch")
    folder = copied(tmp_path, "gpt2")
    tensors = load_file(folder / "adapter_model.safetensors")
    torch.save(
        {name: torch.from_numpy(x) for name, x in tensors.items()}, folder / "adapter_model.bin"
    )
    (folder / "adapter_model.safetensors").unlink()
    model = load_huggingface(FOLDERS / "gpt2/base", peft=folder)
    expected = np.load(FOLDERS / "gpt2/logits.npy")
    np.testing.assert_allclose(logits(model), expected, atol=2e-6 * abs(expected).max())


def test_the_commands_take_the_folder_as_an_option(tmp_path):
    folder = FOLDERS / "bert"
    model = load_checkpoint(folder / "base", segments=True, peft=folder / "adapter").model
    expected = np.load(folder / "logits.npy")
    np.testing.assert_allclose(logits(model), expected, atol=2e-6 * abs(expected).max())


def copied(tmp_path, name, **fields):
    """The adapters of a model, with other fields in their configuration."""
    folder = Path(shutil.copytree(FOLDERS / name / "adapter", tmp_path / "adapter"))
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


REFUSED = {
    "another kind": ({"peft_type": "IA3"}, "peft_type must be 'LORA', got 'IA3'"),
    "DoRA": ({"use_dora": True}, "use_dora must be off; merge these adapters with PEFT"),
    "biases": ({"lora_bias": True}, "lora_bias must be off"),
    "a newer field": ({"use_tomorrow": {"a": 1}}, "use_tomorrow must be off"),
    "a changed base": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights must be one"),
    "a scale": ({"lora_alpha": "much"}, "lora_alpha must be a number"),
    "a list": ({"alpha_pattern": [1]}, "alpha_pattern must be a dictionary"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_adapters_of_other_kinds_are_refused(fields, message, tmp_path):
    folder = copied(tmp_path, "llama", **fields)
    with pytest.raises(ValueError, match=rf"adapter_config\.json: {message}"):
        load_huggingface(FOLDERS / "llama/base", peft=folder)


def with_tensors(change):
    def write(folder):
        file = folder / "adapter_model.safetensors"
        save_file(change(load_file(file)), file)

    return write


ONE = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
NO_FIT = {
    "another base": (
        with_tensors(lambda x: {**x, "base_model.model.a.lora_A.weight": np.ones((1, 8))}),
        ValueError,
        "the base model has no matrix for a$",
    ),
    "half": (
        with_tensors(lambda x: {name: y for name, y in x.items() if name != ONE.format("B")}),
        ValueError,
        r"no matrix for model\.layers\.0\.self_attn\.q_proj",
    ),
    "another width": (
        with_tensors(lambda x: {**x, ONE.format("A"): np.ones((2, 9), "float32")}),
        ValueError,
        r"\(2, 9\) and .* \(8, 2\) do not fit model\.layers\.0\.self_attn\.q_proj\.weight \(8, 8\)",
    ),
    "a table of the output, too": (
        with_tensors(
            lambda x: {
                **x,
                "base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 20)),
                "base_model.model.model.embed_tokens.lora_embedding_B": np.ones((8, 2)),
            }
        ),
        ValueError,
        r"change model\.embed_tokens\.weight, but not lm_head\.weight, and both are one table in",
    ),
    "no tensors": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        FileNotFoundError,
        r"has no adapter_model\.safetensors or adapter_model\.bin",
    ),
    "no configuration": (
        lambda folder: (folder / "adapter_config.json").unlink(),
        FileNotFoundError,
        r"has no adapter_config\.json: expected a folder of PEFT",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), NO_FIT.values(), ids=NO_FIT)
def test_adapters_that_do_not_fit_are_refused(change, error, message, tmp_path):
    folder, base = copied(tmp_path, "llama"), FOLDERS / "llama/base"
    if "one table" in message:  # a base whose output has the table of the embedding
        base = Path(shutil.copytree(base, tmp_path / "base"))
        config = json.loads((base / "config.json").read_text())
        config = json.dumps({**config, "tie_word_embeddings": True})
        (base / "config.json").write_text(config)
        tensors = load_file(base / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, base / "model.safetensors")
    change(folder)
    with pytest.raises(error, match=message):
        load_huggingface(base, peft=folder)


def test_a_folder_of_adapters_alone_names_the_way_out(tmp_path):
    for load in (load_huggingface, lambda x: export.export_tflite(x, tmp_path / "x.tflite")):
        with pytest.raises(ValueError, match=r"give the folder of their base model, .* as peft=;"):
            load(FOLDERS / "llama/adapter")


def test_other_models_take_no_adapters(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(ValueError, match="peft is for a folder of transformers, not of sentence-"):
        load_checkpoint(tmp_path, peft=FOLDERS / "llama/adapter")
