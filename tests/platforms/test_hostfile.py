"""Hosts and slots as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster.errors import JobError
from muster.platforms.hosts.hostfile import parse_hosts
from muster.platforms.hosts.platform import HostsPlatform

HOSTFILES = {
    "Open MPI": "# the lab's\ngpu1 slots=2 max_slots=4\n\ngpu2.lab slots = 4  # the new one\nme@gpu3\n",
    "Open MPI, the most first": "gpu1 max_slots=4 slots=2\ngpu2.lab max-slots=9 slots=4\nme@gpu3 max_slots=8\n",
    "Open MPI, in its other words": "gpu1 cpu=2\ngpu2.lab count = 4 max-slots=9\ngpu3 username=me slots=1\n",
    "Open MPI, quoted": 'gpu1 slots=2\ngpu2.lab slots=4\ngpu3 user-name = "me"\n',
    "Open MPI, with two users": "gpu1 slots=2\ngpu2.lab slots=4\nyou@gpu3 slots=1 username=me\n",
    "Open MPI, with comments": "// the lab's\ngpu1 slots=2 // old\ngpu2.lab\tslots=4 # new\nme@gpu3\n",
    "MPICH, with a user": "gpu1:2\ngpu2.lab:4\ngpu3:1 user=me\n",
    "MPICH": "gpu1:2\ngpu2.lab:4\nme@gpu3\n",
    "MPICH, from an editor of Windows": "\ufeffgpu1:2\r\ngpu2.lab:4\r\nme@gpu3\r\n",
    "Horovod": "gpu1 slots=2\ngpu2.lab slots=4\nme@gpu3 slots=1\n",
}
SLOTS = {"gpu1": 2, "gpu2.lab": 4, "me@gpu3": 1}


@pytest.mark.parametrize(
    "given",
    [["gpu1:2", "gpu2.lab:4", "me@gpu3"], "gpu1:2,gpu2.lab:4,me@gpu3", ("gpu1:2, gpu2.lab:4, me@gpu3",)],
    ids=["list", "text", "words of a command line"],
)
def test_lists(given: list[str]) -> None:
    assert parse_hosts(given) == SLOTS


@pytest.mark.parametrize("style", HOSTFILES)
def test_hostfiles(style: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(HOSTFILES[style])
    for given in (path, str(path), (str(path),)):
        assert parse_hosts(given) == SLOTS


# What a hostfile may say of its second host that is not for Muster, a word of the error, and one of its advice.
REFUSED = {
    "gpu2 slots=2 port=2222": ("port=2222 of gpu2", "`Port 2222` for this host in ~/.ssh/config"),
    "gpu2:2 binding=user:0,1": ("binding=user:0,1 of gpu2", "user="),
    "gpu2 sockets = 2 slots=2": ("sockets=2 of gpu2", "slots="),
    "gpu2 slot=4": ("slot=4 of gpu2", "slots="),
    "gpu2 gpu3": ("'gpu3' after the host gpu2", "a line for each host"),
    "gpu2 slots=2 gpu3": ("'gpu3' after the host gpu2", "a line for each host"),
    "gpu2 slots=2 cpu=4": ("says twice, of gpu2, what cpu= says", "one of them"),
    "gpu2 slots=4 max_slots=2": ("more slots of gpu2 than max_slots=2", "fewer"),
    "gpu2 max-slots=many": ("max-slots=many of gpu2, which is no number", "slots=2"),
    "gpu2 slots = two": ("slots=two of gpu2, which is no number", "slots=2"),
    "gpu2 slots=two max_slots=4": ("slots=two of gpu2, which is no number", "slots=2"),
    "gpu2 slots=": ("slots= of gpu2, which is no number", "slots=2"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_nothing_that_a_hostfile_says_is_ignored_in_silence(line: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"gpu1 slots=2\n{line}\n")
    with pytest.raises(JobError) as raised:
        parse_hosts(str(path))
    words, advice = REFUSED[line]
    assert f"{path}, line 2, " in raised.value.message
    assert words in raised.value.message
    assert advice in str(raised.value.advice)


def test_a_hostfile_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("gpu1 slots=2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_HOSTS", "hosts")
    assert HostsPlatform()._slots == {"gpu1": 2}


def test_a_host_that_comes_again_gets_more_slots() -> None:
    assert parse_hosts(["gpu1", "gpu2", "gpu1"]) == {"gpu1": 2, "gpu2": 1}


@pytest.mark.parametrize("word", ["-oProxyCommand=evil", "a b;c", "gpu1:0", "gpu1:many", "gpu1:2:3", "$(evil)"])
def test_words_that_are_no_hosts(word: str) -> None:
    with pytest.raises(JobError, match="no host"):
        parse_hosts([word])


def test_hostfiles_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        parse_hosts(str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("# none\n")
    with pytest.raises(JobError, match="names no hosts"):
        parse_hosts(str(tmp_path / "empty"))
    for second in ("-oProxyCommand=evil", "gpu2 slots=many", "gpu2 slots="):
        (tmp_path / "bad").write_text(f"gpu1 slots=2\n{second}\n")
        with pytest.raises(JobError, match="line 2"):
            parse_hosts(str(tmp_path / "bad"))
