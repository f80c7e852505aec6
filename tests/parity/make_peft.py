"""Writes the folders of peft: small models of transformers, and adapters of PEFT for them.

pip install peft sentence-transformers; python tests/parity/make_peft.py
"""

import os
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers as t
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

FOLDER = Path(__file__).parent / "peft"
IDS = torch.tensor([[3, 4, 5, 6, 7]])


def write(name, model, **options):
    torch.manual_seed(0)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    model.save_pretrained(FOLDER / name / "base")
    adapted = get_peft_model(model, LoraConfig(lora_alpha=6, **options))
    for weight_name, weight in adapted.named_parameters():
        if "lora_" in weight_name or weight.requires_grad:
            weight.data += 0.2 * torch.randn_like(weight)
    adapted.save_pretrained(FOLDER / name / "adapter")
    with torch.no_grad():
        np.save(FOLDER / name / "logits.npy", adapted.eval()(IDS).logits.numpy())


sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
llama = t.LlamaConfig(**sizes, num_hidden_layers=2, num_key_value_heads=1)
gpt2 = t.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8)
bert = t.BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=8, num_labels=3)
# Ranks and scales of their own for some modules.
write(
    "llama",
    t.LlamaForCausalLM(llama),
    r=2,
    target_modules=["q_proj", "v_proj", "down_proj"],
    rank_pattern={"down_proj": 3},
    alpha_pattern={"layers.1.self_attn.q_proj": 4},
)
# Matrices (in, out), and the scale of rank-stabilized LoRA.
write("gpt2", t.GPT2LMHeadModel(gpt2), r=3, use_rslora=True, target_modules=["c_attn", "c_proj"])
# Rows with a length of their own (DoRA): of matrices either way round, and columns of a table.
write("dora", t.LlamaForCausalLM(llama), r=2, use_dora=True, target_modules=["k_proj", "up_proj"])
write(
    "dora_gpt2",
    t.GPT2LMHeadModel(gpt2),
    r=2,
    use_dora=True,
    use_rslora=True,
    target_modules=["c_fc", "wpe"],
)
# A table that is the output's, too: some of its rows, and as a whole.
tied = t.LlamaConfig(**sizes, num_hidden_layers=1, tie_word_embeddings=True)
write(
    "tokens",
    t.LlamaForCausalLM(tied),
    r=2,
    target_modules=["q_proj"],
    trainable_token_indices={"embed_tokens": [4, 18, 7]},
)
write(
    "tied",
    t.LlamaForCausalLM(tied),
    r=2,
    target_modules=["embed_tokens"],
    ensure_weight_tying=True,
)
# A head and biases that are saved whole, and a table of embeddings.
write(
    "bert",
    t.BertForSequenceClassification(bert),
    r=2,
    task_type="SEQ_CLS",
    target_modules=["query", "word_embeddings"],
    bias="all",
)

# A folder of sentence-transformers: adapters beside modules, settings and tokenizer.
words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(18))]
splitter = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
)
splitter.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
(FOLDER / "embedder").mkdir(exist_ok=True)
os.chdir(FOLDER / "embedder")  # the adapters name their base model as it was given
t.PreTrainedTokenizerFast(
    tokenizer_object=splitter, unk_token="[UNK]", pad_token="[PAD]"
).save_pretrained("base")
torch.manual_seed(0)
t.BertModel(bert).save_pretrained("base")
embedder = SentenceTransformer(modules=[Transformer("base"), Pooling(8, "mean")])
embedder.add_adapter(LoraConfig(r=2, lora_alpha=6, target_modules=["query", "dense"]))
for weight_name, weight in embedder.named_parameters():
    if "lora_" in weight_name:
        weight.data += 0.3 * torch.randn_like(weight)
embedder.save("adapted", create_model_card=False)
np.save("vectors.npy", embedder.encode(["w1 w2 w3", "w4 w5"]))
