"""Strategies, which choose the next token: one per file, each a small object of pure functions."""

from keras_tfm.generation.strategies.beam import Beam
from keras_tfm.generation.strategies.contrastive import Contrastive
from keras_tfm.generation.strategies.drafted import Drafted
from keras_tfm.generation.strategies.greedy import Greedy
from keras_tfm.generation.strategies.sample import Sample
from keras_tfm.generation.strategies.strategy import Context, State, Strategy, Task

__all__ = [
    "Beam",
    "Context",
    "Contrastive",
    "Drafted",
    "Greedy",
    "Sample",
    "State",
    "Strategy",
    "Task",
]
