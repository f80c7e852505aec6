"""BART, T5 and their relatives beside transformers: outputs and tokens, both ways."""

import functools
import importlib
import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from grids import one_of_each
from live_transformers import made, saved
from safetensors.numpy import load_file, save_file

from keras_tfm import checkpoints, generation, models
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.generation import Beam
from keras_tfm.models.without_storage import without_storage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
PAD, END = 1, 2
SIZES = {
    "vocab_size": 19, "d_model": 12, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 5, "max_position_embeddings": 21,
}  # fmt: skip
SCALED = {**SIZES, "scale_embedding": True}
# The padding id is the start token: id 0 in Pegasus, the last one in Marian.
MARIAN = {**SCALED, "pad_token_id": 18, "decoder_start_token_id": 18, "activation_function": "silu"}
TWO_TABLES = {**MARIAN, "decoder_vocab_size": 23, "share_encoder_decoder_embeddings": False}
ODD = {**SIZES, "d_model": 15, "decoder_attention_heads": 5}
T5 = {
    "vocab_size": 19, "d_model": 12, "d_kv": 5, "d_ff": 7, "num_layers": 2, "num_decoder_layers": 1,
    "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 11,
    "decoder_start_token_id": 0,
}  # fmt: skip
GEMMA2 = {
    "vocab_size": 19, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 7, "query_pre_attn_scalar": 5,
    "sliding_window": 3, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0,
}  # fmt: skip
T5GEMMA = {
    "vocab_size": 19, "decoder_start_token_id": 2, "attn_implementation": "eager",
    "encoder": GEMMA2, "decoder": {**GEMMA2, "hidden_size": 18, "num_attention_heads": 6},
}  # fmt: skip
_GEMMA3 = {
    **GEMMA2, "attn_logit_softcapping": None, "sliding_window": 4, "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}  # fmt: skip
T5GEMMA2 = {
    "vocab_size": 19, "decoder_start_token_id": 2, "attn_implementation": "eager",
    "encoder": {
        "text_config": _GEMMA3, "mm_tokens_per_image": 4, "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 6, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 5, "image_size": 12, "patch_size": 3,
        },
    },
    "decoder": {**_GEMMA3, "num_attention_heads": 6, "intermediate_size": 5, "num_hidden_layers": 2,
                "layer_types": ["full_attention", "sliding_attention"]},
}  # fmt: skip
VARIED = {"init_std": 1.0}  # with smaller weights, tied logits repeat the last token
# The seeds whose tokens vary most, of 8.
SEEDS = {
    "bart": 4, "mbart": 5, "pegasus": 2, "marian": 2, "marian with two vocabularies": 1,
    "m2m_100": 0, "mt5": 0, "umt5": 0, "t5gemma": 0,
    "t5gemma2": 0,
}  # fmt: skip
GENERATING = {
    "bart": ("BartForConditionalGeneration", {**SIZES, **VARIED}),
    "mbart": ("MBartForConditionalGeneration", {**SIZES, **VARIED, "decoder_start_token_id": 17}),
    "pegasus": ("PegasusForConditionalGeneration", {**SIZES, **VARIED}),
    "marian": ("MarianMTModel", {**MARIAN, **VARIED, "scale_embedding": False}),
    "marian with two vocabularies": ("MarianMTModel", {**TWO_TABLES, **VARIED}),
    "m2m_100": ("M2M100ForConditionalGeneration", {**SIZES, **VARIED}),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "umt5": ("UMT5ForConditionalGeneration", {**T5, "tie_word_embeddings": False}),
    "t5gemma": ("T5GemmaForConditionalGeneration", T5GEMMA),
    "t5gemma2": ("T5Gemma2ForConditionalGeneration", T5GEMMA2),
}
MODELS = [
    *GENERATING.values(),
    ("BartModel", {**SIZES, "activation_function": "relu"}),
    ("BartForSequenceClassification", {**SIZES, "num_labels": 5}),
    ("BartForQuestionAnswering", SIZES),
    ("MBartModel", SCALED),
    ("MBartForSequenceClassification", {**SIZES, "num_labels": 4}),
    ("MBartForQuestionAnswering", SCALED),
    ("PegasusModel", ODD),
    ("MarianModel", {**MARIAN, "d_model": 15, "decoder_attention_heads": 5}),
    ("T5ForSequenceClassification", {**T5, "num_labels": 5, "eos_token_id": 2}),
    ("T5ForTokenClassification", {**T5, "num_labels": 5}),
    ("UMT5ForQuestionAnswering", T5),
    ("T5GemmaForSequenceClassification", {**T5GEMMA, "num_labels": 5}),
    ("T5GemmaForTokenClassification", {**T5GEMMA, "num_labels": 5, "is_encoder_decoder": False}),
    ("T5Gemma2ForSequenceClassification", {**T5GEMMA2, "num_labels": 5}),
    ("MT5ForSequenceClassification", {**T5, "num_labels": 5, "eos_token_id": 2}),
    ("T5GemmaForSequenceClassification", {**T5GEMMA, "num_labels": 5, "is_encoder_decoder": False}),
    ("T5GemmaForTokenClassification", {**T5GEMMA, "num_labels": 5}),
    ("T5Gemma2ForTokenClassification", {**T5GEMMA2, "num_labels": 5}),
]
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(3, 17, (3, 8)), RNG.integers(3, 17, (3, 6))
SOURCE[:, 4] = END
SOURCE[0, 5:] = -1  # padding


def ids_of(theirs):
    """Source, target and the mask of real source tokens."""
    source = np.where(SOURCE < 0, theirs.config.pad_token_id, SOURCE)
    target = TARGET.copy()
    target[:, 0] = theirs.config.decoder_start_token_id or 17
    return source, target, SOURCE >= 0


def expected_of(theirs, shifts):
    source, target, real = ids_of(theirs)
    inputs = {"input_ids": torch.from_numpy(source), "attention_mask": torch.from_numpy(real)}
    if not shifts:
        inputs["decoder_input_ids"] = torch.from_numpy(target)
    with torch.no_grad():
        output = theirs(**inputs)
    if "start_logits" in output:
        return {"start": output.start_logits.numpy(), "end": output.end_logits.numpy()}
    name = "logits" if "logits" in output else "last_hidden_state"
    return {name: output[name].numpy()}


def assert_same(ours, theirs):
    source, target, real = ids_of(theirs)
    shifts = not isinstance(ours.input, dict)
    expected = expected_of(theirs, shifts)
    inputs = source if shifts else {"source": source, "target": target}
    outputs = ours(inputs, training=False)
    actual = outputs if isinstance(outputs, dict) else dict.fromkeys(expected, outputs)
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        found = to_numpy(actual[name])
        if shifts and x.shape[:2] == real.shape:  # after the text, transformers sees padding
            found, x = found[real], x[real]
        tolerance = FEATURES if name == "last_hidden_state" else LOGITS
        assert_close(found, x, tolerance)


def alternating(families, *values):
    """Each family with each of two values; the default tier has the values in turns."""
    return [
        pytest.param(family, value, id=f"{family}-{value}", marks=[pytest.mark.slow] * (i % 2 != j))
        for i, family in enumerate(families)
        for j, value in enumerate(values)
    ]


FAST = {name for name, _ in MODELS} - {
    *("MT5ForSequenceClassification", "T5Gemma2ForTokenClassification"),
}


# transformers ties mT5 and uMT5 by force, and does not scale them.
@pytest.mark.filterwarnings("ignore:t5.*transformers before version 5 scales the output only")
@pytest.mark.parametrize(("name", "options"), one_of_each(MODELS, FAST))
def test_both_ways(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    assert_same(ours, theirs)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same(ours, again)
    if not isinstance(ours.input, dict):
        return
    source, _, real = ids_of(theirs)
    with torch.no_grad():
        stack = theirs.get_encoder()
        expected = stack(torch.from_numpy(source), attention_mask=torch.from_numpy(real))
    x = expected.last_hidden_state.numpy()[real]
    found = to_numpy(models.encoder(ours)(source))[real]
    assert_close(found, x, FEATURES)


@functools.cache
def generating(family, folder):
    """Made once: no test may change the weights."""
    return made(*GENERATING[family], folder, seed=SEEDS[family], shrunk=0.3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return lambda family: generating(family, tmp_path_factory.getbasetemp() / f"pair-{family}")


def their_tokens(theirs, source, real, beams, **options):
    config = {
        "max_length": 12, "num_beams": beams, "do_sample": False,
        "pad_token_id": theirs.config.pad_token_id,
        "decoder_start_token_id": theirs.config.decoder_start_token_id, **options,
    }  # fmt: skip
    if beams > 1:
        config |= {"length_penalty": 0.0, "early_stopping": False}
    # Replaced, not passed: transformers fills fields that are None, such as a forced last token.
    theirs.generation_config = transformers.GenerationConfig(**config)
    with torch.no_grad():
        ids, mask = torch.from_numpy(source), torch.from_numpy(real)
        tokens = theirs.generate(ids, attention_mask=mask).numpy()
    # With padding id 0, their beam search pads with the end token.
    ends = tokens[:, 1:] == options.get("eos_token_id", -1)
    after = np.cumsum(ends, axis=1)[:, :-1] > 0
    tokens[:, 2:] = np.where(after, theirs.config.pad_token_id, tokens[:, 2:])
    return tokens


def assert_same_tokens(ours, theirs, beams, end_id, first=()):
    """`first`: the prompt after the start token, which transformers forces."""
    source, _, real = ids_of(theirs)
    options = {"forced_bos_token_id": first[0]} if first else {}
    if end_id is not None:
        options["eos_token_id"] = end_id
    expected = their_tokens(theirs, source, real, beams, **options)
    start = theirs.config.decoder_start_token_id
    inputs = {"source": source}
    if first:
        inputs["target"] = np.tile([start, *first], (len(source), 1))
    actual = generation.generate(
        ours, inputs, max_length=12, start_id=start, end_id=end_id,
        strategy=None if beams == 1 else Beam(beams, length_penalty=0.0),
    ).tokens  # fmt: skip
    np.testing.assert_array_equal(actual[:, : expected.shape[1]], expected)
    assert (actual[:, expected.shape[1] :] == theirs.config.pad_token_id).all()
    return actual


@pytest.mark.parametrize(("family", "beams"), alternating(GENERATING, 4, 1))
def test_generated_tokens(family, beams, pair):
    theirs, ours = pair(family)
    tokens = assert_same_tokens(ours, theirs, beams, end_id=None)
    assert len(np.unique(tokens)) > 2
    # The end that ends rows at the most different steps.
    rows = [list(row) + list(range(30)) for row in tokens[:, 1:]]
    end_id = max(range(19), key=lambda x: (len({row.index(x) for row in rows}), -x))
    assert_same_tokens(ours, theirs, beams, end_id)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_search_of_the_folder(beams, pair, tmp_path):
    """`generation_config.json` decides, in both libraries and in an exported file."""
    from keras_tfm import export, runtime

    theirs, _ = pair("bart")
    fields = {
        "max_length": 12, "min_length": 6, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3,
        "forced_bos_token_id": 5, "forced_eos_token_id": END, "decoder_start_token_id": 17,
        "eos_token_id": [END, 9], "pad_token_id": PAD, "bad_words_ids": [[7], [4, 6]],
        "sequence_bias": [[[11], 1.5]], "suppress_tokens": [12], "begin_suppress_tokens": [13],
    }  # fmt: skip
    if beams > 1:
        fields |= {"num_beams": beams, "length_penalty": 0.5, "early_stopping": True}
    theirs.generation_config = transformers.GenerationConfig(**fields)
    theirs.save_pretrained(tmp_path)
    source, _, real = ids_of(theirs)
    with torch.no_grad():
        ids, mask = torch.from_numpy(source), torch.from_numpy(real)
        expected = theirs.generate(ids, attention_mask=mask).numpy()
    ours = checkpoints.load_huggingface(tmp_path)
    arguments = checkpoints.load_generation_config(tmp_path)
    actual = generation.generate(ours, {"source": source}, **arguments).tokens
    np.testing.assert_array_equal(actual[:, : expected.shape[1]], expected)
    if beams == 1:
        path = tmp_path / "x.tflite"
        report = export.export_tflite(tmp_path, path, source_length=8, max_length=12)
        assert "its processors SequenceBias, RepetitionPenalty, NoRepeatNGram" in report.notes[-1]
        found = runtime.load(path).generate({"source": source[1]}).tokens[0]
        np.testing.assert_array_equal(found[: expected.shape[1]], expected[1])


@pytest.mark.parametrize(("family", "beams"), alternating(["mbart", "m2m_100"], 4, 1))
def test_a_forced_language_is_a_prompt(family, beams, pair):
    theirs, ours = pair(family)
    tokens = assert_same_tokens(ours, theirs, beams, end_id=None, first=[16])
    assert (tokens[:, 1] == 16).all()


def test_a_bias_keeps_padding_out_of_texts(pair, tmp_path):
    """As `bad_words_ids` of Marian's folders does in transformers."""
    theirs, _ = pair("marian")
    theirs.save_pretrained(tmp_path)
    ours, pad_id = checkpoints.load_huggingface(tmp_path), theirs.config.pad_token_id
    source, _, real = ids_of(theirs)
    bias = ours.get_layer("output_bias").bias
    # Without it, padding would be written.
    bias.assign(np.where(np.arange(19) == pad_id, 9.0, to_numpy(bias)))
    options = {"max_length": 12, "start_id": pad_id, "strategy": Beam(4, length_penalty=0.0)}
    assert (generation.generate(ours, source, **options).tokens[:, 1:] == pad_id).all()
    bias.assign(np.where(np.arange(19) == pad_id, -1e4, to_numpy(bias)))
    expected = their_tokens(theirs, source, real, 4, bad_words_ids=[[pad_id]])
    actual = generation.generate(ours, source, **options).tokens
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_texts_longer_than_the_positions_of_m2m_100(pair):
    """transformers extends its sinusoids; it computes angles in float32, which are 1e-7 p off."""
    theirs, ours = pair("m2m_100")
    rng = np.random.default_rng(2)
    source, target = rng.integers(3, 17, (1, 1100)), rng.integers(3, 17, (1, 1030))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(source), decoder_input_ids=torch.from_numpy(target))
    x = expected.logits.numpy()
    found = to_numpy(ours({"source": source, "target": target}, training=False))
    assert_close(found[:, :100], x[:, :100], 1e-4)
    assert_close(found, x, 5e-4)


# TFLite


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        *alternating(["bart", "mbart", "pegasus", "marian"], "float32", "int8"),
        *alternating(["m2m_100"], "int8", "float32"),
    ],
)
def test_a_file_is_verified_and_generates(family, quantization, tmp_path):
    from keras_tfm import export, runtime

    # Large enough for weights of 8 bits.
    name, options = GENERATING[family]
    larger = {"d_model": 54, "encoder_ffn_dim": 41, "decoder_ffn_dim": 43, "init_std": 0.2}
    theirs, ours = made(name, {**options, **larger}, tmp_path, shrunk=0.3)
    lengths = {"start_id": theirs.config.decoder_start_token_id, "end_id": 15, "max_length": 9}
    # Raises if a signature exceeds its tolerance, 1e-4 in float32.
    report = export.export_tflite(
        ours, tmp_path / "x.tflite", ["generate", "predict"], quantization=quantization,
        source_length=8, **lengths,
    )  # fmt: skip
    for check in report.verification.checks:
        assert check.graph_error < 1e-4
        assert (check.relative_error > 1e-4) == (quantization == "int8")
    source, _, _ = ids_of(theirs)
    actual = runtime.load(report.path).generate(source).tokens
    expected = generation.generate(ours, source, **lengths).tokens
    if quantization == "float32":
        np.testing.assert_array_equal(actual, expected)
    assert actual.shape == expected.shape


def test_a_file_of_a_classifier_reads_the_source_alone(tmp_path):
    from keras_tfm import export, runtime

    theirs, ours = made("BartForSequenceClassification", SIZES, tmp_path / "theirs")
    path = tmp_path / "x.tflite"
    export.export_tflite(ours, path, ["predict"], source_length=8)
    assert list(runtime.load(path).signatures["predict"]["inputs"]) == ["source"]
    source, _, _ = ids_of(theirs)
    (found,) = runtime.load(path).predict({"source": source}).values()
    assert_close(found, expected_of(theirs, shifts=True)["logits"], 1e-4)


# Ids in the configuration


def rewritten(folder, file="config.json", **fields):
    """Changes fields of a JSON file; the value `...` removes one."""
    path = folder / file
    content = {**(json.loads(path.read_text()) if path.is_file() else {}), **fields}
    content = {name: x for name, x in content.items() if x is not ...}
    path.write_text(json.dumps(content))


def test_start_end_and_forced_tokens_are_loaded_and_saved(tmp_path):
    folder = tmp_path / "theirs"
    ids = {"forced_bos_token_id": 5, "forced_eos_token_id": 7, "eos_token_id": [2, 3]}
    theirs, _ = made("BartForConditionalGeneration", {**SIZES, "encoder_layers": 1}, folder)
    theirs.generation_config.update(**ids, decoder_start_token_id=4)
    theirs.save_pretrained(folder)
    ours = checkpoints.load_huggingface(folder)
    names = ("start_id", "end_id", "forced_first_id", "forced_last_id", "pad_id")
    assert [ours.arguments[name] for name in names] == [4, [2, 3], 5, 7, PAD]
    again = saved(ours, type(theirs), tmp_path / "ours").generation_config
    assert {name: getattr(again, name) for name in ids} == ids
    assert (again.decoder_start_token_id, again.pad_token_id) == (4, PAD)


def test_older_folders_have_the_ids_in_the_configuration(tmp_path):
    made("MBartForConditionalGeneration", SIZES, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    rewritten(
        tmp_path, normalize_before=True, add_final_layer_norm=True, normalize_embedding=True,
        static_position_embeddings=False, add_bias_logits=False, extra_pos_embeddings=2,
    )  # fmt: skip
    rewritten(tmp_path, decoder_start_token_id=9, forced_bos_token_id=8, forced_eos_token_id=None)
    arguments = checkpoints.load_huggingface(tmp_path).arguments
    assert (arguments["start_id"], arguments["forced_first_id"]) == (9, 8)
    assert arguments["forced_last_id"] is None
    rewritten(tmp_path, forced_eos_token_id=..., decoder_start_token_id=...)
    arguments = checkpoints.load_huggingface(tmp_path).arguments
    assert (arguments["start_id"], arguments["forced_last_id"]) == (None, END)


# Folders that differ


def test_a_folder_without_a_bias_of_the_logits(tmp_path):
    """As a model without a head is saved, which `transformers` gives a bias of zeros."""
    theirs, _ = made("BartModel", SIZES, tmp_path)
    ours = checkpoints.load_huggingface(tmp_path, "BartForConditionalGeneration")
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert_same(ours, theirs)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert_same(ours, again)


def test_position_tables_that_are_no_sinusoids_are_refused(tmp_path):
    made("PegasusModel", SIZES, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["encoder.embed_positions.weight"]
    half = {**tensors, "encoder.embed_positions.weight": table.astype("float16")}
    save_file(half, path, metadata={"format": "pt"})
    checkpoints.load_huggingface(tmp_path)
    tensors["encoder.embed_positions.weight"] = table[::-1].copy()
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"embed_positions.weight to have .* constant values"):
        checkpoints.load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("BartModel", {"is_causal": False}, "is_causal must be True, got False"),
        ("BartModel", {"normalize_before": True}, "normalize_before must be False, got True"),
        ("BartModel", {"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        ("BartModel", {"add_bias_logits": True}, "add_bias_logits must be False"),
        ("BartModel", {"activation_function": "mish"}, "activation_function must be one of"),
        ("BartModel", {"eos_token_id": 19}, "eos_token_id must be an id from 0 to 18, got 19"),
        ("BartModel", {"eos_token_id": None}, "eos_token_id must be an id, got None"),
        ("BartModel", {"forced_eos_token_id": "x"}, "forced_eos_token_id must be an id"),
        ("BartModel", {"decoder_start_token_id": [1]}, "decoder_start_token_id must be an id"),
        ("M2M100Model", {"decoder_start_token_id": PAD}, f"another id than {PAD}, the pad"),
        ("BartModel", {"pad_token_id": 19}, "pad_token_id must be an integer from 0 to 18"),
        ("BartModel", {"is_decoder": True}, "is_decoder must be False"),
        ("BartModel", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embedd"),
        ("MarianModel", {"model_type": "pegasus", "architectures": None}, "do not match Pegasus"),
        ("BartModel", {"model_type": "mbart", "architectures": None}, "do not match MBartModel"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(name, fields, message, folder_of):
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_huggingface(folder_of(name, fields))
    assert "\n" not in str(caught.value)


def test_t5gemma_has_the_vocabulary_of_its_decoder(tmp_path):
    """A configuration made of two others keeps a default of 256,000 for itself."""
    theirs, _ = made("T5GemmaForConditionalGeneration", T5GEMMA, tmp_path)
    encoder, decoder = (json.loads((tmp_path / "config.json").read_text())[x]
                        for x in ("encoder", "decoder"))  # fmt: skip
    rewritten(tmp_path, vocab_size=256000, encoder={**encoder, "vocab_size": 19},
              decoder={**decoder, "vocab_size": 19})  # fmt: skip
    assert_same(checkpoints.load_huggingface(tmp_path), theirs)
    rewritten(tmp_path, decoder={**decoder, "vocab_size": 19, "is_causal": False})
    with pytest.raises(ValueError, match="is_causal must be True, got False"):
        checkpoints.load_huggingface(tmp_path)


@pytest.mark.filterwarnings("ignore:t5. transformers before version 5")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("T5GemmaForConditionalGeneration", T5GEMMA),
        ("T5Gemma2ForConditionalGeneration", T5GEMMA2),
        ("MT5ForConditionalGeneration", T5),
    ],
)
def test_two_tokens_that_end_a_text(name, options, tmp_path):
    """As in the folders of chats: the end of a turn is another one than that of a text."""
    made(name, options, tmp_path / "theirs")
    rewritten(tmp_path / "theirs", eos_token_id=[1, 7])
    model = checkpoints.load_huggingface(tmp_path / "theirs")
    assert model.arguments["end_id"] == [1, 7]
    checkpoints.save_huggingface(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["eos_token_id"] == [1, 7]
    rewritten(tmp_path / "theirs", eos_token_id=[1, 99])
    with pytest.raises(ValueError, match=r"eos_token_id must be an id from 0 to 18, or a list"):
        checkpoints.load_huggingface(tmp_path / "theirs")


@pytest.fixture
def folder_of(tmp_path):
    """A folder of a model with one block a stack, and changed fields."""

    def make(name, fields):
        options = MARIAN if name == "MarianModel" else SIZES
        made(name, {**options, "encoder_layers": 1}, tmp_path)
        rewritten(tmp_path, **fields)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("family", "head", "message"),
    [
        ("pegasus", "question_answering", "the head of a pegasus checkpoint must be one of"),
        ("marian", "token_classifier", "the head of a marian checkpoint must be one of"),
    ],
)
def test_a_head_that_transformers_lacks_is_not_saved(family, head, message, tmp_path):
    small = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 5, "max_length": 7}
    arguments = {"num_classes": 2} if head == "token_classifier" else {}
    model = getattr(models, head)(getattr(models, family)(11, **small), **arguments)
    with pytest.raises(ValueError, match=message):
        checkpoints.save_huggingface(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


# Sizes


SIZE_CASES = {
    ("bart", "base"): ("BartModel", 50265),
    ("bart", "large"): ("BartModel", 50265),
    ("mbart", "large"): ("MBartModel", 250027),
    ("pegasus", "large"): ("PegasusModel", 96103),
    ("marian", "base"): ("MarianModel", 58101),
    ("marian", "big"): ("MarianModel", 57851),
}


@pytest.mark.parametrize(("family", "size"), SIZE_CASES)
def test_sizes_have_as_many_parameters_as_transformers(family, size):
    name, vocabulary_size = SIZE_CASES[family, size]
    builder = getattr(models, family)
    sizes = importlib.import_module(builder.__module__).SIZES
    with without_storage():
        ours = models.backbone(builder(vocabulary_size, **sizes[size]))
    cls = getattr(transformers, name)
    fields = FAMILIES[family].fields(ours, name)
    with torch.device("meta"):
        theirs = cls(cls.config_class(**fields))
    trained = sum(x.numel() for x in theirs.parameters() if x.requires_grad)
    assert ours.count_params() == trained
