"""The engines of benchmarks/language_model.py, each in a separate process.

That program starts this one with an engine, a file and options; llama.cpp is llama_cpp.mjs. Both
write a line of JSON when the file is loaded, {"loaded": seconds}, and then answer each line of
standard input with a line:

- {"prompt": ids, "new": count} with {"tokens": ids, "first": seconds, "last": seconds}, the times
  until the first and the last of the new tokens, chosen greedily;
- {"row": ids} with {"losses": the cross-entropy of each token after the first}, or null;
- {} with {"memory": MB, "anonymous": MB}: the peak of the process, and its present memory without
  mapped files, both beyond its imports.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

HERE = Path(__file__).parent
# The module that an engine imports before its memory is measured.
IMPORTED = {
    "transformers": "torch",
    "keras_tfm": "ai_edge_litert.compiled_model",
    "LiteRT-LM": "litert_lm",
    "ONNX Runtime GenAI": "onnxruntime_genai",
}


class Engine(Protocol):
    """A loaded model."""

    def generate(self, prompt: list[int], new: int) -> tuple[list[int], float, float]:
        """New tokens, and the seconds until the first and until the last of them."""

    def losses(self, row: list[int]) -> list[float] | None:
        """The cross-entropy of each token after the first; None if the engine gives no logits."""


@dataclass
class Contestant:
    """A line of the tables.

    Attributes:
        name: str, engine and precision.
        file: Path, what the engine reads.
        command: the arguments of its process, without number of threads and capacity.
    """

    name: str
    file: Path
    command: list[str]

    @property
    def megabytes(self) -> float:
        """The size of the file, or of the weights in a folder."""
        if self.file.is_file():
            return self.file.stat().st_size / 1e6
        return sum(x.stat().st_size for x in self.file.glob("*model*")) / 1e6

    def start(self, threads: int, capacity: int) -> "Process":
        """Loads the file in a new process."""
        return Process([*self.command, str(threads), str(capacity)])


class Process:
    """A contestant's process, as a context manager."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.loaded: float = self._read()["loaded"]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self._process.args} ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def in_python(name: str, engine: str, file: Path, *options: str) -> Contestant:
    """A contestant that runs in this program."""
    command = [sys.executable, __file__, engine, str(file), *options, "--"]
    return Contestant(name, file, command)


def in_node(name: str, file: Path, packages: Path, cache: str) -> Contestant:
    """llama.cpp, in node.js."""
    command = ["node", str(HERE / "llama_cpp.mjs"), str(packages), str(file), cache]
    return Contestant(name, file, command)


class Torch:
    """`transformers`."""

    def __init__(self, folder: Path, arguments: argparse.Namespace):
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def generate(self, prompt: list[int], new: int) -> tuple[list[int], float, float]:
        import torch

        found: list[int] = []
        ids, cache, start, first = torch.tensor([prompt]), None, time.perf_counter(), 0.0
        with torch.inference_mode():
            while len(found) < new:
                output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, ids = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
                found.append(int(ids))
                first = first or time.perf_counter() - start
        return found, first, time.perf_counter() - start

    def losses(self, row: list[int]) -> list[float] | None:
        import torch

        with torch.inference_mode():
            return cross_entropy(self._model(torch.tensor([row])).logits[0, :-1].numpy(), row[1:])


class KerasTfm:
    """A .tflite file in `keras_tfm.runtime`."""

    def __init__(self, path: Path, arguments: argparse.Namespace):
        from keras_tfm import runtime

        self._model = runtime.load(
            path, threads=arguments.threads, weight_cache=arguments.weight_cache
        )

    def generate(self, prompt: list[int], new: int) -> tuple[list[int], float, float]:
        found: list[int] = []
        start, first = time.perf_counter(), 0.0
        for token in self._model.stream([prompt]):
            found.append(int(token[0]))
            first = first or time.perf_counter() - start
            if len(found) == new:
                break
        return found, first, time.perf_counter() - start

    def losses(self, row: list[int]) -> list[float] | None:
        logits, rest, session = [], iter(row[1:]), self._model.session()
        session.append(row[:1])

        def choose(found: np.ndarray) -> np.ndarray:
            logits.append(np.array(found[0]))
            return np.array([next(rest)])

        for _ in session.stream_tokens(len(row) - 1, choose):
            pass
        return cross_entropy(np.array(logits), row[1:])


class GenAI:
    """ONNX Runtime GenAI, with the model that its own builder made."""

    def __init__(self, folder: Path, arguments: argparse.Namespace):
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(folder))
        options = {"intra_op_num_threads": arguments.threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._package, self._capacity = onnxruntime_genai, arguments.capacity
        self._model = onnxruntime_genai.Model(config)

    def _generator(self, prompt: list[int]) -> Any:
        parameters = self._package.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, max_length=self._capacity)
        generator = self._package.Generator(self._model, parameters)
        generator.append_tokens(np.array([prompt], "int32"))
        return generator

    def generate(self, prompt: list[int], new: int) -> tuple[list[int], float, float]:
        start, first, found = time.perf_counter(), 0.0, []
        generator = self._generator(prompt)
        while len(found) < new and not generator.is_done():
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
            first = first or time.perf_counter() - start
        return found, first, time.perf_counter() - start

    def losses(self, row: list[int]) -> list[float] | None:
        logits = self._generator(row).get_output("logits")[0]
        return cross_entropy(logits[:-1], row[1:]) if len(logits) == len(row) else None


class LiteRTLM:
    """The stock LiteRT-LM runtime and its own clock.

    It takes text and puts the start token before it, here in the place of the first token: another
    one would need a second prefill.
    """

    def __init__(self, path: Path, arguments: argparse.Namespace):
        import litert_lm
        import transformers

        litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
        backend = litert_lm.Backend.CPU(thread_count=arguments.threads)
        self._engine = litert_lm.Engine(
            str(path), backend, cache_dir=":nocache", enable_benchmark=True
        )
        self._greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer)

    def generate(self, prompt: list[int], new: int) -> tuple[list[int], float, float]:
        with self._engine.create_session(
            apply_prompt_template=False, sampler_config=self._greedy, max_output_tokens=new
        ) as session:
            session.run_prefill([self._tokenizer.decode(prompt[1:])])
            found = self._engine.tokenize(session.run_decode().texts[0])
            clock = session.get_benchmark_info()
        first = clock.time_to_first_token_in_second
        return found, first, first + (len(found) - 1) / clock.last_decode_tokens_per_second

    def losses(self, row: list[int]) -> list[float] | None:
        return None


ENGINES: dict[str, Callable[[Path, argparse.Namespace], Engine]] = {
    "transformers": Torch,
    "keras_tfm": KerasTfm,
    "LiteRT-LM": LiteRTLM,
    "ONNX Runtime GenAI": GenAI,
}


def cross_entropy(logits: np.ndarray, tokens: list[int]) -> list[float]:
    """The cross-entropy of tokens (T,) and logits (T, V)."""
    logits = logits.astype("float64")
    highest = logits.max(-1)
    total = highest + np.log(np.exp(logits - highest[:, np.newaxis]).sum(-1))
    return (total - logits[np.arange(len(tokens)), tokens]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--weight-cache", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("capacity", type=int)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    importlib.import_module(IMPORTED[arguments.engine])
    if arguments.engine == "keras_tfm":
        importlib.import_module("keras_tfm.runtime")
    before, anonymous = _kilobytes("VmRSS"), _kilobytes("RssAnon")
    start = time.perf_counter()
    engine = ENGINES[arguments.engine](arguments.file, arguments)
    _answer(loaded=time.perf_counter() - start)
    for line in sys.stdin:
        request = json.loads(line)
        if "prompt" in request:
            tokens, first, last = engine.generate(request["prompt"], request["new"])
            _answer(tokens=tokens, first=first, last=last)
        elif "row" in request:
            _answer(losses=engine.losses(request["row"]))
        else:
            _answer(
                memory=(_kilobytes("VmHWM") - before) / 1000,
                anonymous=(_kilobytes("RssAnon") + _kilobytes("RssShmem") - anonymous) / 1000,
            )


def _answer(**value: object) -> None:
    print(json.dumps(value), flush=True)


def _kilobytes(field: str) -> int:
    """A field of Linux's account of this process: `ru_maxrss` has the parent's peak, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


if __name__ == "__main__":
    main()
