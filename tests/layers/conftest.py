"""Layers need neither the generator nor the exporter, which take seconds to import."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def a_model_is_checked_once():
    """In the place of the fixture that changes both."""
