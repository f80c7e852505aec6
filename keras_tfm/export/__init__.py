"""Export: the trained model as a SavedModel or as one .tflite file."""

from keras_tfm.export.benchmark import Benchmark, Footprint, Latency, benchmark
from keras_tfm.export.report import Report, Subgraph
from keras_tfm.export.saved_model import export_saved_model
from keras_tfm.export.tflite import export_tflite

__all__ = [
    "Benchmark",
    "Footprint",
    "Latency",
    "Report",
    "Subgraph",
    "benchmark",
    "export_saved_model",
    "export_tflite",
]
