"""The report of an export."""

from dataclasses import dataclass, field

from keras_tfm.export.verification.verify import Verification
from keras_tfm.runtime.inspection.inspection import Inspection


@dataclass
class Report(Inspection):
    """The content of a file and its error against the model; `print` it, or take `asdict()`.

    Attributes:
        dequantized: list of str, the names of models that Keras's `quantize` had rounded: the file
            stores their rounded weights in its own format.
        verification: `Verification`, each signature against the model; None if the file was not
            verified.
    """

    dequantized: list[str] = field(default_factory=list)
    verification: Verification | None = None

    def lines(self) -> list[str]:
        """Size, signatures, graphs, and the comparison with the model."""
        lines = super().lines()
        lines += [
            f"  {name} was quantized by Keras: its rounded weights are stored in "
            f"{self.quantization}"
            for name in self.dequantized
        ]
        return lines if self.verification is None else [*lines, str(self.verification)]
