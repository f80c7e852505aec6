"""Large files run in LiteRT's `CompiledModel`, whose signatures share packed weights and caches."""

import sys

import numpy as np
import pytest
from small_exports import QUESTIONS, small_file, small_tokens
from small_writers import LENGTH, ids, written

from keras_tfm import runtime
from keras_tfm.runtime import compiled_model, huge_pages, loaded_file
from keras_tfm.runtime.compiled_model import CompiledSignature


@pytest.fixture(params=["LiteRT's memory", "copies"])
def shared(request, monkeypatch):
    """Files of any size are treated as large ones, with and without the address of a buffer."""
    monkeypatch.setattr(loaded_file, "SHARED_BYTES", 0)
    if request.param == "copies":
        monkeypatch.setattr(compiled_model, "host_memory", lambda buffer, size: None)
    return request.param


def test_answers_are_those_of_keras(shared):
    model = runtime.load(small_file(num_layers=2).path)
    assert all(isinstance(x, CompiledSignature) for x in model.file.runners.values())
    np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's huge pages")
def test_packed_weights_of_a_large_file_are_in_huge_pages(monkeypatch, tmp_path):
    """The names that XNNPACK's delegate gives to its memory are those that are looked for."""
    setting = tmp_path / "enabled"
    setting.write_text("[always] madvise never")
    monkeypatch.setattr(huge_pages, "_SETTING", setting)
    monkeypatch.setattr(loaded_file, "SHARED_BYTES", 0)
    files = [written(), small_file(num_layers=2).path]  # steps, and a loop
    before = huge_pages._mappings()
    models = [runtime.load(path) for path in files]
    np.testing.assert_array_equal(models[1].generate(QUESTIONS).tokens, small_tokens(num_layers=2))
    assert huge_pages._mappings() == before
    monkeypatch.setattr(huge_pages, "_move", lambda mapping, others: None)
    models = [runtime.load(path) for path in files]
    assert len(huge_pages._mappings()) > len(before) + 1


def test_a_run_of_prefill_leaves_the_caches_of_a_session(shared):
    model = runtime.load(written())
    session, alone = model.session(), model.session()
    tokens = []
    alone.append(ids(30))
    expected = alone.generate(5).tokens.tolist()
    session.append(ids(30))
    name = next(x for x in model.file.signatures if x.startswith("prefill"))
    spec = model.file.signatures[name].inputs
    for _ in expected:
        tokens.extend(session.generate(1).tokens.tolist())
        model.run(name, {key: np.ones(x.shape, x.dtype) for key, x in spec.items()})
    assert tokens == expected


def test_steps_of_one_capacity_have_the_same_caches(shared):
    file = runtime.load(written()).file
    names = [name for name, x in file.signatures.items() if x.capacity == LENGTH]
    assert {file.signatures[name].role for name in names} == {"prefill", "decode"}
    first, *others = (file.buffers(name).inputs for name in names)
    caches = file.signatures[names[0]].of_kind("cache")
    assert len(caches) == 5  # keys and values of two layers, and a mask
    for inputs in others:
        assert {key for key, x in inputs.items() if x is first[key]} == set(caches)


def test_two_sessions_of_one_file_in_turns(shared):
    """Each writes its own entries to the caches that both use."""
    model = runtime.load(written())
    prompts, alone = (ids(130), ids(9)), []
    for prompt in prompts:
        session = model.session()
        session.append(prompt)
        alone.append(session.generate(6).tokens.tolist())
    sessions = [model.session() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.append(prompt)
    found = [[], []]
    for _ in range(6):
        for session, tokens in zip(sessions, found, strict=True):
            tokens.extend(session.generate(1).tokens.tolist())
    assert found == alone


def test_arrays_live_as_long_as_they_are_held(shared):
    model = runtime.load(written())
    name = next(x for x in model.file.signatures if x.startswith("decode"))
    array = next(iter(model.file.buffers(name).inputs.values()))
    array[...] = 1
    model.close()
    del model
    np.testing.assert_array_equal(array, np.ones_like(array))
