"""Two optimizers: gan.py [STEPS] [EVERY]; the generator steps after every EVERY-th step of the discriminator."""

import sys

import torch
from torch import nn

STEPS, EVERY = map(int, [*sys.argv[1:], *(6, 1)[len(sys.argv) - 1 :]])


class Generator(nn.Linear):
    pass


class Critic(nn.Linear):
    pass


torch.manual_seed(0)
generator, critic = Generator(2, 2), Critic(2, 1)
for_critic, for_generator = torch.optim.Adam(critic.parameters()), torch.optim.SGD(generator.parameters(), lr=0.1)
for step in range(1, STEPS + 1):
    print("critic", step, flush=True)
    for_critic.zero_grad()
    with torch.no_grad():
        forged = generator(torch.randn(4, 2))
    (critic(forged) - critic(torch.randn(4, 2))).mean().backward()
    for_critic.step()
    if step % EVERY == 0:
        print("generator", step, flush=True)
        for_generator.zero_grad()
        (-critic(generator(torch.randn(4, 2))).mean()).backward()
        for_generator.step()
