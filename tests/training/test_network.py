"""Communication schemes between hosts of their own, on a link of 100 Mbit/s: real network namespaces and interfaces."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measuring import Unavailable

pytest.importorskip("horovod")
from benchmarks.network import PREFIX, Network, network  # noqa: E402  which imports Horovod
from tests.support import IMPORT_PATH  # noqa: E402
from tests.training.processes import REPOSITORY  # noqa: E402

network_schemes = pytest.importorskip("benchmarks.network_schemes")

LAYERS = 4  # of 724 x 724 and 724 parameters
KERNEL, BIAS = 4 * 724 * 724, 4 * 724  # bytes


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    """Two hosts; skips where there can be none."""
    made = Network(2)
    try:
        made.open()
    except Unavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.mark.alone
@pytest.mark.slow
def test_bytes_sent_are_those_of_the_formula_and_of_the_interface_and_fewer_are_faster(hosts: Network) -> None:
    hosts.limit("100mbit")
    names = ("dense", "top-K 1 %", "1-bit")
    path = os.pathsep.join([IMPORT_PATH, str(REPOSITORY)])
    variables = {**network_schemes.RARE_CONTROL, "PYTHONPATH": path}
    taken = network_schemes.on_ranks(hosts, "time", LAYERS, 2, 2, *names, variables=variables)
    dense, top_k, one_bit = ([turn["bytes"] for turn in taken[name]] for name in names)

    flag = 4  # whether all gradients are finite goes with the biases
    values = -(-724 * 724 // 100)
    assert dense == [LAYERS * (KERNEL + BIAS)] * 2  # 2 (N - 1) / N of them, and N is 2
    assert top_k == [LAYERS * (8 * values + BIAS) + flag] * 2
    stripe = 362 * (-(-724 // 8) + 2 * 4)  # a bit for each value of a column, and two means
    assert one_bit == [LAYERS * (2 * stripe + BIAS) + flag] * 2
    for name in names:
        for turn in taken[name]:
            assert 1 < turn["counted"] / turn["bytes"] < network_schemes.OVERHEAD, name
    # The same check finds bytes that are left out of the count.
    without_places = LAYERS * (4 * values + BIAS) + flag
    assert min(turn["counted"] for turn in taken["top-K 1 %"]) / without_places > network_schemes.OVERHEAD

    seconds = {name: min(turn["seconds"] for turn in taken[name]) for name in names}
    assert seconds["dense"] > 8 * LAYERS * KERNEL / 100e6 * 0.95  # what the link takes, less what a burst may gain
    assert seconds["top-K 1 %"] < seconds["dense"] / 2
    assert seconds["1-bit"] < seconds["dense"] / 2


def test_hosts_and_what_runs_on_them_are_gone_afterwards(hosts: Network, tmp_path: Path) -> None:
    before = namespaces()
    with pytest.raises(RuntimeError, match="only for the test"), network(1, "100mbit") as other:
        process = other.start(0, ["sleep", "600"], {}, tmp_path).popen
        assert len(namespaces()) == len(before) + 2
        raise RuntimeError("only for the test")
    assert namespaces() == before
    assert process.poll() is not None


def test_what_a_killed_benchmark_left_is_removed_by_the_next(hosts: Network) -> None:
    subprocess.run(["ip", "netns", "add", f"{PREFIX}-{2**22 + 1}-beef-0"], check=True)  # no process has that id
    with network(1):
        assert not [name for name in namespaces() if "beef" in name]


def test_a_process_that_fails_is_named_with_what_it_printed(hosts: Network, tmp_path: Path) -> None:
    process = hosts.start(1, ["sh", "-c", "echo no such data; exit 3"], {}, tmp_path)
    with pytest.raises(RuntimeError, match="host-1 ended with 3:\nno such data"):
        hosts.wait([process])


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/sbin/{program}")
    with pytest.raises(Unavailable, match="only be made by root"), network(1):
        pass


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX))
