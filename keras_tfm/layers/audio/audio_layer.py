"""The base of layers that read audio."""

import keras

from keras_tfm.layers.types import Shape


class AudioLayer(keras.layers.Layer):
    """A layer that reads a waveform (B, samples), values from -1 to 1.

    An input that only such layers read is one of audio: its exported file takes WAV files and
    arrays at any rate, and resamples them.

    Attributes:
        sample_rate: int, number of samples per second.
        length: int, number of samples to which shorter audio is padded with zeros. None: audio is
            not padded.
        shortest: int, number of samples below which there is nothing to compute.
        masks_padding: bool, whether zeros behind the audio of a row change none of its outputs.
        tells_padding: bool, whether its output is the mask of the padding, of which a source that
            is read in pieces has none.
    """

    sample_rate: int
    length: int | None = None
    shortest: int = 1
    masks_padding: bool = False
    tells_padding: bool = False

    @property
    def takes_shorter(self) -> bool:
        """Whether zeros may be put behind audio that is shorter than an exported length."""
        return self.masks_padding or self.length is not None

    def check(self, shape: Shape) -> None:
        """Raises a ValueError unless a shape is (B, samples), of at least `shortest` samples."""
        if len(shape) != 2:
            raise ValueError(f"{self.name}: audio must have shape (B, samples), got {tuple(shape)}")
        if shape[1] is not None and shape[1] < self.shortest:
            raise ValueError(
                f"{self.name}: audio must have at least {self.shortest} samples, got {shape[1]}"
            )
