"""The session that the benchmark ``hostile`` attacks: its ranks print the time until one of them is killed.

    hostile_session.py PORT SECONDS

Prints one line of JSON: the seconds until the cluster was up (``up``), the delay of each line of output (``delays``),
the run's error, and the seconds from the kill until that error was raised (``told``). It uses the Muster on its path.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import muster

PATIENCE = 60


def rank() -> None:
    """Print the time again and again."""
    import time

    for _ in range(6000):
        print(time.time(), flush=True)
        time.sleep(0.02)


def main() -> None:
    """Run the cluster, and kill a rank after a while."""
    began = time.time()
    delays: list[float] = []
    up: list[float] = []
    pids: list[int] = []
    ended: list[float] = []

    def observe(event: Any) -> None:
        if event.kind == "output":
            now = time.time()
            for line in event.data["text"].split():
                delays.append(now - float(line))
        elif event.kind == "process_started":
            pids.append(event.data["pid"])
        elif event.kind == "run_phase" and event.data["phase"] == "training":
            up.append(time.time() - began)
            is_up.set()
        elif event.kind == "run_phase" and event.data["phase"] == "ending":
            ended.append(time.time())

    killed_at: list[float] = []
    is_up = threading.Event()

    def kill() -> None:
        is_up.wait(PATIENCE)
        time.sleep(float(sys.argv[2]))
        killed_at.append(time.time())
        if pids:
            os.kill(pids[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    error = ""
    try:
        muster.run_cluster(
            2,
            strategy="processes",
            worker_script=rank,
            session_address=f"127.0.0.1:{sys.argv[1]}",
            timeout_seconds=PATIENCE,
            run_timeout=PATIENCE,
            observers=[observe],
        )
    except muster.MusterError as raised:
        error = f"{type(raised).__name__}: {raised.message}"
    told = ended[0] - killed_at[0] if ended and killed_at and up else None
    print(json.dumps({"up": up[0] if up else None, "delays": delays, "error": error, "told": told}))


if __name__ == "__main__":
    main()
