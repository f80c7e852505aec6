"""The report of an export."""

from dataclasses import dataclass

from keras_tfm.export.verification import Verification
from keras_tfm.runtime.inspection import Inspection


@dataclass
class Report(Inspection):
    """The content of a file and its error against the model; `print` it, or take `asdict()`.

    Attributes:
        verification: `Verification`, each signature against the model; None if the file was not
            verified.
    """

    verification: Verification | None = None

    def lines(self) -> list[str]:
        """Size, signatures, graphs, and the comparison with the model."""
        lines = super().lines()
        return lines if self.verification is None else [*lines, str(self.verification)]
