"""Hugging Face's Trainer: torchrun --nproc-per-node 2 --max-restarts 1 train_trainer.py FOLDER."""

import os
import sys
from pathlib import Path

import torch
from step_log import StepLog
from tiny_gpt import BATCH_SIZE, LENGTH, SAVE_EVERY, STEPS, VOCABULARY, WIDTH, batch_of
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Sequences(Dataset):
    """Rows of token ids, the same at every start."""

    def __init__(self) -> None:
        self.ids = torch.cat([batch_of(step, rank)[:, :-1] for step in range(STEPS) for rank in range(2)])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict:
        return {"input_ids": self.ids[row], "labels": self.ids[row]}


class Stamps(TrainerCallback):
    """Writes the script's own record."""

    def __init__(self, log: StepLog) -> None:
        self.log = log

    def on_train_begin(self, args, state, control, **kwargs) -> None:  # noqa: ANN001, ANN003
        """Tells where it continues from."""
        if state.global_step:
            self.log.resumed(state.global_step)

    def on_step_begin(self, args, state, control, **kwargs) -> None:  # noqa: ANN001, ANN003
        """The batch has been loaded already."""
        self.log.began(state.global_step + 1)

    def on_step_end(self, args, state, control, **kwargs) -> None:  # noqa: ANN001, ANN003
        """The count has been raised."""
        self.log.done(state.global_step)


folder = Path(sys.argv[1])
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
log = StepLog(folder, int(os.environ["RANK"]))
arguments = TrainingArguments(
    output_dir=str(folder),
    max_steps=STEPS,
    per_device_train_batch_size=BATCH_SIZE,
    learning_rate=1e-3,
    save_steps=SAVE_EVERY,
    logging_steps=10,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=Sequences(),
    callbacks=[Stamps(log)],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
log.ended(trainer.state.global_step, trainer.model.parameters())
torch.distributed.destroy_process_group()
