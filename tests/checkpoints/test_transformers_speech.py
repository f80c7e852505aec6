"""Whisper beside transformers itself: odd sizes, noise on every weight, both ways, tokens."""

import json

import numpy as np
import pytest
from compare import assert_close
from live_transformers import made, saved

from keras_tfm import checkpoints, generation, models
from keras_tfm.models.encoder_decoders.whisper import SAMPLES_PER_POSITION, SIZES
from keras_tfm.models.without_storage import without_storage

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
START, END = 1, 2
SMALL = {
    "vocab_size": 37, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 5, "max_source_positions": 11, "max_target_positions": 13,
    "num_mel_bins": 5, "pad_token_id": END, "bos_token_id": END, "eos_token_id": END,
    "decoder_start_token_id": START, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
RNG = np.random.default_rng(0)
AUDIO = RNG.normal(scale=0.1, size=(2, 3001)).astype("float32")
TARGET = RNG.integers(3, 37, (2, 7))


def features_of(theirs, audio=AUDIO):
    """What their feature extractor makes: (B, M, 2 S)."""
    positions = theirs.config.max_source_positions
    extractor = transformers.WhisperFeatureExtractor(theirs.config.num_mel_bins)
    extractor.n_samples = positions * SAMPLES_PER_POSITION
    extractor.nb_max_frames = 2 * positions
    return extractor(list(audio), sampling_rate=16000, return_tensors="pt").input_features


def run(theirs):
    with torch.no_grad():
        output = theirs(
            input_features=features_of(theirs), decoder_input_ids=torch.from_numpy(TARGET)
        )
    return (output.logits if "logits" in output else output.last_hidden_state).numpy()


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("WhisperForConditionalGeneration", {}, LOGITS),
        ("WhisperForConditionalGeneration", {"scale_embedding": True, "d_model": 18}, LOGITS),
        ("WhisperModel", {"activation_function": "relu", "num_mel_bins": 8}, FEATURES),
    ],
)
def test_both_ways(name, options, tolerance, tmp_path):
    theirs, _ = made(name, {**SMALL, **options}, tmp_path / "a")
    with torch.no_grad():  # the stored sinusoids are read, too, and not made again
        table = theirs.get_encoder().embed_positions.weight
        table.add_(0.1 * torch.randn(table.shape))
    theirs.save_pretrained(tmp_path / "a")
    ours = checkpoints.load_huggingface(tmp_path / "a")
    expected = run(theirs)
    assert_close(ours({"audio": AUDIO, "target": TARGET}), expected, tolerance)
    features = features_of(theirs).numpy().transpose(0, 2, 1)
    of_features = checkpoints.load_huggingface(tmp_path / "a", audio=False)
    inputs = {"features": features, "target": TARGET}
    assert_close(of_features(inputs), expected, tolerance)
    with torch.no_grad():
        hidden = theirs.get_encoder()(features_of(theirs)).last_hidden_state.numpy()
    assert_close(models.encoder(ours)(AUDIO), hidden, FEATURES)
    for model in (ours, of_features):
        again = saved(model, type(theirs), tmp_path / "b")
        assert_close(run(again), expected, 1e-6)


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_tokens(beams, tmp_path):
    theirs, ours = made(
        "WhisperForConditionalGeneration", {**SMALL, "init_std": 1.0}, tmp_path, shrunk=0.3
    )
    audio = np.concatenate([AUDIO, 0.01 * AUDIO[::-1, ::-1]])
    prompts = np.tile([START, 5, 6], (4, 1))
    config = {"max_length": 12, "num_beams": beams, "length_penalty": 0.0, "eos_token_id": None}
    config |= {"pad_token_id": END, "bos_token_id": START, "early_stopping": False}
    # The generate of all models: Whisper's own cuts the prompt off, and needs names of languages.
    theirs.generation_config = transformers.GenerationConfig(**config)
    with torch.no_grad():
        expected = transformers.GenerationMixin.generate(
            theirs, features_of(theirs, audio), decoder_input_ids=torch.from_numpy(prompts)
        )
    actual = generation.generate(
        ours, {"audio": audio, "target": prompts}, max_length=12,
        strategy=None if beams == 1 else generation.Beam(beams, length_penalty=0.0),
    ).tokens  # fmt: skip
    np.testing.assert_array_equal(actual, expected.numpy())
    assert len({tuple(row) for row in actual[:, 3:]}) > 1  # the audio makes a difference


@pytest.mark.parametrize("beams", [1, 3])
def test_all_settings_of_generation_config_count(beams, tmp_path):
    """Suppressed tokens, which the model has as arguments, too, and every other rule."""
    theirs, ours = made(
        "WhisperForConditionalGeneration", {**SMALL, "init_std": 1.0}, tmp_path, shrunk=0.3
    )
    config = {
        "max_length": 12, "num_beams": beams, "eos_token_id": END, "pad_token_id": END,
        "decoder_start_token_id": START, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2,
        "suppress_tokens": [3, 4], "begin_suppress_tokens": [END, 5], "min_new_tokens": 3,
    }  # fmt: skip
    theirs.generation_config = transformers.GenerationConfig(**config)
    theirs.generation_config.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = transformers.GenerationMixin.generate(
            theirs, features_of(theirs), decoder_input_ids=torch.full((2, 1), START)
        ).numpy()
    arguments = checkpoints.load_generation_config(tmp_path)
    assert len(arguments["strategy"].processors) == 5
    tokens = generation.generate(ours, {"audio": AUDIO}, **arguments).tokens
    np.testing.assert_array_equal(tokens[:, : expected.shape[1]], expected)


def test_special_tokens_are_loaded_and_saved(tmp_path):
    ids = {"suppress_tokens": [3, 4], "begin_suppress_tokens": [5]}
    theirs, _ = made("WhisperForConditionalGeneration", {**SMALL, **ids}, tmp_path / "a")
    path = tmp_path / "a" / "generation_config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "no_timestamps_token_id": 20, "eos_token_id": [2, 7]}))
    ours = checkpoints.load_huggingface(tmp_path / "a")
    expected = {
        "start_id": START, "end_id": [2, 7], "pad_id": END, "suppressed_ids": [3, 4],
        "suppressed_first_ids": [5], "no_timestamps_id": 20,
    }  # fmt: skip
    assert {name: ours.arguments[name] for name in expected} == expected
    again = saved(ours, type(theirs), tmp_path / "b")
    assert again.generation_config.suppress_tokens == [3, 4]
    assert again.generation_config.begin_suppress_tokens == [5]
    loaded = checkpoints.load_huggingface(tmp_path / "b")
    assert {name: loaded.arguments[name] for name in expected} == expected


def test_their_feature_extractor_is_saved(tmp_path):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "num_mels": 5}
    model = models.whisper(37, **sizes, max_source_length=100)
    checkpoints.save_huggingface(model, tmp_path)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    found = extractor(list(AUDIO), sampling_rate=16000, return_tensors="np").input_features
    assert_close(model.get_layer("log_mel")(AUDIO), found.transpose(0, 2, 1), 1e-4)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hop_length": 128}))
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: hop_length must be 160, got"):
        checkpoints.load_huggingface(tmp_path)
    for name, value in (("n_fft", 320), ("padding_value", 0.3), ("padding_side", "left")):
        nested = {"feature_extractor": {name: value}}  # of version 5, which wins
        (tmp_path / "processor_config.json").write_text(json.dumps(nested))
        with pytest.raises(ValueError, match=rf"processor_config\.json: {name} must be .*got"):
            checkpoints.load_huggingface(tmp_path)


def test_what_generation_config_leaves_out_is_not_suppressed(tmp_path):
    ids = {"suppress_tokens": [3, 4], "begin_suppress_tokens": [5]}
    made("WhisperForConditionalGeneration", {**SMALL, **ids}, tmp_path)
    path = tmp_path / "generation_config.json"
    fields = json.loads(path.read_text())
    del fields["begin_suppress_tokens"]
    path.write_text(json.dumps(fields))
    arguments = checkpoints.load_huggingface(tmp_path).arguments
    assert (arguments["suppressed_ids"], arguments["suppressed_first_ids"]) == ([3, 4], None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True, got False"),
        ({"is_causal": False}, "is_causal must be True, got False"),
        ({"activation_function": "mish"}, "activation_function must be one of"),
        ({"suppress_tokens": [37]}, r"suppress_tokens must be an id from 0 to 36, got \[37\]"),
        ({"decoder_start_token_id": [1]}, "decoder_start_token_id must be an id from 0 to 36"),
        ({"max_source_positions": 12}, r"encoder\.embed_positions\.weight"),
    ],
)
def test_what_is_not_supported_is_named(fields, message, tmp_path):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "num_mels": 5}
    checkpoints.save_huggingface(models.whisper(37, **sizes, max_source_length=11), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ValueError, match=message):
        checkpoints.load_huggingface(tmp_path)


# Table 1 of the paper, in millions; large-v3 and turbo as released.
COUNTS = {
    "tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "large-v3": 1550,
    "large-v3-turbo": 809,
}  # fmt: skip


@pytest.mark.parametrize(
    "size", [pytest.param(x, marks=[pytest.mark.slow] * ("e" in x[1:])) for x in SIZES]
)
def test_sizes_have_as_many_parameters_as_transformers(size):
    with without_storage():
        ours = models.whisper(**SIZES[size])
    fields = checkpoints.huggingface.FAMILIES["whisper"].fields(ours, "")
    with torch.device("meta"):
        config = transformers.WhisperConfig(**fields)
        theirs = transformers.WhisperForConditionalGeneration(config)
    assert ours.count_params() == sum(x.numel() for x in theirs.parameters())
    assert abs(ours.count_params() / 1e6 - COUNTS[size]) < 0.05 * COUNTS[size]
