"""A GAN: two networks, two optimizers; on the CPU, as it stands."""

import torch
from torch import nn
from torch.utils.data import DataLoader

NOISE = 16


def block(width_in, width):
    return nn.Sequential(nn.Linear(width_in, width), nn.LeakyReLU(0.2))


generator = nn.Sequential(block(NOISE, 64), nn.Linear(64, 49), nn.Tanh())
discriminator = nn.Sequential(block(49, 64), nn.Dropout(0.3), nn.Linear(64, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.RMSprop(discriminator.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
loader = DataLoader([torch.rand(49) for _ in range(60)], batch_size=12)

for epoch in range(2):
    for real in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(torch.randn(len(real), NOISE))

        optimizer_d.zero_grad()
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
    print(f"{epoch}: {loss_d.item():.3f} {loss_g.item():.3f}")
torch.jit.save(torch.jit.script(generator), "generator.pt")
