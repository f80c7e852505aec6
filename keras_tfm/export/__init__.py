"""Export: the trained model as a SavedModel or as one .tflite file."""

from keras_tfm.export.adapters import save_adapter
from keras_tfm.export.calibration import calibrate
from keras_tfm.export.float16_check import Float16Check, check_in_float16
from keras_tfm.export.gpu_verification import GpuCheck, check_on_gpu
from keras_tfm.export.litertlm import LiteRTLMArguments, export_litertlm
from keras_tfm.export.report import Report
from keras_tfm.export.request import ExportArguments, GenerationArguments
from keras_tfm.export.saved_model import export_saved_model
from keras_tfm.export.tflite import export_tflite
from keras_tfm.export.verification import Check, Verification, VerificationError, verify
from keras_tfm.runtime.benchmark import Benchmark, Footprint, Latency, benchmark
from keras_tfm.runtime.inspection import Subgraph

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
    "verify",
]
