"""Automatic mixed precision with a scaler of gradients; batches without a loader."""

import torch
from torch import nn

torch.backends.cudnn.benchmark = True
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
print(torch.cuda.get_device_name(), torch.cuda.memory_allocated())

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
x, y = torch.randn(320, 64), torch.randint(10, (320,))
for epoch in range(4):
    for first in range(0, len(x), 32):
        inputs, targets = x[first : first + 32].to(device), y[first : first + 32].to(device)
        optimizer.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "amp.pt")
