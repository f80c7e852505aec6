"""Seeds PyTorch's own random numbers for a while, for its fused dropout and attention."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from keras_tfm.layers.types import Tensor


@contextmanager
def temporary_seed(seed: Tensor, device: torch.device) -> Iterator[None]:
    """PyTorch's generator of a device starts from a seed inside, and is as before afterwards.

    Args:
        seed: two integers.
        device: the device.
    """
    if device.type == "meta":
        yield
        return
    number = int(seed[0] + seed[1]) & 0xFFFFFFFF  # as Keras seeds its generators
    if device.type == "cpu":
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(number)  # `torch.manual_seed` changes GPUs' as well
        try:
            yield
        finally:
            torch.set_rng_state(before)
        return
    module = torch.get_device_module(device)
    before = module.get_rng_state(device)
    with module.device(device):
        module.manual_seed(number)
        try:
            yield
        finally:
            module.set_rng_state(before, device)


@torch.compiler.disable  # seeding a generator breaks a compiled graph in any case
def seeded_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """PyTorch's fused dropout with a seed: drops the same values each time."""
    with temporary_seed(seed, x.device):
        return torch.nn.functional.dropout(x, rate)
