"""Generation: one loop over a composed model, stepped inside a `DecodingScope`."""

from keras_tfm.generation.generator import Generated, Generator, generate
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Greedy

__all__ = ["Generated", "Generator", "Greedy", "check_stepping", "generate"]
