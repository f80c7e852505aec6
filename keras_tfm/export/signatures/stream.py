"""The signature "stream": a piece of the source and the states in, final outputs and states out."""

import tensorflow as tf

from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import Argument, Signature, Tensors
from keras_tfm.generation.source_model import SourceModel
from keras_tfm.runtime.manifest.records import Json


def stream(request: Request) -> list[Signature]:
    """Reads a piece of the source at `position`; its outputs are those of `SourceModel`.

    `end` is the length of the source, or `UNKNOWN_END`. Of each output (1, N, ...) those from
    `final`[0, 0] to `final`[0, 1] are final. The states are returned whole: the host passes them to
    the next piece, and zeros to the first.
    """
    assert request.piece_length is not None
    model = SourceModel(request.model, request.piece_length)
    source, taken = model.target, [*model.interface.name_outputs(request.model.output)]

    def own_name(name: str) -> str:
        name = request.own_name(name)
        while name in taken:
            name += "_"
        return name

    names = {
        (entry, part): own_name(f"cache_{entry}_{part}")
        for entry, parts in model.states.items()
        for part in parts
    }
    position, end, final = map(own_name, ("position", "end", "final"))

    def function(given: Tensors) -> Tensors:
        states: dict[str, Tensors] = {}
        for (entry, part), name in names.items():
            states.setdefault(entry, {})[part] = given[name]
        numbers = (tf.reshape(given[name], ()) for name in (position, end))
        piece, after = model.run(states, given[source], *numbers)
        return {
            **piece.outputs,
            final: tf.reshape(tf.stack([piece.first, piece.last]), (1, 2)),
            **{name: after[entry][part] for (entry, part), name in names.items()},
        }

    known = request.interface.inputs[source]
    shape = (1, request.piece_length, *known.spec.shape[2:])
    number = tf.TensorSpec((1,), "int32")
    settings: Json = {
        "states": [*names.values()],
        "final": final,
        "delay": model.delay,
        "stride": model.stride,
    }
    inputs = {
        source: Argument(tf.TensorSpec(shape, known.spec.dtype), input=known),
        position: Argument(number, "position"),
        end: Argument(number, "end"),
    }
    for (entry, part), name in names.items():
        x = model.states[entry][part]
        inputs[name] = Argument(tf.TensorSpec(x.shape, x.dtype), "cache")
    return [Signature("stream", "stream", function, inputs, settings)]
