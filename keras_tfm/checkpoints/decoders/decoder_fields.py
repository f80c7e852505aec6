"""Fields of `config.json` and architectures that decoder-only families share."""

from collections.abc import Sequence
from typing import TypeAlias

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Config, Fields
from keras_tfm.checkpoints.encoders.bert import label_fields, saved_pad_id
from keras_tfm.checkpoints.family import Architecture
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN
from keras_tfm.models.decoders.causal_decoder import each_window

# The window of every block, or one for each; None: no window.
Windows: TypeAlias = int | Sequence[int | None] | None


# The heads that read texts.
_READERS = ("score.", "classifier.", "qa_outputs.")
FULL, SLIDING = "full_attention", "sliding_attention"


def read_windows(config: Config, kinds: object, num_layers: int, window: int | None) -> Windows:
    """The window of each block from `layer_types`; one for all if they are equal."""
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or not all(kind in (FULL, SLIDING) for kind in kinds)
    ):
        config.refuse("layer_types", kinds, f"{num_layers} of {FULL} and {SLIDING}")
    if window is None and SLIDING in kinds:
        config.refuse("sliding_window", window, f"an integer, for the {SLIDING} in layer_types")
    each = [window if kind == SLIDING else None for kind in kinds]
    return each[0] if len(set(each)) == 1 else each


def read_attends(config: Config, num_layers: int, other: str, default: list[str]) -> list[bool]:
    """Whether each block has attention, from `layer_types`.

    Args:
        config: the configuration.
        num_layers: int, the number of blocks.
        other: str, the kind of the other blocks.
        default: the kinds if the field is missing.
    """
    kinds = config.fields.get("layer_types")
    kinds = default if kinds is None else kinds
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or not all(x in (FULL, other) for x in kinds)
    ):
        config.refuse("layer_types", kinds, f"{num_layers} of {FULL} and {other}")
    return [kind == FULL for kind in kinds]


def window_of(model: models.Model) -> tuple[int | None, list[int | None]]:
    """The only window of a model's blocks, or None, and the window or None of each block.

    Raises:
        ValueError: blocks have different windows.
    """
    given = model.arguments
    each = each_window(given["windows"], given["num_layers"])
    used = {window for window in each if window is not None}
    if len(used) > 1:
        raise ValueError(f"{model.name}: a checkpoint has one window for all blocks, got {each}")
    return max(used, default=None), each


def is_tied(
    config: Config, named: Named, default: bool, embedding: str, output: str = "lm_head.weight"
) -> bool:
    """Whether the output shares the embedding's table, by the configuration and the tensors."""
    untied = output in named.own and not named.same(output, embedding)
    return config.flag("tie_word_embeddings", default) and not untied


def read_pad_id(
    config: Config, named: Named, default: int | None = None, causal: bool = True
) -> int | None:
    """The padding id of a model that reads texts, or without causality, which always has one.

    None for other heads, which `transformers` does not mask.
    """
    if causal and not any(map(named.begins, _READERS)):
        return None
    value = config.integer("pad_token_id", None, minimum=0)
    value = default if "pad_token_id" not in config.fields else value
    return NO_TOKEN if value is None and not causal else value


def classifier_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of a classifier, class names and padding id; for question answering the id."""
    if architecture.endswith("ForQuestionAnswering"):
        return {"pad_token_id": saved_pad_id(model)}
    if not architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        return {}
    fields = {"pad_token_id": saved_pad_id(model), **label_fields(model)}
    if architecture.endswith("ForTokenClassification"):
        dropout, default = model.head.arguments["dropout"], model.arguments.get("dropout", 0.0)
        fields["classifier_dropout"] = default if dropout is None else dropout
    return fields


def _token_dropout(config: Config) -> float:
    """The dropout rate of the classifier of tokens that most decoder-only families share."""
    rate = config.number("classifier_dropout", None, 1)
    return config.number("hidden_dropout", 0.1, 1) if rate is None else rate


def classifier_rows(model: models.Model, of_tokens: str = "classifier") -> tuple[Row, ...]:
    """The rows of classifiers, of which that of texts has no bias, and of question answering.

    Args:
        model: the model.
        of_tokens: str, the tensor of a classifier of tokens.
    """
    is_of_tokens = model.head is not None and model.head.kind == "token_classifier"
    return (
        *dense("classifier", of_tokens if is_of_tokens else "score", bias=is_of_tokens, head=True),
        *dense("span", "qa_outputs", head=True),
    )


def architectures(
    name: str,
    language_model: str | None = None,
    classifies_texts: bool = True,
    classifies_tokens: bool = False,
    of_tokens: str = "score",
    answers: str | None = None,
) -> dict[str, Architecture]:
    """The language model, the model without a head and the classifiers of a family.

    Args:
        name: str, prefix of the classes in `transformers`, such as "Llama".
        language_model: str, class of the language model. Default: the prefix and "ForCausalLM".
        classifies_texts: bool, whether there is a classifier of texts.
        classifies_tokens: bool, whether there is a classifier of tokens, which has a bias.
        of_tokens: str, the tensor of that classifier.
        answers: str, the prefix of names in files of the class for question answering; None: there
            is none.
    """
    found = {
        language_model or f"{name}ForCausalLM": Architecture(kind="language_model"),
        f"{name}Model": heads.backbone(),
    }
    if classifies_texts:
        found[f"{name}ForSequenceClassification"] = heads.sequence_classifier("last", "score.")
    if classifies_tokens:
        found[f"{name}ForTokenClassification"] = heads.token_classifier(
            f"{of_tokens}.", dropout=_token_dropout
        )
    if answers is not None:
        found[f"{name}ForQuestionAnswering"] = heads.question_answering(
            "qa_outputs.", prefix=answers
        )
    return found


def check_heads(model: models.Model, kind: str) -> None:
    """Raises unless the number of heads divides the width, which `transformers` requires."""
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    if dim % heads:
        raise ValueError(
            f"{model.name}: num_heads must divide dim ({dim}) to be saved as {kind}, got {heads}"
        )


def check_saved(model: models.Model, kind: str, **allowed: object) -> None:
    """Raises if a model has an argument that checkpoints of its kind cannot express.

    Args:
        model: the model.
        kind: str, name of the checkpoints, for the message.
        allowed: by argument, its only value, or a tuple of values.
    """
    for name, value in allowed.items():
        values: Sequence[object] = value if isinstance(value, tuple) else (value,)
        found = model.arguments.get(name, values[0])  # missing if it is newer than the model
        if not any(found == x for x in values):
            expected = " or ".join(repr(x) for x in values)
            raise ValueError(
                f"{model.name}: {name} must be {expected} to be saved as {kind}, got {found!r}"
            )
