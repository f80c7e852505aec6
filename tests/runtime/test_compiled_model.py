"""Large files run in LiteRT's `CompiledModel`, whose signatures share packed weights and caches."""

import os
import sys
import weakref

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


@pytest.mark.parametrize("memory_files", [True, False])
def test_packed_weights_without_a_file_in_memory(shared, monkeypatch, memory_files):
    """On other systems XNNPACK builds its own cache; the answers are the same."""
    if not memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    used = []
    compile_file = loaded_file.compile_file
    monkeypatch.setattr(
        loaded_file, "compile_file", lambda *x: used.append(x[-1]) or compile_file(*x)
    )
    model = runtime.load(small_file(num_layers=2).path)
    np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))
    if memory_files and sys.platform == "linux":
        assert len(used) == 2 and len(set(used)) == 1  # the first packs, the second reads
    else:
        assert used == [compiled_model.IN_MEMORY]


@pytest.mark.default
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


def caches_of(model):
    """The KV caches in LiteRT's buffers: from name and number of columns to array."""
    signatures = model.file.runners.values()
    (caches,) = {id(x._caches): x._caches for x in signatures}.values()
    axes = next(x for x in model.file.signatures.values() if x.role == "decode").column_axes
    return {(key, shape[axes[key]]): x.array for (key, shape, _), x in caches.arrays.items()}


def test_the_entries_of_a_session_are_the_buffers(shared):
    """Each number is in memory once, and the caches of shorter texts are freed."""
    model = runtime.load(written())
    session = model.session()
    session.append(ids(40))
    session.generate(3)
    short = caches_of(model)
    assert {columns for _, columns in short} == {128}
    entries = session._steps.entries
    assert len(entries) == len(short) == 5
    assert all(entries[key] is x for (key, _), x in short.items())
    before = {key: x[..., :40, :].copy() for (key, _), x in short.items() if x.ndim == 4}
    session.append(ids(100))
    session.generate(1)
    long = caches_of(model)
    assert {columns for _, columns in long} == {LENGTH}
    entries = session._steps.entries
    assert all(entries[key] is x for (key, _), x in long.items())
    for key, x in before.items():
        np.testing.assert_array_equal(long[key, LENGTH][..., :40, :], x)


def test_longer_caches_replace_shorter_ones_one_by_one(shared, monkeypatch):
    """So a text that grows never needs the memory of both."""
    arrays, alive = [], []
    create = CompiledSignature._create

    def created(self, key, x):
        result = create(self, key, x)
        if x.kind == "cache":
            arrays.append(weakref.ref(result.array))
            alive.append(sum(x() is not None for x in arrays))
        return result

    monkeypatch.setattr(CompiledSignature, "_create", created)
    session = runtime.load(written()).session()
    session.append(ids(40))
    session.generate(3)
    assert alive == [1, 2, 3, 4, 5]
    session.append(ids(100))  # read in chunks, and by other signatures
    session.generate(1)
    assert len(alive) == 10 and max(alive) == 6
    assert sum(x() is not None for x in arrays) == 5


@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_error_while_caches_are_replaced_leaves_a_session_as_it_is(shared, monkeypatch, count):
    """The entries that are in LiteRT's buffers by then are copied before others use these."""
    create, left = CompiledSignature._create, [99]

    def created(self, key, x):
        left[0] -= x.kind == "cache"
        if left[0] < 0:
            raise MemoryError
        return create(self, key, x)

    model = runtime.load(written())
    alone, session, long, short = (model.session() for _ in range(4))
    for x in (alone, session):
        x.append(ids(110))
    expected = alone.generate(5).tokens.tolist()
    long.append(ids(150, seed=2))
    long.generate(1)  # the caches of 128 columns are freed
    monkeypatch.setattr(CompiledSignature, "_create", created)
    left[0] = count
    with pytest.raises(MemoryError):
        session.generate(5)
    left[0] = 99
    short.append(ids(50, seed=3))
    short.generate(2)
    assert session.generate(5).tokens.tolist() == expected


def test_a_session_returns_to_shorter_caches(shared):
    model = runtime.load(written())
    session, other = model.session(), model.session()
    session.append(ids(150))
    session.generate(2)
    session.rewind(len(session) - 30)
    session.append(ids(5, seed=1))
    other.append([*ids(30), *ids(5, seed=1)])
    assert {columns for _, columns in caches_of(model)} == {128}
    assert session.generate(6).tokens.tolist() == other.generate(6).tokens.tolist()


def test_what_another_user_overwrites_is_kept(shared, tmp_path):
    """A stream takes the buffers of a session; its forks, a saved copy and itself continue."""
    model, prompt = runtime.load(written()), ids(70)
    alone = model.session()
    alone.append(prompt)
    expected = alone.generate(8).tokens.tolist()
    session = model.session()
    session.append(prompt)
    tokens = session.generate(2).tokens.tolist()
    fork = session.fork()
    list(zip(model.stream([ids(90, seed=3)]), range(4), strict=False))
    session.save(tmp_path / "saved.npz")
    restored = model.session(restore=tmp_path / "saved.npz")
    for x in (session, fork, restored):
        assert tokens + x.generate(6).tokens.tolist() == expected


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
