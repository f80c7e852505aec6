"""Weights and batches that `keras.distribution` divides between 8 virtual devices, on JAX."""

import re
from collections import Counter

import families
import keras
import numpy as np
import pytest
from sharded import (
    DATA,
    IDS,
    LENGTH,
    PROMPTS,
    SMALL,
    VOCABULARY,
    WITH_8_DEVICES,
    bert,
    check_generated,
    distribution,
    generated,
    llama,
    mesh,
    t5,
    trained,
)

from keras_tfm import generation, models, training
from keras_tfm.generation.preparation import divided_rows
from keras_tfm.models.without_storage import without_storage

pytestmark = WITH_8_DEVICES


@pytest.mark.parametrize("kind", ["data", "model"])
@pytest.mark.parametrize("build", DATA)
def test_losses_are_those_of_one_device(build, kind):
    expected = trained(build, "one device")[1]
    model, losses = trained(build, kind)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert losses[-1] < losses[0]
    divided = [x for x in model.trainable_variables if not x.value.sharding.is_fully_replicated]
    assert bool(divided) == (kind == "model")
    moments = [x for x in model.optimizer.variables if not x.value.sharding.is_fully_replicated]
    assert len(moments) == len(divided)  # the optimizer's momentum lies with its weight


# Generation


def test_greedy_tokens_with_divided_batches():
    check_generated(llama, "data")


def test_greedy_tokens_with_divided_heads():
    """Inside the scope at once; outside step by step, with rows that cannot be divided."""
    check_generated(llama, "model")
    expected = generated(llama, "one device").tokens
    generator = generation.Generator(trained(llama, "model")[0], max_length=10)
    steps = np.stack(list(generator.stream(PROMPTS[:3])), axis=1)
    assert len(steps) == 3
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, steps, strict=False)):
        found = tokens[: 10 - len(prompt)].tolist()
        assert found == expected[row, len(prompt) :].tolist()


def test_rows_are_divided_where_their_number_allows():
    rows = np.zeros((8, 3), "int32")
    assert divided_rows(rows) is rows
    with distribution("model", llama).scope():
        assert tuple(divided_rows(rows).sharding.spec) == ("batch", None)
        assert divided_rows(rows[:3]).shape == (3, 3)
        assert divided_rows(None) is None


# What the compiled program exchanges


def test_each_sublayer_adds_up_once_and_gathers_nothing():
    import jax

    def build():
        return models.gpt(VOCABULARY, **{**SMALL, "num_layers": 2}, dropout=0.0, max_length=LENGTH)

    layouts = training.layout_map(build, mesh())
    data = keras.distribution.TensorLayout(("batch", None), mesh())
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        model = build()
        ids = keras.distribution.distribute_tensor(IDS, data)

    def features(values, ids):
        with keras.StatelessScope(zip(model.variables, values, strict=True)):
            return keras.Model(model.inputs, model.features)(ids)

    compiled = jax.jit(features).lower([x.value for x in model.variables], ids).compile()
    found = re.findall(r"= \w+\[([\d,]*)\]\S* (all-\w+)\(", compiled.as_text())
    batch = "4,6,16"  # half of the rows, on each device
    # Of the embedding, and of the attention and the feed-forward network of both blocks.
    assert Counter(found)[batch, "all-reduce"] == 5
    assert {x for x in found if x != (batch, "all-reduce")} <= {("6,16", "all-gather")}


# Layouts


WIDE = {"dim": 256, "num_layers": 2, "num_heads": 4, "intermediate_dim": 1024, "dropout": 0.0}


@pytest.fixture
def wide(monkeypatch):
    """The small models of all families have real widths."""
    for name, value in {**WIDE, "vocabulary_size": 4099}.items():
        monkeypatch.setitem(families.SMALL, name, value)


def even_vilbert():
    """Of heads that two devices can divide, unlike the small one."""
    return models.vilbert(
        4099, **{**WIDE, "num_layers": 1}, visual_dim=512, num_visual_layers=1,
        num_visual_heads=8, co_attention_dim=512, num_co_attention_heads=4, text_schedule=(0,),
        visual_schedule=(0,), max_length=LENGTH, region_dim=1024, num_regions=4,
    )  # fmt: skip


@pytest.mark.parametrize("family", families.NAMES)
def test_no_large_weight_is_on_every_device(family, wide):
    with without_storage():
        model = even_vilbert() if family == "vilbert" else families.small_model(family)
    layouts = training.layout_map(model, mesh(batch=4))
    for x in model.weights:
        axes = layouts[x.path].axes
        if "model" in axes:
            assert x.shape[axes.index("model")] % 2 == 0
        else:
            assert np.prod(x.shape) < 2**16, x.path
            ends = ("/inner/kernel", "/outer/kernel", "attention/output_projection/kernel")
            assert not x.path.endswith(ends), x.path


def test_heads_widths_and_vocabulary_are_divided():
    with without_storage():
        model = llama()
    models.enable_lora(model, rank=2)
    layouts = training.layout_map(model, mesh())
    axes = {path.replace(r"(_\d+)?", ""): layout.axes for path, layout in layouts.items()}
    columns, rows = (None, "model"), ("model",)
    assert axes["embedding/embeddings"] == rows
    assert axes["output/kernel"] == columns
    assert axes["decoder_0/self_attention/query_key_value/kernel"] == columns
    assert axes["decoder_0/self_attention/output_projection/kernel"] == rows
    assert axes["decoder_0/feed_forward/inner/kernel"] == columns
    assert axes["decoder_0/feed_forward/outer/kernel"] == rows
    assert axes["decoder_norm/scale"] == ()


def test_biases_lie_with_columns():
    layouts = training.layout_map(bert, mesh())
    found = {path.split("/", 1)[1]: x.axes for path, x in layouts.items() if "encoder_0" in path}
    assert found["self_attention/query_key_value/bias"] == ("model",)
    assert found["self_attention/output_projection/bias"] == ()


def test_adapters_and_quantized_kernels_lie_with_their_kernels():
    with distribution("model", llama).scope():
        model, other = llama(), llama()
        models.enable_lora(model, rank=4)
        other.quantize("int8", filters="self_attention")
    block = model.get_layer("decoder_0")
    inner, outer = block.feed_forward.inner, block.feed_forward.outer
    assert inner.lora_kernel_a.value.sharding.is_fully_replicated
    assert tuple(inner.lora_kernel_b.value.sharding.spec) == (None, "model")
    assert outer.lora_kernel_a.value.sharding.spec[0] == "model"
    assert outer.lora_kernel_b.value.sharding.is_fully_replicated


# A model of one's own


def own(units=(8, 12)):
    x = y = keras.Input((LENGTH, 16))
    for width in units:
        y = keras.layers.Dense(width)(y)
    return keras.Model(x, y)


def test_numbers_of_automatic_names_may_differ():
    layouts = training.layout_map(own, mesh())
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        model = own()
    for layer in model.layers[1:]:
        assert tuple(layer.kernel.value.sharding.spec) == (None, "model")


def test_seeds_of_dropout_are_on_every_device():
    """They are no weights of a layer, and Keras numbers them anew in each model."""

    def build():
        return models.gpt(VOCABULARY, **SMALL, dropout=0.5, max_length=LENGTH)

    with distribution("model", build).scope():
        model = build()
        assert np.isfinite(model(IDS, training=True)).all()
    weights = {id(x) for x in model.weights}
    seeds = [x for x in model.variables if id(x) not in weights]
    assert seeds
    assert all(x.value.sharding.is_fully_replicated for x in seeds)


def test_layers_with_automatic_names_need_equal_layouts():
    with pytest.raises(ValueError, match=r"automatic names need different .* give each a name$"):
        training.layout_map(lambda: own((8, 3)), mesh())


def test_weights_are_saved_and_loaded(tmp_path):
    model, _ = trained(llama, "model")
    model.save_weights(tmp_path / "model.weights.h5")
    alone = llama()
    alone.load_weights(tmp_path / "model.weights.h5")
    with distribution("model", llama).scope():
        again = llama()
        again.load_weights(tmp_path / "model.weights.h5")
    for x, y, z in zip(model.weights, alone.weights, again.weights, strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(x, z)
        assert x.value.sharding == z.value.sharding


# Bad input


def one_line(error, function, *arguments):
    with pytest.raises(error) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_mesh_that_does_not_divide_the_heads():
    assert one_line(ValueError, training.layout_map, llama, mesh(batch=1)) == (
        "the mesh's axis 'model' must divide the heads of every layer: decoder_0/self_attention "
        "has 4, the axis 8 devices"
    )


def test_a_mesh_without_the_axes():
    said = one_line(ValueError, training.layout_map, llama, mesh(axis_names=("data", "model")))
    assert said == "the mesh must have the axes batch, model, got data, model"
    layouts = training.layout_map(llama, mesh(axis_names=("data", "heads")), ("data", "heads"))
    assert layouts["output/kernel"].axes == (None, "heads")


def test_something_else_than_a_model_or_a_mesh():
    assert one_line(TypeError, training.layout_map, llama, (2, 4)) == (
        "mesh must be a keras.distribution.DeviceMesh, got tuple"
    )
    assert one_line(TypeError, training.layout_map, "llama", mesh()).endswith("got str")
    assert one_line(TypeError, training.layout_map, lambda: 1, mesh()).endswith("got int")


def test_a_layout_map_for_another_model():
    with distribution("model", llama).scope():
        said = one_line(ValueError, t5)
    assert said.startswith("the layout map was made for llama, which has no weight ")
    assert "make one for this model with training.layout_map" in said


def test_entries_are_changed():
    layouts = training.layout_map(llama, mesh())
    del layouts["output/kernel"]
    assert layouts["output/kernel"] is None
    layouts["output/kernel"] = ("model", None)
    layouts["another/.*"] = ("model",)
    assert layouts["output/kernel"].axes == ("model", None)
    assert layouts["another/layer/kernel"].axes == ("model",)
    assert layouts["adam/learning_rate"] is None


def test_resume_says_what_to_use():
    model = own()
    model.compile("sgd", "mse")
    x, y = np.ones((8, LENGTH, 16)), np.ones((8, LENGTH, 12))
    said = one_line(
        RuntimeError, lambda: model.fit(x, y, verbose=0, callbacks=[training.Resume("never")])
    )
    assert "BackupAndRestore" in said


def test_a_strategy_of_tensorflow_says_what_to_use():
    assert "ModelParallel with training.layout_map" in one_line(RuntimeError, training.distribution)
