"""Adapters of PEFT, merged into their base model, give the logits of PEFT.

`tests/parity/make_peft.py` writes the folders.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_tfm import export, generation, models, runtime
from keras_tfm.checkpoints import (
    load_generation_config,
    load_huggingface,
    load_sentence_transformer,
    load_tokenizer,
    save_huggingface,
)
from keras_tfm.export.checkpoints import export_arguments, load_checkpoint

FOLDERS = Path(__file__).parents[2] / "tests/parity/peft"
IDS = np.array([[3, 4, 5, 6, 7]])
NAMES = ("llama", "gpt2", "bert", "dora", "dora_gpt2", "tokens", "tied")
EMBEDDER = FOLDERS / "embedder"


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
    "DoRA's lengths": (
        {"use_dora": True},
        r"\S+ must have \['lora_A', 'lora_B', 'lora_magnitude_vector'\], got \['lora_A', '",
    ),
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
ROWS = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
NO_FIT = {
    "another base": (
        with_tensors(lambda x: {**x, "base_model.model.a.lora_A.weight": np.ones((1, 8))}),
        ValueError,
        "the base model has no matrix for a$",
    ),
    "half": (
        with_tensors(lambda x: {name: y for name, y in x.items() if name != ONE.format("B")}),
        ValueError,
        r"layers\.0\.self_attn\.q_proj must have \['lora_A', 'lora_B'\], got \['lora_A'\]",
    ),
    "another width": (
        with_tensors(lambda x: {**x, ONE.format("A"): np.ones((2, 9), "float32")}),
        ValueError,
        r"\(2, 9\) and .* \(8, 2\) do not fit model\.layers\.0\.self_attn\.q_proj\.weight \(8, 8\)",
    ),
    "rows without their ids": (
        with_tensors(lambda x: {**x, ROWS: np.ones((2, 8))}),
        ValueError,
        r"trainable_token_indices must be a list of ids, for model\.embed_tokens, got None",
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
    "a table that is saved whole, of the output, too": (
        with_tensors(
            lambda x: {**x, "base_model.model.model.embed_tokens.weight": np.ones((20, 8))}
        ),
        ValueError,
        r"change model\.embed_tokens\.weight, but not lm_head\.weight, and both are one table in",
    ),
    "a head of another class": (
        with_tensors(lambda x: {**x, "base_model.model.score.weight": np.ones((3, 8))}),
        ValueError,
        r"LlamaForCausalLM does not have score\.weight: give the class .* as architecture=",
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


WRONG_ROWS = {
    "another number": ("tokens", {"trainable_token_indices": [4, 18]}, r"\(3, 8\) and the 2 train"),
    "no such id": ("tokens", {"trainable_token_indices": [4, 20, 7]}, "3 trainable.* do not fit"),
    "another module": (
        "tokens",
        {"trainable_token_indices": {"b": [1]}},
        "list of ids, .*got None",
    ),
}


@pytest.mark.parametrize(("name", "fields", "message"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_rows_that_do_not_fit_are_refused(name, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_huggingface(FOLDERS / name / "base", peft=copied(tmp_path, name, **fields))


def test_lengths_of_another_number_are_refused(tmp_path):
    folder, name = copied(tmp_path, "dora"), ONE.format("magnitude_vector")
    name = name.replace("q_proj", "k_proj").removesuffix(".weight")
    with_tensors(lambda x: {**x, name: np.ones(3, "float32")})(folder)
    with pytest.raises(ValueError, match=r"magnitude_vector \(3,\) must have 4 values"):
        load_huggingface(FOLDERS / "dora/base", peft=folder)


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def write_adapter(folder, tensors, **fields):
    """A folder of adapters with these tensors, and the scale 3."""
    folder.mkdir()
    fields = {"peft_type": "LORA", "lora_alpha": 6, "r": 2, **fields}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    tensors = {f"base_model.model.{name}": x for name, x in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def assert_merged(base, adapter, expected, architecture=None):
    """Compares with the base model that has the tensors of `expected` instead."""
    model = load_huggingface(base, architecture, peft=adapter)
    merged = Path(shutil.copytree(base, adapter.parent / "merged"))
    save_file({**load_file(base / "model.safetensors"), **expected}, merged / "model.safetensors")
    other = load_huggingface(merged, architecture)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6, err_msg=one.path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_adapters_of_the_output(tied, saved, tmp_path):
    """PEFT saves the matrix of an output that has adapters, too."""
    base = Path(shutil.copytree(FOLDERS / "llama/base", tmp_path / "base"))
    tensors = load_file(base / "model.safetensors")
    if tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        save_file(
            {name: x for name, x in tensors.items() if name != "lm_head.weight"},
            base / "model.safetensors",
        )
        config = json.loads((base / "config.json").read_text())
        config = json.dumps({**config, "tie_word_embeddings": True})
        (base / "config.json").write_text(config)
    a, b = random(2, 8), random(20, 2)
    adapter = {"lm_head.lora_A.weight": a, "lm_head.lora_B.weight": b}
    if saved:
        adapter["lm_head.base_layer.weight"] = tensors["lm_head.weight"]
    adapter = write_adapter(tmp_path / "adapter", adapter)
    assert_merged(base, adapter, {"lm_head.weight": tensors["lm_head.weight"] + 3 * b @ a})


def test_matrices_of_gpt2_whatever_the_field_says(tmp_path):
    """PEFT sets `fan_in_fan_out` to what the last module needs: false for an `lm_head`."""
    folder = copied(tmp_path, "gpt2", fan_in_fan_out=False)
    expected = np.load(FOLDERS / "gpt2/logits.npy")
    model = load_huggingface(FOLDERS / "gpt2/base", peft=folder)
    np.testing.assert_allclose(logits(model), expected, atol=2e-6 * abs(expected).max())


def test_a_projection_is_no_table_because_of_its_name(tmp_path):
    model = models.albert(
        11, embedding_dim=8, dim=8, num_layers=1, num_heads=2, intermediate_dim=12, max_length=7
    )
    save_huggingface(model, tmp_path / "base")
    tensors = load_file(tmp_path / "base/model.safetensors")
    name = next(x for x in tensors if x.endswith("embedding_hidden_mapping_in.weight"))
    a, b, module = random(2, 8), random(8, 2), name.removesuffix(".weight")
    # The name of the adapter is in files that were not written by PEFT's `save_pretrained`.
    adapter = {f"{module}.lora_A.default.weight": a, f"{module}.lora_B.default.weight": b}
    adapter = write_adapter(tmp_path / "adapter", adapter)
    assert_merged(tmp_path / "base", adapter, {name: tensors[name] + 3 * b @ a})


def test_convolutions_and_names_of_modules_in_transformers_5(tmp_path):
    model = models.vit(
        image_size=8, patch_size=4, dim=8, num_layers=1, num_heads=2, intermediate_dim=12
    )
    save_huggingface(model, tmp_path / "base")
    tensors = load_file(tmp_path / "base/model.safetensors")
    query = "encoder.layer.0.attention.attention.query.weight"
    patches = "embeddings.patch_embeddings.projection"
    a, b, kernel = random(2, 8), random(8, 2), random(2, 3, 4, 4)
    adapter = {
        "layers.0.attention.q_proj.lora_A.weight": a,
        "layers.0.attention.q_proj.lora_B.weight": b,
        f"{patches}.lora_A.weight": kernel,
        f"{patches}.lora_B.weight": b[:, :, None, None],
    }
    expected = {
        query: tensors[query] + 3 * b @ a,
        f"{patches}.weight": tensors[f"{patches}.weight"]
        + 3 * np.einsum("or,rihw->oihw", b, kernel),
    }
    adapter = write_adapter(tmp_path / "adapter", adapter)
    assert_merged(tmp_path / "base", adapter, expected)


def test_labels_and_vocabulary_are_those_of_the_adapters(tmp_path):
    """The configuration of the base model does not know them."""
    adapter = {"score.weight": random(5, 8)}
    adapter = write_adapter(tmp_path / "adapter", adapter)
    name = "LlamaForSequenceClassification"
    model = load_huggingface(FOLDERS / "llama/base", name, peft=adapter)
    assert model.output_shape == (None, 5)
    adapter = {"model.embed_tokens.weight": random(23, 8), "lm_head.weight": random(23, 8)}
    adapter = write_adapter(tmp_path / "added", adapter)
    model = load_huggingface(FOLDERS / "llama/base", peft=adapter)
    assert model.output_shape == (None, None, 23)


def test_other_files_beside_those_of_the_adapters(tmp_path):
    """The base model in another format, and the adapters, in one folder."""
    torch = pytest.importorskip("torch")
    folder = Path(shutil.copytree(FOLDERS / "llama/base", tmp_path / "base"))
    expected = np.load(FOLDERS / "llama/logits.npy")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(FOLDERS / "llama/adapter" / name, folder)

    for old, new in (
        ("model.safetensors", "pytorch_model.bin"),
        ("adapter_model.safetensors", "adapter_model.bin"),
    ):
        tensors = {name: torch.from_numpy(x) for name, x in load_file(folder / old).items()}
        torch.save(tensors, folder / new)
        (folder / old).rename(tmp_path / old)
        model = load_huggingface(folder, peft=folder)
        np.testing.assert_allclose(logits(model), expected, atol=2e-6 * abs(expected).max())
        shutil.copy(FOLDERS / "llama/base/model.safetensors", folder)


def test_a_folder_of_several_adapters_names_them(tmp_path):
    shutil.copytree(FOLDERS / "llama/adapter", tmp_path / "several/one")
    with pytest.raises(
        FileNotFoundError, match=r"expected a folder of PEFT; its folders \['one'\]"
    ):
        load_huggingface(FOLDERS / "llama/base", peft=tmp_path / "several")


def test_a_folder_of_adapters_alone_names_the_way_out(tmp_path):
    for load in (load_huggingface, lambda x: export.export_tflite(x, tmp_path / "x.tflite")):
        with pytest.raises(ValueError, match=r"give the folder of their base model, .* as peft="):
            load(FOLDERS / "llama/adapter")


def test_other_models_take_no_adapters(tmp_path):
    model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=8)
    path, peft = tmp_path / "x.tflite", FOLDERS / "gpt2/adapter"
    for take in (
        lambda: export.export_tflite(model, path, peft=peft),
        lambda: export.export_litertlm(model, path, peft=peft),
        lambda: load_checkpoint(model, peft=peft),
    ):
        with pytest.raises(ValueError, match=r"^peft is for the folder of a base model.* Model$"):
            take()
    assert not path.exists()


def test_a_tokenizer_beside_the_adapters_comes_first(tmp_path):
    """As TRL saves it with its chat template. The base's if there is none."""
    base, peft = (shutil.copytree(FOLDERS / "llama" / x, tmp_path / x) for x in ("base", "adapter"))
    content = (EMBEDDER / "base/tokenizer.json").read_text()
    for folder, word in ((base, "old"), (peft, "new")):
        (folder / "tokenizer.json").write_text(content.replace("w5", word))
        template = f"{{% for m in messages %}}{word}{{{{ m['content'] }}}}{{% endfor %}}"
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        taken = export_arguments(load_checkpoint(base, peft=peft), {}).arguments
        assert taken["chat_template"].first == word
        assert taken["tokenizer"].token_to_id(word) == 7


@pytest.mark.parametrize(
    ("token", "base_ids", "expected"),
    [
        ("w5", 2, [7, 2]),  # as the trainer of transformers has it in the model's configuration
        ({"content": "w5"}, [3, 2], [7, 3, 2]),
        ("w5", [2, 7], [2, 7]),
        (None, 2, 2),
    ],
)
def test_the_end_token_of_the_adapters_ends_a_text(token, base_ids, expected, tmp_path):
    """A base ends with its own token; a chat that was learned ends with one of the template."""
    base, peft = (shutil.copytree(FOLDERS / "llama" / x, tmp_path / x) for x in ("base", "adapter"))
    fields = json.dumps({"eos_token_id": base_ids})
    (base / "generation_config.json").write_text(fields)
    shutil.copy(EMBEDDER / "base/tokenizer.json", base)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": token}
    (peft / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copy(EMBEDDER / "base/tokenizer.json", peft)
    assert load_generation_config(base, peft=peft)["end_id"] == expected
    assert load_generation_config(base).get("end_id") == base_ids
    for is_litertlm in (False, True):
        taken = export_arguments(load_checkpoint(base, peft=peft), {}, is_litertlm).arguments
        assert taken["end_id"] == (expected if isinstance(expected, list) else [expected])


@pytest.mark.parametrize("tokenizer_class", ["PreTrainedTokenizerFast", "LlamaTokenizer"])
def test_settings_without_a_tokenizer_are_read_with_that_of_the_base(tokenizer_class, tmp_path):
    base, peft = (shutil.copytree(FOLDERS / "llama" / x, tmp_path / x) for x in ("base", "adapter"))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    settings = {"tokenizer_class": tokenizer_class, "eos_token": "w5", "chat_template": template}
    (peft / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_generation_config(base, peft=peft)["end_id"] == 2  # no tokenizer has ids
    shutil.copy(EMBEDDER / "base/tokenizer.json", base)
    assert load_generation_config(base, peft=peft)["end_id"] == [7, 2]
    taken = export_arguments(load_checkpoint(base, peft=peft), {}).arguments
    assert taken["end_id"] == [7, 2] and taken["tokenizer"].token_to_id("w5") == 7
    assert taken["chat_template"] is not None


def test_no_folder_of_adapters(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"peft must be a folder .*, got '.*typo'"):
        load_generation_config(FOLDERS / "llama/base", peft=tmp_path / "typo")


# Folders of sentence-transformers

TEXTS = ["w1 w2 w3", "w4 w5"]


def plain_embedder(folder):
    """The folder of sentence-transformers for the base model."""
    shutil.copytree(EMBEDDER / "base", folder)
    for name in ("modules.json", "1_Pooling"):
        source = EMBEDDER / "adapted" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder


def test_the_vectors_are_those_of_sentence_transformers(tmp_path):
    """The base is of transformers or of sentence-transformers; so are the adapters."""
    expected, embedder = np.load(EMBEDDER / "vectors.npy"), plain_embedder(tmp_path / "plain")
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    for file in (EMBEDDER / "adapted").glob("adapter_*"):
        shutil.copy(file, adapters)
    tokenizer = load_tokenizer(EMBEDDER / "adapted")
    for base, peft in (
        (EMBEDDER / "base", EMBEDDER / "adapted"),
        (embedder, EMBEDDER / "adapted"),
        (embedder, adapters),
    ):
        model = load_sentence_transformer(base, peft=peft)
        found = generation.embed(model, TEXTS, tokenizer)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    without = generation.embed(load_sentence_transformer(embedder), TEXTS, tokenizer)
    assert abs(without - expected).max() > 0.1


def test_an_export_takes_the_adapters(tmp_path):
    """And `verify`, for which the base alone is another model."""
    base, path, peft = plain_embedder(tmp_path / "plain"), tmp_path / "x", EMBEDDER / "adapted"
    export.export_tflite(base, path, peft=peft, verify=False)
    expected = np.load(EMBEDDER / "vectors.npy")
    np.testing.assert_allclose(runtime.load(path).embed(TEXTS), expected, atol=1e-5)
    export.verify(base, path, peft=peft)
    with pytest.raises(export.VerificationError, match="the file differs from"):
        export.verify(base, path)
    with pytest.raises(ValueError, match="peft is for the folder of a base model"):
        export.verify(load_sentence_transformer(base), path, peft=peft)


def test_an_embedder_s_adapters_alone_name_their_base():
    for load in (load_sentence_transformer, load_huggingface, load_checkpoint):
        with pytest.raises(ValueError, match=r"folder of their base model \(base\), .* as peft="):
            load(EMBEDDER / "adapted")
