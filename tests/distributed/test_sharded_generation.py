"""Every strategy and an encoder-decoder between 8 virtual devices, on JAX: for `.ci/full jax`."""

import pytest
from sharded import WITH_8_DEVICES, check_generated, llama, mamba2, t5

from keras_tfm.generation import Beam, Sample

pytestmark = WITH_8_DEVICES


@pytest.mark.parametrize("kind", ["data", "model"])
@pytest.mark.parametrize(
    "strategy", [None, Beam(3), Sample(seed=3)], ids=["greedy", "beam", "sample"]
)
def test_tokens_of_an_encoder_decoder_are_those_of_one_device(kind, strategy):
    check_generated(t5, kind, strategy)


@pytest.mark.parametrize("strategy", [Beam(3), Sample(seed=3)], ids=str)
def test_tokens_with_divided_heads_are_those_of_one_device(strategy):
    check_generated(llama, "model", strategy)


def test_tokens_with_divided_channels_of_a_convolution_are_those_of_one_device():
    """XLA ended the process where it compiled a step's convolution, which has one output."""
    check_generated(mamba2, "model")
