"""Logits processors: functions of logits and the tokens so far, which work with any strategy.

>>> from keras_tfm.generation import Beam, processors
>>> beam = Beam(3, processors=[processors.MinLength(5), processors.NoRepeatNGram(2)])
"""

from keras_tfm.generation.processors.forced import ForcedBOS, ForcedEOS
from keras_tfm.generation.processors.grammar import Grammar
from keras_tfm.generation.processors.guidance import Guidance
from keras_tfm.generation.processors.lengths import MinLength, MinNewTokens
from keras_tfm.generation.processors.normalization import LogitNormalization
from keras_tfm.generation.processors.prefix_constrained import PrefixConstrained
from keras_tfm.generation.processors.processor import Processor
from keras_tfm.generation.processors.repetition import NoRepeatNGram, RepetitionPenalty
from keras_tfm.generation.processors.suppressed import (
    NoBadWords,
    SequenceBias,
    SuppressTokens,
    SuppressTokensAtBegin,
)
from keras_tfm.generation.processors.timestamps import Timestamps, transcription

__all__ = [
    "ForcedBOS",
    "ForcedEOS",
    "Grammar",
    "Guidance",
    "LogitNormalization",
    "MinLength",
    "MinNewTokens",
    "NoBadWords",
    "NoRepeatNGram",
    "PrefixConstrained",
    "Processor",
    "RepetitionPenalty",
    "SequenceBias",
    "SuppressTokens",
    "SuppressTokensAtBegin",
    "Timestamps",
    "transcription",
]
