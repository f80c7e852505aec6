"""Whisper's timestamps and prompts, beside transformers, and inside an exported file."""

import numpy as np
import pytest
from compare import to_numpy
from execution import tensorflow_only
from keras import ops
from live_transformers import made

from keras_tfm.generation import Beam, Generator, Greedy, generate, processors
from keras_tfm.generation.strategies import Task

# Text up to 19, then the special tokens, then timestamps.
END, START, ENGLISH, GERMAN, TRANSCRIBE, TRANSLATE, NO_TIMESTAMPS = 20, 21, 22, 23, 24, 25, 26
BEGIN, V, LENGTH = 27, 60, 16
IDS = {
    "pad_token_id": END, "bos_token_id": END, "eos_token_id": END,
    "decoder_start_token_id": START, "suppress_tokens": [3, 4, TRANSLATE],
    "begin_suppress_tokens": [5, END],
}  # fmt: skip
SIZES = {
    "vocab_size": V, "d_model": 12, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 5, "max_source_positions": 11, "max_target_positions": 30,
    "num_mel_bins": 5, "init_std": 1.0, **IDS,
}  # fmt: skip
rng = np.random.default_rng(0)
AUDIO = rng.normal(scale=0.1, size=(5, 3520)).astype("float32") * np.linspace(0, 1, 3520)
AUDIO = np.stack([np.roll(row, 500 * i) * 0.1**i for i, row in enumerate(AUDIO)]).astype("float32")


def context_of(tokens, prompt):
    task = Task(len(tokens), LENGTH, prompt - 1, (END,), None, None, False, None)
    given = task.sequences(ops.convert_to_tensor(tokens))
    return task.context(given, ops.convert_to_tensor(tokens.shape[1] - 1, "int32"))


@pytest.mark.parametrize("initial", [None, 3])
def test_logits_are_those_of_transformers(initial):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = transformers.GenerationConfig(eos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = NO_TIMESTAMPS, initial
    ours, changes = processors.Timestamps(NO_TIMESTAMPS, initial), set()
    for prompt in (1, 3):
        theirs = WhisperTimeStampLogitsProcessor(config, begin_index=prompt)
        for length in range(prompt, LENGTH):
            tokens = rng.integers(0, V, (12, length)).astype("int32")
            tokens[:, :prompt] = 2
            logits = rng.normal(size=(12, V)).astype("float32")
            logits[:6, :BEGIN] += 4.0  # text is more probable than all timestamps
            expected = theirs(torch.from_numpy(tokens).long(), torch.from_numpy(logits)).numpy()
            actual = to_numpy(ours(ops.convert_to_tensor(logits), context_of(tokens, prompt)))
            np.testing.assert_array_equal(actual, expected)
            changes |= {tuple(np.isfinite(row)) for row in actual}
    assert len(changes) > 10


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Their model with Whisper's own `generate`, and ours."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("model")
    theirs, _ = made("WhisperForConditionalGeneration", SIZES, folder, shrunk=0.3)
    fields = {
        **IDS, "is_multilingual": True, "no_timestamps_token_id": NO_TIMESTAMPS,
        "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN}, "max_initial_timestamp_index": 4,
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    }  # fmt: skip
    theirs.generation_config = transformers.GenerationConfig(**fields)
    theirs.save_pretrained(folder)
    from keras_tfm.checkpoints import load_huggingface

    return theirs, load_huggingface(folder)


def their_tokens(theirs, prompt, **options):
    """Prompts included, padded with the end token."""
    import torch
    import transformers

    extractor = transformers.WhisperFeatureExtractor(5)
    extractor.n_samples, extractor.nb_max_frames = 3520, 22
    features = extractor(list(AUDIO), sampling_rate=16000, return_tensors="pt").input_features
    with torch.no_grad():
        found = theirs.generate(
            features, task="transcribe", return_dict_in_generate=True,
            force_unique_generate_call=True, max_new_tokens=LENGTH - prompt, **options,
        )  # fmt: skip
    tokens = found.sequences.numpy()
    return np.pad(tokens, [(0, 0), (0, LENGTH - tokens.shape[1])], constant_values=END)


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize(("language", "beams"), [("en", 1), ("de", 3)])
def test_tokens_are_those_of_transformers(language, beams, timestamps, pair):
    theirs, ours = pair
    options = {"num_beams": beams, "length_penalty": 0.0, "early_stopping": False}
    prompt = [START, ENGLISH if language == "en" else GERMAN, TRANSCRIBE]
    prompt += [] if timestamps else [NO_TIMESTAMPS]
    options |= {"language": language, "return_timestamps": timestamps}
    expected = their_tokens(theirs, len(prompt), **options)
    some = processors.transcription(ours, timestamps, max_initial_timestamp=4)
    strategy = Greedy(some) if beams == 1 else Beam(beams, length_penalty=0.0, processors=some)
    inputs = {"audio": AUDIO, "target": np.tile(prompt, (len(AUDIO), 1))}
    actual = generate(ours, inputs, LENGTH, end_id=END, strategy=strategy).tokens
    np.testing.assert_array_equal(actual, expected)
    assert len({tuple(row) for row in actual}) > 1
    assert not timestamps or (actual[:, len(prompt)] >= BEGIN).all()


@tensorflow_only
def test_a_file_writes_timestamps(pair, tmp_path):
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    _, ours = pair
    strategy = Greedy(processors.transcription(ours, timestamps=True))
    inputs = {"audio": AUDIO, "target": np.tile([START, GERMAN, TRANSCRIBE], (len(AUDIO), 1))}
    expected = Generator(ours, LENGTH, end_id=END, strategy=strategy)(inputs).tokens
    path = tmp_path / "x.tflite"
    export_tflite(ours, path, max_length=LENGTH, prompt_length=4, end_id=END, strategy=strategy)
    np.testing.assert_array_equal(runtime.load(path).generate(inputs).tokens, expected)


def test_processors_of_a_model_without_ids():
    from keras_tfm import models

    model = models.whisper(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    assert processors.transcription(model) == []
    with pytest.raises(ValueError, match="timestamps=True needs a model with no_timestamps_id"):
        processors.transcription(model, timestamps=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "no_timestamps_id must be at least one id and not negative"),
        ((3, -1), "max_initial must be at least 0, got -1"),
    ],
)
def test_impossible_timestamps(arguments, message):
    with pytest.raises(ValueError, match=message):
        processors.Timestamps(*arguments)
    with pytest.raises(ValueError, match=r"no_timestamps_id \+ 1, must be in 0\.\.10, got 11"):
        processors.Timestamps(10).check(11)
