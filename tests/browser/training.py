"""A training script that only pretends: arguments are epochs and whether to fail at the end."""

import math
import sys
import time

from muster.training import report

epochs = int(sys.argv[1])
for epoch in range(1, epochs + 1):
    for step in range(1, 21):
        time.sleep(0.02)
        done = 20 * (epoch - 1) + step
        report(step, steps=20, epoch=epoch, epochs=epochs, examples=32 * done, loss=math.exp(-done / 60), accuracy=0.9)
    print(f"epoch {epoch} <img src=x onerror=alert(1)>", flush=True)
    report(val_loss=math.exp(-epoch / 3), val_accuracy=0.8)
if "fail" in sys.argv:
    raise ValueError("no <b>data</b> in the shard")
