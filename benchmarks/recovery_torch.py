"""The script that ``recovery`` trains with PyTorch: like ``recovery_horovod.py``, over gloo, from a checkpoint.

recovery_torch.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from recovery_steps import STEPS, kill_once, note

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoint = folder / "checkpoint.pt"
weight, first = torch.zeros(1000), 0
if checkpoint.exists():
    weight, first = torch.load(checkpoint)
for step in range(first, STEPS):
    if rank == 1:
        kill_once(folder, step)
    gradient = weight - step
    dist.all_reduce(gradient)
    weight = weight - 0.1 * gradient / dist.get_world_size()
    note(folder, rank, step)
    if rank == 0:
        torch.save((weight, step + 1), folder / "new.pt")
        os.replace(folder / "new.pt", checkpoint)
dist.destroy_process_group()
