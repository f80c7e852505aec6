"""The loop: feed a token, choose the next one. It is compiled, and exported, as it stands."""

from typing import Any

import keras
from keras import ops

from keras_tfm.generation.model_inputs import call_model
from keras_tfm.generation.strategies import Greedy
from keras_tfm.layers import DecodingScope

Tensor = Any


def generation_loop(
    model: keras.Model,
    inputs: dict[str, Tensor],
    target: str,
    prompt: Tensor,
    max_length: int,
    end_id: int | None = None,
    strategy: Greedy | None = None,
    score: bool = True,
) -> dict[str, Tensor]:
    """Generates tokens after a prompt, with caches; pure, and traceable on every backend.

    Args:
        model: functional, with logits (B, T, V) as its output.
        inputs: the model's other inputs, by name.
        target: the name of the input that is stepped.
        prompt: (B, P), int32, P known and at least 1: the start token or a whole prompt.
        max_length: T, prompt included.
        end_id: a row ends with this token and is filled with 0; None: no row ends early.
        strategy: how the next token is chosen; greedy by default.
        score: whether to add up log-probabilities, which costs a softmax a token.

    Returns:
        "tokens" (B, T), int32, the prompt first, and with `score` "scores" (B,), float32, the sum
        of the log-probabilities of what was generated.
    """
    strategy = strategy or Greedy()
    inputs = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
    prompt = ops.cast(prompt, "int32")
    batch, prompt_length = ops.shape(prompt)

    # All of the prompt but its last token fills the caches; the loop begins by feeding that one.
    with DecodingScope(length=max_length) as scope:
        call_model(model, {**inputs, target: prompt[:, : max(prompt_length - 1, 1)]})
    # A start token alone is fed by the loop, so the decoder is not needed here: nothing reads it,
    # and the graph keeps the encoder and the projections of its output only.
    cache = scope.initial_cache if prompt_length == 1 else scope.cache

    tokens = ops.slice_update(ops.zeros((batch, max_length), dtype="int32"), (0, 0), prompt)
    state: dict[str, Any] = {
        "position": ops.convert_to_tensor(prompt_length - 1, dtype="int32"),
        "token": prompt[:, prompt_length - 1 :],
        "tokens": tokens,
        "cache": cache,
    }
    if end_id is not None:
        state["running"] = ops.ones((batch, 1), dtype="int32")
    if score:
        state["scores"] = ops.zeros((batch,), dtype="float32")

    def unfinished(state: dict[str, Any]) -> Tensor:
        more = ops.less(state["position"], max_length - 1)
        if end_id is not None:
            more = ops.logical_and(more, ops.greater(ops.max(state["running"]), 0))
        return more

    def step(state: dict[str, Any]) -> dict[str, Any]:
        position = state["position"]
        with DecodingScope(state["cache"], position=position, length=max_length) as scope:
            logits = call_model(model, {**inputs, target: state["token"]})
        logits = ops.reshape(logits, (batch, logits.shape[-1]))
        token = ops.expand_dims(strategy.choose(logits), 1)
        after = {"position": position + 1, "cache": scope.cache}
        if end_id is not None:
            token = token * state["running"]
            after["running"] = state["running"] * ops.cast(ops.not_equal(token, end_id), "int32")
        if score:
            gained = ops.take_along_axis(
                ops.log_softmax(ops.cast(logits, "float32"), axis=-1), token, axis=-1
            )
            if end_id is not None:
                gained = gained * ops.cast(state["running"], "float32")
            after["scores"] = state["scores"] + ops.squeeze(gained, 1)
        after["token"] = token
        after["tokens"] = ops.slice_update(state["tokens"], (0, position + 1), token)
        return after

    state = _while_loop(unfinished, step, state)
    return {name: state[name] for name in ("tokens", "scores") if name in state}


def _while_loop(condition: Any, body: Any, state: dict[str, Any]) -> dict[str, Any]:
    """`ops.while_loop` over a nested dictionary."""
    flat = keras.tree.flatten(state)

    def unflatten(values: Any) -> Any:
        return keras.tree.pack_sequence_as(state, values)

    result = ops.while_loop(
        lambda *values: condition(unflatten(values)),
        lambda *values: tuple(keras.tree.flatten(body(unflatten(values)))),
        tuple(flat),
    )
    return unflatten(result)
