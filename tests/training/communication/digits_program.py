"""What test_accuracy.py looks at: two ranks that learn handwritten digits, with and without a memory.

    python digits_program.py FILE

Rank 0 writes JSON to the file: for each scheme the accuracies of all seeds, in percent.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from muster.training import horovod  # noqa: E402
from muster.training.communication import Dense, NoMemory, OneBit, Reducer, TopK  # noqa: E402

from benchmarks import network_ranks  # noqa: E402

SEEDS, EPOCHS = 3, 20
SCHEMES = {
    "dense": lambda name: Dense(name=name),
    "1 bit": lambda name: Reducer(OneBit(), name=name),
    "1 bit, no memory": lambda name: Reducer(OneBit(), memory=NoMemory, name=name),
    "top-k": lambda name: Reducer(TopK(0.001), name=name),
    "top-k, no memory": lambda name: Reducer(TopK(0.001), memory=NoMemory, name=name),
}

if __name__ == "__main__":
    horovod.init()
    network_ranks.SCHEMES = SCHEMES
    learned = network_ranks.learn(list(SCHEMES), SEEDS, EPOCHS)
    if horovod.rank() == 0:
        accuracies = {name: [100 * seed["accuracy"] for seed in seeds] for name, seeds in learned.items()}
        Path(sys.argv[1]).write_text(json.dumps(accuracies))
