"""Two or more .litertlm files of one language model, in LiteRT and in LiteRT-LM.

    pip install -e ".[litertlm]"
    python benchmarks/litertlm.py OURS.litertlm OTHER.litertlm        # five minutes

Files: those of `benchmarks/language_model.py --keep FILES`, which also says how litert-torch makes
one. Their prefill has the same length. Four measurements on one thread, files in turns, medians,
and in brackets the ratio to the last file, above 1 if the file is faster:

- LiteRT: milliseconds of a prefill and of a decoding step in `CompiledModel`, with one buffer for a
  KV cache as argument and result, as LiteRT-LM has it;
- sessions: LiteRT-LM's tokens a second in prefill and in decoding of 64 tokens, of English text;
- benchmark: LiteRT-LM's own benchmark, a new engine each time, for 64 and for 256 new tokens.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import litert_lm
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.options import CpuOptions, Options

ONE_THREAD = litert_lm.Backend.CPU(thread_count=1)
TEXT = "The committee discussed the new library for an hour. Some members had read the report. " * 9
WORDS = 53  # of a prompt: fewer than 64 tokens
Times = dict[str, dict[str, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for path in arguments.files:
        if not path.is_file():
            parser.error(f"no such file: {path}")
    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    files = {path.name: path for path in arguments.files}
    found: Times = defaultdict(lambda: defaultdict(list))
    in_litert(files, arguments.rounds, found)
    for _ in range(arguments.rounds):
        for name in random.sample(list(files), len(files)):
            in_session(str(files[name]), found, name)
            for new in (64, 256):
                in_benchmark(str(files[name]), new, found, name)
    print(f"\n| |{'|'.join(f' {name} ' for name in files)}|\n|---|{'---:|' * len(files)}")
    for what, of in found.items():
        medians = {name: statistics.median(of[name]) for name in files}
        last = medians[list(files)[-1]]
        cells = [
            f" {x:,.1f} ({(last / x if what.endswith('ms') else x / last):.2f}) "
            for x in medians.values()
        ]
        print(f"| {what} |{'|'.join(cells)}|")


def in_litert(files: dict[str, Path], rounds: int, found: Times) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for role, steps in (("prefill", 5), ("decode", 50)):
            runs = {}
            for name, path in files.items():
                content = path.read_bytes()
                model = Path(folder) / f"{name}.tflite"
                model.write_bytes(content[content.index(b"TFL3") - 4 :])
                runs[name] = of_signature(model, role)
            for number in range(rounds + 1):  # the first warms up
                for name in random.sample(list(files), len(files)):
                    start = time.perf_counter()
                    for _ in range(steps):
                        runs[name]()
                    if number:
                        seconds = (time.perf_counter() - start) / steps
                        found[f"LiteRT, {role}, ms"][name].append(1000 * seconds)


def of_signature(path: Path, role: str) -> Any:
    """A function that runs a signature once."""
    options = Options(
        hardware_accelerators=HardwareAccelerator.CPU, cpu_options=CpuOptions(num_threads=1)
    )
    model = CompiledModel.from_file(str(path), options=options)
    signatures = model.get_signature_list()
    number, name = next((i, x) for i, x in enumerate(signatures) if x.startswith(role))
    inputs, outputs = model.create_input_buffers(number), model.create_output_buffers(number)
    details, results = model.get_input_tensor_details(name), signatures[name]["outputs"]
    for key, buffer in zip(signatures[name]["inputs"], inputs, strict=True):
        buffer.write(np.zeros(details[key]["shape"], details[key]["dtype"]))
        if key in results:  # a KV cache
            outputs[results.index(key)] = buffer
    return lambda: model.run_by_index(number, inputs, outputs)


def in_session(path: str, found: Times, name: str) -> None:
    engine = litert_lm.Engine(path, ONE_THREAD, cache_dir=":nocache", enable_benchmark=True)
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
    for number in range(4):  # the first warms up
        with engine.create_session(
            apply_prompt_template=False, sampler_config=greedy, max_output_tokens=64
        ) as session:
            session.run_prefill([" ".join(TEXT.split()[number:][:WORDS])])
            session.run_decode()
            clock = session.get_benchmark_info()
        if number:
            add(clock, "sessions", found, name)


def in_benchmark(path: str, new: int, found: Times, name: str) -> None:
    clock = litert_lm.Benchmark(
        path, ONE_THREAD, prefill_tokens=64, decode_tokens=new, cache_dir=":nocache"
    ).run()
    add(clock, f"benchmark, {new} tokens", found, name)


def add(clock: Any, what: str, found: Times, name: str) -> None:
    found[f"{what}, prefill, tokens/s"][name].append(clock.last_prefill_tokens_per_second)
    found[f"{what}, decoding, tokens/s"][name].append(clock.last_decode_tokens_per_second)


if __name__ == "__main__":
    main()
