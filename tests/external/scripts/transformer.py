"""The Trainer of Hugging Face, as of a tutorial, on a tiny Llama of random weights: transformer.py [ACCUMULATION]."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

ACCUMULATION = int(sys.argv[1]) if len(sys.argv) > 1 else 1
config = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
torch.manual_seed(0)
ids = torch.randint(0, 64, (64, 8))
rows = [{"input_ids": row, "labels": row} for row in ids]
arguments = TrainingArguments(
    output_dir="out",
    max_steps=6,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=ACCUMULATION,
    eval_strategy="steps",
    eval_steps=3,
    save_steps=3,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    logging_steps=1,
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows[:8]).train()
