"""Equal blocks are traced twice, and compute what each would by itself."""

import functools
import warnings

import keras
import numpy as np
import pytest
from blocks import decoder_block
from execution import tensorflow_only
from grids import first_of
from small_models import randomize

from keras_tfm import layers, models
from keras_tfm.generation import Beam, Generator, generate, shared_traces
from keras_tfm.layers import TransformerDecoderBlock
from keras_tfm.layers.transformer_block import TransformerDecoderBlock as Block

pytestmark = tensorflow_only

V, D, LAYERS = 13, 12, 3


def model_of(block, context=False, seed=3, num_layers=LAYERS):
    """A stack of blocks, made by `block(i)`, with noise on every weight.

    Of three equal ones the last is not traced; where every second is of another kind, of five.
    """
    target = keras.Input((None,), dtype="int32", name="target")
    inputs = {"target": target}
    embedding = layers.TokenEmbedding(V, D, mask_zero=True)
    arguments = []
    if context:
        inputs["source"] = keras.Input((None,), dtype="int32", name="source")
        arguments = [layers.TransformerEncoderBlock(17, 3)(embedding(inputs["source"]))]
    x = embedding(target)
    for i in range(num_layers):
        x = block(i)(x, *arguments)
    return randomize(keras.Model(inputs, keras.layers.Dense(V)(x)), seed)


POSITIONS = {
    "none": lambda: None,
    "rotary": layers.RotaryEmbedding,
    "Shaw": lambda: layers.RelativePositionEmbedding(3),
}


@pytest.fixture
def traced(monkeypatch):
    """The names of the blocks whose `call` Keras runs."""
    names = []
    call = Block.call

    @functools.wraps(call)  # Keras looks at the signature
    def counted(self, *args, **kwargs):
        names.append(self.name)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(Block, "call", counted)
    return names


def inputs_of(model):
    rng = np.random.default_rng(0)
    inputs = {"target": [[3, 4, 5], [6, 7], [8, 9, 10, 11]]}
    if "source" in model.input:
        inputs["source"] = rng.integers(0, V, (3, 4), "int32")
    return inputs


@pytest.mark.parametrize(
    ("position", "context", "strategy"),
    # The prompt's graph and the loop's share traces by position, context and strategy alike.
    first_of(
        {
            "Shaw-True-beam": ("Shaw", True, Beam(3)),
            "rotary-False-greedy": ("rotary", False, None),
            **{
                f"{position}-{context}-{name}": (position, context, strategy)
                for position in POSITIONS
                for context in (False, True)
                for name, strategy in {"beam": Beam(3), "greedy": None}.items()
                if (position, context, name)
                not in (("Shaw", True, "beam"), ("rotary", False, "greedy"))
            },
        },
        count=2,
    ),
)
def test_tokens_and_scores_are_those_of_separate_traces(position, context, strategy, monkeypatch):
    assert_as_separate_traces(position, context, strategy, False, monkeypatch)


@pytest.mark.parametrize(
    ("position", "context", "strategy"),
    [
        pytest.param("rotary", True, Beam(3), marks=pytest.mark.slow),
        ("none", False, None),
        pytest.param("none", True, None, marks=pytest.mark.slow),
        pytest.param("Shaw", False, None, marks=pytest.mark.slow),
    ],
)
def test_compiled_by_xla(position, context, strategy, monkeypatch):
    assert_as_separate_traces(position, context, strategy, True, monkeypatch)


def assert_as_separate_traces(position, context, strategy, jit_compile, monkeypatch):
    shared = POSITIONS[position]()  # one part in all blocks, with weights or without

    def block(i):
        return decoder_block(
            17, 3, cross_attention=context, position=shared, num_key_value_heads=1, name=f"b{i}"
        )

    model = model_of(block, context)
    options = {"max_length": 12, "start_id": 1, "strategy": strategy, "jit_compile": jit_compile}
    found = Generator(model, **options)(inputs_of(model))
    monkeypatch.setattr(shared_traces, "_may_share", lambda layer, args: False)
    wanted = Generator(model, **options)(inputs_of(model))
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    # The same operations, which a compiler may join otherwise.
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)


def test_a_block_is_traced_twice_in_a_graph(traced):
    model = model_of(lambda i: TransformerDecoderBlock(17, 3, cross_attention=False))
    generator = Generator(model, max_length=9, start_id=1)
    traced.clear()
    generator(inputs_of(model))
    graphs = 2  # the prompt's and the loop's
    assert len(traced) == 2 * graphs
    assert len(set(traced)) == 2


def test_blocks_that_keras_quantizes_are_traced_twice(traced):
    model = models.llama(V, dim=D, num_layers=4, num_heads=2, intermediate_dim=17, max_length=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that Keras leaves as they are
        model.quantize("int8")
    generator = Generator(model, max_length=9)
    traced.clear()
    generator([[3, 4]])
    assert len(set(traced)) == 2


def test_the_stepping_check_calls_one_of_equal_blocks(traced):
    model = model_of(lambda i: TransformerDecoderBlock(17, 3, cross_attention=False))
    traced.clear()
    Generator(model, max_length=9, start_id=1)
    assert len(set(traced)) == 1
    traced.clear()
    Generator(model, max_length=9, start_id=1)  # checked before
    assert not traced


@pytest.mark.parametrize(
    "other",
    first_of(
        {
            "number": lambda: {"layer_norm_epsilon": 0.5},
            "lambda": lambda: {"activation": lambda x: 3.0 * x},
            "function": lambda: {"activation": "tanh"},
            "width": lambda: {"intermediate_dim": 19},
        },
        count=2,
    ),
)
def test_blocks_that_differ_are_not_taken_for_one_another(other, monkeypatch):
    """Every second block is of another kind; two lambdas may differ in what they refer to."""

    def block(i):
        options = {"intermediate_dim": 17, "num_heads": 3, **(other() if i % 2 else {})}
        return TransformerDecoderBlock(**options, cross_attention=False)

    model = model_of(block, num_layers=5)
    found = generate(model, inputs_of(model), max_length=12)
    monkeypatch.setattr(shared_traces, "_may_share", lambda layer, args: False)
    wanted = Generator(model, max_length=12)(inputs_of(model))
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)


def tanh_of(factor):
    """A function of the same name for each factor."""

    def act(x):
        return keras.ops.tanh(factor * x)

    return act


def other_functions(block, i):
    block.feed_forward.activation = tanh_of([1.0, 1.0, 0.1, 3.0][i])


def adapters_of_other_scales(block, i):
    layer = block.feed_forward.inner
    layer.enable_lora(2, lora_alpha=[2, 2, 8, 32][i])
    layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.3, "float32"))


def other_caps(block, i):
    block.self_attention.soft_cap = [None, None, 0.5, 0.1][i]


def assert_as_full_passes(model):
    """The score of a generation is the sum of the log-probabilities of full passes."""
    found = generate(model, [[3, 4]], max_length=9)
    tokens = found.tokens[:, :-1]
    logits = model({"target": tokens} if isinstance(model.input, dict) else tokens)
    logits = keras.ops.log_softmax(logits)
    taken = keras.ops.convert_to_numpy(logits)[0, np.arange(1, 8), found.tokens[0, 2:]]
    np.testing.assert_allclose(found.scores, [taken.sum()], rtol=1e-4)


@pytest.mark.parametrize("change", [other_functions, adapters_of_other_scales, other_caps])
def test_what_was_set_after_a_block_was_made(change):
    """It is in no configuration, or as a name; the third block would take the second's."""
    model = model_of(lambda i: TransformerDecoderBlock(17, 3, cross_attention=False), num_layers=4)
    for i, block in enumerate(x for x in model.layers if isinstance(x, Block)):
        change(block, i)
    assert_as_full_passes(model)


def test_functions_of_one_name(traced):
    def block(i):
        function = tanh_of([1.0, 1.0, 0.1, 3.0][i])
        return TransformerDecoderBlock(17, 3, cross_attention=False, activation=function)

    assert_as_full_passes(model_of(block, num_layers=4))
    same = tanh_of(2.0)  # one function in all blocks: they share its trace
    model = model_of(
        lambda i: TransformerDecoderBlock(17, 3, cross_attention=False, activation=same)
    )
    generator = Generator(model, max_length=9, start_id=1)
    traced.clear()
    generator(inputs_of(model))
    assert len(set(traced)) == 2


def test_layers_that_stay_in_float_beside_rounded_ones():
    model = models.gpt(V, dim=32, num_layers=4, num_heads=2, intermediate_dim=64, max_length=9)
    randomize(model, 3)
    kept = ["decoder_2", "decoder_3"]
    models.enable_quantization(model, "int4", activations=True, keep_float=kept)
    assert_as_full_passes(model)


def test_a_function_that_keras_cannot_save():
    function = functools.partial(keras.activations.leaky_relu, negative_slope=0.1)
    assert_as_full_passes(
        model_of(
            lambda i: TransformerDecoderBlock(17, 3, cross_attention=False, activation=function)
        )
    )


def test_a_block_that_cannot_be_stepped_behind_others_of_its_name():
    def mixing(mixes):
        def act(x):
            return keras.ops.cumsum(x, 1) if mixes else x

        return act

    model = model_of(
        lambda i: TransformerDecoderBlock(
            17, 3, cross_attention=False, activation=mixing(mixes=i == 2)
        )
    )
    with pytest.raises(ValueError, match="mixes positions"):
        Generator(model, max_length=9, start_id=1)


def test_lambdas_with_other_closures_are_traced_each(traced):
    def block(i):
        activation = (lambda factor: lambda x: factor * x)(float(i))
        return TransformerDecoderBlock(17, 3, cross_attention=False, activation=activation)

    model = model_of(block)
    generator = Generator(model, max_length=9, start_id=1)
    traced.clear()
    generator(inputs_of(model))
    assert len(set(traced)) == LAYERS


def test_generate_compiles_once_and_again_after_lora(traced):
    model = model_of(lambda i: TransformerDecoderBlock(17, 3, cross_attention=False))
    first = generate(model, inputs_of(model), max_length=9)
    traced.clear()
    again = generate(model, inputs_of(model), max_length=9)
    assert not traced
    np.testing.assert_array_equal(first.tokens, again.tokens)
    for block in model.layers:
        if isinstance(block, TransformerDecoderBlock):
            block.feed_forward.inner.enable_lora(2)
            block.feed_forward.inner.lora_kernel_b.assign(
                np.full(block.feed_forward.inner.lora_kernel_b.shape, 0.7, "float32")
            )
    generate(model, inputs_of(model), max_length=9)
    assert traced  # other variables: another graph


def test_generate_keeps_a_few_generators(monkeypatch):
    from keras_tfm.generation import generator

    monkeypatch.setattr(generator, "MAX_KEPT", 2)
    model = model_of(lambda i: TransformerDecoderBlock(17, 3, cross_attention=False))
    for length in range(5, 5 + generator.MAX_KEPT + 1):
        generate(model, inputs_of(model), max_length=length)
    assert len(vars(model)["_keras_tfm_generators"]) == generator.MAX_KEPT
