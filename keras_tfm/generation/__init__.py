"""Generation: greedy search, beam search, sampling and contrastive search with KV caches.

And `embed`: sentence embeddings of texts.
"""

from keras_tfm.generation import processors as processors
from keras_tfm.generation.embed import embed
from keras_tfm.generation.generator import Generated, Generator, generate
from keras_tfm.generation.model_stream import ModelStream
from keras_tfm.generation.step_rules.step_rule import StepRule, register_step
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import (
    Beam,
    Context,
    Contrastive,
    Drafted,
    Greedy,
    Sample,
    Strategy,
)
from keras_tfm.generation.strategies.draft_model import DraftModel
from keras_tfm.generation.strategies.drafts import Draft, DraftHeads, PromptLookup

__all__ = [
    "Beam",
    "Context",
    "Contrastive",
    "Draft",
    "DraftHeads",
    "DraftModel",
    "Drafted",
    "Generated",
    "Generator",
    "Greedy",
    "ModelStream",
    "PromptLookup",
    "Sample",
    "StepRule",
    "SteppedModel",
    "Strategy",
    "check_stepping",
    "embed",
    "generate",
    "register_step",
]
