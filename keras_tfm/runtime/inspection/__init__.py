"""What is in a file, and how fast it runs."""

from keras_tfm.runtime.inspection.inspection import Inspection, inspect_file

__all__ = ["Inspection", "inspect_file"]
