"""Beside transformers itself, where it and torch are installed: drawn configurations, both ways."""

import io
import json

import numpy as np
import pytest
from compare import assert_close
from grids import one_of_each
from huggingface_cases import CASES, FOLDER, inputs_of, loaded, run
from live_transformers import with_noise

from keras_tfm import checkpoints

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Both in float32, of random models with logits of up to 10.
FLOAT32 = 3e-5
TOKENS = np.array([[3, 4, 5, 6, 7, 8], [9, 10, 11, 0, 0, 0], [12, 0, 0, 0, 0, 0]])
TARGET = np.array([[0, 3, 4, 5], [0, 6, 7, 0], [0, 8, 0, 0]])
BERT = {
    "vocab_size": 19, "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3,
    "intermediate_size": 7, "max_position_embeddings": 11, "initializer_range": 0.5,
}  # fmt: skip
GPT = {
    "vocab_size": 17, "n_embd": 14, "n_head": 7, "n_layer": 3, "n_positions": 13,
    "initializer_range": 0.4,
}  # fmt: skip
T5 = {
    "vocab_size": 17, "d_model": 10, "num_heads": 3, "d_kv": 7, "d_ff": 13, "num_layers": 2,
    "initializer_factor": 1.0,
}  # fmt: skip
MODELS = [
    ("BertModel", {**BERT, "hidden_act": "silu"}),
    ("BertForMaskedLM", {**BERT, "layer_norm_eps": 0.2}),
    ("BertForPreTraining", {**BERT, "hidden_act": "gelu_pytorch_tanh"}),
    ("BertForNextSentencePrediction", {**BERT, "type_vocab_size": 5}),
    ("BertForSequenceClassification", {**BERT, "num_labels": 1}),
    ("BertForTokenClassification", {**BERT, "num_labels": 6, "classifier_dropout": 0.3}),
    ("BertForQuestionAnswering", {**BERT, "num_hidden_layers": 1}),
    ("GPT2LMHeadModel", {**GPT, "activation_function": "relu", "n_inner": 5}),
    ("GPT2LMHeadModel", {**GPT, "scale_attn_by_inverse_layer_idx": True}),
    (
        "GPT2LMHeadModel",
        {**GPT, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ),
    ("GPT2LMHeadModel", {**GPT, "reorder_and_upcast_attn": True}),
    ("GPT2LMHeadModel", {**GPT, "tie_word_embeddings": False, "layer_norm_epsilon": 0.1}),
    ("GPT2Model", GPT),
    ("OpenAIGPTLMHeadModel", {**GPT, "afn": "silu"}),
    ("OpenAIGPTModel", GPT),
    ("T5ForConditionalGeneration", {**T5, "relative_attention_num_buckets": 12}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu"}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gelu"}),
    (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    ("T5Model", {**T5, "num_decoder_layers": 1, "relative_attention_max_distance": 19}),
    ("T5EncoderModel", {**T5, "layer_norm_epsilon": 0.2}),
    ("T5ForConditionalGeneration", {**T5, "pad_token_id": 4, "decoder_start_token_id": 3}),
]


def tokens_of(pad_id):
    """`TOKENS` with another padding id, for which 0 is a token."""
    changed = {0: pad_id or 0, pad_id: 0}
    return np.vectorize(lambda x: changed.get(x, x))(TOKENS).astype(TOKENS.dtype)


def outputs_of_torch(model):
    """The outputs of a model of transformers, in the order of ours."""
    kind = type(model).__name__
    ids = tokens_of(model.config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": (TOKENS != 0).astype("int64")}
    if "GPT" in kind:
        del inputs["attention_mask"]
    if kind in ("T5Model", "T5ForConditionalGeneration"):
        inputs["decoder_input_ids"] = TARGET
    if "Bert" in kind:
        inputs["token_type_ids"] = (TOKENS > 6).astype("int64")
    with torch.no_grad():
        output = model.eval()(**{name: torch.from_numpy(x) for name, x in inputs.items()})
    names = {
        "BertModel": ["last_hidden_state", "pooler_output"],
        "BertForPreTraining": ["prediction_logits", "seq_relationship_logits"],
        "BertForQuestionAnswering": ["start_logits", "end_logits"],
    }
    default = ["logits" if "logits" in output else "last_hidden_state"]
    return [output[name].numpy() for name in names.get(kind, default)]


def outputs_of_keras(model):
    inputs = tokens_of(model.arguments["pad_id"])
    arrays = {"tokens": inputs, "segments": (TOKENS > 6).astype("int64")}
    arrays |= {"source": inputs, "target": TARGET}
    if isinstance(model.input, dict):
        inputs = {name: arrays[name] for name in model.input}
    outputs = run(model, inputs)
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


def assert_same(ours, theirs):
    for a, b in zip(outputs_of_keras(ours), outputs_of_torch(theirs), strict=True):
        assert_close(a, b, FLOAT32)


FAST = {
    "BertForPreTraining",
    "GPT2LMHeadModel",
    "OpenAIGPTLMHeadModel",
    "T5ForConditionalGeneration",
}


# transformers ties T5 1.1 by force, and does not scale it.
@pytest.mark.filterwarnings("ignore:t5.*transformers before version 5 scales the output only")
@pytest.mark.parametrize(("name", "options"), one_of_each(MODELS, FAST))
def test_both_ways(name, options, tmp_path):
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    theirs = with_noise(cls(cls.config_class(**options)))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs")
    assert_same(ours, theirs)
    checkpoints.save_huggingface(ours, tmp_path / "ours")
    again, report = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert_same(ours, again)


@pytest.mark.slow
def test_t5_of_14_buckets(tmp_path):
    """No multiple of 4: halves of 7, of which 3 are exact."""
    options = {**T5, "relative_attention_num_buckets": 14, "relative_attention_max_distance": 9}
    test_both_ways("T5ForConditionalGeneration", options, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertForMaskedLM", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_in_several_files(name, dtype, tmp_path):
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    options = {"Bert": BERT, "T5Fo": T5}[name[:4]]
    theirs = with_noise(cls(cls.config_class(**options))).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_same(checkpoints.load_huggingface(tmp_path), theirs.float())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fixtures_are_loaded_by_transformers_as_they_are_here(case, tmp_path):
    """So the committed files are what this version of transformers means by them."""
    checkpoints.save_huggingface(loaded(case), tmp_path)
    name = json.loads((FOLDER / case / "config.json").read_text())["architectures"][0]
    theirs = [getattr(transformers, name).from_pretrained(x) for x in (FOLDER / case, tmp_path)]
    first, second = (outputs_of_torch(model) for model in theirs)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_trained_classifier_goes_back(tmp_path):
    from keras_tfm import models

    model = models.sequence_classifier(checkpoints.load_huggingface(FOLDER / "bert_model"), 7)
    checkpoints.save_huggingface(model, tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.num_labels == 7
    inputs = inputs_of("bert_model")
    real = inputs["tokens"] != 0
    real[3, 2] = True  # between tokens the padding id is a token, as in a tokenizer's rows
    with torch.no_grad():
        logits = theirs(
            torch.from_numpy(inputs["tokens"]),
            attention_mask=torch.from_numpy(real.astype("int64")),
            token_type_ids=torch.from_numpy(inputs["segments"]),
        ).logits
    assert_close(run(model, inputs), logits.numpy(), FLOAT32)


NASTY = [
    "", " ", "Ａｌｌ ｆｕｌｌ ｗｉｄｅ", "ﬁne Ⅳ ½ ㍿ ①", "a\u00a0b\u3000c\u200bd\u00ade\ufefff",
    "e\u0301\u0327",
    "\x00\x01\x02\x7f\x80\u009f", "İıſẞß", "\u202eabc\u202c", "😀👩‍👩‍👧🇩🇪", "日本語、中文",
    "हिन्दी ไทย עברית",
    "\ud7ff\ue000\ufffd", "x" * 300, "<extra_id_5> <pad></s>", "  a  b  ", "\t\n\r\f\v\u2028\u2029",
]  # fmt: skip


def test_all_rules_of_sentencepiece_s_normalisation(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*NASTY[2:7], "Some words, and more of them."] * 9), vocab_size=120,
        model_writer=model, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2, normalization_rule_name="nmt_nfkc",
    )  # fmt: skip
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    theirs = transformers.T5Tokenizer.from_pretrained(tmp_path)
    ours = checkpoints.load_tokenizer(tmp_path)
    for text in NASTY:
        assert ours.encode(text).ids == theirs(text)["input_ids"], repr(text)


@pytest.mark.parametrize(
    "case", ["bert", "bert_cased", "gpt2", "gpt1", "t5", "gpt2_json", "bert_json"]
)
def test_other_texts_get_the_same_ids(case):
    folder = FOLDER.with_name("huggingface_tokenizers") / case
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = checkpoints.load_tokenizer(folder)
    rng = np.random.default_rng(0)
    points = [chr(x) for x in rng.integers(1, 0x3100, 3000) if not 0xD800 <= x < 0xE000]
    texts = NASTY + ["".join(rng.choice(points, 20)) for _ in range(60)]
    for text in texts:
        assert ours.encode(text).ids == theirs(text)["input_ids"], repr(text)
