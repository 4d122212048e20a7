"""A session as a process of its own, which the fault suite can kill. Prints one line of JSON once its workers run.

Its argument is JSON: ``folder``, ``run``, ``scratch``, ``names``, ``command`` (for /bin/sh, started on each worker),
``ssh`` (whether workers run an sshd), ``fork`` (whether to fork a child that keeps everything open).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from muster.platforms.local import LocalPlatform

from tests.support import Run, StubSession, eventually, fresh_identity, guard_of


def main() -> None:
    wanted = json.loads(sys.argv[1])
    run = Run(Path(wanted["folder"]), wanted["run"], Path(wanted["scratch"]))
    session = StubSession()
    platform = LocalPlatform()
    workers = platform.launch(
        [
            run.spec(name, session=session.address, ports=1, ssh=fresh_identity() if wanted["ssh"] else None)
            for name in wanted["names"]
        ]
    )
    session.wait_for("hello", count=len(workers))
    for name in wanted["names"]:
        session.send(name, "start", argv=["/bin/sh", "-c", wanted["command"]], env={}, cwd=None)
        session.wait_for("started", name)
    facts = {
        "pid": os.getpid(),
        "agents": [session.wait_for("hello", name)["pid"] for name in wanted["names"]],
        "ports": [port for hello in session.received("hello") for port in hello["ports"]],
        "processes": [session.wait_for("started", name)["pid"] for name in wanted["names"]],
        "guard": guard_of(workers[0].id),
        "token": session.token,
    }
    eventually(lambda: all(worker.status == "running" for worker in platform.list()), "all run")
    if wanted["fork"]:
        facts["child"] = os.fork()
        if facts["child"] == 0:
            os.close(1)  # the test reads it to its end
            time.sleep(60)
            os._exit(0)
    print(json.dumps(facts), flush=True)
    while True:
        session.listen(1)


main()
