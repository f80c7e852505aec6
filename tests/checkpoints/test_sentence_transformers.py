"""Folders of sentence-transformers: modules, pooling, prompts; on to a file that embeds texts."""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from compare import assert_close, to_numpy
from grids import first_of
from keras_weights import randomize

from keras_tfm import checkpoints, generation, models, runtime
from keras_tfm.export import export_tflite

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", "a", "dog", "cat", "runs"]
IDS = np.array([[2, 7, 8, 10, 3, 0], [2, 9, 3, 0, 0, 0]], "int32")
PROMPTS = {"query": "query: ", "passage": ""}
FLAGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
# float32, one block, vectors of order 1.
FLOAT32 = 1e-5


@functools.cache
def small():
    model = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=9)
    return randomize(model, 3)


def saved(folder, modules=("Transformer", "Pooling", "Normalize"), pooling=None, **prompts):
    """A folder as sentence-transformers writes it."""
    folder = Path(folder)
    checkpoints.save_huggingface(small(), folder)
    paths = {"Transformer": ""}
    listed = [
        {"idx": i, "name": str(i), "path": paths.get(x, f"{i}_{x}"),
         "type": f"sentence_transformers.models.{x}"}
        for i, x in enumerate(modules)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 8, FLAGS["mean"]: True} if pooling is None else pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return folder


def features(ids):
    inputs = {"tokens": ids, "segments": np.zeros_like(ids)}
    return to_numpy(small()(inputs)["features"]).astype("float64")


def vectors_of(folder):
    return checkpoints.load_sentence_transformer(folder)({"tokens": IDS})


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "pooling",
    [{FLAGS["mean"]: True, FLAGS["cls"]: False}, {"pooling_mode": "mean"}],
    ids=["flags", "name"],
)
def test_the_mean_of_the_real_tokens(tmp_path, pooling):
    model = checkpoints.load_sentence_transformer(saved(tmp_path / "model", pooling=pooling))
    x = features(IDS)
    assert_close(
        model({"tokens": IDS}), unit(np.stack([x[0, :5].mean(0), x[1, :3].mean(0)])), FLOAT32
    )
    assert model.family == "bert"
    assert model.head.kind == "sentence_embedding"


def test_the_first_token_without_a_norm(tmp_path):
    folder = saved(tmp_path / "model", ["Transformer", "Pooling"], {FLAGS["cls"]: True})
    assert_close(vectors_of(folder), features(IDS)[:, 0], FLOAT32)


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer(tmp_path, bias):
    from safetensors.numpy import save_file

    folder = saved(tmp_path / "model", ["Transformer", "Pooling", "Dense", "Normalize"])
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(5, 8)).astype("float32")
    tensors = {"linear.weight": weight}
    if bias:
        tensors["linear.bias"] = rng.normal(size=5).astype("float32")
    dense = folder / "2_Dense"
    dense.mkdir()
    config = {"in_features": 8, "out_features": 5, "bias": bias}
    config["activation_function"] = "torch.nn.modules.activation.Tanh"
    (dense / "config.json").write_text(json.dumps(config))
    save_file(tensors, dense / "model.safetensors")
    x = features(IDS)
    x = np.stack([x[0, :5].mean(0), x[1, :3].mean(0)]) @ weight.T + tensors.get("linear.bias", 0.0)
    assert_close(vectors_of(folder), unit(np.tanh(x)), FLOAT32)


@functools.cache
def exported():
    folder = tempfile.mkdtemp()
    source = saved(folder + "/model", prompts=PROMPTS, default_prompt_name="query")
    # More than the file takes: no text is truncated.
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    model = checkpoints.load_sentence_transformer(source)
    return export_tflite(
        model,
        folder + "/model.tflite",
        source_length=[4, 9],
        tokenizer=checkpoints.load_tokenizer(source),
        verify=False,
    ).path


def test_a_file_embeds_texts_with_their_prompts():
    file = runtime.load(exported())
    ids = [[2, 5, 6, 7, 8, 10, 3], [2, 5, 6, 9, 3]]
    expected = unit(np.stack([features(np.array([row]))[0].mean(0) for row in ids]))
    vectors = file.embed(["a dog runs", "cat"])
    assert vectors.dtype == "float32"
    assert_close(vectors, expected, FLOAT32)
    assert_close(file.embed("cat"), expected[1], FLOAT32)
    assert_close(file.embed("query: cat", prompt="passage"), expected[1], FLOAT32)


def test_each_text_runs_in_the_shortest_length_that_fits():
    file = runtime.load(exported())
    texts = ["a dog runs", "cat", "a", "a cat runs", "dog"]
    used = []
    run = file.file.run
    file.file.run = lambda name, inputs: used.append(name) or run(name, inputs)
    vectors = file.embed(texts, prompt="passage")
    assert sorted(used) == ["predict_4", "predict_9"]
    for text, vector in zip(texts, vectors, strict=True):
        assert_close(file.embed(text, prompt="passage"), vector, FLOAT32)


@pytest.mark.parametrize(
    ("texts", "prompt", "error", "message"),
    [
        (["cat"], "document", ValueError, r"has no prompt 'document', it has \['query', 'passage'"),
        ([], None, ValueError, "got no texts"),
        ([3], None, TypeError, r"expected a text \(str\) or a list of texts, got list"),
        (["a dog runs a dog runs a"], None, ValueError, "has 11 tokens, but .* at most 9"),
    ],
)
def test_bad_texts(texts, prompt, error, message):
    with pytest.raises(error, match=message):
        runtime.load(exported()).embed(texts, prompt)


def test_a_file_without_the_head(tmp_path):
    model = models.sequence_classifier(small(), 3)
    file = runtime.load(
        export_tflite(model, tmp_path / "c.tflite", source_length=4, verify=False).path
    )
    with pytest.raises(ValueError, match=r"the head 'sentence_embedding', got 'sequence_class"):
        file.embed(["cat"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"modules": ["Transformer", "WordWeights"]}, ValueError, r"got \['Transformer', 'WordW"),
        ({"pooling": {"pooling_mode": "median"}}, ValueError, r"pooling_mode must be one of"),
        ({"pooling": dict.fromkeys(FLAGS.values(), True)}, ValueError, r"got \['cls', 'mean'\]"),
        ({"prompts": {"query": 3}}, ValueError, "prompts must be texts by name"),
        ({"prompts": PROMPTS, "default_prompt_name": "q"}, ValueError, "default_prompt must be"),
        *(
            ({"settings": {name: value}}, ValueError, message)
            for name, value, message in (
                ("do_lower_case", "yes", "do_lower_case must be true or false"),
                ("transformer_task", "fill-mask", "transformer_task must be 'feature-extraction'"),
                ("module_output_name", "scores", "module_output_name must be 'token_embeddings'"),
                ("processing_kwargs", {"text": {"max_length": 5}}, "processing_kwargs must be {}"),
                ("query_length", 8, "query_length must be null, got 8"),
                ("query_expansion", {"length": 8}, "query_expansion must be {}"),
                ("modality_config", {"image": {}}, "modality_config must be one with text"),
                ("max_seq_length", 0, "max_seq_length must be an integer from 1 to"),
            )
        ),
        ({"tokenizer": {"truncation_side": "left"}}, ValueError, "truncation_side must be 'right'"),
        (
            {"settings": {"modality_config": {"text": {"method_output_name": "logits"}}}},
            ValueError, "method_output_name must be 'last_hidden_state', got 'logits'",
        ),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(tmp_path, change, error, message):
    settings, tokenizer = change.pop("settings", {}), change.pop("tokenizer", {})
    folder = saved(tmp_path / "model", **change)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(error, match=message) as caught:
        checkpoints.load_sentence_transformer(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_of_transformers(tmp_path):
    checkpoints.save_huggingface(small(), tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"no modules\.json, .* load_huggingface loads"):
        checkpoints.load_sentence_transformer(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        checkpoints.load_sentence_transformer(tmp_path / "nothing")


def test_bad_arguments():
    two = {"projection_dim": [5, 3]}
    for arguments, error, message in [
        ({"pooling": "median"}, ValueError, "mode must be one of"),
        ({"activation": "tanh"}, ValueError, r"activation is for projection_dim=, got 'tanh'"),
        ({**two, "activation": ["tanh"]}, ValueError, "activation must have one entry for each of"),
        ({**two, "projection_bias": [True] * 3}, ValueError, "projection_bias must have one entry"),
        ({**two, "dimensions": 4}, ValueError, "dimensions must be at most 3, .* got 4"),
        ({"dimensions": 0}, ValueError, "dimensions must be at least 1, got 0"),
        ({"max_seq_length": 2.5}, TypeError, r"max_seq_length must be an integer, got 2\.5"),
        ({"default_prompt": "query"}, ValueError, r"default_prompt must be one of \[\]"),
        ({"prompts": {"query": 3}}, TypeError, "prompts must map names to texts"),
    ]:
        with pytest.raises(error, match=message):
            models.sentence_embedding(small(), **arguments)


# --- Tokens that have the padding id -----------------------------------------------------------


def test_a_padding_token_in_a_text_is_a_token():
    vectors = runtime.load(exported()).embed(["a [PAD] dog", "[PAD]"], prompt="passage")
    rows = [[2, 7, 0, 8, 3], [2, 0, 3]]
    x = [unpadded(row).mean(0) for row in rows]
    assert_close(vectors, unit(np.stack(x)), FLOAT32)


def unpadded(row):
    """Features of a row of the small BERT in which id 0 is a token."""
    row = np.array([row])
    inputs = {"tokens": row, "segments": np.zeros_like(row)}
    masks = {name: np.ones(row.shape, "bool") for name in inputs}
    return to_numpy(small()(inputs, mask=masks)["features"])[0].astype("float64")


@functools.cache
def small_decoder():
    model = models.llama(9, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    return randomize(models.backbone(model), 4)


END = 8
TEXTS = ["a b", "c", "a b c a b", "b <end> c"]
DECODER_ROWS = [[1, 2, END], [3, END], [1, 2, 3, 1, 2, END], [2, END, 3, END]]


def saved_decoder(folder, pooling="lasttoken", padding="<end>", appends=True, model=None):
    """A folder in the form of Qwen3-Embedding: its tokenizer appends the padding token."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers import models as tokenizer_models

    folder = Path(folder)
    checkpoints.save_huggingface(model or small_decoder(), folder)
    words = ["!", "a", "b", "c", "d", "e", "f", "g", "<end>"]
    tokenizer = Tokenizer(
        tokenizer_models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="!")
    )
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if appends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <end>", special_tokens=[("<end>", END)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": padding}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": name, "path": path} for name, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def decoder_vectors(pooling, listed=DECODER_ROWS):
    """Of each row alone: the decoder has no mask."""
    x = [to_numpy(small_decoder()(np.array([row])))[0].astype("float64") for row in listed]
    return unit(np.stack([one[-1] if pooling == "lasttoken" else one.mean(0) for one in x]))


@pytest.mark.parametrize(
    ("padding", "pooling"),
    first_of([(None, "lasttoken"), ("<end>", "mean"), (None, "mean"), ("<end>", "lasttoken")], 2),
)
def test_padded_rows_of_a_decoder(tmp_path, pooling, padding):
    model = checkpoints.load_sentence_transformer(
        saved_decoder(tmp_path / "model", pooling, padding)
    )
    pad_id = END if padding else -1
    assert model.embedding.mask_id == pad_id
    right = np.full((4, 9), pad_id)
    left = right.copy()
    for i, row in enumerate(DECODER_ROWS):
        right[i, : len(row)], left[i, 9 - len(row) :] = row, row
    expected = decoder_vectors(pooling)
    for ids in (right, left):
        assert_close(model.predict(ids, verbose=0), expected, FLOAT32)
    for row, vector in zip(DECODER_ROWS, expected, strict=True):
        assert_close(model(np.array([row]))[0], vector, FLOAT32)


def test_a_padding_token_that_was_added_to_the_tokenizer(tmp_path):
    folder = saved_decoder(tmp_path / "model", padding="<pad>")
    tokenizer = checkpoints.load_tokenizer(folder)
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.warns(UserWarning, match="vocabulary_size is 10"):
        model = checkpoints.load_sentence_transformer(folder, vocabulary_size=10)
    assert model.embedding.mask_id == 9
    row = np.array([[1, 2, END, 9, 9]])
    assert_close(model(row), decoder_vectors("lasttoken", [row[0, :3]]), FLOAT32)


@pytest.mark.parametrize(
    ("pooling", "appends"),
    [("lasttoken", True), pytest.param("mean", False, marks=pytest.mark.slow)],
)
def test_texts_of_a_decoder_in_a_file(tmp_path, pooling, appends):
    folder = saved_decoder(tmp_path / "model", pooling, appends=appends)
    model = checkpoints.load_sentence_transformer(folder)
    report = export_tflite(
        model,
        tmp_path / "model.tflite",
        source_length=[4, 7],
        batch_size=2,
        tokenizer=checkpoints.load_tokenizer(folder),
    )
    file = runtime.load(report.path)
    # Of no Keras model: an end at the end of a text, beside the one that the tokenizer appends.
    listed = [*DECODER_ROWS, [END, 1, END], [1, END, END], [1, 2, END, END]]
    listed = listed if appends else [row[:-1] for row in listed]
    vectors = file.embed([*TEXTS, "<end> a", "a <end>", "a b <end>"])
    assert_close(vectors, decoder_vectors(pooling, listed), FLOAT32)
    if appends:  # ids of a caller: the tokenizer appended one end
        assert_close(file.predict(DECODER_ROWS)["output"], decoder_vectors(pooling), FLOAT32)


def test_an_encoder_whose_tokenizer_appends_the_padding_token(tmp_path):
    """EuroBERT's form: features depend on the end token, whose id is that of padding."""
    encoder = models.llama(
        9, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, causal=False, pad_id=END,
        classifier_activation="gelu",
    )  # fmt: skip
    encoder = randomize(models.backbone(encoder), 4)
    folder = saved_decoder(tmp_path / "model", "mean", model=encoder)
    embedder = checkpoints.load_sentence_transformer(folder)
    tokenizer = checkpoints.load_tokenizer(folder)
    x = [encoder(np.array([row]), mask=np.ones((1, len(row)), bool)) for row in DECODER_ROWS]
    expected = unit(np.stack([to_numpy(one)[0].astype("float64").mean(0) for one in x]))
    assert_close(generation.embed(embedder, TEXTS, tokenizer), expected, FLOAT32)
    checkpoints.save_sentence_transformer(embedder, tmp_path / "again", tokenizer)
    again = checkpoints.load_sentence_transformer(tmp_path / "again")
    assert_close(generation.embed(again, TEXTS, tokenizer), expected, FLOAT32)
