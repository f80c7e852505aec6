"""The experts of a language model."""

import keras
import pytest

from keras_tfm import models
from keras_tfm.layers import Routing
from keras_tfm.models import Experts

ROUTING = Routing(3, 2)


def test_experts_from_a_configuration():
    experts = Experts(keras.saving.serialize_keras_object(ROUTING), shared_dim=5)
    assert experts == Experts(ROUTING, shared_dim=5)
    assert Experts.from_config(experts.get_config()) == experts


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"routing": 4}, TypeError, "routing must be a Routing, got 4"),
        ({"intermediate_dim": 2.5}, TypeError, "intermediate_dim must be an integer, got 2.5"),
        ({"shared_dim": 0}, ValueError, "shared_dim must be at least 1, got 0"),
        ({"shared_gate": True}, ValueError, "shared_gate must be False without shared_dim"),
    ],
)
def test_wrong_experts(options, error, message):
    with pytest.raises(error, match=message):
        Experts(**{"routing": ROUTING, **options})


@pytest.mark.parametrize(
    ("experts", "error", "message"),
    [
        (3, TypeError, "experts must be a models.Experts, got 3"),
        (ROUTING, TypeError, r"experts must be a models.Experts, got Routing\("),
        (
            Experts(ROUTING, blocks=3),
            ValueError,
            "blocks must have one bool for each of 2 blocks, got 3",
        ),
        (Experts(ROUTING, blocks=[True]), ValueError, r"for each of 2 blocks, got \[True\]"),
    ],
)
def test_wrong_arguments_of_a_model(experts, error, message):
    with pytest.raises(error, match=message):
        models.llama(11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16, experts=experts)
