"""What an export has made."""

from dataclasses import dataclass

from keras_tfm.export.verification import Verification
from keras_tfm.runtime.inspection import Inspection


@dataclass
class Report(Inspection):
    """What is in the file, and how far it is off; `print` it, or take `asdict()`.

    Attributes:
        verification: each signature against the model; None where that was not asked for.
    """

    verification: Verification | None = None

    def lines(self) -> list[str]:
        """Size, signatures, graphs, and the comparison with the model."""
        lines = super().lines()
        return lines if self.verification is None else [*lines, str(self.verification)]
