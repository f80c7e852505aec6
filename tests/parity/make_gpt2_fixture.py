"""python tests/parity/make_gpt2_fixture.py  (needs: pip install torch==2.13.0 transformers numpy)

Writes gpt2_generation.npz beside this file: a tiny GPT-2 of Hugging Face's transformers with random
weights, and what its `generate` makes of a few prompts, greedily and by beam search.

Keys of the file:
    <state_dict name>              float32; transformers computes with them in float64
    prompt_{i} (P,)                ids
    greedy_{i} (T,)                ids, prompt first
    beam_{i} (4, T), beam_scores_{i} (4,)   best first, sums of log-probabilities
                                   (length_penalty=0); what follows an end token means nothing
    num_heads, max_length, end_id, transformers_version
"""

from pathlib import Path

import numpy as np
import torch
import transformers

SEED = 35  # of forty, the one whose hypotheses are most varied
VOCABULARY, DIM, HEADS, LAYERS, MAX_LENGTH, END = 19, 12, 3, 2, 11, 2
PROMPTS = ([5], [7, 3, 11], [4, 4, 9, 18, 6])
FIXTURE = Path(__file__).with_name("gpt2_generation.npz")


def main() -> None:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=DIM, n_layer=LAYERS, n_head=HEADS,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=END,
        pad_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    rng = np.random.default_rng(SEED)
    arrays = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if "ln_" in name and name.endswith("weight"):
            values = rng.normal(loc=1.0, scale=0.2, size=shape)
        elif len(shape) == 1:
            values = rng.normal(scale=0.1, size=shape)
        else:
            values = rng.normal(
                scale=0.4 if "wt" in name or "wp" in name else 2 * shape[0] ** -0.5, size=shape
            )
        arrays[name] = values.astype("float32")
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(arrays[name]))
    model = model.double()
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_length": MAX_LENGTH}
        arrays[f"prompt_{i}"] = np.array(prompt, "int32")
        greedy = model.generate(ids, do_sample=False, **options)[0].numpy()
        arrays[f"greedy_{i}"] = np.pad(greedy, (0, MAX_LENGTH - len(greedy))).astype("int32")
        beams = model.generate(
            ids, do_sample=False, num_beams=4, num_return_sequences=4, length_penalty=0.0,
            early_stopping="never", return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        sequences = beams.sequences.numpy()
        missing = MAX_LENGTH - sequences.shape[1]
        arrays[f"beam_{i}"] = np.pad(sequences, ((0, 0), (0, missing))).astype("int32")
        arrays[f"beam_scores_{i}"] = beams.sequences_scores.double().numpy()
        print(prompt, arrays[f"greedy_{i}"], arrays[f"beam_{i}"], arrays[f"beam_scores_{i}"])
    np.savez_compressed(
        FIXTURE, num_heads=HEADS, max_length=MAX_LENGTH, end_id=END,
        transformers_version=transformers.__version__, **arrays,
    )  # fmt: skip
    print(FIXTURE)


if __name__ == "__main__":
    main()
