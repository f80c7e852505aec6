"""The inputs of a functional model: their names, which one is stepped, what ids they take."""

from typing import Any

import keras

from keras_tfm.layers import TokenEmbedding


def input_names(model: keras.Model) -> list[str]:
    """The names by which a functional model takes its inputs."""
    if not hasattr(model, "inputs") or not hasattr(model, "operations"):
        raise TypeError(
            "expected a functional keras.Model (made of keras.Input and layers), "
            f"got {type(model).__name__}"
        )
    struct = model.input
    return list(struct) if isinstance(struct, dict) else [x.name for x in model.inputs]


def call_model(model: keras.Model, inputs: dict[str, Any]) -> Any:
    """The model's outputs in inference mode, from inputs by name."""
    single = isinstance(model.input, keras.KerasTensor)
    return model(next(iter(inputs.values())) if single else inputs, training=False)


def find_target(model: keras.Model, target: str | None = None) -> str:
    """The name of the input that is stepped: `target`, or "target", or the only one."""
    names = input_names(model)
    if target is None:
        target = "target" if "target" in names or len(names) > 1 else names[0]
    if target not in names:
        raise ValueError(
            f"the model has no input {target!r} to step, its inputs are {names}: "
            "name one with target="
        )
    return target


def input_specs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """The symbolic inputs by name."""
    struct = model.input
    if isinstance(struct, dict):  # not flattened, which would sort it
        return dict(struct)
    return dict(zip(input_names(model), model.inputs, strict=True))


def vocabulary_sizes(model: keras.Model) -> dict[str, int]:
    """How many ids each input takes that goes straight into an embedding, by name."""
    inputs = {id(x): name for name, x in input_specs(model).items()}
    sizes: dict[str, int] = {}
    for operation in model.operations:
        if isinstance(operation, TokenEmbedding):
            size = operation.vocabulary_size
        elif isinstance(operation, keras.layers.Embedding):
            size = operation.input_dim
        else:
            continue
        # Not public, but the only record of an embedding that is called several times.
        for node in operation._inbound_nodes:
            for x in node.input_tensors:
                if id(x) in inputs:
                    name = inputs[id(x)]
                    sizes[name] = min(size, sizes.get(name, size))
    return sizes


def with_features(model: keras.Model) -> keras.Model:
    """The model with a second output: what goes into the layer that makes the logits."""
    (logits,) = model.outputs
    # Not public, but the only record of what made a tensor.
    operation, node, _ = logits._keras_history
    features = operation._inbound_nodes[node].input_tensors[0]
    return keras.Model(model.input, [logits, features])
