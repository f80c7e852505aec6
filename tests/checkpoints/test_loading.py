"""Loading as such: one copy of the weights, no random ones, and files that change meanwhile."""

import json
import os
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
from compare import to_numpy
from keras_weights import randomize
from small_checkpoints import encoded
from traced_memory import at_most

from keras_tfm import keras_internals, models
from keras_tfm.checkpoints import huggingface, load_huggingface, save_huggingface
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import contiguous
from keras_tfm.checkpoints.tensors import TensorKind, Tensors, write_tensors
from keras_tfm.generation import generate
from keras_tfm.layers import Routing
from keras_tfm.layers.embeddings.lookup import is_traced

SINGLE = "model.safetensors"
SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 11, "max_length": 7}


def half(x):
    return x.astype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A Llama of 13 ids with an output of its own, in float32, and its tensors."""
    folder = tmp_path_factory.mktemp("llama")
    save_huggingface(randomize(models.llama(13, **SMALL, tie_output=False)), folder)
    tensors = Tensors(folder)
    return folder, {name: tensors.array(name) for name in tensors}


@pytest.fixture
def folder(saved, tmp_path):
    """The same folder in bfloat16."""
    (tmp_path / "config.json").write_bytes((saved[0] / "config.json").read_bytes())
    # ml_dtypes' arrays are written as the integers of their bits.
    tensors = {name: half(x).view("uint16") for name, x in saved[1].items()}
    (tmp_path / SINGLE).write_bytes(encoded(tensors))
    return tmp_path


# Values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "mixed_bfloat16"])
def test_each_weight_is_the_rounded_tensor(dtype, folder, saved):
    """Of every kind: a table, fused and transposed kernels, norms, an output of its own."""
    x = {name: half(value).astype("float32") for name, value in saved[1].items()}
    weights = {w.path: w for w in load_huggingface(folder, dtype=dtype).weights}
    stored = "float32" if dtype == "mixed_bfloat16" else dtype
    layer, block = "model.layers.1.", "decoder_1/"
    parts = (f"self_attn.{part}_proj" for part in "qkv")
    fused = np.concatenate([x[f"{layer}{part}.weight"].T for part in parts], axis=1)
    wanted = {
        "embedding/embeddings": x["model.embed_tokens.weight"],
        "output/kernel": x["lm_head.weight"].T,
        f"{block}self_attention/query_key_value/kernel": fused,
        f"{block}feed_forward/outer/kernel": x[f"{layer}mlp.down_proj.weight"].T,
        f"{block}feed_forward_residual/norm/scale": x[f"{layer}post_attention_layernorm.weight"],
    }
    for name, value in wanted.items():
        weight = weights[name]
        if not name.endswith("scale"):  # norms stay in float32
            assert weight.dtype == stored
        rounded = value.astype("float16") if weight.dtype == "float16" else value
        np.testing.assert_array_equal(to_numpy(keras.ops.cast(weight, "float32")), rounded)


def test_a_norm_of_one_and_the_tensor_is_added_in_float32(tmp_path):
    """Gemma's scale is 1 + w: in bfloat16 the sum would have two decimal places."""
    save_huggingface(randomize(models.gemma(13, **SMALL)), tmp_path)
    tensors = Tensors(tmp_path)
    arrays = {name: half(tensors.array(name)) for name in tensors}
    (tmp_path / SINGLE).write_bytes(encoded({k: x.view("uint16") for k, x in arrays.items()}))
    weights = {w.path: w for w in load_huggingface(tmp_path).weights}
    wanted = 1 + arrays["model.norm.weight"].astype("float32")
    np.testing.assert_array_equal(to_numpy(weights["decoder_norm/scale"]), wanted)
    assert (wanted != half(wanted)).any()


def test_tensors_of_several_dtypes_become_one_weight(folder, saved):
    name = "model.layers.0.self_attn.k_proj.weight"
    arrays = {key: x.astype("float16") for key, x in saved[1].items()}
    arrays[name] = half(saved[1][name]).view("uint16")
    (folder / SINGLE).write_bytes(encoded(arrays))
    weights = {w.path: w for w in load_huggingface(folder).weights}
    kernel = to_numpy(weights["decoder_0/self_attention/query_key_value/kernel"])
    np.testing.assert_array_equal(kernel[:, 8:16], half(saved[1][name]).astype("float32").T)


@pytest.mark.parametrize("shape", [(600, 300), (1, 700), (257, 256)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transposed_matrix_is_copied_in_tiles(shape, dtype):
    x = half(np.random.default_rng(0).normal(size=shape))
    found = contiguous(x.T, dtype)
    assert found.flags.c_contiguous and found.dtype.name == dtype
    np.testing.assert_array_equal(found.astype("float32"), x.T.astype("float32"))


# Random values and memory


def test_no_random_value_is_drawn(folder, monkeypatch):
    """Initializers run when a model is built by hand, and not when it is loaded."""
    drawn = []
    for kind in (keras.initializers.RandomNormal, keras.initializers.GlorotUniform):

        def call(self, *args, _call=kind.__call__, **kwargs):
            value = _call(self, *args, **kwargs)
            drawn.extend([] if is_traced(value) else [tuple(value.shape)])
            return value

        monkeypatch.setattr(kind, "__call__", call)
    model = load_huggingface(folder, attention_dropout=0.1)
    assert not drawn
    models.llama(13, **SMALL, tie_output=False)
    assert (13, 8) in drawn and len(drawn) > 5
    # Seeds of dropout are no weights of the file: they are drawn.
    assert len(model.variables) > len(model.weights)
    ids = np.array([[3, 4, 5, 6]])
    first, second = (to_numpy(model(ids, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_a_loaded_model_has_the_state_of_one_that_was_built(folder):
    """Names, trainability and PyTorch's parameters."""
    built, loaded = models.llama(13, **SMALL, tie_output=False), load_huggingface(folder)
    assert [x.path for x in loaded.variables] == [x.path for x in built.variables]
    assert [x.trainable for x in loaded.weights] == [x.trainable for x in built.weights]
    if keras.backend.backend() == "torch":
        assert list(loaded.state_dict()) == list(built.state_dict())


# Not `ru_maxrss`: after fork and exec it is at least the memory of the parent.
PEAK = """
import sys
from keras_tfm import checkpoints
def bytes_of(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(x for x in lines if x.startswith(name)).split()[1]) * 1024
checkpoints.load_huggingface(sys.argv[3], dtype=sys.argv[2])  # what is needed once
before = bytes_of("VmRSS")
model = checkpoints.load_huggingface(sys.argv[1], dtype=sys.argv[2])
print(bytes_of("VmHWM") - before, sum(x.shape.num_elements() for x in model.weights))
"""


def peak(folder, dtype, small):
    """The bytes that loading a folder adds to a process that loaded another, by parameter."""
    command = [sys.executable, "-c", PEAK, str(folder), dtype, str(small)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    added, count = map(int, run.stdout.split())
    return added / count


def write_random(folder, vocabulary_size, dim, num_layers, intermediate_dim):
    """A folder of a Llama in bfloat16, written tensor by tensor."""
    sizes = {"num_layers": num_layers, "intermediate_dim": intermediate_dim}
    small = models.llama(
        13, dim=16, num_heads=dim // 64, num_layers=num_layers, intermediate_dim=11, head_dim=64,
        tie_output=True,
    )  # fmt: skip
    save_huggingface(small, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": vocabulary_size, "hidden_size": dim}
    config["intermediate_size"] = intermediate_dim
    (folder / "config.json").write_text(json.dumps(config))
    assert config["num_hidden_layers"] == sizes["num_layers"]
    replace = {13: vocabulary_size, 16: dim, 11: intermediate_dim}
    tensors = Tensors(folder)
    shapes = {x: [replace.get(n, n) for n in tensors[x].shape] for x in tensors}
    noise = np.random.default_rng(0).normal(size=2**20).astype("float32") * 0.02
    bits = half(noise).view("uint16")
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (folder / SINGLE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            np.resize(bits, shape).tofile(file)
    return folder


@pytest.mark.skipif(
    sys.platform != "linux" or keras.backend.backend() != "tensorflow", reason="of one system"
)
@pytest.mark.parametrize(
    "sizes",
    [(8192, 512, 12, 2048), pytest.param((49152, 1024, 12, 4096), marks=pytest.mark.slow)],
    ids=["100 MB", "500 MB"],
)
@pytest.mark.parametrize(
    ("dtype", "size"), [pytest.param("float32", 4, marks=pytest.mark.slow), ("bfloat16", 2)]
)
def test_loading_holds_one_copy_of_the_weights(dtype, size, sizes, tmp_path):
    """The variables, and beside them a tensor and its conversion, not the model or the file."""
    small = write_random(tmp_path / "small", 13, 64, 1, 11)
    assert peak(write_random(tmp_path / "large", *sizes), dtype, small) < 1.3 * size


# Files that change, and others


def at_second_read(monkeypatch, change):
    """Runs `change` before the second tensor is read."""
    read, count = Tensors.array, []

    def array(self, name):
        count.append(name)
        if len(count) == 2:
            change()
        return read(self, name)

    monkeypatch.setattr(Tensors, "array", array)


def rewrite(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))


def replace(file):
    new = file.with_name("new")
    new.write_bytes(file.read_bytes())
    status = file.stat()
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(file)


@pytest.mark.parametrize(
    "change",
    [
        rewrite,
        replace,
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 700),
        lambda file: os.truncate(file, 70_000),
    ],
    ids=["rewritten", "replaced", "removed", "truncated", "longer"],
)
def test_a_file_that_changes_while_it_is_read_is_refused(change, folder, monkeypatch):
    at_second_read(monkeypatch, lambda: change(folder / SINGLE))
    with pytest.raises(ValueError, match=r"model.safetensors was changed while it was") as error:
        load_huggingface(folder)
    assert "\n" not in str(error.value)


def test_a_shard_that_disappears_is_refused(folder, saved, monkeypatch):
    (folder / SINGLE).unlink()
    index = {"weight_map": {}}
    for i, name in enumerate(saved[1]):
        file = f"model-{i % 2}.safetensors"
        index["weight_map"][name] = file
    for file in set(index["weight_map"].values()):
        part = {k: saved[1][k] for k, at in index["weight_map"].items() if at == file}
        (folder / file).write_bytes(encoded(part))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    load_huggingface(folder)
    at_second_read(monkeypatch, (folder / "model-1.safetensors").unlink)
    with pytest.raises(ValueError, match=r"model-1.safetensors was changed while it was read"):
        load_huggingface(folder)


def test_files_are_read_without_memory_maps(folder, monkeypatch):
    """Some file systems have none."""
    import mmap

    def refuse(*args, **kwargs):
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr(np, "memmap", refuse)
    monkeypatch.setitem(sys.modules, "safetensors", None)  # whose files are mapped
    model = load_huggingface(folder)
    save_huggingface(model, folder / "again")
    for x, y in zip(model.weights, load_huggingface(folder / "again").weights, strict=True):
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


def test_too_little_memory_is_said_before_the_first_tensor_is_read(folder, monkeypatch):
    asked, reads = [], []
    monkeypatch.setattr(Named, "read", lambda self, entry: reads.append(entry))

    def refuse(action, needed):
        asked.append((action, needed))
        raise MemoryError("no")

    monkeypatch.setattr(huggingface, "check_memory", refuse)
    with pytest.raises(MemoryError, match="no"):
        load_huggingface(folder, dtype="bfloat16")
    ((action, needed),) = asked
    assert action == f"loading {folder}" and not reads
    monkeypatch.undo()
    weights = load_huggingface(folder, dtype="bfloat16").weights
    # Norms have four bytes a parameter.
    sizes = {"bfloat16": 2, "float32": 4}
    assert needed == sum(sizes[x.dtype] * int(np.prod(x.shape)) for x in weights)


# Large weights that stay in the files


@pytest.fixture
def large(tmp_path):
    """A folder whose table and kernels are large, but for a fused one of two groups of heads."""
    model = randomize(models.llama(701, dim=256, num_layers=2, num_heads=4, intermediate_dim=512))
    save_huggingface(model, tmp_path)
    return tmp_path


def test_large_weights_stay_in_the_files(large):
    model = load_huggingface(large, lazy=True)
    whole = load_huggingface(large)
    for x, y in zip(model.weights, whole.weights, strict=True):
        assert keras_internals.is_initialized(x) == (np.prod(x.shape) < 1 << 16), x.path
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))
        assert keras_internals.is_initialized(x) == (np.prod(x.shape) < 1 << 16), x.path
    ids = np.array([[3, 4, 5], [700, 1, 2]])
    np.testing.assert_allclose(to_numpy(model(ids)), to_numpy(whole(ids)), 1e-5, 1e-5)
    assert model.count_params() == whole.count_params()


def test_a_lazy_model_is_resized_and_generates(large):
    ids = np.array([[3, 4, 5]])
    options = {"vocabulary_size": 709, "max_length": 12}
    with pytest.warns(UserWarning, match="vocabulary_size is 709 instead of 701"):
        resized, whole = (load_huggingface(large, lazy=x, **options) for x in (True, False))
    assert resized(ids).shape == (1, 3, 709)
    np.testing.assert_allclose(to_numpy(resized(ids)), to_numpy(whole(ids)), 1e-5, 1e-5)
    lazy, whole = (load_huggingface(large, lazy=x) for x in (True, False))
    tokens = [generate(x, ids, max_length=9, end_id=None).tokens for x in (lazy, whole)]
    np.testing.assert_array_equal(*map(to_numpy, tokens))
    assert all(map(keras_internals.is_initialized, lazy.weights))


def test_a_lazy_model_is_trained(large):
    """`compile` and `set_weights` load it."""
    model, whole = (load_huggingface(large, lazy=x) for x in (True, False))
    ids = np.array([[3, 4, 5]])
    for x in (model, whole):
        x.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x.fit(ids, ids, verbose=0)
    for x, y in zip(model.weights, whole.weights, strict=True):
        np.testing.assert_allclose(to_numpy(x), to_numpy(y), 1e-5, 1e-6)
    again = load_huggingface(large, lazy=True)
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(again.weights[0]), to_numpy(model.weights[0]))


@pytest.mark.parametrize(
    "change", [rewrite, lambda file: file.unlink(), lambda file: os.truncate(file, 700)]
)
def test_a_file_that_changes_before_a_weight_is_used(change, large):
    model = load_huggingface(large, lazy=True)
    change(large / SINGLE)
    with pytest.raises(ValueError, match=r"model.safetensors was changed while it was") as error:
        to_numpy(model.weights[0])
    assert "\n" not in str(error.value)


MUTATIONS = [b"0", b"9", b"-", b'"', b"[", b"]", b"{", b"}", b",", b":", b" ", b"F", b"e", b"."]


def test_the_same_files_are_read_as_by_safetensors(folder):
    """Headers with one other byte: what one refuses, the other refuses."""
    safetensors = pytest.importorskip("safetensors")
    arrays = {
        "a": np.zeros((2, 3), "float32"),
        "b": np.ones(5, "int64"),
        "c": np.zeros(0, "float16"),
    }
    content = encoded(arrays)
    length = int.from_bytes(content[:8], "little")
    rng, file, accepted = np.random.default_rng(0), folder / SINGLE, 0
    for _ in range(400):
        i, byte = rng.integers(0, 8 + length), MUTATIONS[rng.integers(len(MUTATIONS))]
        file.write_bytes(content[:i] + byte + content[i + 1 :])
        try:
            with safetensors.safe_open(file, framework="numpy") as opened:
                theirs = set(opened.keys())
        except (safetensors.SafetensorError, OSError):
            theirs = None
        try:
            ours = set(Tensors(folder))
        except ValueError:
            ours = None
        assert ours == theirs, file.read_bytes()[8 : 8 + length]
        accepted += ours is not None
    assert accepted > 10  # names, for example


# Written files


KINDS = {
    "count": TensorKind(np.dtype("int64"), ()),
    "empty": TensorKind(np.dtype("float32"), (0, 3)),
    "x": TensorKind(np.dtype("float32"), (2, 3)),
}
ARRAYS = {
    "count": np.array(7),
    "empty": np.zeros((0, 3), "float32"),
    "x": np.arange(6, dtype="float32").reshape(3, 2).T,
}


def test_safetensors_reads_what_is_written(tmp_path):
    write_tensors(tmp_path / SINGLE, KINDS, ARRAYS.items())
    found = pytest.importorskip("safetensors.numpy").load_file(tmp_path / SINGLE)
    assert list(found) == sorted(KINDS)
    for name, x in ARRAYS.items():
        np.testing.assert_array_equal(found[name], x, strict=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, 2), "float32")}, r"expected x, float32 \(2, 3\), got x, .* \(3, 2\)"),
        ({"x": np.zeros((2, 3))}, r"expected x, float32 \(2, 3\), got x, float64"),
        ({"y": np.zeros(3)}, "is longer"),
    ],
    ids=["shape", "dtype", "more"],
)
def test_arrays_that_were_not_announced_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_tensors(tmp_path / SINGLE, KINDS, {**ARRAYS, **change}.items())


def test_saving_holds_one_weight_beside_the_model(tmp_path):
    """Not all tensors, as NumPy arrays and as bytes."""
    model = models.llama(8192, dim=64, num_layers=8, num_heads=2, intermediate_dim=4096)
    entries = huggingface.FAMILIES["llama"].entries(model)
    sizes = [4 * int(np.prod(x.shape)) for x in model.weights]
    largest, total = max(sizes), sum(sizes)
    with at_most(largest * 4):
        count = sum(x.nbytes for _, x in huggingface.save_entries(entries))
    assert count == total > 8 * largest


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of the size of files")
def test_a_disk_that_fills_leaves_the_folder_as_it_was(folder):
    import resource

    model = load_huggingface(folder)
    before = {x.name: x.read_bytes() for x in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[SINGLE]) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            save_huggingface(model, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert {x.name: x.read_bytes() for x in folder.iterdir()} == before


def test_an_error_lists_the_first_tensors_of_many(tmp_path):
    experts = models.Experts(Routing(24, 2))
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 4}
    save_huggingface(models.llama(11, **sizes, experts=experts), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 48}))
    with pytest.raises(ValueError, match=r"experts\.24\.w1\.weight \(4, 8\), .* and 32 more; of"):
        load_huggingface(tmp_path)
