"""A hundred pods at once, on a real Kubernetes."""

from __future__ import annotations

import pytest

from tests.platforms.kubernetes.space import Space

COUNT = 100


@pytest.mark.elsewhere  # it takes some minutes
def test_a_hundred_pods_run_a_script(space: Space) -> None:
    script = "import os\nprint('worker', os.environ['MUSTER_WORKER'], flush=True)\n"
    # Of less the kernel gives an agent, too, only a share, while it starts; two cores have no more for a hundred.
    found = space.run(script, COUNT, cpu=0.015, memory=0.05, timeout_seconds=600)
    names = [f"worker-{number}" for number in range(COUNT)]
    assert [found.logs(name) for name in names] == [f"worker {name}\n" for name in names]
    assert set(found.result.exit_codes.values()) == {0}
