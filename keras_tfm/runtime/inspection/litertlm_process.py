"""What the stock LiteRT-LM runtime does with a .litertlm file, in a separate process.

`python -m keras_tfm.runtime.inspection.litertlm_process model.litertlm` reads questions as JSON
from standard input and prints the answers as JSON. The runtime ends its process at some errors, and
writes to standard error at the others.
"""

import json
import sys
import time
from typing import Any


def ask(path: str, questions: dict[str, Any]) -> dict[str, Any]:
    """Runs a file greedily on the CPU.

    Args:
        path: str, the .litertlm file.
        questions: dict. "prompts": list of dicts with the "text" of a prompt, the number of tokens
            to generate ("count"), and the "tokens" to expect. "drafts": int, the number of draft
            heads of the file; "adapter": str, the path of a LoRA adapter: both optional.
            "conversations": list of lists of
            messages, dicts with a "role" and a "content", or of dicts of "messages", "tools" and
            other variables of the chat template. "pictures": list of dicts with a "message" that
            has a picture, and "count" and "tokens" as of a prompt; optional. Or, of a file of
            embeddings, "embeddings": list of dicts with a "text" and the "strategy" for one that is
            too long.

    Returns:
        A dict. "prompts": for each prompt the "ids" of its text, the generated "text", the texts of
        the first 0, 1, 2... tokens that were expected ("expected"), and the milliseconds per token
        ("ms"); with drafts also the text and the milliseconds of speculative decoding ("drafted",
        "drafted_ms"). "pictures": the same of the answers to messages, without ids.
        "conversations": the text of each conversation in the template of the file.
        "embeddings": for each text its "vector", and the milliseconds that it took ("ms").
    """
    import litert_lm

    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
    if "embeddings" in questions:
        return {"embeddings": _embed(path, questions["embeddings"])}
    answers: dict[str, Any] = {"prompts": [], "pictures": [], "conversations": []}
    # No cache of packed weights beside the file.
    cpu, pictures = litert_lm.Backend.CPU(), questions.get("pictures") or []
    seeing = {"vision_backend": cpu} if pictures else {}
    with litert_lm.Engine(path, cpu, cache_dir=":nocache", **seeing) as engine:
        drafts, adapter = questions.get("drafts", 0), questions.get("adapter")
        lora = None if adapter is None else litert_lm.LoraConfig(lora_path=adapter)

        def generate(prompt: dict[str, Any], count: int, drafted: bool) -> tuple[str, float]:
            with engine.create_session(
                apply_prompt_template=False,
                sampler_config=greedy,
                max_output_tokens=count,
                lora_config=lora,
                enable_speculative_decoding=drafted,
            ) as session:
                session.run_prefill([prompt["text"]])
                start = time.perf_counter()
                text: str = session.run_decode().texts[0]
                seconds = time.perf_counter() - start
            return text, 1e3 * seconds / max(1, len(prompt["tokens"]))

        def texts_of(tokens: list[int]) -> list[str]:
            return [engine.detokenize(tokens[:n]) if n else "" for n in range(len(tokens) + 1)]

        for question in pictures:
            with engine.create_conversation(
                max_output_tokens=question["count"], sampler_config=greedy
            ) as conversation:
                start = time.perf_counter()
                parts = conversation.send_message(question["message"])["content"]
                seconds = time.perf_counter() - start
            text = "".join(x["text"] for x in parts if x["type"] == "text")
            answers["pictures"].append(
                {
                    "text": text.partition("\0")[0],  # where `detokenize` ends, too
                    "expected": texts_of(question["tokens"]),
                    "ms": 1e3 * seconds / max(1, len(question["tokens"])),
                }
            )
        for prompt in questions["prompts"]:
            tokens = prompt["tokens"]
            text, ms = generate(prompt, prompt["count"], drafted=False)
            answer = {
                "ids": engine.tokenize(prompt["text"]),
                "text": text,
                "expected": texts_of(tokens),
                "ms": ms,
            }
            if drafts:
                # The last step may make as many tokens more.
                count = max(1, prompt["count"] - drafts)
                answer["drafted"], answer["drafted_ms"] = generate(prompt, count, drafted=True)
            answers["prompts"].append(answer)
        for given in questions["conversations"]:
            variables = {**given} if isinstance(given, dict) else {"messages": given}
            messages, tools = variables.pop("messages"), variables.pop("tools", None)
            with engine.create_conversation(
                messages=messages[:-1],
                tools=tools and [_tool(x) for x in tools],
                extra_context=variables or None,
            ) as conversation:
                rendered = conversation.render_message_to_string(messages[-1])
            answers["conversations"].append(rendered)
    return answers


def _tool(description: dict[str, Any]) -> Any:
    import litert_lm

    class Described(litert_lm.Tool):
        def get_tool_description(self) -> dict[str, Any]:
            return description

        def execute(self, param: Any) -> str:
            return ""

    return Described()


def _embed(path: str, questions: list[dict[str, str]]) -> list[dict[str, Any]]:
    import litert_lm

    answers = []
    engine = litert_lm.EmbeddingEngine(path, litert_lm.Backend.CPU(), cache_dir=":nocache")
    for question in questions:
        options = litert_lm.EmbeddingOptions(
            normalize=False,
            input_overflow_strategy=litert_lm.InputOverflowStrategy[question["strategy"]],
        )
        start = time.perf_counter()
        response = engine.compute_embedding(question["text"], options)
        ms = 1e3 * (time.perf_counter() - start)
        answers.append({"vector": response.embedding, "ms": ms})
    return answers


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], json.load(sys.stdin))))
