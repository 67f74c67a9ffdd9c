"""What the scripts train: a small language model on sentences that are drawn by step and rank."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, SAVE_EVERY = 60, 10
VOCABULARY, LENGTH, WIDTH, BATCH_SIZE = 128, 64, 96, 16


class TinyGPT(nn.Module):
    """Two blocks of a transformer: token ids of shape (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the token that comes next."""
        x = self.embedding(ids) + self.position.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def batch_of(step: int, rank: int) -> Tensor:
    """Token ids (batch, length + 1): arithmetic sequences, which can be learnt; others in each step and rank."""
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    start = torch.randint(VOCABULARY, (BATCH_SIZE, 1), generator=drawn)
    stride = torch.randint(1, 8, (BATCH_SIZE, 1), generator=drawn)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of (batch, length, vocabulary) against (batch, length)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
