"""A training script of somebody else's whose DataLoader has two workers: loading.py STEPS [caught]."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((8,), float(index % 7))


def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Samples(), batch_size=4, num_workers=2))
    done = 0
    while done < int(sys.argv[1]):
        try:
            loss = model(next(batches)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except OverflowError:
            if "caught" not in sys.argv:
                raise
            continue
        done += 1
        time.sleep(0.02)


if __name__ == "__main__":
    main()
