"""LoRA adapters beside one base file, against Keras's merged models."""

import json
import pickle
import re
import sys

import keras
import numpy as np
import pytest
from small_exports import small_file
from traced_memory import at_most

from keras_tfm import cli, models, runtime
from keras_tfm.export import export_tflite, save_adapter, verify
from keras_tfm.export.graph.adapters import adapted_layers
from keras_tfm.export.quantization.precision import in_float32
from keras_tfm.export.verification.float_file import FloatFile, Stored
from keras_tfm.generation import generate
from keras_tfm.layers.base_layer import Projection
from keras_tfm.runtime import adapters, flatbuffer

RANK, ALPHA, LENGTH, PROMPT = 5, 7.0, 19, 7
SIZE = {"dim": 64, "num_layers": 2, "num_heads": 4, "intermediate_dim": 96}
SEEDS = (1, 2)


def noise(variables, size, seed):
    generator = np.random.default_rng(seed)
    for x in variables:
        if "float" in x.dtype:
            x.assign_add(keras.ops.cast(size * generator.normal(size=x.shape), x.dtype))


def decoder(rank=RANK, names=None, seed=0, dtype="float32"):
    """A decoder with grouped queries and a fused projection, and adapters without effect."""
    keras.utils.set_random_seed(seed)
    model = models.llama(
        61, **SIZE, num_key_value_heads=2, max_length=LENGTH, dtype=dtype, name="base"
    )
    noise(model.weights, 0.1, seed)
    models.enable_lora(model, rank, ALPHA, names)
    return model


def train(model, seed, size=0.02):
    """In place of a training: other values of A and B."""
    for layer in adapted_layers(model).values():
        generator = np.random.default_rng([seed, *layer.path.encode()])
        layer.lora_kernel_a.assign(generator.normal(size=layer.lora_kernel_a.shape))
        layer.lora_kernel_b.assign(generator.normal(0, size, layer.lora_kernel_b.shape))


def rows(count, length):
    return np.random.default_rng(4).integers(1, 61, (count, length)).astype("int32")


def logits(file):
    return file.predict(rows(3, PROMPT))["output"]


def merged(model):
    return keras.ops.convert_to_numpy(model(rows(3, PROMPT)))


@pytest.fixture(scope="module")
def model():
    return decoder()


@pytest.fixture(scope="module")
def base(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "base.tflite"
    report = export_tflite(
        model,
        path,
        ["predict", "generate", "prefill", "decode"],
        source_length=PROMPT,
        prompt_length=PROMPT,
        max_length=LENGTH,
        separate_adapters=True,
    )
    # Verified with random adapters, because those before a training have no effect.
    assert len(report.verification.checks) == 4
    assert not any(np.any(x.lora_kernel_b) for x in adapted_layers(model).values())
    return path


@pytest.fixture(scope="module")
def files(model, base):
    """Two adapters, and what Keras's merged models return."""
    found = []
    for seed in SEEDS:
        train(model, seed)
        path = save_adapter(model, base.with_name(f"{seed}.npz"))
        tokens = generate(model, rows(2, PROMPT), LENGTH).tokens
        found.append((path, merged(model), np.asarray(tokens)))
    assert np.abs(found[0][1] - found[1][1]).max() > 0.1
    return found


def test_two_adapters_on_one_base_file_equal_merged_models(base, files):
    before = base.read_bytes()
    for path, wanted, tokens in files:
        file = runtime.load(base, adapter=path)
        np.testing.assert_allclose(logits(file), wanted, atol=1e-5, rtol=1e-5)
        for row, expected in zip(rows(2, PROMPT), tokens, strict=True):
            np.testing.assert_array_equal(file.generate([row]).tokens[0], expected)
            session = file.session()
            session.append(row)
            session.generate(max_tokens=LENGTH - PROMPT)
            np.testing.assert_array_equal(session.tokens, expected)
    assert base.read_bytes() == before


def test_without_an_adapter_the_file_is_the_base(model, base, files):
    plain = decoder()  # B = 0
    np.testing.assert_allclose(logits(runtime.load(base)), merged(plain), atol=1e-5, rtol=1e-5)
    assert np.abs(merged(plain) - files[0][1]).max() > 0.1


def test_smaller_rank_and_some_layers(base, tmp_path):
    other = decoder(2, ("query_key_value",))
    train(other, 3)
    path = save_adapter(other, tmp_path / "small")
    file = runtime.load(base, adapter=path)
    np.testing.assert_allclose(logits(file), merged(other), atol=1e-5, rtol=1e-5)
    assert np.abs(merged(other) - merged(decoder())).max() > 0.05


def test_an_adapter_is_small(model, base, files):
    layers = adapted_layers(model)
    assert len(layers) == 8
    floats = sum(sum(x.kernel.shape) * RANK for x in layers.values())
    header = len(json.dumps(dict.fromkeys(layers, ALPHA))) + 150
    # A zip archive and NumPy's headers take at most 500 bytes an array.
    size = files[0][0].stat().st_size
    assert 4 * floats < size < 4 * floats + header + 500 * (2 * len(layers) + 1)


def test_the_command_takes_an_adapter(base, files, monkeypatch, capsys):
    row = ",".join(map(str, rows(2, PROMPT)[0]))
    for path, _, tokens in files:
        command = ["keras-tfm", "generate", str(base), row, "--ids", "--adapter", str(path)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit):
            cli.main()
        assert capsys.readouterr().out.strip() == ",".join(map(str, tokens[0]))


def test_weight_cache_pickle_and_saved_session(base, files, tmp_path):
    for path, wanted, _ in files:
        file = runtime.load(base, adapter=path, weight_cache=tmp_path / "cache")
        np.testing.assert_allclose(logits(file), wanted, atol=1e-5, rtol=1e-5)
        copy = pickle.loads(pickle.dumps(runtime.load(base, adapter=path)))
        np.testing.assert_allclose(logits(copy), wanted, atol=1e-5, rtol=1e-5)
    assert len(list((tmp_path / "cache").glob("*.xnnpack"))) == 2
    first, second = (runtime.load(base, adapter=path) for path, *_ in files)
    session = first.session()
    session.append([3, 4])
    session.save(tmp_path / "session")
    assert len(first.session(restore=tmp_path / "session")) == 2
    with pytest.raises(ValueError, match="saved with another file"):
        second.session(restore=tmp_path / "session")


def test_verify_with_an_adapter(model, base, files):
    train(model, SEEDS[1])
    assert not verify(model, base, adapter=files[1][0]).failures
    with pytest.raises(ValueError, match="the file differs from base"):
        verify(model, base, adapter=files[0][0])


def test_the_command_verifies_with_an_adapter(model, base, files, tmp_path, monkeypatch, capsys):
    """Keras saves a model with its adapters merged into the kernels."""
    train(model, SEEDS[1])
    model.save(tmp_path / "adapted.keras")
    command = ["keras-tfm", "verify", str(tmp_path / "adapted.keras"), str(base)]

    def code(*options):
        monkeypatch.setattr(sys, "argv", [*command, *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().err

    assert code("--adapter", files[1][0])[0] == 0
    for options in ([], ["--adapter", files[0][0]]):
        ended, said = code(*options)
        assert ended == 3 and "differs from base" in said
    ended, said = code("--adapter", tmp_path / "absent.npz")
    assert ended == 1 and "absent.npz" in said and len(said.strip().splitlines()) == 1


def round_as(path, model):
    """Rounds the matrices of a model, except A and B, as a file does."""
    stored = [x for x in FloatFile(path.read_bytes()).stored.values() if x.values.ndim == 2]
    turned = [Stored.of(x.values.T, x.step.T) for x in stored]
    matrices = [x for x in model.weights if len(x.shape) == 2 and "lora" not in x.name]
    for weight in matrices:
        kernel = keras.ops.convert_to_numpy(weight)
        whole = any(x.values.shape == kernel.shape for x in stored + turned)
        # The halves of a gated network's kernel are stored apart.
        parts = np.split(kernel, 1 if whole else 2, axis=1)
        for i, part in enumerate(parts):
            fitting = [x for x in stored + turned if x.values.shape == part.shape]
            found = min(fitting, key=lambda x, y=part: np.abs(x.values - y).max())
            error = np.abs(found.values - part)
            assert np.all(error <= 0.51 * found.step + 1e-6), weight.path
            parts[i] = found.values
        weight.assign(np.concatenate(parts, axis=1))
    assert len(matrices) > 8


@pytest.mark.parametrize(
    "preset",
    ["int8", *(pytest.param(x, marks=pytest.mark.slow) for x in ("float16", "int4"))],
)
def test_quantized_base(preset, tmp_path):
    model = decoder()
    train(model, 1, 0.06)
    path = tmp_path / "base.tflite"
    export_tflite(model, path, None, preset, source_length=PROMPT, separate_adapters=True)
    adapter = save_adapter(model, tmp_path / "adapter")
    content = flatbuffer.read(path.read_bytes())
    weights = flatbuffer.float_weights(content)
    places = runtime.load(path).manifest["adapters"]["layers"].values()
    apart = [number for x in places for number in (*x["a"], *x["b"])]
    assert set(apart) <= set(weights)  # float32
    assert not any(np.any(weights[number]) for number in apart)
    rounding = {number for number in weights if weights[number].size >= 64 * 64}
    assert not rounding - set(apart)  # all other matrices are rounded
    round_as(path, model)
    wanted = merged(model)

    def error(file):
        return np.sqrt(np.mean((logits(file) - wanted) ** 2) / np.mean(wanted**2))

    # int8 and int4 round activations to 8 bits; float16 computes in float32.
    allowed = 1e-5 if preset == "float16" else 0.03
    assert error(runtime.load(path, adapter=adapter)) < allowed
    assert error(runtime.load(path)) > 0.8


def test_mixed_precision_and_encoder_decoder(tmp_path):
    model = models.transformer(
        23, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, dtype="mixed_bfloat16"
    )
    noise(model.weights, 0.2, 5)
    models.enable_lora(model, 3)
    path = tmp_path / "base.tflite"
    size = {"source_length": 6, "max_length": 5, "start_id": 1}
    export_tflite(model, path, ["generate"], separate_adapters=True, verify=False, **size)
    noise([x for x in model.weights if "lora" in x.name], 0.1, 6)
    full = in_float32(model)
    assert [x.name for x in in_float32(model, merge_adapters=False).weights] == [
        x.name for x in model.weights
    ]
    adapter = save_adapter(model, tmp_path / "adapter")
    assert not verify(model, path, adapter=adapter).failures
    source = rows(2, 6) % 23
    wanted = np.asarray(generate(full, source, 5, start_id=1).tokens)
    file = runtime.load(path, adapter=adapter)
    np.testing.assert_array_equal(file.generate(source).tokens, wanted)


def test_a_shared_block_has_one_adapter(tmp_path):
    model = models.albert(
        23, dim=8, num_layers=3, num_heads=2, intermediate_dim=16, max_length=6, embedding_dim=4
    )
    noise(model.weights, 0.2, 7)
    models.enable_lora(model, 2)
    path = tmp_path / "albert.tflite"
    export_tflite(model, path, source_length=6, separate_adapters=True)
    noise([x for x in model.weights if "lora" in x.name], 0.1, 8)
    assert not verify(model, path, adapter=save_adapter(model, tmp_path / "adapter")).failures


@pytest.mark.parametrize("bias", [True, False])
def test_columns_of_a_projection(bias):
    layer, x = Projection(7, use_bias=bias), np.random.default_rng(0).normal(size=(2, 3, 5))
    layer.build(x.shape)
    layer.enable_lora(2, lora_alpha=2)
    noise(layer.weights, 1.0, 9)
    x = x.astype("float32")
    wanted = keras.ops.convert_to_numpy(layer(x))
    for start, stop in ((0, 3), (3, 4), (4, None)):
        found = layer.columns(x, start, stop)
        np.testing.assert_allclose(found, wanted[..., start:stop], atol=1e-5)


def changed(path, to, **changes):
    """A copy of an adapter with other contents of its first layer."""
    adapter = adapters.read(path)
    name = next(iter(adapter.layers))
    adapters.write(
        to, adapter.base, {**adapter.layers, name: adapter.layers[name]._replace(**changes)}
    )
    return to


def test_adapters_that_do_not_fit(base, files, tmp_path):
    path = files[0][0]

    def refused(adapter, words, kind=ValueError):
        with pytest.raises(kind, match=words) as caught:
            runtime.load(base, adapter=adapter)
        assert "\n" not in str(caught.value)

    other = decoder(seed=1)
    refused(save_adapter(other, tmp_path / "base"), "adapter of another base than .*fingerprint")
    refused(
        save_adapter(decoder(RANK + 1), tmp_path / "rank"),
        f"exported for adapters of rank {RANK} at most in .*has rank {RANK + 1}",
    )
    adapter = adapters.read(path)
    layer = next(iter(adapter.layers.values()))
    adapters.write(tmp_path / "layer", adapter.base, {"elsewhere/query": layer})
    refused(tmp_path / "layer", "has no adapter in 'elsewhere/query'")
    wide = np.zeros((RANK, 3), "float32")
    refused(changed(path, tmp_path / "wide", b=wide), "must adapt a kernel")
    for b in (layer.b[1:], layer.b.astype("float64"), layer.b * np.nan, layer.b[0]):
        refused(changed(path, tmp_path / "matrix", b=b), "is damaged: .*finite float32 matrices")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    refused(tmp_path / "damaged", "not an adapter file, or damaged")
    (tmp_path / "short").write_bytes(content[:1000])
    refused(tmp_path / "short", "not an adapter file, or damaged")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    refused(tmp_path / "other.npz", "not an adapter file, or damaged")
    refused(tmp_path / "none", "no such file", FileNotFoundError)


def test_an_adapter_is_looked_at_before_it_is_unpacked(base, files, tmp_path):
    with np.load(files[0][0]) as loaded:
        arrays = dict(loaded)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)  # which is allowed
    runtime.load(base, adapter=tmp_path / "packed.npz")
    a = next(name for name in arrays if name.endswith("/a"))
    large = np.zeros((1 << 22, arrays[a].shape[1]), "float32")
    for name, wrong, message in (
        ("keras_tfm", large.view("uint8").reshape(-1), "not an adapter file, or damaged"),
        (a, large, "must adapt a kernel"),
        (a, large.reshape(-1), "is damaged: .*finite float32 matrices"),
    ):
        np.savez_compressed(tmp_path / "bomb.npz", **{**arrays, name: wrong})
        with at_most(8e6), pytest.raises(ValueError, match=message):
            runtime.load(base, adapter=tmp_path / "bomb.npz")


def test_files_without_separate_adapters(files):
    with pytest.raises(ValueError, match=re.escape("separate_adapters=True")):
        runtime.load(small_file().path, adapter=files[0][0])


def test_models_without_separate_adapters(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(3)(x), name="small")
    with pytest.raises(ValueError, match="small has no adapters"):
        export_tflite(model, tmp_path / "new", separate_adapters=True)
    model.layers[-1].enable_lora(2)
    with pytest.raises(ValueError, match=r"projections of keras_tfm's layers .*dense"):
        save_adapter(model, tmp_path / "new")
    with pytest.raises(ValueError, match="got quantization='int8_full'"):
        export_tflite(
            decoder(),
            tmp_path / "new",
            quantization="int8_full",
            representative_data=[rows(1, PROMPT)],
            source_length=PROMPT,
            separate_adapters=True,
        )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("preset", ["float32", "int8", "int4"])
def test_merged_adapters_take_no_room(preset, tmp_path):
    """Each kernel is rounded, also those of gated networks, of which the graph takes columns."""
    model = decoder()
    train(model, 1)
    sizes = []
    for one in (model, models.with_dtype(model, "float32")):
        path = tmp_path / "model.tflite"
        export_tflite(
            one, path, ["predict"], preset, source_length=PROMPT, verify=False, overwrite=True
        )
        sizes.append(path.stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 1000


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("option", ["keep_float", "keep_int8"])
def test_layers_that_keep_more_bits(option, apart, tmp_path):
    """They are found whether or not their kernels in the file have the adapters added."""
    model = decoder()
    train(model, 1)
    path, name = tmp_path / "model.tflite", "self_attention/output_projection"
    export_tflite(
        model, path, ["predict"], "int4", source_length=PROMPT, separate_adapters=apart,
        verify=False, **{option: [name]},
    )  # fmt: skip
    layers = [x for x in adapted_layers(model).values() if name in x.path]
    wanted = [layer.variables[0] if apart else layer.kernel for layer in layers]
    wanted = [keras.ops.convert_to_numpy(x).T for x in wanted]
    file = flatbuffer.read(path.read_bytes())
    types = {use.tensor.buffer: use.tensor for use in flatbuffer.weight_uses(file)}
    dtype = "float32" if option == "keep_float" else "int8"
    code, shapes = {"float32": 0, "int8": 9}[dtype], {x.shape for x in wanted}
    kept = [x for x in types.values() if x.type == code and tuple(x.shape) in shapes]
    stored = [np.asarray(file.buffers[x.buffer].data, "uint8").view(dtype) for x in kept]
    stored = [x.reshape(y.shape) for x, y in zip(stored, kept, strict=True)]
    if dtype == "int8":
        steps = [np.asarray(x.quantization.scale)[:, np.newaxis] for x in kept]
        stored = [x * step for x, step in zip(stored, steps, strict=True)]
    assert len(layers) == len(kept) == 2
    for matrix in wanted:
        step = np.abs(matrix).max(axis=1, keepdims=True) / 127 if dtype == "int8" else 1e-6
        assert any(np.all(np.abs(x - matrix) <= 0.51 * step + 1e-6) for x in stored)
