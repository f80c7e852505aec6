"""Tables of rows: through files and back, and what a wrong row does."""

import dataclasses

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from huggingface_cases import FOLDER, expected, inputs_of, outputs_of, run
from keras import ops
from small_checkpoints import tensors_of, write

from keras_tfm.checkpoints import huggingface, load_huggingface
from keras_tfm.checkpoints.huggingface import FAMILIES, load_entries, save_entries
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import (
    Entry,
    Row,
    batch_norm,
    convolution,
    dense,
    entries,
    norm,
    rms_norm,
)
from keras_tfm.checkpoints.tensors import Tensors
from keras_tfm.checkpoints.transforms import (
    Joined,
    Offset,
    Reshaped,
    Same,
    Transform,
    Transposed,
)
from keras_tfm.layers import MultiHeadSelfAttention, PositionEmbedding, RMSNormalization

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype("float32")


def through(model, table, tensors, tmp_path):
    """Loads a folder by a table, checks what is saved of the model, and returns the model."""
    write(tmp_path, tensors)
    named = Named(Tensors(tmp_path), Names())
    found = entries(table, model, "test")
    named.check("test", found)
    load_entries(named, found)
    back = dict(save_entries(found))
    assert set(back) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_allclose(back[name], array, rtol=0, atol=3e-7)
        assert back[name].flags["C_CONTIGUOUS"]  # else safetensors would write another order
    return model


def model_of(layer, *shape):
    x = keras.Input(shape)
    return keras.Model(x, layer(x))


# Rows with a transform, against the arithmetic of the checkpoint's own library


@pytest.mark.parametrize("channels", [(3, 7), (2, 2)], ids=["rectangular", "square"])
def test_a_square_convolution_kernel(channels, tmp_path):
    """PyTorch's Conv2d in sums; a plain `.T` has the same shape and other results."""
    taken, made = channels
    tensors = {"patch.weight": random(made, taken, 2, 2), "patch.bias": random(made)}
    model = model_of(keras.layers.Conv2D(made, 2, name="patch"), 4, 4, taken)
    through(model, convolution("patch", "patch"), tensors, tmp_path)
    images = random(2, taken, 4, 4)
    wanted = np.zeros((2, made, 3, 3))
    for y, x in np.ndindex(3, 3):
        window = images[:, :, y : y + 2, x : x + 2]
        wanted[:, :, y, x] = np.einsum("bihw,oihw->bo", window, tensors["patch.weight"])
    wanted += tensors["patch.bias"][:, None, None]
    found = np.moveaxis(to_numpy(model(np.moveaxis(images, 1, -1))), -1, 1)
    assert_close(found, wanted, 1e-5)
    kernel = model.get_layer("patch").kernel
    assert tuple(kernel.shape) == tensors["patch.weight"].T.shape
    kernel.assign(tensors["patch.weight"].T)
    wrong = np.moveaxis(to_numpy(model(np.moveaxis(images, 1, -1))), -1, 1)
    assert np.abs(wrong - wanted).max() > 0.1


def test_a_convolution_over_time_without_bias(tmp_path):
    """PyTorch's Conv1d, the window as wide as input and output."""
    tensors = {"stem.weight": random(3, 3, 3)}
    layer = keras.layers.Conv1D(3, 3, use_bias=False, name="stem")
    model = through(
        model_of(layer, 5, 3), convolution("stem", "stem", bias=False), tensors, tmp_path
    )
    x = random(1, 3, 5)
    wanted = [
        np.einsum("bit,oit->bo", x[:, :, t : t + 3], tensors["stem.weight"]) for t in range(3)
    ]
    assert_close(model(np.moveaxis(x, 1, 2)), np.stack(wanted, axis=1), 1e-5)


def test_statistics_of_a_batch_norm(tmp_path):
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {f"bn1.{name}": random(5) for name in names}
    tensors["bn1.running_var"] = np.abs(tensors["bn1.running_var"]) + 0.1
    layer = keras.layers.BatchNormalization(epsilon=1e-5, name="norm")
    model = through(model_of(layer, 5), batch_norm("norm", "bn1"), tensors, tmp_path)
    x = random(3, 5)
    scale, offset, mean, variance = (tensors[f"bn1.{name}"] for name in names)
    assert_close(model(x), (x - mean) / np.sqrt(variance + 1e-5) * scale + offset, 1e-5)


def test_queries_are_wider_than_keys_and_values(tmp_path):
    """Four heads of queries on two of keys and of values, against sums in NumPy."""
    heads, shared, width, dim = 4, 2, 3, 12  # H K = D: the queries' matrix is square
    sizes = {"q": heads * width, "k": shared * width, "v": shared * width}
    tensors = {f"{x}.weight": random(size, dim) for x, size in sizes.items()}
    tensors |= {f"{x}.bias": random(size) for x, size in sizes.items()}
    tensors |= {"o.weight": random(dim, heads * width), "o.bias": random(dim)}
    layer = MultiHeadSelfAttention(heads, num_key_value_heads=shared, name="attention")
    table = (
        *dense("attention/query_key_value", "q", "k", "v", widths=tuple(sizes.values())),
        *dense("attention/output_projection", "o"),
    )
    model = through(model_of(layer, 5, dim), table, tensors, tmp_path)
    x = random(1, 5, dim)
    query, key, value = (
        (x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
        .reshape(1, 5, -1, width)
        .transpose(0, 2, 1, 3)
        for name in "qkv"
    )
    key, value = (np.repeat(y, heads // shared, axis=1) for y in (key, value))
    weights = np.asarray(ops.softmax(query @ key.swapaxes(-1, -2) / np.sqrt(width)))
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(1, 5, -1)
    assert_close(model(x), mixed @ tensors["o.weight"].T + tensors["o.bias"], 1e-5)


def test_parts_of_equal_width_are_refused_where_they_are_unequal(tmp_path):
    layer = keras.layers.Dense(10, name="fused")
    model = model_of(layer, 5)
    kernels = {"q.weight": random(6, 5), "k.weight": random(4, 5)}
    write(tmp_path, {**kernels, "q.bias": random(6), "k.bias": random(4)})
    named = Named(Tensors(tmp_path), Names())
    with pytest.raises(ValueError, match=r"q.weight \(the model has \(5, 5\), the file \(6, 5\)\)"):
        named.check("test", entries(dense("fused", "q", "k"), model, "test"))
    named.check("test", entries(dense("fused", "q", "k", widths=(6, 4)), model, "test"))


def test_a_norm_whose_scale_is_one_and_the_tensor(tmp_path):
    """Gemma's: y = x / rms(x) (1 + w)."""
    tensors = {"norm.weight": random(7)}
    layer = RMSNormalization(epsilon=1e-6, name="norm")
    model = through(model_of(layer, 7), rms_norm("norm", "norm", offset=1.0), tensors, tmp_path)
    x = random(3, 7)
    rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    assert_close(model(x), x / rms * (1 + tensors["norm.weight"]), 1e-5)


def test_positions_with_an_axis_in_front(tmp_path):
    zero = np.zeros((1, 3, 7), "float32")
    layer = PositionEmbedding(3, name="places")
    table = {"embed": random(1, 3, 7)}
    row = Row("places/positions", ("embed",), Reshaped((1, -1, 7), (-1, 7)))
    assert_close(
        through(model_of(layer, None, 7), [row], table, tmp_path)(zero), table["embed"], 0.0
    )


def test_dense_and_norm_make_two_rows_each():
    assert dense("a", "b", "c", transposed=False, head=True) == (
        Row("a/kernel", ("b.weight", "c.weight"), Joined(2), True),
        Row("a/bias", ("b.bias", "c.bias"), Joined(2), True),
    )
    assert dense("a", "b", bias=False) == (Row("a/kernel", ("b.weight",), Transposed()),)
    assert norm("a", "b") == (Row("a/gamma", ("b.weight",)), Row("a/beta", ("b.bias",)))


# Rows that are wrong


class Doubled(Transform):
    """Loads twice what it saves."""

    def _load(self, array):
        return 2 * array


class Cut(Transform):
    """Saves a column less than it says."""

    def _save(self, value):
        return value[:, :-1]


class Flat(Transform):
    """Loads another shape."""

    def _load(self, array):
        return array.reshape(-1)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Doubled(), r"layer/kernel: .* does not invert: expected load\(save\(x\)\) to be x, got a"),
        (Cut(), r"expected a weight of shape \(3, 5\), got \(3, 5\), then \(3, 4\)"),
        (Flat(), r"expected a weight of shape \(3, 5\), got \(3, 5\), then \(15,\)"),
    ],
    ids=["values", "cut", "shape"],
)
def test_a_transform_that_does_not_invert_is_refused(transform, message):
    model = model_of(keras.layers.Dense(5, use_bias=False, name="layer"), 3)
    (entry,) = entries([Row("layer/kernel", ("x",), transform)], model, "test")
    with pytest.raises(ValueError, match=message) as error:
        entry.save(random(3, 5))
    assert "\n" not in str(error.value)


def test_a_transform_that_loads_another_shape_is_refused():
    model = model_of(keras.layers.Dense(5, use_bias=False, name="layer"), 3)
    (entry,) = entries([Row("layer/kernel", ("x",), Flat())], model, "test")
    message = r"layer/kernel: .* must load a weight of shape \(3, 5\), got \(15,\)"
    with pytest.raises(ValueError, match=message):
        entry.load([random(3, 5)])


def test_a_transform_that_says_other_shapes_is_refused():
    class Wide(Transform):
        def _shape(self, shape):
            return (1, *shape)

    model = model_of(keras.layers.Dense(5, use_bias=False, name="layer"), 3)
    (entry,) = entries([Row("layer/kernel", ("x",), Wide())], model, "test")
    with pytest.raises(ValueError, match=r"tensors of shapes \(\(1, 3, 5\),\), got \(\(3, 5\),\)"):
        entry.save(random(3, 5))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            Row("layer/kernel", ("x", "y")),
            r"layer/kernel \(3, 5\): Same\(\) expects 1 tensors, got",
        ),
        (Row("layer/kernel", ("x",), Joined(5)), r"expects 5 tensors, got \['x'\]"),
        (Row("layer/kernel", ("x", "y"), Joined(2)), "expects parts that add up to the axis"),
        (Row("other/kernel", ("x",)), "has no place for the weight layer/kernel"),
    ],
    ids=["two", "one", "odd", "path"],
)
def test_rows_that_do_not_fit_the_weight(row, message):
    model = model_of(keras.layers.Dense(5, use_bias=False, name="layer"), 3)
    with pytest.raises(ValueError, match=message):
        entries([row], model, "test")


def test_an_offset_of_large_and_small_numbers_inverts():
    """Float32 keeps seven digits: what is rounded is not what is wrong."""
    model = model_of(RMSNormalization(name="norm"), 5)
    (entry,) = entries(rms_norm("norm", "norm", offset=1.0), model, "test")
    assert isinstance(entry, Entry) and isinstance(entry.transform, Offset)
    values = np.array([1e-9, -1.0, 300.0, 1e6, -1e-4], "float32")
    (saved,) = entry.save(values).values()
    np.testing.assert_array_equal(saved, values - np.float32(1))
    np.testing.assert_allclose(entry.load([saved]), values, rtol=1e-6, atol=1e-7)


# Square matrices: a missing transposition has the right shape


def without_transposition(row):
    if isinstance(row.transform, Joined):
        return dataclasses.replace(row, transform=dataclasses.replace(row.transform, each=Same()))
    return dataclasses.replace(row, transform=Same())


def transposes(row):
    transform = row.transform
    return isinstance(getattr(transform, "each", transform), Transposed)


def square_rows(case):
    """The weights of a case whose tensors are square, by path."""
    model = load_huggingface(FOLDER / case)
    family = FAMILIES[{"bert": "bert", "t5": "t5"}[case.split("_")[0]]]
    table = family.table(model)
    found = family.entries(model)
    for row in table:
        pattern = row.weight.replace("{i}", "0")
        for entry in found:
            if entry.weight.path == pattern and transposes(row):
                ((height, width), *_) = entry.shapes.values()
                if height == width:
                    yield row.weight


SQUARE = {
    "bert_pretraining": [
        "encoder_{i}/self_attention/query_key_value/kernel",
        "encoder_{i}/self_attention/output_projection/kernel",
        "pooler/kernel",
        "transform/kernel",
    ],
}


@pytest.mark.parametrize("case", SQUARE)
def test_the_square_matrices_are_these(case):
    assert list(square_rows(case)) == SQUARE[case]


@pytest.mark.parametrize(
    ("case", "weight"), [(case, weight) for case in SQUARE for weight in SQUARE[case]]
)
def test_a_missing_transposition_of_a_square_matrix_fails(case, weight, monkeypatch):
    """Nothing but the numbers can show it: the file is loaded without an error."""
    family = FAMILIES["bert"]
    table = tuple(
        without_transposition(row) if row.weight == weight else row for row in family.table(None)
    )
    wrong = dataclasses.replace(family, table=lambda model: table)
    monkeypatch.setitem(huggingface.FAMILIES, "bert", wrong)
    model = load_huggingface(FOLDER / case)
    outputs = outputs_of(case, run(model, inputs_of(case, model)))
    assert max(np.abs(x - expected(case)[name]).max() for name, x in outputs.items()) > 1e-3


def test_a_transposition_too_many_of_a_square_matrix_fails(monkeypatch):
    """GPT-2's kernels are (in, out) in the file."""
    family = FAMILIES["gpt2"]
    weight = "decoder_{i}/self_attention/output_projection/kernel"
    table = tuple(
        dataclasses.replace(row, transform=Transposed()) if row.weight == weight else row
        for row in family.table(load_huggingface(FOLDER / "gpt2"))
    )
    monkeypatch.setitem(
        huggingface.FAMILIES, "gpt2", dataclasses.replace(family, table=lambda model: table)
    )
    model = load_huggingface(FOLDER / "gpt2")
    outputs = outputs_of("gpt2", run(model, inputs_of("gpt2", model)))
    assert np.abs(outputs["logits"] - expected("gpt2")["logits"]).max() > 1e-3


def test_a_model_whose_matrices_are_all_square():
    """What T5 saves of them, by hand."""
    from keras_tfm import models

    model = models.t5(8, dim=8, num_layers=1, num_heads=2, intermediate_dim=8, dropout=0.0)
    family = FAMILIES["t5"]
    found = family.entries(model)
    assert all(
        shape == (8, 8) for entry in found if transposes(entry) for shape in entry.shapes.values()
    )
    tensors = dict(save_entries(found))
    output = to_numpy(model.get_layer("encoder_0").self_attention.output_projection.kernel)
    name = "encoder.block.0.layer.0.SelfAttention.o.weight"
    np.testing.assert_array_equal(tensors[name], output.T)
    assert np.abs(output - output.T).max() > 0.1


def test_the_matrix_of_gpt_2_is_square():
    assert tensors_of(FOLDER / "gpt2")["transformer.h.0.attn.c_proj.weight"].shape == (15, 15)
