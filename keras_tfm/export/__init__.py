"""Export: the trained model as a SavedModel or as one .tflite file."""

from keras_tfm.export.graph.adapters import save_adapter
from keras_tfm.export.litertlm.adapters import save_litertlm_adapter
from keras_tfm.export.litertlm.export import LiteRTLMArguments, export_litertlm
from keras_tfm.export.pipeline import Report
from keras_tfm.export.quantization.calibration import calibrate
from keras_tfm.export.saved_model import export_saved_model
from keras_tfm.export.signatures.request import ExportArguments, GenerationArguments
from keras_tfm.export.tflite import export_tflite
from keras_tfm.export.verification.in_float16 import Float16Check, check_in_float16
from keras_tfm.export.verification.on_gpu import GpuCheck, check_on_gpu
from keras_tfm.export.verification.verify import Check, Verification, VerificationError, verify
from keras_tfm.runtime.inspection.benchmark import Benchmark, Footprint, Latency, benchmark
from keras_tfm.runtime.inspection.inspection import Subgraph

__all__ = [
    "Benchmark",
    "Check",
    "ExportArguments",
    "Float16Check",
    "Footprint",
    "GenerationArguments",
    "GpuCheck",
    "Latency",
    "LiteRTLMArguments",
    "Report",
    "Subgraph",
    "Verification",
    "VerificationError",
    "benchmark",
    "calibrate",
    "check_in_float16",
    "check_on_gpu",
    "export_litertlm",
    "export_saved_model",
    "export_tflite",
    "save_adapter",
    "save_litertlm_adapter",
    "verify",
]
