"""Writes the bytes of a .tflite file with its manifest, after the file was verified."""

import logging
from collections.abc import Callable
from pathlib import Path

from keras_tfm import atomic_files
from keras_tfm.export import files
from keras_tfm.export.report import Report
from keras_tfm.export.verification.in_float16 import check_in_float16, warn_of
from keras_tfm.export.verification.on_gpu import check_on_gpu
from keras_tfm.export.verification.verify import Verification, VerificationError
from keras_tfm.runtime.inspection.inspection import inspected
from keras_tfm.runtime.manifest.manifest import Manifest

_log = logging.getLogger(__name__)


def written(
    path: Path,
    content: bytes,
    manifest: Manifest,
    overwrite: bool,
    custom_operators: bool,
    verified: Callable[[Path, Path], Verification] | None,
    on_gpu: bool = False,
) -> Report:
    """Writes a file completely or not at all, and returns its report.

    Args:
        path: where to write it.
        content: the bytes, with the manifest.
        manifest: the manifest.
        overwrite: bool, whether to replace a file that is not an earlier export.
        custom_operators: bool, whether the file may have operators that LiteRT lacks; one that has
            is not verified.
        verified: function of the file and of a temporary folder that compares the file with its
            model, and raises if it differs. None: the file is not verified.
        on_gpu: bool, whether a file that is verified runs on LiteRT's GPU delegate, and in
            float16 on the CPU, too.
    """
    _log.info("counting operators")
    report = Report(**inspected(path, content, manifest))
    with atomic_files.temporary_folder(atomic_files.real(path).parent) as folder:
        new = folder / "new"
        atomic_files.write(new, content)
        if verified is not None and not (custom_operators and report.custom_operators):
            found = report.verification = verified(new, folder)
            found.path = str(path)
            if on_gpu:
                found.gpu = check_on_gpu(new)
                if found.gpu.failures:
                    raise VerificationError("; ".join(found.gpu.failures), found)
                found.float16 = warn_of(check_in_float16(new))
        files.replace_file(new, path, overwrite)
    return report
