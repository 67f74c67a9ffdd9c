"""A training that saves in another way after each step: saving.py early|late (when it imports what it saves with)."""

import os
import sys
import threading

import torch
from torch import nn


def say(*words):
    print(*words, flush=True)


def means():
    from safetensors.torch import save_file, save_model
    from torch.distributed.checkpoint import async_save, save

    return save_file, save_model, save, async_save


if sys.argv[1] == "early":
    save_file, save_model, save, async_save = means()


def main():
    global save_file, save_model, save, async_save
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 8):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        say("step", step, *({"safetensors"} & sys.modules.keys()))
        if step == 1:
            torch.save(model.state_dict(), "model.pt")
            torch.save({"step": step}, "trainer.pt")
            continue
        if sys.argv[1] == "late":
            save_file, save_model, save, async_save = means()
        match step:
            case 2:
                save_file(model.state_dict(), "model.safetensors")
            case 3:
                save_model(model, "model.safetensors")
            case 4:
                save(model.state_dict(), checkpoint_id="whole", no_dist=True)
            case 5:
                async_save(model.state_dict(), checkpoint_id="beside", no_dist=True).result()
            case 6:
                saver = threading.Thread(target=torch.save, args=(model.state_dict(), "thread.pt"))
                saver.start()
                saver.join()
    read(model)


def read(model):
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import load

    if not (child := os.fork()):
        torch.load("trainer.pt")
        os._exit(0)
    os.waitpid(child, 0)
    torch.load("model.pt")
    load_file("model.safetensors")
    with safe_open("model.safetensors", framework="pt") as file:
        file.get_tensor("weight")
    load(model.state_dict(), checkpoint_id="whole", no_dist=True)
    try:
        torch.load("missing.pt")
    except FileNotFoundError:
        say("missing")


if __name__ == "__main__":
    main()
