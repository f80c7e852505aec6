"""One loaded file and several threads, as a web server has them."""

import subprocess
import sys
import textwrap

import numpy as np
from small_exports import QUESTIONS, small_file, small_tokens


def test_threads_take_turns(tmp_path):
    """LiteRT's interpreter is not made for it. In a process of its own, which may crash."""
    np.savez(tmp_path / "data.npz", questions=QUESTIONS, tokens=small_tokens(num_layers=2))
    script = f"""
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        from keras_tfm import runtime
        data = dict(np.load("data.npz"))  # read here: an open file is not for several threads
        model = runtime.load({small_file(num_layers=2).path!r})

        def right(i):
            i %= len(data["tokens"])
            return np.array_equal(model.generate(data["questions"][i]).tokens[0], data["tokens"][i])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(right, range(400)))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
