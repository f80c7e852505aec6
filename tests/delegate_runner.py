"""Runs .tflite files on LiteRT's GPU delegate, each in a process of its own, forked from one.

`python delegate_runner.py FOLDER` reads NAME.tflite and NAME.npz, and writes the outputs as
NAME.out.npz if the delegate takes the file.
"""

import os
import sys
from pathlib import Path

import ai_edge_litert.compiled_model  # noqa: F401 (once, before the forks)
import numpy as np

from keras_tfm.runtime.inspection import gpu_process


def main(folder):
    """Runs the files of a folder, one after another."""
    for path in sorted(folder.glob("*.tflite")):
        process = os.fork()
        if process == 0:
            try:
                outputs = gpu_process.run(str(path), np.load(path.with_suffix(".npz")))
                np.savez(path.with_suffix(".out.npz"), **outputs)
            finally:
                os._exit(0)
        os.waitpid(process, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
