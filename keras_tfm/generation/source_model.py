"""A model that reads its source in pieces, in Keras: its layers, and the check of each of them."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.generation.stepping import first_line
from keras_tfm.layers.decoding.cache import Cache
from keras_tfm.layers.decoding.source_scope import Place, SourceScope
from keras_tfm.layers.types import Arguments, Size, Tensor
from keras_tfm.matmul_precision import full_precision
from keras_tfm.runtime.manifest.checks import LARGEST_REACH
from keras_tfm.runtime.tasks.source_stream import UNKNOWN_END

# The largest allowed difference of an output, relative to the root mean square of the sequence's.
_TOLERANCE = 1e-3
# A check reads at least this many pieces, whatever the layers keep.
_PIECES = 3


class Piece(NamedTuple):
    """What a model gives for a piece of its source.

    Attributes:
        outputs: dict of (B, N, ...) by name, all of them equally late.
        first, last: () int32, the first of the N positions that is final, and the first after it
            that is not: outputs[first:last] continue those of the pieces before.
    """

    outputs: dict[str, Tensor]
    first: Tensor
    last: Tensor


class _Called(NamedTuple):
    """An output of a layer.

    Attributes:
        name: str, the layer's name.
        output: the output for a piece.
        place: its place.
        is_padded: bool, whether the layer puts zeros before the whole sequence, which it leaves to
            the convolution behind it in pieces.
    """

    name: str
    output: Tensor
    place: Place
    is_padded: bool


class SourceModel(SteppedModel):
    """A functional model of one input, which it reads in pieces of `piece_length` positions.

    Args:
        model: functional model of one input (B, T, ...), whose outputs have a position for each,
            or for each few, of the input's.
        piece_length: int, number of positions of the input in a piece.

    Attributes:
        piece_length: int, the argument.
        delay: int, the number of positions of the source by which outputs are late.
        stride: int, the number of positions of the source for one of the outputs.
        states: dict of dict of tensors, the states before the first piece.

    Raises:
        ValueError: a layer reads positions of the source without a limit, its strides do not divide
            the pieces, or it gives another result in pieces; the error names it.
        TypeError: the model is not functional, or `piece_length` is no integer.
    """

    def __init__(self, model: keras.Model, piece_length: int):
        check_integer("piece_length", piece_length)
        interface = interface_of(model)
        if len(interface.inputs) != 1:
            raise ValueError(
                f"{model.name} cannot read its source in pieces: it must have one input, got "
                f"{interface.names}"
            )
        (name,) = interface.names
        if len(interface.inputs[name].spec.shape) < 2 or interface.inputs[name].spec.shape[1]:
            raise ValueError(
                f"{model.name} cannot read its source in pieces: declare its input as "
                f"keras.Input((None, ...)), got the shape {interface.inputs[name].spec.shape}"
            )
        super().__init__(model, name)
        self.interface, self.piece_length = interface, int(piece_length)
        try:
            scope, place = self._first_scope()
            self.delay, self.stride = place.delay * place.stride, place.stride
            if self.delay + self.piece_length >= LARGEST_REACH:
                raise ValueError(
                    f"a piece and the delay must have fewer than {LARGEST_REACH} positions, got "
                    f"{self.piece_length} and {self.delay}"
                )
            self.states = scope.initial_cache
            self._check(scope.reach)
        except Exception as error:
            message = first_line(error)
            raise ValueError(f"{model.name} cannot read its source in pieces: {message}") from error

    @staticmethod
    def _check_output(operation: keras.Operation) -> None:
        """Any operation may be the last."""

    def _first_scope(self) -> tuple[SourceScope, Place]:
        """The scope of a first piece of zeros, and the place of its outputs."""
        spec = self._specs[self.target]
        piece = np.zeros((1, self.piece_length, *spec.shape[2:]), spec.dtype)
        scope = SourceScope(length=self.piece_length, end=UNKNOWN_END)
        with scope:
            self._run_piece(scope, piece)
        return scope, scope.place

    def run(
        self, cache: Cache, piece: Tensor, position: Size, end: Size
    ) -> tuple[Piece, Arguments]:
        """What the model gives for a piece, and the states after it.

        Args:
            cache: the states before it: `states` at first.
            piece: (B, N, ...), `piece_length` positions.
            position: int or () int32, the first position of the piece.
            end: int or () int32, the length of the source, or `UNKNOWN_END`.
        """
        scope = SourceScope(cache, position=position, length=self.piece_length, end=end)
        with scope:
            outputs, _ = self._run_piece(scope, piece)
        named = self.interface.name_outputs(outputs)
        first, last = scope.final(self.piece_length // scope.place.stride)
        return Piece(named, first, last), scope.cache

    def _run_piece(self, scope: SourceScope, piece: Tensor) -> tuple[Any, list[_Called]]:
        """The outputs for a piece, all as late as the latest, and those of each layer."""
        piece = self._convert(self.target, piece)
        # Kept by `id`, together with the tensors, so that no id is reused.
        places: dict[int, tuple[Tensor, Place]] = {id(piece): (piece, scope.place)}
        called: list[_Called] = []

        def call(layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
            if getattr(layer, "tells_padding", False):
                return None  # layers that take a mask get none
            flat = keras.tree.flatten((args, kwargs))
            known = list({id(x): x for x in flat if id(x) in places}.values())
            aligned = scope.align(layer.name, [places[id(x)] for x in known])
            ready = dict(zip(map(id, known), aligned, strict=True))
            args, kwargs = keras.tree.map_structure(lambda x: ready.get(id(x), x), (args, kwargs))
            y = layer(*args, **kwargs)
            for output in keras.tree.flatten(y):
                if len(output.shape) < 2:
                    raise ValueError(f"layer {layer.name!r} has one output for all positions")
                places[id(output)] = output, scope.place
                is_padded = scope.has_zeros_before(output)
                called.append(_Called(layer.name, output, scope.place, is_padded))
            return y

        outputs = self.step({}, piece, call=call)
        flat = keras.tree.flatten(outputs)
        flat = scope.align("outputs", [places[id(x)] for x in flat])
        return keras.tree.pack_sequence_as(outputs, flat), called

    def _check(self, reach: int) -> None:
        """Raises ValueError if the outputs differ from those of a pass over the whole source."""
        pieces = _PIECES + math.ceil(reach / self.piece_length)
        length = pieces * self.piece_length + self.piece_length // 2
        known, spec = self.interface.inputs[self.target], self._specs[self.target]
        shape, generator = (1, length, *spec.shape[2:]), np.random.default_rng(0)
        if "int" in spec.dtype or known.vocabulary_size is not None:
            ids = np.arange(1, max(2, known.vocabulary_size or 3))
            source = generator.choice(ids, shape).astype(spec.dtype)
            self.place_named_ids(source, ids)
        else:
            scale = 1.0 if known.audio is None else 0.1
            source = generator.normal(size=shape, scale=scale).astype(spec.dtype)
        with full_precision():
            whole = self._whole(source)
            parts = self._in_pieces(source)
        for (name, expected), found in zip(whole, parts, strict=True):
            if found is None:
                continue
            size = float(np.sqrt(np.mean(np.square(expected)))) if expected.size else 0.0
            same = expected.shape == found.shape
            if not same or not np.all(np.abs(expected - found) <= _TOLERANCE * max(size, 1e-30)):
                raise ValueError(
                    f"layer {name!r} gives another result in pieces than over the whole source"
                    + ("" if same else f", {found.shape} instead of {expected.shape}")
                )

    def _whole(self, source: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The outputs of each layer over the whole source, without padding."""
        found: list[tuple[str, np.ndarray]] = []

        def call(layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
            y = layer(*args, **kwargs)
            if getattr(layer, "tells_padding", False):
                return y
            found.extend((layer.name, _array(x)) for x in keras.tree.flatten(y))
            return y

        self.step({}, source, call=call)
        return found

    def _in_pieces(self, source: np.ndarray) -> list[np.ndarray | None]:
        """The final outputs of each layer, of all pieces; None for zeros that are left out."""
        n, end = self.piece_length, source.shape[1]
        count = math.ceil((end + self.delay) / n)
        padding = [(0, count * n - end), *(((0, 0),) * (source.ndim - 2))]
        source = np.pad(source, [(0, 0), *padding])
        parts: list[list[np.ndarray]] = []
        padded: list[bool] = []
        cache: Any = self.states
        for position in range(0, count * n, n):
            piece = source[:, position : position + n]
            scope = SourceScope(cache, position=position, length=n, end=end)
            with scope:
                _, called = self._run_piece(scope, piece)
            cache = scope.cache
            parts.append([_final_part(x, position, end) for x in called])
            padded = [x.is_padded for x in called]
        return [
            None if skip else np.concatenate(x, axis=1)
            for x, skip in zip(zip(*parts, strict=True), padded, strict=True)
        ]


def _final_part(called: _Called, position: int, length: int) -> np.ndarray:
    """The outputs of a piece that are positions of the sequence, of a source of `length`."""
    output, place = _array(called.output), called.place
    start = position // place.stride - place.delay
    bounds = (-start, int(place.end(length)) - start)
    first, last = (min(max(x, 0), output.shape[1]) for x in bounds)
    return output[:, first:last]


def _array(x: Tensor) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))
