"""Embedders of texts: EmbeddingGemma's form, saved, in Keras and in files, beside transformers.

Two dense layers, prompts, truncated texts, Matryoshka dimensions, and padding tokens in texts.
"""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from compare import assert_close
from keras_weights import randomize

from keras_tfm import checkpoints, generation, models, runtime
from keras_tfm.export import export_tflite

WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "query", "title", ":", *"abcdefghijklmnopqrstuvwx"]
PROMPTS = {"query": "query : ", "document": "title : "}
LENGTH = 12
# The third text has more tokens than LENGTH; others begin and end with the padding token.
TEXTS = ["a b c", "d", "e f g h i j k l m n o p q r s t", "a <pad>", "<pad> b <pad> <pad>"]
# float32; vectors of length 1.
FLOAT32 = 1e-5


def tokenizer_of(words=WORDS):
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({x: i for i, x in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    return tokenizer


@functools.cache
def embedder(dim=24, **options):
    """Longer texts than the windows, and more positions than the configuration has."""
    gemma = models.gemma(
        len(WORDS), dim=dim, num_layers=3, num_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_dim=13, windows=[4, None, 4], causal=False, pad_id=0, post_norm=True,
        query_key_norm=True, rope_theta=1e6, local_rope_theta=1e4, max_length=9,
    )  # fmt: skip
    return randomize(
        models.sentence_embedding(
            gemma,
            projection_dim=[40, 20],
            activation=["tanh", None],
            projection_bias=[True, False],
            max_seq_length=LENGTH,
            prompts=PROMPTS,
            **options,
        )
    )


@functools.cache
def folder():
    path = Path(tempfile.mkdtemp()) / "embedder"
    checkpoints.save_sentence_transformer(embedder(), path, tokenizer_of())
    return path


@functools.cache
def exported():
    path = folder().with_name("embedder.tflite")
    model = checkpoints.load_sentence_transformer(folder())
    tokenizer = checkpoints.load_tokenizer(folder())
    export_tflite(model, path, source_length=[8, LENGTH], batch_size=2, tokenizer=tokenizer)
    return runtime.load(path)


@functools.cache
def expected(prompt=None):
    """Of transformers and NumPy: an attention mask, the mean, two products."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    transformer = transformers.AutoModel.from_pretrained(folder()).eval()
    texts = [PROMPTS.get(prompt, "") + text for text in TEXTS]
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (len(TEXTS), LENGTH)
    with torch.no_grad():
        x = transformer(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).last_hidden_state
    mask = inputs["attention_mask"].numpy()[..., None]
    x = (x.numpy() * mask).sum(1) / mask.sum(1)
    head = embedder()
    first, second = (head.get_layer(name) for name in ("projection", "projection_1"))
    return np.tanh(x @ first.kernel.numpy() + first.bias.numpy()) @ second.kernel.numpy()


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("prompt", [None, "document"])
def test_vectors_are_those_of_transformers(prompt):
    """In Keras, in batches of two, and in a file."""
    given = {"prompt": prompt} if prompt else {}
    wanted = unit(expected(prompt))
    found = generation.embed(embedder(), TEXTS, tokenizer_of(), **given, batch_size=2)
    assert found.dtype == "float32"
    assert_close(found, wanted, FLOAT32)
    assert_close(exported().embed(TEXTS, **given), wanted, FLOAT32)
    assert_close(
        generation.embed(embedder(), TEXTS[1], tokenizer_of(), **given), wanted[1], FLOAT32
    )


def test_the_first_dimensions():
    """In the model, and of its vectors, in Keras and in a file: scaled to length 1 again."""
    wanted = unit(expected()[:, :7])
    cut = checkpoints.load_sentence_transformer(folder(), dimensions=7)
    assert cut.output.shape == (None, 7)
    for found in (
        generation.embed(cut, TEXTS, tokenizer_of()),
        generation.embed(embedder(), TEXTS, tokenizer_of(), dimensions=7),
        exported().embed(TEXTS, dimensions=7),
    ):
        assert_close(found, wanted, FLOAT32)


def test_vectors_that_are_not_scaled():
    """Their first dimensions are not scaled, either."""
    plain = models.sentence_embedding(models.backbone(embedder()), normalize=False)
    whole = generation.embed(plain, TEXTS, tokenizer_of())
    assert np.abs(np.linalg.norm(whole, axis=-1) - 1).min() > 0.1
    assert_close(generation.embed(plain, TEXTS, tokenizer_of(), dimensions=7), whole[:, :7], 0.0)


def test_a_folder_has_what_the_model_has():
    names = sorted(str(x.relative_to(folder())) for x in folder().rglob("*") if x.is_file())
    assert names == [
        "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
        "3_Dense/config.json", "3_Dense/model.safetensors", "4_Normalize/config.json",
        "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
        "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    again = checkpoints.load_sentence_transformer(folder())
    given, wanted = again.head.arguments, embedder().head.arguments
    same = (
        "pooling",
        "normalize",
        "projection_dim",
        "projection_bias",
        "max_seq_length",
        "prompts",
    )
    assert {x: given[x] for x in same} == {x: wanted[x] for x in same}
    of_builder = {"activation", "query_pre_attention_scalar"}  # the default, and its value
    for name in embedder().arguments.keys() - of_builder:
        assert again.arguments[name] == embedder().arguments[name], name
    for one, other in zip(again.weights, embedder().weights, strict=True):
        # Gemma's norms are saved as scale - 1.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "found"),
    [(5, 4, 5), (None, 7, 7), (None, 1e30, 9), (None, None, 9)],
)
def test_the_length_at_which_texts_are_truncated(tmp_path, max_seq_length, model_max_length, found):
    """As in sentence-transformers: else the tokenizer's, at most the model's positions."""
    shutil.copytree(folder(), tmp_path / "model")
    for file, name, value in (
        ("sentence_bert_config.json", "max_seq_length", max_seq_length),
        ("tokenizer_config.json", "model_max_length", model_max_length),
    ):
        change(tmp_path / "model" / file, {name: value})
    model = checkpoints.load_sentence_transformer(tmp_path / "model")
    assert model.head.arguments["max_seq_length"] == found
    model = checkpoints.load_sentence_transformer(tmp_path / "model", max_seq_length=3)
    assert model.head.arguments["max_seq_length"] == 3


def change(file, fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("3_Dense/config.json", {"use_residual": True}, "use_residual must be False, got True"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"},
         "module_input_name must be 'sentence_embedding', got 'token_embeddings'"),
        ("4_Normalize/config.json", {"module_output_name": "x"}, "module_output_name must be"),
        ("3_Dense/config.json", {"in_features": 24}, "in_features must be 40, .* got 24"),
        ("3_Dense/config.json", {"bias": True}, "expected the tensors .*'linear.bias'.*, got "),
        ("2_Dense/config.json", {"bias": False}, "expected the tensors .* got .*'linear.bias'"),
        ("3_Dense/config.json", {"out_features": 19}, r"shape \(19, 40\), got \(20, 40\)"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Softsign"},
         "activation_function must be one of"),
        ("config.json", {"sliding_window": None}, "sliding_window must be an integer"),
        ("config.json", {"vocab_size": 30}, "the tokenizer has 31 ids and the embedding 30 rows"),
        ("config.json", {"vocab_size": 32}, r"embed_tokens.weight .*\(32, 24\)"),
        ("config.json", {"model_type": "gemma3n"}, "model_type must be one of"),
    ],
)  # fmt: skip
def test_a_damaged_folder(tmp_path, file, fields, message):
    shutil.copytree(folder(), tmp_path / "model")
    change(tmp_path / "model" / file, fields)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_sentence_transformer(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_a_language_model_without_its_output_layer(tmp_path):
    """As Qwen3-Embedding's folders: sentence-transformers reads no output layer."""
    shutil.copytree(folder(), tmp_path / "model")
    fields = {"architectures": ["Gemma3ForCausalLM"], "tie_word_embeddings": False}
    change(tmp_path / "model" / "config.json", fields)
    model = checkpoints.load_sentence_transformer(tmp_path / "model")
    wanted = generation.embed(embedder(), TEXTS, tokenizer_of())
    assert_close(generation.embed(model, TEXTS, tokenizer_of()), wanted, FLOAT32)


@pytest.mark.parametrize(
    ("builder", "head"),
    [
        ("bert", "BertForMaskedLM"),
        ("roberta", "RobertaForMaskedLM"),
        ("mpnet", "MPNetForMaskedLM"),
        ("mpnet", "MPNetForSequenceClassification"),
    ],
)
def test_a_class_whose_head_is_not_in_the_folder(builder, head, tmp_path):
    """As in all-mpnet-base-v2 and all-distilroberta-v1: their config.json names the class of the
    language model from which they were trained."""
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 13}
    options = {"segments": False} if builder == "bert" else {}
    model = getattr(models, builder)(len(WORDS), **sizes, **options)
    model = randomize(models.sentence_embedding(model))
    checkpoints.save_sentence_transformer(model, tmp_path)
    change(tmp_path / "config.json", {"architectures": [head]})
    again = checkpoints.load_sentence_transformer(tmp_path)
    ids = np.array([[2, 9, 8, 7]], "int32")
    assert_close(again({"tokens": ids}), model({"tokens": ids}), FLOAT32)


def test_a_folder_of_sentence_transformers(tmp_path):
    """As all-mpnet-base-v2: MPNet with noise on every weight, its mean, length 1."""
    package, transformers = (
        pytest.importorskip(x) for x in ("sentence_transformers", "transformers")
    )
    import torch
    from real_lines import lines, word_pieces
    from sentence_transformers.sentence_transformer import modules

    words = ["<s>", "<pad>", "</s>", "<unk>", *word_pieces()[1:], "<mask>"]  # without [PAD]
    config = transformers.MPNetConfig(
        vocab_size=len(words), hidden_size=30, num_hidden_layers=2, num_attention_heads=5,
        intermediate_size=13, max_position_embeddings=514, layer_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    transformer = transformers.MPNetModel(config)
    with torch.no_grad():
        for x in transformer.parameters():
            x.add_(0.3 * torch.randn(x.shape))
    transformer.save_pretrained(tmp_path / "transformer")
    (tmp_path / "transformer" / "vocab.txt").write_text("".join(f"{x}\n" for x in words))
    first = modules.Transformer(str(tmp_path / "transformer"), max_seq_length=48)
    parts = [first, modules.Pooling(30, "mean"), modules.Normalize()]
    theirs = package.SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "embedder"))
    change(tmp_path / "embedder" / "config.json", {"architectures": ["MPNetForMaskedLM"]})
    texts = [*lines()[::40], "", "a <mask> b", "one two three " * 40]
    wanted = theirs.encode(texts)
    model = checkpoints.load_sentence_transformer(tmp_path / "embedder")
    assert model.head.arguments["max_seq_length"] == 48
    tokenizer = checkpoints.load_tokenizer(tmp_path / "embedder")
    assert_close(generation.embed(model, texts, tokenizer), wanted, FLOAT32)
    path = tmp_path / "embedder.tflite"
    export_tflite(tmp_path / "embedder", path, source_length=[16, 48])
    assert_close(runtime.load(path).embed(texts), wanted, FLOAT32)


@pytest.mark.parametrize(
    ("builder", "options", "pooling", "template"),
    [
        # As Qwen3-Embedding: the tokenizer ends each text with the padding token.
        ("llama", {"query_key_norm": True, "head_dim": 8, "pad_id": 0}, "last", "$A <pad>"),
        ("modernbert", {"window": 4, "pad_id": 0}, "first", "<bos> $A <eos>"),
    ],
)
def test_other_embedders(tmp_path, builder, options, pooling, template):
    """Each text alone in transformers, all in one batch here; some end with the padding token."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import processors

    tokenizer = tokenizer_of()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<pad>", 0), ("<eos>", 1), ("<bos>", 2)]
    )
    sizes = {"dim": 24, "num_layers": 3, "num_heads": 3, "intermediate_dim": 13, "max_length": 64}
    base = getattr(models, builder)(len(WORDS), **sizes, **options)
    model = randomize(models.sentence_embedding(base, pooling, normalize=False))
    checkpoints.save_sentence_transformer(model, tmp_path, tokenizer)
    again = checkpoints.load_sentence_transformer(tmp_path)
    found = generation.embed(again, TEXTS, checkpoints.load_tokenizer(tmp_path))
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            x = theirs(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        assert_close(vector, x[-1 if pooling == "last" else 0].numpy(), FLOAT32)


def test_what_is_not_saved(tmp_path):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    bert = models.bert(11, **sizes, segments=False)
    for model, message in (
        (bert, "expected a model with the head 'sentence_embedding', got 'bert' with None"),
        (
            models.sentence_embedding(models.bert(11, **sizes)),
            "segments=False, got .'segments', 'tokens'",
        ),
        (models.sentence_embedding(bert, dimensions=4), "truncate_dim= .*, got 4"),
        (
            models.sentence_embedding(bert, projection_dim=4, activation="softsign"),
            "activation must be one of .* got 'softsign'",
        ),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            checkpoints.save_sentence_transformer(model, tmp_path / "model")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("pooling", ["first", "max", "mean_sqrt_length", "weighted_mean", "last"])
def test_every_pooling_is_saved(tmp_path, pooling):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    bert = models.bert(len(WORDS), **sizes, segments=False)
    checkpoints.save_sentence_transformer(models.sentence_embedding(bert, pooling), tmp_path)
    head = checkpoints.load_sentence_transformer(tmp_path).head
    assert (head.arguments["pooling"], head.arguments["prompts"]) == (pooling, {})
    assert head.arguments["projection_dim"] is None


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        (3, {}, TypeError, r"expected a text \(str\) or a list of texts, got int"),
        ([], {}, ValueError, "got no texts"),
        (
            ["a"],
            {"prompt": "title"},
            ValueError,
            r"has no prompt 'title', it has \['query', 'docum",
        ),
        (
            ["a"],
            {"dimensions": 21},
            ValueError,
            r"dimensions must be an integer in 1\.\.20, got 21",
        ),
        (["a"], {"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_calls(texts, options, error, message):
    for call in (functools.partial(generation.embed, embedder()), exported().embed):
        if "batch_size" in options and call == exported().embed:
            continue
        given = [tokenizer_of()] * (call != exported().embed)
        with pytest.raises(error, match=message) as caught:
            call(texts, *given, **options)
        assert "\n" not in str(caught.value)


def test_a_tokenizer_of_another_size():
    with pytest.raises(ValueError, match="has 32 ids, but the model's embedding takes 31"):
        generation.embed(embedder(), "a", tokenizer_of([*WORDS, "y"]))
    with pytest.raises(ValueError, match="'language_model'"):
        generation.embed(models.gemma(31, dim=8, num_layers=1), "a", tokenizer_of())


def test_a_length_without_space_for_the_text():
    model = models.sentence_embedding(models.backbone(embedder()), max_seq_length=2)
    with pytest.raises(ValueError, match=r"the tokenizer adds 2 tokens to a text, .* got 2"):
        generation.embed(model, "a b", tokenizer_of())


@pytest.mark.parametrize("preset", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_rounded_files_are_verified(tmp_path, preset):
    """Wider: LiteRT leaves matrices of fewer than 1,024 weights in float32."""
    model = embedder(dim=96)
    report = export_tflite(
        model, tmp_path / "x.tflite", quantization=preset, source_length=LENGTH,
        tokenizer=tokenizer_of(),
    )  # fmt: skip
    assert report.verification is not None  # a wrong file is not kept
    assert report.bytes_by_kind[preset] > 1024
    wanted = generation.embed(model, TEXTS, tokenizer_of())
    cosines = np.sum(runtime.load(report.path).embed(TEXTS) * wanted, axis=-1)
    # Measured: 0.9998 in int8, 0.98 in int4, with random weights.
    assert cosines.min() > {"int8": 0.995, "int4": 0.9}[preset]


def test_sentence_transformers_reads_what_is_saved():
    package = pytest.importorskip("sentence_transformers")
    theirs = package.SentenceTransformer(str(folder()), device="cpu", local_files_only=True)
    ours = generation.embed(embedder(), TEXTS, tokenizer_of(), prompt="query")
    assert_close(theirs.encode(TEXTS, prompt_name="query"), ours, FLOAT32)
    cut = theirs.encode(TEXTS, truncate_dim=7, normalize_embeddings=True)
    assert_close(generation.embed(embedder(), TEXTS, tokenizer_of(), dimensions=7), cut, FLOAT32)
