import itertools
import json

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from grids import first_of
from huggingface_cases import CASES, FOLDER, expected, inputs_of, loaded, outputs_of, run
from saved_folders import architecture_of, save
from small_checkpoints import (
    bfloat16,
    copied,
    encoded,
    rewritten,
    tensors_of,
    write,
)

from keras_tfm import layers, models
from keras_tfm.checkpoints import load_huggingface, save_huggingface
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.export.checkpoints import load_checkpoint

# Sums in another order.
FLOAT32 = 1e-5


def same(case, model, inputs=None, tolerance=FLOAT32):
    """Raises unless a model answers as transformers did for the fixture."""
    for name, x in outputs_of(case, run(model, inputs or inputs_of(case, model))).items():
        assert_close(x, expected(case)[name], tolerance)


# Back


SLOW = {
    *("bert_model", "bert_masked", "bert_next", "bert_token", "bert_question"),
    *("gpt2", "gpt2_unscaled", "t5", "t5_encoder"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in CASES]
)
def test_what_was_loaded_is_saved_as_it_was(case, tmp_path):
    save_huggingface(loaded(case), tmp_path / "saved")
    before, after = tensors_of(FOLDER / case), tensors_of(tmp_path / "saved")
    assert set(after) == set(before)
    for name, x in after.items():
        np.testing.assert_array_equal(x, before[name])
    configs = [
        json.loads((x / "config.json").read_text()) for x in (FOLDER / case, tmp_path / "saved")
    ]
    for name, value in configs[1].items():
        # A field may be left out where it is the default, and T5 1.1 is tied by force there.
        if case != "t5_gated" or name != "tie_word_embeddings":
            assert configs[0].get(name, value) in (value, None), name
    assert list((tmp_path / "saved").iterdir()) == list((tmp_path / "saved").glob("*.*s*"))


@pytest.mark.parametrize("case", first_of(["gpt2_scaled", "bert_sequence", "t5_gated"]))
def test_a_keras_file_between_changes_nothing(case, tmp_path):
    import keras_tfm

    loaded(case).save(tmp_path / "model.keras")
    again = keras_tfm.load_model(tmp_path / "model.keras")
    same(case, again)
    save_huggingface(again, tmp_path)
    same(case, load_huggingface(tmp_path))


def test_an_existing_folder_keeps_its_other_files(tmp_path):
    (tmp_path / "vocab.txt").write_text("word")
    save_huggingface(loaded("gpt2"), tmp_path)
    save_huggingface(loaded("gpt1"), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["config.json", "model.safetensors", "vocab.txt"]
    same("gpt1", load_huggingface(tmp_path))


SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.transformer(11, **SMALL), "expected a model of models.bert"),
        (lambda: models.gpt(11, **SMALL, activation="elu"), "activation must be one of"),
        (
            lambda: models.gpt(11, **{**SMALL, "intermediate_dim": 17}, normalize_first=False),
            r"intermediate_dim must be 4 times dim \(8\)",
        ),
        (
            lambda: models.sequence_classifier(models.gpt(11, **SMALL), 3, pooling="first"),
            r"a gpt2 checkpoint with the head 'sequence_classifier' must be one of .*\], got Head",
        ),
        (
            lambda: models.sequence_classifier(models.t5(11, **SMALL), 3, pooling="mean"),
            r"head 'sequence_classifier' must be .*\], got a model with decoder and Head",
        ),
        (
            lambda: models.sequence_classifier(models.bart(11, **SMALL), 3, pooling="mean"),
            r"a bart checkpoint with the head 'sequence_classifier' must be .*got a model with dec",
        ),
    ],
    ids=["transformer", "activation", "width", "weight", "t5", "bart"],
)
def test_what_transformers_has_no_place_for_is_not_saved(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_huggingface(make(), tmp_path / "new")
    assert not list(tmp_path.iterdir())


def hand_composed():
    ids = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(11, 8, name="embedding")
    x = layers.PositionEmbedding(7, name="positions")(embedding(ids))
    x = layers.TransformerDecoderBlock(16, 2, cross_attention=False, name="decoder_0")(x)
    return keras.Model(ids, embedding(x, reverse=True), name="own")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # With the first GPT's layers under their names: names make no family.
        (hand_composed, r"models\.lxmert, got 'own', composed by hand$"),
        (lambda: models.transformer(11, **SMALL), r"got 'transformer', of models\.transformer$"),
        (
            lambda: models.vit((8, 8), 4, **SMALL, attention_bias=["key"]),
            "vit: no checkpoint .* of models.vit together; its model types are vit, deit, dinov2,",
        ),
        (
            lambda: models.gpt(11, **{**SMALL, "intermediate_dim": 32}, normalize_first=False,
                               scale_scores=False),
            "scale_scores must be True to be saved as the first GPT, got False$",
        ),
        (
            lambda: models.Model(
                (gpt := models.gpt(11, **SMALL)).input, keras.layers.Softmax()(gpt.output)
            ),
            "after loading, its outputs differ by",
        ),
        (
            lambda: models.Model((bert := models.bert(11, **SMALL)).input, bert.output["pooled"]),
            r"expected outputs of shapes \[\(3, 9, 8\), \(3, 8\)\], got \[\(3, 8\)\]",
        ),
    ],
    ids=["by hand", "transformer", "vit", "gpt 1", "more layers", "fewer outputs"],
)  # fmt: skip
def test_models_that_are_not_saved_are_named_in_one_line(make, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        save_huggingface(make(), tmp_path / "new")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_adapters_are_merged_in_a_folder(tmp_path):
    model, rng = models.gpt(11, **SMALL, tie_output=False), np.random.default_rng(0)
    for layer in (model.get_layer("output"), model.get_layer("decoder_0").feed_forward.inner):
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(rng.normal(size=layer.lora_kernel_b.shape))
    save_huggingface(model, tmp_path)
    ids = np.array([[3, 4, 5]], "int32")
    np.testing.assert_allclose(load_huggingface(tmp_path)(ids), model(ids), atol=1e-5)


def test_a_keras_model_of_a_family_s_layers_is_saved(tmp_path):
    model = loaded("bert_sequence")
    save_huggingface(keras.Model(model.input, model.output), tmp_path)
    same("bert_sequence", load_huggingface(tmp_path))


def test_a_model_of_chosen_positions_is_saved_as_one_of_all(tmp_path):
    model = models.masked_language_model(models.bert(11, **SMALL), positions=True)
    save_huggingface(model, tmp_path)
    ids = np.array([[3, 4, 5, 6]])
    again = load_huggingface(tmp_path)({"tokens": ids, "segments": 0 * ids})
    chosen = model({"tokens": ids, "segments": 0 * ids, "mask_positions": np.array([[2, 0]])})
    assert_close(chosen, to_numpy(again)[:, [2, 0]], 1e-5)


def test_a_model_that_was_changed_is_not_saved(tmp_path):
    model = models.gpt(11, **SMALL)
    model.blocks[-1].self_attention.window = 2
    write(tmp_path, {})
    with pytest.raises(ValueError, match="after loading, its outputs differ by"):
        save_huggingface(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_checkpoint_in_several_files_is_not_mixed_with_one(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FileExistsError, match="use another folder"):
        save_huggingface(loaded("gpt2"), tmp_path)


# Forms of files


@pytest.mark.parametrize("case", ["bert_masked", "t5"])
def test_half_precision_is_widened(case, tmp_path):
    folder = rewritten(
        tmp_path, case, lambda x: {name: a.astype("float16") for name, a in x.items()}
    )
    model = load_huggingface(folder)
    assert {weight.dtype for weight in model.weights} == {"float32"}
    name = {"t5": "shared.weight", "bert_masked": "bert.embeddings.word_embeddings.weight"}[case]
    table = tensors_of(FOLDER / case)[name].astype("float16").astype("float32")
    np.testing.assert_array_equal(model.get_layer("embedding").embeddings, table)


def test_bfloat16_is_widened(tmp_path):
    folder = rewritten(tmp_path, "gpt2", lambda x: {name: bfloat16(a)[0] for name, a in x.items()})
    _, table = bfloat16(tensors_of(FOLDER / "gpt2")["transformer.wte.weight"])
    embedding = load_huggingface(folder).get_layer("embedding")
    np.testing.assert_array_equal(embedding.embeddings, table)


def sharded(tmp_path, case="t5"):
    folder = copied(tmp_path, case)
    tensors = list(tensors_of(folder).items())
    (folder / "model.safetensors").unlink()
    files = {f"model-0000{i + 1}-of-00003.safetensors": dict(tensors[i::3]) for i in range(3)}
    for name, part in files.items():
        write(folder, part, name)
    places = {tensor: name for name, part in files.items() for tensor in part}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, index


def test_several_files_are_one_checkpoint(tmp_path):
    folder, _ = sharded(tmp_path)
    same("t5", load_huggingface(folder))


def test_one_file_of_another_name_is_read(tmp_path):
    folder = copied(tmp_path, "gpt2")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    same("gpt2", load_huggingface(folder))


def test_old_names_buffers_and_copies_are_known(tmp_path):
    """As bert-base-uncased and gpt2 stand on the hub."""

    def old(x):
        x = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): a
            for name, a in x.items()
        }
        x["bert.embeddings.position_ids"] = np.arange(13)[np.newaxis]
        x["cls.predictions.decoder.weight"] = x["bert.embeddings.word_embeddings.weight"]
        x["cls.predictions.decoder.bias"] = x["cls.predictions.bias"]
        return x

    same("bert_masked", load_huggingface(rewritten(tmp_path, "bert_masked", old)))

    def bare(x):
        x = {name.removeprefix("transformer."): a for name, a in x.items()}
        return {**x, "h.1.attn.bias": np.ones((1, 1, 17, 17), "float32")}

    same("gpt2", load_huggingface(rewritten(tmp_path, "gpt2", bare)))

    def copies(x):
        x["encoder.embed_tokens.weight"] = x["lm_head.weight"] = x["shared.weight"]
        return x

    model = load_huggingface(rewritten(tmp_path, "t5", copies))
    assert model.count_params() == loaded("t5").count_params()
    same("t5", model)


def test_a_copy_may_stand_alone(tmp_path):
    def renamed(x):
        x["decoder.embed_tokens.weight"] = x.pop("shared.weight")
        return x

    same("t5", load_huggingface(rewritten(tmp_path, "t5", renamed)))


def test_an_output_of_its_own_is_not_tied(tmp_path):
    """As transformers 5 reads such files, whatever tie_word_embeddings says."""
    rng = np.random.default_rng(0)

    def own(x):
        x["lm_head.weight"] = rng.normal(size=(29, 15)).astype("float32")
        return x

    folder = rewritten(tmp_path, "gpt2", own)
    features = expected("gpt2")["hidden"]
    expected_logits = features @ tensors_of(folder)["lm_head.weight"].T
    assert_close(run(load_huggingface(folder), inputs_of("gpt2")), expected_logits, FLOAT32)


# Architectures


def test_the_architecture_may_be_named(tmp_path):
    """bert-base-uncased says BertForMaskedLM, and has the tensors of BertForPreTraining."""
    folder = copied(tmp_path, "bert_pretraining", {"architectures": ["BertForMaskedLM"]})
    with pytest.warns(
        UserWarning,
        match="MaskedLM does not read all tensors; they match architecture='BertForPreTraining'",
    ):
        smaller = load_huggingface(folder)
    whole = load_huggingface(folder, "BertForPreTraining")
    same("bert_pretraining", whole)
    inputs = inputs_of("bert_pretraining")
    np.testing.assert_array_equal(run(smaller, inputs), run(whole, inputs)["tokens"])


BASES = [x for x, family in FAMILIES.items() if family.base not in ("", architecture_of(x))]


@pytest.mark.parametrize("model_type", first_of(BASES, 8))
def test_every_folder_holds_the_base_class(model_type, tmp_path):
    """Of a class with heads: their tensors are not those of the base class, which is asked for."""
    family = FAMILIES[model_type]
    model = save(f"{model_type}, {architecture_of(model_type)}", tmp_path)
    options = {x: model.arguments[x] for x in family.not_saved if x in model.arguments}
    base = load_huggingface(tmp_path, family.base, **options)
    values = {x.tensors[0]: x.weight.numpy() for x in family.entries(model)}
    found = {x.tensors[0]: x.weight.numpy() for x in family.entries(base)}
    if model_type != "lxmert":  # whose head leaves out what only the base class returns
        assert found.keys() <= values.keys()
    for name in found.keys() & values.keys():  # Gemma's norms are stored less 1
        np.testing.assert_allclose(found[name], values[name], rtol=0, atol=1e-6)
    assert len(found.keys() & values.keys()) > 5


def test_blocks_that_the_configuration_does_not_have_are_an_error(tmp_path):
    """They are of no head."""
    folder = copied(tmp_path, "bert_model", {"num_hidden_layers": 1})
    with pytest.raises(ValueError, match=r"only in the files: .*encoder.layer.1"):
        load_huggingface(folder)


@pytest.mark.parametrize(
    "case", first_of(["bert_token", "t5_encoder", "bert_model", "bert_question"], 2)
)
def test_the_architecture_is_found_from_the_tensors(case, tmp_path):
    same(case, load_huggingface(copied(tmp_path, case, drop=["architectures"])))


def test_options_win_over_the_configuration():
    model = load_huggingface(FOLDER / "bert_sequence", segments=False, dropout=0.0)
    assert [x.name for x in model.inputs] == ["tokens"]
    assert model.get_layer("encoder_0").dropout == 0.0
    inputs = inputs_of("bert_sequence")
    zeros = {**inputs, "segments": np.zeros_like(inputs["segments"])}
    alone = run(model, {"tokens": inputs["tokens"]})
    assert_close(alone, run(loaded("bert_sequence"), zeros), 1e-6)


def test_another_head_takes_what_was_learnt():
    answers = models.question_answering(loaded("bert_pretraining"))
    features = models.backbone(answers)
    inputs = inputs_of("bert_pretraining")
    assert_close(run(features, inputs), expected("bert_pretraining")["hidden"], FLOAT32)
    classifier = models.sequence_classifier(loaded("bert_pretraining"), 3)
    pooler = classifier.get_layer("pooler")
    assert pooler is loaded("bert_pretraining").get_layer("pooler")


# Configurations


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("bert_model", {"position_embedding_type": "relative_key"}),
        ("bert_model", {"is_decoder": True}),
        ("bert_model", {"add_cross_attention": True}),
        ("bert_model", {"pad_token_id": 10**6}),
        ("bert_model", {"hidden_act": "laplace"}),
        ("bert_model", {"hidden_size": "wide"}),
        ("bert_model", {"num_hidden_layers": 10**9}),
        ("bert_model", {"num_hidden_layers": True}),
        ("bert_model", {"layer_norm_eps": -1.0}),
        ("bert_model", {"hidden_dropout_prob": 2}),
        ("bert_masked", {"tie_word_embeddings": False}),
        ("bert_sequence", {"id2label": []}),
        ("bert_model", {"model_type": "xlnet"}),
        ("bert_model", {"vision_config": {"model_type": "siglip_vision_model"}}),
        ("gpt2", {"model_type": ["gpt2"]}),
        ("gpt2", {"audio_config": {}}),
        ("gpt2", {"mm_vision_tower": "openai/clip-vit-large-patch14"}),
        ("t5", {"text_config": {"model_type": "llama"}}),
        ("bert_model", {"architectures": ["BertModel", "BertForMaskedLM"]}),
        ("gpt2", {"activation_function": "mish"}),
        ("gpt2", {"scale_attn_weights": "yes"}),
        ("gpt2", {"add_cross_attention": True}),
        ("gpt1", {"afn": "gelu_new"}),
        ("t5", {"feed_forward_proj": "maybe-relu"}),
        ("t5", {"dense_act_fn": "mish"}),
        ("t5", {"is_decoder": True}),
        ("t5", {"relative_attention_num_buckets": 1}),
        ("t5", {"relative_attention_max_distance": 3}),
    ],
    ids=str,
)
def test_what_is_not_built_here_is_refused_by_name(case, fields, tmp_path):
    (name,) = fields
    with pytest.raises(ValueError, match=rf"config\.json: {name} must be .*got"):
        load_huggingface(copied(tmp_path, case, fields))


def test_a_folder_without_a_model_type_is_that_of_its_class(tmp_path):
    folder = copied(tmp_path, "bert_model", {"model_type": None})
    ids = {"tokens": np.array([[3, 4, 5]])}
    same, found = (load_huggingface(x, segments=False) for x in (FOLDER / "bert_model", folder))
    for a, b in zip(*map(keras.tree.flatten, (same(ids), found(ids))), strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    assert load_checkpoint(folder).model.family == "bert"
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    message = "model_type must be one of .*, or follow from architectures, got None"
    for classes in (None, ["MyModel"], ["SiglipForImageClassification"]):  # of two types
        config.write_text(json.dumps({**fields, "architectures": classes}))
        with pytest.raises(ValueError, match=message):
            load_huggingface(folder)
        if classes is None:
            assert load_huggingface(folder, "BertModel").family == "bert"


@pytest.mark.parametrize(
    ("case", "fields", "message"),
    [
        ("bert_model", {"architectures": ["BertForMultipleChoice"]}, "architecture must be one of"),
        ("bert_model", {"num_attention_heads": 4}, r"num_heads \(4\) must divide dim \(15\)"),
        # A shape that no memory has is found before memory is taken.
        (
            "gpt2",
            {"vocab_size": 2**31 - 1},
            r"the model has \(2147483647, 15\), the file \(29, 15\)",
        ),
    ],
    ids=["architecture", "heads", "size"],
)
def test_configurations_that_do_not_fit_are_refused(case, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_huggingface(copied(tmp_path, case, fields))


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("bert_model", {"hidden_act": "relu"}),
        ("bert_model", {"layer_norm_eps": 0.3}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt1", {"afn": "silu"}),
        ("t5", {"relative_attention_max_distance": 5}),
        ("t5", {"dense_act_fn": "silu"}),
        ("t5", {"layer_norm_epsilon": 0.3}),
        ("t5", {"scale_decoder_outputs": False}),
    ],
    ids=str,
)
def test_fields_that_change_the_result_are_honoured(case, fields, tmp_path):
    """tests/checkpoints/test_transformers.py compares such models with transformers' own."""
    model = load_huggingface(copied(tmp_path, case, fields))
    outputs = outputs_of(case, run(model, inputs_of(case)))
    assert any(np.max(np.abs(x - expected(case)[name])) > 1e-2 for name, x in outputs.items())


# Faults


def test_one_error_lists_what_is_missing_and_what_is_left_over(tmp_path):
    def change(x):
        x["extra.weight"] = np.zeros((2, 3), "float32")
        x["bert.pooler.dense.bias"] = x.pop("bert.embeddings.LayerNorm.bias")[:7]
        x["classifier.bias"] = np.zeros(9, "float32")
        x["classifier.weight"] = np.zeros((5, 15), "int64")
        return x

    folder = rewritten(tmp_path, "bert_sequence", change)
    with pytest.raises(ValueError) as error:
        load_huggingface(folder)
    assert str(error.value) == (
        "the tensors do not match BertForSequenceClassification; "
        "missing in the files: bert.embeddings.LayerNorm.bias (15,); "
        "only in the files: extra.weight (2, 3); "
        "of another shape: bert.pooler.dense.bias (the model has (15,), the file (7,)), "
        "classifier.bias (the model has (5,), the file (9,)); "
        "of a dtype other than F64, F32, F16, BF16: classifier.weight (I64)"
    )


def test_a_tensor_that_stands_there_twice_is_refused(tmp_path):
    def twice(x):
        return {**x, "wte.weight": x["transformer.wte.weight"]}

    with pytest.raises(ValueError, match=r"wte.weight and .*wte.weight are the same tensor"):
        load_huggingface(rewritten(tmp_path, "gpt2", twice))

    def other(x):
        return {**x, "encoder.embed_tokens.weight": x["shared.weight"] + 1}

    with pytest.raises(ValueError, match=r"only in the files: encoder.embed_tokens.weight"):
        load_huggingface(rewritten(tmp_path, "t5", other))


ONE = {"a": np.zeros(3, "float32"), "b": np.ones(5, "float32")}
DAMAGED = {
    "empty": b"",
    "no header": b"\x05",
    "cut in the header": encoded(ONE)[:40],
    "cut in the data": encoded(ONE)[:-1],
    "trailing bytes": encoded(ONE) + b"\0",
    "huge header": (2**40).to_bytes(8, "little") + encoded(ONE)[8:],
    "header of 200 MB": (200 * 2**20).to_bytes(8, "little") + encoded(ONE)[8:],
    "overlap": encoded(ONE, b={"data_offsets": [8, 28]}),
    "gap": encoded(ONE, b={"data_offsets": [16, 36]}),
    "shape and size": encoded(ONE, b={"shape": [6]}),
    "negative": encoded(ONE, b={"shape": [-5]}),
    "unknown dtype": encoded(ONE, b={"dtype": "F33"}),
    "no object": (2).to_bytes(8, "little") + b"[]",
    "a pickle": b"\x80\x04\x95" + b"\0" * 50,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused(content, tmp_path):
    folder = copied(tmp_path, "gpt2")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_huggingface(folder)


def test_adapters_beside_a_model_are_not_left_out(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for name in ("model.safetensors", "adapter_config.json"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"adapters of PEFT .* this one as peft="):
        load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f, x: (f / "config.json").unlink(), FileNotFoundError, "has no config.json"),
        (lambda f, x: (f / "config.json").write_text("{"), ValueError, "is not JSON"),
        (lambda f, x: (f / "config.json").write_text("[" * 10**5), ValueError, "is not JSON"),
        (lambda f, x: (f / "config.json").write_text("3"), ValueError, "must hold a dictionary"),
        (lambda f, x: (f / "config.json").write_bytes(b"\xff"), ValueError, "is not JSON"),
        (lambda f, x: (f / "model.safetensors").unlink(), FileNotFoundError, "has no model"),
        (
            lambda f, x: [
                (f / "model.safetensors").rename(f / "a.safetensors"),
                write(f, x, "b.safetensors"),
            ],
            ValueError,
            r"a.safetensors.*b.safetensors.* expected model.safetensors, .* or only one file",
        ),
    ],
    ids=["no config", "cut", "deep", "number", "bytes", "no tensors", "several"],
)
def test_folders_that_are_none_are_refused(change, error, message, tmp_path):
    folder = copied(tmp_path, "gpt2")
    change(folder, {})
    with pytest.raises(error, match=message):
        load_huggingface(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_huggingface(tmp_path / "missing")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: {**x, "extra": min(x.values())}, ValueError, r"in the file: \['extra'\]"),
        (lambda x: dict(list(x.items())[1:]), ValueError, r"not in the index: \['"),
        (lambda x: {**x, "a": "../model.safetensors"}, ValueError, "in the same folder"),
        (lambda x: {**x, "a": "/etc/passwd"}, ValueError, "in the same folder"),
        (lambda x: {**x, "a": "model.bin"}, ValueError, "in the same folder"),
        (lambda x: {**x, "a": "b.safetensors"}, FileNotFoundError, r"lacks \['b.safetensors'\]"),
        (lambda x: {**x, "a": 3}, ValueError, "weight_map"),
        (lambda x: None, ValueError, "weight_map"),
    ],
    ids=["missing", "surplus", "parent", "absolute", "pickle", "file", "number", "none"],
)  # fmt: skip
def test_an_index_that_does_not_fit_is_refused(change, error, message, tmp_path):
    folder, index = sharded(tmp_path)
    index["weight_map"] = change(index["weight_map"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(error, match=message):
        load_huggingface(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder, index = sharded(tmp_path)
    first, second = sorted(set(index["weight_map"].values()))[:2]
    (folder / second).write_bytes((folder / first).read_bytes())
    index["weight_map"] = {
        name: file for name, file in index["weight_map"].items() if file == first
    } | {"other": second}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="does not match"):
        load_huggingface(folder)


# Training


def test_a_loaded_model_is_trained_on(tmp_path):
    """Padding has no part in it, and what was learnt is saved."""
    model = models.token_classifier(
        load_huggingface(FOLDER / "bert_pretraining", "BertForPreTraining", dropout=0.0), 3
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    inputs = inputs_of("bert_pretraining")
    labels = np.random.default_rng(0).integers(0, 3, inputs["tokens"].shape)
    losses = model.fit(inputs, labels, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    save_huggingface(model, tmp_path)
    again = load_huggingface(tmp_path)
    np.testing.assert_array_equal(run(again, inputs), to_numpy(model(inputs)))


SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        pytest.param(
            *x, marks=[pytest.mark.slow] * (x not in [("t5", "bfloat16"), ("gpt", "mixed_float16")])
        )
        for x in itertools.product(["t5", "gpt"], ["bfloat16", "mixed_bfloat16", "mixed_float16"])
    ],
)
def test_half_precision_is_saved_in_float32(make, dtype, tmp_path):
    model = getattr(models, make)(13, **SMALL, dtype=dtype)
    save_huggingface(model, tmp_path)
    again = load_huggingface(tmp_path)
    for new, old in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(new), to_numpy(keras.ops.cast(old, "float32")))
    save_huggingface(load_huggingface(tmp_path, dtype="bfloat16"), tmp_path / "bfloat16")


@pytest.mark.parametrize("head", first_of([models.sequence_classifier, models.token_classifier]))
def test_labels_are_kept(head, tmp_path):
    model = head(models.bert(13, **SMALL), 3, labels=["no", "perhaps", "yes"])
    save_huggingface(model, tmp_path / "first")
    save_huggingface(load_huggingface(tmp_path / "first"), tmp_path / "second")
    config = json.loads((tmp_path / "second" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    assert config["label2id"] == {"no": 0, "perhaps": 1, "yes": 2}
    for labels in (["no"], ["no", "yes", 3]):
        with pytest.raises(ValueError, match="labels must be 3 names, one a class, got"):
            head(models.bert(13, **SMALL), 3, labels=labels)


def test_the_end_token_is_written(tmp_path):
    def ends(**options):
        save_huggingface(models.gpt(vocabulary_size, **SMALL, max_length=7), tmp_path, **options)
        config = json.loads((tmp_path / "config.json").read_text())
        return config.get("bos_token_id"), config.get("eos_token_id")

    vocabulary_size = 13
    assert ends() == (None, None)
    assert ends(end_id=2) == (None, 2)
    with pytest.raises(ValueError, match=r"end_id must be in the vocabulary, 0\.\.12, got 13"):
        ends(end_id=13)
    vocabulary_size = 50257
    assert ends() == (50256, 50256)


def test_a_model_without_its_pooler_is_saved_without_one(tmp_path):
    model = models.backbone(models.bert(11, **SMALL))
    save_huggingface(model, tmp_path)
    again = load_huggingface(tmp_path)
    assert not again.arguments["pooler"]
    assert again.count_params() == model.count_params()
