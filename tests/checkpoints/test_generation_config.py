"""`generation_config.json`, as arguments of `generation.generate`.

tests/checkpoints/test_transformers_encoder_decoders.py compares the tokens with transformers.
"""

import json

import pytest
from gguf_files import make_gguf

from keras_tfm.checkpoints import load_generation_config
from keras_tfm.generation import Beam, Contrastive, Greedy, Sample, processors

SUMMARY = {
    "num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3,
    "min_length": 56, "max_length": 142, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    "decoder_start_token_id": 2, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip


@pytest.fixture
def folder_of(tmp_path):
    """A folder with the fields in one of its two files."""

    def make(fields, file="generation_config.json"):
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / file).write_text(json.dumps(fields))
        return tmp_path

    return make


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_summarizer(file, folder_of):
    """The settings of bart-large-cnn, which older folders have in `config.json`."""
    rules = [
        processors.NoRepeatNGram(3),
        processors.MinLength(56),
        processors.ForcedBOS(0),
        processors.ForcedEOS(2),
    ]
    assert load_generation_config(folder_of(SUMMARY, file)) == {
        "strategy": Beam(4, length_penalty=2.0, early_stopping=True, processors=rules),
        "start_id": 2,
        "end_id": 2,
        "max_length": 142,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Greedy()),
        ({"temperature": 0.7, "top_k": 5}, Greedy()),  # without do_sample
        ({"num_beams": None, "typical_p": 1.0, "top_h": None, "max_time": None}, Greedy()),
        # transformers reads these only where it samples
        ({"typical_p": 0.9, "top_h": 0.4, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-3}, Greedy()),
        ({"typical_p": 0.9, "num_beams": 2}, Beam(2)),
        ({"renormalize_logits": True}, Greedy()),  # which changes no order
        (
            {"num_beams": 2, "renormalize_logits": True, "bad_words_ids": [[9]]},
            Beam(2, processors=[processors.NoBadWords([[9]]), processors.LogitNormalization()]),
        ),
        ({"num_beams": 2, "renormalize_logits": None}, Beam(2)),
        ({"do_sample": True}, Sample(top_k=50)),  # the default of transformers
        ({"do_sample": True, "top_k": 0, "top_p": 1.0}, Sample()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
             "num_return_sequences": 3},
            Sample(0.6, top_k=20, top_p=0.95, min_p=0.1, hypotheses=3),
        ),
        ({"num_beams": 3, "num_return_sequences": 2}, Beam(3, hypotheses=2)),
        ({"num_beams": 2, "early_stopping": "never", "length_penalty": -1.0},
         Beam(2, length_penalty=-1.0, early_stopping="never")),
        ({"penalty_alpha": 0.6, "top_k": 4}, Contrastive(4, 0.6)),
        ({"repetition_penalty": 1.1}, Greedy([processors.RepetitionPenalty(1.1)])),
        ({"repetition_penalty": 1.0, "min_new_tokens": 0, "suppress_tokens": []}, Greedy()),
        (
            {"bad_words_ids": [[3], [4, 5]], "sequence_bias": [[[6], -2.0]], "min_new_tokens": 2},
            Greedy([
                processors.SequenceBias({(6,): -2.0}),
                processors.NoBadWords([[3], [4, 5]]),
                processors.MinNewTokens(2),
            ]),
        ),
        (
            {"suppress_tokens": [1, 2], "begin_suppress_tokens": [3]},
            Greedy([processors.SuppressTokens([1, 2]), processors.SuppressTokensAtBegin([3])]),
        ),
        (
            {"forced_bos_token_id": 4, "begin_suppress_tokens": [3]},
            Greedy([processors.ForcedBOS(4), processors.SuppressTokensAtBegin([3], index=1)]),
        ),
    ],
)  # fmt: skip
def test_strategies(fields, expected, folder_of):
    assert load_generation_config(folder_of(fields)) == {"strategy": expected}


def test_ids_and_lengths(folder_of):
    fields = {"bos_token_id": 1, "eos_token_id": [2, 7], "max_new_tokens": 9, "max_length": 99}
    arguments = load_generation_config(folder_of(fields))
    assert arguments.pop("strategy") == Greedy()
    assert arguments == {"start_id": 1, "end_id": [2, 7], "max_new_tokens": 9}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typical_p": 0.9, "do_sample": True},
         r"typical_p must be 1\.0: other values are not supported, got 0\.9"),
        ({"guidance_scale": 3.0},
         r"guidance_scale must be 1\.0: processors\.Guidance.*, got 3\.0$"),
        ({"encoder_no_repeat_ngram_size": 3}, "encoder_no_repeat_ngram_size must be 0"),
        ({"do_sample": True, "num_beams": 2}, "num_beams must be 1 with do_sample=True, got 2"),
        ({"do_sample": "yes"}, "do_sample must be true or false"),
        ({"do_sample": True, "temperature": "hot"}, "temperature must be a number from 0 to inf"),
        ({"do_sample": True, "temperature": 0.0}, r"cannot be used \(temperature must be positive"),
        ({"do_sample": True, "top_p": 0.0}, r"cannot be used \(top_p must be positive"),
        ({"num_beams": 2, "early_stopping": "x"}, r"cannot be used \(early_stopping must be"),
        ({"num_beams": 2.5}, "num_beams must be an integer"),
        ({"num_return_sequences": 2}, r"num_return_sequences must be at most num_beams \(1\)"),
        ({"bad_words_ids": "x"}, "bad_words_ids 'x' cannot be used"),
        ({"sequence_bias": [[1, 2, 3]]}, "sequence_bias .* cannot be used"),
        ({"begin_suppress_tokens": [-1]}, "begin_suppress_tokens .* not negative"),
        ({"repetition_penalty": -1.0}, r"repetition_penalty -1\.0 cannot be used"),
        ({"max_length": 0}, "max_length must be an integer from 1"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_followed_is_named(fields, message, folder_of):
    with pytest.raises(ValueError, match=rf"generation_config\.json.*{message}") as caught:
        load_generation_config(folder_of(fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_time", 30.0, r"max_time 30\.0 is not followed: no text ends after some seconds"),
        ("stop_strings", ["x"], r"stop_strings \['x'\] is not followed: .* sessions .* take stop="),
    ],
)
def test_what_only_ends_a_text_earlier_is_a_warning(name, value, message, folder_of):
    folder = folder_of({name: value, "num_beams": 2})
    with pytest.warns(UserWarning, match=rf"config\.json: {message}"):
        assert load_generation_config(folder) == {"strategy": Beam(2)}


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_generation_config(tmp_path)


def test_the_keys_of_a_gguf_file(tmp_path):
    """llama.cpp has no limit of `top_k` below 1; a file beside the GGUF file is not its own."""
    path = tmp_path / "model.gguf"
    (tmp_path / "generation_config.json").write_text('{"num_beams": 3}')
    keys = {"general.sampling.temp": 0.7, "general.sampling.top_p": 0.8}
    for more, sampler in (
        ({}, Sample(0.7, top_p=0.8)),
        ({"general.sampling.top_k": 20}, Sample(0.7, top_k=20, top_p=0.8)),
        ({"general.sampling.top_k": 0}, Sample(0.7, top_p=0.8)),
        ({"general.sampling.temp": 0.0}, Greedy()),
    ):
        make_gguf(path, lambda name: "Q4_0", also=(keys | more).items())
        assert load_generation_config(path)["strategy"] == sampler
    make_gguf(path, lambda name: "Q4_0")
    assert load_generation_config(path)["strategy"] == Greedy()
    make_gguf(path, lambda name: "Q4_0", also={"general.sampling.top_k": "many"}.items())
    with pytest.raises(ValueError, match=r"model\.gguf: top_k must be an integer .*got 'many'"):
        load_generation_config(path)
