"""Task heads: layers on top of a model's features.

Each function takes a functional model, or a `keras.Sequential` that begins with an `Input`, and
returns a model with the same inputs, layers and weights, in which this head replaces the head that
the model had, if any.

All functions have three options:

- `features`: the input of the head, a symbolic tensor (B, T, D) of the model or a layer's name.
  Default: the features of a model made by a builder of `keras_tfm.models`. Required for
  hand-composed models; for a pre-norm model, name the normalisation after the last block.
- `kernel_initializer`: initializer of the head's dense layers. Default: as in BERT, truncated
  normal with standard deviation 0.02.
- `dtype`: dtype or dtype policy of the head's layers. Default: that of the builder's layers; for
  hand-composed models the global policy.
"""

from collections.abc import Sequence

import keras
from keras import ops

from keras_tfm.keras_internals import nodes_in_order, producer
from keras_tfm.layers import OutputBias, TokenEmbedding
from keras_tfm.layers.types import Activation, DType, Initializer, Tensor
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.encoder_decoders.shifted_source import has_decoder, with_shifted_source
from keras_tfm.models.heads.head_base import HeadBase, checked_labels, head_base, unused_name
from keras_tfm.models.identity import Marker, head, identity_of, tensors_of
from keras_tfm.models.model import Model


def backbone(model: keras.Model, features: Tensor | str | None = None) -> Model:
    """Returns the model without its head: from its inputs to features (B, T, D).

    Args:
        model: functional model.
        features: see `keras_tfm.models.heads.text_heads`.

    Example:

    >>> from keras_tfm.models import backbone, gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> backbone(model).output.shape
    (None, None, 8)
    """
    base = head_base(model, features)
    return base.with_outputs(base.features)


@head
def encoder(model: keras.Model) -> Model:
    """Returns the encoder of an encoder-decoder model: from its input to features (B, S, D).

    Args:
        model: `keras.Model`, an encoder-decoder model, such as `models.t5(...)`.

    Raises:
        ValueError: the model has no encoder.

    Example:

    >>> from keras_tfm.models import encoder, t5
    >>> model = t5(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> encoder(model).output.shape
    (None, None, 8)
    """
    encoded = tensors_of(model, "encoded")
    if len(encoded) != 1:
        raise ValueError(
            f"expected an encoder-decoder model of keras_tfm.models, got {model.name!r} without "
            "an encoder"
        )
    inputs = model.input
    if isinstance(inputs, dict):
        (inputs,) = (x for name, x in inputs.items() if name != "target")
    marker = Marker("head", name=unused_name(model, "head_marker"))
    return derived_model(model, inputs, marker(encoded[0]))


def decoder(model: keras.Model) -> Model:
    """Returns the decoder of an encoder-decoder model, whose source are features of the encoder.

    It shares the layers of the model. With `encoder(model)`, which may read its source in pieces,
    it is the whole model: `export_tflite` writes both to one file.

    Args:
        model: `keras.Model`, an encoder-decoder model such as `models.moonshine_streaming(...)`.

    Returns:
        A functional model from `features` (B, S, D) and `target` (B, T) to what the model returns.

    Raises:
        ValueError: the model has no encoder, or its decoder reads other inputs than the target.

    Example:

    >>> from keras_tfm.models import decoder, t5
    >>> model = t5(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> sorted(decoder(model).input)
    ['features', 'target']
    """
    encoded = tensors_of(model, "encoded")
    target = model.input.get("target") if encoded and isinstance(model.input, dict) else None
    if len(encoded) != 1 or target is None:
        raise ValueError(
            f"expected an encoder-decoder model of keras_tfm.models, got {model.name!r} without "
            "an encoder"
        )
    features = keras.Input(encoded[0].shape[1:], dtype=encoded[0].dtype, name="features")
    new_target = keras.Input(target.shape[1:], dtype=target.dtype, name="target")
    known = {id(encoded[0]): features, id(target): new_target}
    for node in nodes_in_order(model):
        reads = [x for x in node.input_tensors if not _tells_padding(x)]
        if all(id(x) in known for x in reads) and not _tells_padding(node.output_tensors[0]):
            args, kwargs = node.arguments.fill_in(known)  # without the mask of the source
            made = keras.tree.flatten(node.operation(*args, **kwargs))
            known.update((id(x), y) for x, y in zip(node.output_tensors, made, strict=True))
    outputs = keras.tree.map_structure(lambda x: known[id(x)], model.output)
    inputs = {"features": features, "target": new_target}
    return derived_model(model, inputs, outputs, f"{model.name}_decoder")


def _tells_padding(x: keras.KerasTensor) -> bool:
    """Whether a tensor is the mask of the padding of audio."""
    return bool(getattr(producer(x).operation, "tells_padding", False))


@head
def masked_language_model(
    model: keras.Model,
    next_sentence: bool = False,
    positions: bool = False,
    activation: Activation | None = None,
    layer_norm_epsilon: float | None = None,
    embedding: TokenEmbedding | str | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds BERT's head for masked language modelling: logits (B, T, V) (arXiv:1810.04805).

    A dense layer with an activation, a normalisation, an output tied to the token embedding, and a
    bias.

    Args:
        model: functional model, such as `models.bert(...)`.
        next_sentence: bool, add the head of `next_sentence`. The outputs are then a dict of
            "tokens" (B, T, V) and "next_sentence" (B, 2).
        positions: bool, add the input `mask_positions` (B, M), int32, and compute logits at these
            positions only, (B, M, V). `text.MaskTokens(positions=True)` gives the positions of the
            masked tokens, the only ones that need logits in training.
        activation: str or function, activation of the dense layer. Default: that of the model's
            feed-forward networks; "gelu" for hand-composed models.
        layer_norm_epsilon: float, epsilon of the normalisation. Default: the model's; 1e-12 for
            hand-composed models.
        embedding: `TokenEmbedding` layer of the model, or its name, to which the output is tied.
            Default: the model's embedding. Required for hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: the model has no features or no embedding, and they are not given.

    Example:

    >>> from keras_tfm.models import bert, masked_language_model
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> masked_language_model(model).output.shape
    (None, None, 11)
    """
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features)
    inputs = None
    if positions:
        chosen = keras.Input((None,), dtype="int32", name="mask_positions")
        given = base.model.input
        given = given if isinstance(given, dict) else {x.name: x for x in base.model.inputs}
        inputs = {**given, "mask_positions": chosen}
        x = ops.take_along_axis(x, chosen[..., None], axis=1)
    outputs = masked_token_logits(base, x, embedding, activation, layer_norm_epsilon)
    if next_sentence:
        is_next = base.dense(2, "next_sentence")
        outputs = {"tokens": outputs, "next_sentence": is_next(base.pool())}
    return base.with_outputs(outputs, inputs)


def masked_token_logits(
    base: HeadBase,
    x: Tensor,
    embedding: TokenEmbedding | str | None = None,
    activation: Activation | None = None,
    layer_norm_epsilon: float | None = None,
) -> Tensor:
    """Logits (B, T, V) of features (B, T, D), as in `masked_language_model`."""
    table = base.embedding(embedding)
    logits = base.token_logits(x, table, activation, layer_norm_epsilon)
    return OutputBias(dtype=base.dtype, name="output_bias")(logits)


@head
def next_sentence(
    model: keras.Model,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds a head that tells whether the second text follows the first: logits (B, 2).

    Class 0 = follows, class 1 = does not, as in BERT (arXiv:1810.04805).

    Args:
        model: functional model, such as `models.bert(...)`.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Example:

    >>> from keras_tfm.models import bert, next_sentence
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> next_sentence(model).output.shape
    (None, 2)
    """
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.pool())
    return base.with_outputs(base.dense(2, "next_sentence")(x))


@head
def sequence_classifier(
    model: keras.Model,
    num_classes: int,
    dropout: float | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
    labels: Sequence[str] | None = None,
    pooling: str | None = None,
) -> Model:
    """Adds a classifier of texts or pairs of texts, on one token's features: logits (B, C).

    With `pooling="first"` the head uses the model's pooler if it has one, and otherwise adds one: a
    dense layer with tanh on the first token's features. With `pooling="last"` it is one dense layer
    without bias on the last token that is not padding, as in GPT-2 and Llama, and with
    `pooling="mean"` on the mean of all tokens that are not padding, as in ImageGPT.

    On encoder-decoders such as `bart`, `t5` and `t5gemma`, the decoder reads the source again,
    shifted right, and the only input is `source`. The pooled token is the last end token of the
    source; on `t5gemma` and `t5gemma2` it is the last one in the decoder that is not padding, and
    the head is one dense layer with bias. There, as in `transformers`, a text without padding
    after it is classified without its last token, which only the next column sees: pad every text.
    `sequence_classifier(encoder(t5gemma(...)), ...)` has no decoder, and pools the last token of
    the source.

    Args:
        model: functional model, such as `models.bert(...)`.
        num_classes: int, number of classes (C); 1 for regression.
        dropout: float, dropout rate before the last layer. Default: the model's; 0 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.
        labels: list of C class names, kept by `save_huggingface` and `load_huggingface`.
        pooling: str, "first", "last" or "mean". Default: "last" for decoder-only models, where the
            first token sees no other, and for `t5gemma` and `t5gemma2`; "first" for all others.
            On EuroBERT, `llama(classifier_activation="gelu", ...)`, there is a dense layer with
            this activation after the pooling, or, with "late", the default there, before the mean.
            Give a decoder-only model its `pad_id`: without one, the last column counts.

    Example:

    >>> from keras_tfm.models import bert, sequence_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, segments=False)
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    labels = checked_labels(labels, num_classes)
    model = with_shifted_source(model) if features is None else model
    base = head_base(model, features, kernel_initializer, dtype)
    logits = _logits_of_texts(base, num_classes, dropout, pooling, labels=labels)
    return base.with_outputs(logits)


def _logits_of_texts(
    base: HeadBase, num_classes: int, dropout: float | None, pooling: str | None, **recorded: object
) -> Tensor:
    """Logits (B, C) of pooled features, as in `sequence_classifier`."""
    pooling = base.pooling if pooling is None else pooling
    if pooling not in base.poolings:
        *names, last = map(repr, base.poolings)
        raise ValueError(f"pooling must be {', '.join(names)} or {last}, got {pooling!r}")
    x = base.pool() if pooling == "first" else base.pool_tokens(pooling)
    x = base.mark(x, pooling=pooling, **recorded)
    use_bias = base.has_classifier_bias(pooling)
    return base.classify(x, num_classes, dropout, use_bias=use_bias)


@head
def multiple_choice(
    model: keras.Model,
    dropout: float | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
    pooling: str | None = None,
) -> Model:
    """Adds a head that scores the choices of a question: logits (B, 1), a choice in each row.

    A row is the question with one of its N choices, and the probabilities of the choices are the
    softmax of their logits, as for SWAG in BERT (arXiv:1810.04805, section 4.4). For training on
    questions (B, N, T), reshape them to (B N, T) and the logits to (B, N).

    Args:
        model: functional model, such as `models.modernbert(...)`.
        dropout: float, dropout rate before the last layer. Default: the model's; 0 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.
        pooling: str, as in `sequence_classifier`.

    Raises:
        ValueError: unknown `pooling`.

    Example:

    >>> from keras import ops
    >>> from keras_tfm.models import modernbert, multiple_choice
    >>> model = modernbert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, pad_id=0)
    >>> questions = ops.ones((3, 4, 5), "int32")  # 3 questions, each with 4 choices
    >>> logits = multiple_choice(model)({"tokens": ops.reshape(questions, (-1, 5))})
    >>> tuple(ops.reshape(logits, (-1, 4)).shape)
    (3, 4)
    """
    model = with_shifted_source(model) if features is None else model
    base = head_base(model, features, kernel_initializer, dtype)
    return base.with_outputs(_logits_of_texts(base, 1, dropout, pooling))


@head
def token_classifier(
    model: keras.Model,
    num_classes: int,
    dropout: float | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
    labels: Sequence[str] | None = None,
) -> Model:
    """Adds a classifier of each token: logits (B, T, C).

    On `t5`, the head is on the encoder, as in `token_classifier(encoder(model), ...)`. On other
    encoder-decoders such as `t5gemma`, the decoder reads the source again, shifted right: the
    logits of a token are those in the column after it. In both cases the only input is `source`.

    Args:
        model: functional model, such as `models.bert(...)`.
        num_classes: int, number of classes (C).
        dropout: float, dropout rate before the last layer. Default: the model's; 0 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Example:

    >>> from keras_tfm.models import bert, token_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> token_classifier(model, num_classes=5).output.shape
    (None, None, 5)
    """
    labels = checked_labels(labels, num_classes)
    if features is None:
        is_t5 = identity_of(model).family == "t5" and has_decoder(model)
        model = encoder(model) if is_t5 else with_shifted_source(model)
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features, labels=labels)
    return base.with_outputs(base.classify(x, num_classes, dropout))


@head
def question_answering(
    model: keras.Model,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds BERT's head for SQuAD: logits of an answer's start (B, T) and end (B, T).

    The outputs are a dict of "start" and "end". The question is segment 0 and the text segment 1
    (arXiv:1810.04805, section 4.2). On encoder-decoders such as `bart` and `t5`, the decoder reads
    the source again, shifted right, and the only input is `source`.

    Args:
        model: functional model, such as `models.bert(...)`.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Example:

    >>> from keras_tfm.models import bert, question_answering
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> {name: x.shape for name, x in question_answering(model).output.items()}
    {'start': (None, None), 'end': (None, None)}
    """
    model = with_shifted_source(model) if features is None else model
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features)
    start, end = ops.unstack(base.dense(2, "span")(base.begin(x)), 2, axis=-1)
    return base.with_outputs({"start": start, "end": end})
