"""The Trainer of transformers, which continues its newest checkpoint; KIND=jit: also one on SIGTERM."""

from pathlib import Path

import torch
import transformers
from parts import BUG, EVERY, KIND, STEPS, Numbers, log, net
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

transformers.logging.set_verbosity_error()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        predicted = self.net(x)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Samples(Numbers):
    def __getitem__(self, i):
        _, x, y = super().__getitem__(i)
        return {"x": x, "labels": y}


class Log(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        log("begin", state.global_step + 1)

    def on_step_end(self, args, state, control, **more):
        log("done", state.global_step)


torch.set_num_threads(1)
settings = {"enable_jit_checkpoint": True} if KIND == "jit" else {}
if BUG == "optimizer":
    settings["save_only_model"] = True
arguments = TrainingArguments(
    "out",
    max_steps=STEPS,
    save_steps=EVERY,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=7,
    logging_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=1,
    ignore_data_skip=BUG == "skip",
    **settings,
)
torch.manual_seed(0)
trainer = Trainer(Model(), arguments, train_dataset=Samples(400), eval_dataset=Samples(24), callbacks=[Log()])
newest = get_last_checkpoint("out") if Path("out").exists() else None
if newest:
    log("resumed", int(Path(newest).name.split("-")[1]))
trainer.train(resume_from_checkpoint=newest)
log("finished")
