"""Files between a session and a worker: both real sides of a transfer, with a wire between them that tests can cut."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from muster.agent import files as agent_files
from muster.agent import frames, wire
from muster.agent.agent import Agent
from muster.agent.files import CHUNK, WINDOW, Files
from muster.agent.parts import PartFile
from muster.agent.places import MOST_FILES, part_name
from muster.errors import PlatformError
from muster.run import files as files_module
from muster.run.exchange import Exchange
from muster.run.files import TransferFailed, Transfers
from muster.run.processes import RunProcesses
from muster.runtime import clock

LARGE = 3 * WINDOW + 12345
CONTENT = os.urandom(LARGE)


class AgentLoop:
    """The agent's loop, on the session's."""

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(call)


class Worker:
    """A worker's side and the session's, which talk in bytes.

    Attributes:
        places: its folders, by name.
        sent: the kinds of all messages, and the bytes of each chunk.
        cut_after: how many more chunks come through before the connection ends, for good unless ``comes_back``.
    """

    def __init__(self, folder: Path) -> None:
        self.places = {"run": str(folder / "run"), "project": str(folder / "project")}
        self.transfers = Transfers(self.to_agent, lease_seconds=0.5)
        self.sent: list[str] = []
        self.bytes = 0
        self.under_way = self.most_under_way = 0
        self.cut_after: int | None = None
        self.comes_back = True
        self.garbles: Callable[[Any], Any] = lambda message: message
        self._is_connected = True
        self._loop = asyncio.new_event_loop()
        self._files = self._agent()

    def _agent(self) -> Files:
        return Files(AgentLoop(), self.to_session, self.places)  # type: ignore[arg-type]

    def to_agent(self, worker: str, message: tuple[Any, ...]) -> bool:
        """Carry a message of the session's."""
        if not self._count(message):
            return False
        (fields,) = frames.Decoder(None).feed(wire.encode(message))
        order = wire.from_session(fields)
        asyncio.get_running_loop().call_soon(self._deliver, self._files, order)
        return True

    def _deliver(self, files: Files, order: Any) -> None:
        if files is self._files and self._is_connected:
            takes: dict[type, Callable[[Any], None]] = {
                wire.Put: files.put, wire.Get: files.get, wire.Have: files.have,
                wire.Chunk: files.chunk, wire.Missing: files.missing, wire.Find: files.find,
            }  # fmt: skip
            takes[type(order)](order)

    def to_session(self, message: tuple[Any, ...]) -> None:
        """Carry a message of the agent's."""
        if self._count(message):
            (fields,) = frames.Decoder().feed(wire.encode(self.garbles(message)))
            asyncio.get_running_loop().call_soon(self.transfers.on_message, "worker-0", wire.from_agent(fields))

    def _count(self, message: Any) -> bool:
        if not self._is_connected:
            return False
        self.sent.append(wire.KINDS[type(message)])
        if isinstance(message, wire.Chunk):
            self.bytes += len(message.payload)
            if self.cut_after is not None:
                self.cut_after -= 1
                if self.cut_after < 0:
                    self._cut()
                    return False
        return True

    def _cut(self) -> None:
        self._is_connected, self.cut_after = False, None
        loop = asyncio.get_running_loop()
        loop.call_soon(self.transfers.on_cut, "worker-0")
        if self.comes_back:
            loop.call_later(0.005, self._reconnect)

    def _reconnect(self) -> None:
        self._files.close()
        self._files = self._agent()
        self._is_connected = True
        self.transfers.on_connected("worker-0")

    def play(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a transfer, and return what it returns."""

        async def main() -> Any:
            self.transfers.on_connected("worker-0")
            return await asyncio.wait_for(coroutine, 20)

        return self._loop.run_until_complete(main())

    def close(self) -> None:
        self._loop.close()

    def put(self, source: Path, path: str, place: str = "run") -> None:
        self.play(self.transfers.put("worker-0", place, path, source))

    def get(self, path: str, target: Path, place: str = "run") -> None:
        self.play(self.transfers.get("worker-0", place, path, target))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    (tmp_path / "run").mkdir()
    (tmp_path / "project").mkdir()
    worker = Worker(tmp_path)
    yield worker
    worker.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    path.chmod(0o640)
    return path


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.part")]


def test_a_file_is_put_with_its_permissions(worker: Worker, source: Path, tmp_path: Path) -> None:
    worker.put(source, "a/b/model.keras")
    target = tmp_path / "run" / "a" / "b" / "model.keras"
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "run" / "a").stat().st_mode & 0o777 == 0o700
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("size", [0, 1, CHUNK, WINDOW, WINDOW + 1])
def test_sizes_at_the_edges_both_ways(worker: Worker, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    worker.put(source, "file")
    worker.get("file", tmp_path / "back")
    assert (tmp_path / "back" / "file").read_bytes() == source.read_bytes()
    assert worker.bytes == 2 * size


def test_what_is_there_already_is_not_sent_again(worker: Worker, source: Path, tmp_path: Path) -> None:
    worker.put(source, "file")
    worker.put(source, "file")
    assert worker.bytes == LARGE
    source.write_bytes(os.urandom(LARGE))  # another one, of the same size
    worker.put(source, "file")
    assert worker.bytes == 2 * LARGE
    assert (tmp_path / "run" / "file").read_bytes() == source.read_bytes()


def test_what_has_been_got_already_does_not_come_again(worker: Worker, source: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "file").write_bytes(source.read_bytes())
    worker.get("file", tmp_path / "back")
    worker.get("file", tmp_path / "back")
    assert worker.bytes == LARGE
    (tmp_path / "run" / "file").write_bytes(os.urandom(LARGE))
    worker.get("file", tmp_path / "back")
    assert worker.bytes == 2 * LARGE
    assert (tmp_path / "back" / "file").read_bytes() == (tmp_path / "run" / "file").read_bytes()


@pytest.mark.parametrize("chunks", [0, 1, 5, 11])
def test_a_torn_transfer_goes_on_where_it_ended(worker: Worker, source: Path, tmp_path: Path, chunks: int) -> None:
    worker.cut_after = chunks
    worker.put(source, "file")
    assert (tmp_path / "run" / "file").read_bytes() == source.read_bytes()
    assert worker.bytes <= LARGE + WINDOW + CHUNK  # what was under way, at most, is sent twice
    worker.cut_after, worker.bytes = chunks, 0
    worker.get("file", tmp_path / "back")
    assert (tmp_path / "back" / "file").read_bytes() == source.read_bytes()
    assert worker.bytes <= LARGE + WINDOW + CHUNK
    assert not leftovers(tmp_path)


def test_one_that_does_not_come_back_is_named(worker: Worker, source: Path) -> None:
    worker.transfers = Transfers(worker.to_agent, lease_seconds=0.05)
    worker.cut_after, worker.comes_back = 2, False
    with pytest.raises(TransferFailed, match="connection of worker-0 ended while files went over it"):
        worker.put(source, "file")


def test_few_chunks_are_under_way(worker: Worker, source: Path, tmp_path: Path) -> None:
    def most(transfer: Callable[[], None], chunks: str) -> int:
        worker.sent.clear()
        transfer()
        most = now = 0
        for kind in worker.sent:
            now += (kind == chunks) - (kind == "have")
            most = max(most, now)
        return most

    assert most(lambda: worker.put(source, "file"), "chunk") <= WINDOW // CHUNK
    assert most(lambda: worker.get("file", tmp_path / "back"), "chunk") <= WINDOW // CHUNK


def test_a_folder_is_got_within_its_limit(worker: Worker, tmp_path: Path) -> None:
    results = tmp_path / "run" / "results"
    (results / "deep" / "er").mkdir(parents=True)
    (results / "deep" / "er" / "a.pkl").write_bytes(b"a" * 10)
    (results / "b.pkl").write_bytes(b"b" * 20)
    (results / "large").write_bytes(b"c" * 1000)
    (results / "link").symlink_to("/etc/passwd")
    (results / "linked").symlink_to("/etc")
    os.mkfifo(results / "pipe")
    left_out = worker.play(worker.transfers.get_folder("worker-0", "run", "results", tmp_path / "back", 500))
    assert left_out == {"large": "too large"}
    got = {path.relative_to(tmp_path / "back").as_posix() for path in (tmp_path / "back").rglob("*") if path.is_file()}
    assert got == {"results/b.pkl", "results/deep/er/a.pkl"}
    assert worker.play(worker.transfers.get_folder("worker-0", "run", "nothing", tmp_path / "back", 500)) == {}


def test_many_small_files_are_put_at_once(worker: Worker, tmp_path: Path) -> None:
    library = tmp_path / "library"
    for number in range(100):
        (library / str(number % 7)).mkdir(parents=True, exist_ok=True)
        (library / str(number % 7) / f"{number}.py").write_text(str(number))
    worker.play(worker.transfers.put_folder("worker-0", "project", library))
    for path in library.rglob("*.py"):
        assert (tmp_path / "project" / path.relative_to(library)).read_text() == path.read_text()


def get_results(worker: Worker, tmp_path: Path) -> Any:
    return worker.play(worker.transfers.get_folder("worker-0", "run", "results", tmp_path / "back", 10**9))


def test_names_that_are_not_utf_8_are_left_out_and_said(worker: Worker, tmp_path: Path) -> None:
    results = tmp_path / "run" / "results"
    os.makedirs(os.fsencode(results) + b"/dos\xe9")
    for name in (b"caf\xe9.txt", b"dos\xe9/a", b"good.txt"):
        Path(os.fsdecode(os.path.join(os.fsencode(results), name))).write_text("x")
    assert sorted(get_results(worker, tmp_path)) == ["caf?.txt", "dos?/a"]
    assert os.listdir(tmp_path / "back" / "results") == ["good.txt"]


def test_an_order_that_the_agent_cannot_read_ends_its_transfer_and_no_more() -> None:
    said: list[Any] = []
    agent: Any = SimpleNamespace(_link=SimpleNamespace(send=said.append), complain=said.append)
    Agent._obey(agent, {"type": "get", "transfer": 7, "place": "run", "path": "caf\udce9.txt"})
    assert [(type(message), message.transfer) for message in said] == [(wire.Missing, 7)]


def test_a_folder_that_cannot_be_listed_is_not_taken_for_none(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "run" / "results").write_text("no folder")
    with pytest.raises(TransferFailed, match="has sent no listing"):
        get_results(worker, tmp_path)


def few_in_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (agent_files, files_module):
        monkeypatch.setattr(module, "MOST_FILES", 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_all_files_of_a_large_folder_come(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    few_in_a_listing(monkeypatch)
    names = ["a", "b-c", "b/a", "b/d", "b.txt"][:count]
    for name in names:
        (tmp_path / "run" / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "results" / name).write_text(name)
    assert get_results(worker, tmp_path) == {}
    back = tmp_path / "back" / "results"
    assert sorted(path.relative_to(back).as_posix() for path in back.rglob("*") if path.is_file()) == sorted(names)


def test_a_folder_with_too_many_files_is_got_in_part_and_that_is_said(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_in_a_listing(monkeypatch)
    monkeypatch.setattr(files_module, "MOST_LISTINGS", 2)
    (tmp_path / "run" / "results").mkdir()
    for name in "abcdef":
        (tmp_path / "run" / "results" / name).touch()
    assert get_results(worker, tmp_path) == {"what comes after d": "more than 4 files"}
    assert sorted(os.listdir(tmp_path / "back" / "results")) == ["a", "b", "c", "d"]


def test_one_file_that_is_got_twice_at_the_same_time(worker: Worker, source: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "results").mkdir(parents=True)
    (tmp_path / "run" / "results" / "file").write_bytes(source.read_bytes())

    async def both() -> None:
        get = worker.transfers.get
        await asyncio.gather(*(get("worker-0", "run", "results/file", tmp_path / "back") for _ in range(5)))

    worker.play(both())
    assert (tmp_path / "back" / "results" / "file").read_bytes() == source.read_bytes()
    assert worker.bytes == source.stat().st_size


@pytest.mark.parametrize("step", ["open", "hash_slice", "write", "finish"])
def test_a_get_that_is_cancelled_at_any_step_leaves_no_descriptor_open(
    worker: Worker, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (tmp_path / "run" / "results").mkdir(parents=True)
    (tmp_path / "run" / "results" / "file").write_bytes(source.read_bytes())
    is_there, goes_on, has_ended = threading.Event(), threading.Event(), threading.Event()
    usual = getattr(PartFile, step)

    def slow(part: PartFile, *args: Any) -> Any:
        is_there.set()
        goes_on.wait(10)
        try:
            return usual(part, *args)
        finally:
            has_ended.set()

    async def cancelled() -> None:
        getting = asyncio.ensure_future(worker.transfers.get("worker-0", "run", "results/file", tmp_path / "back"))
        await asyncio.to_thread(is_there.wait, 10)
        getting.cancel()
        await asyncio.gather(getting, return_exceptions=True)
        goes_on.set()
        await asyncio.to_thread(has_ended.wait, 10)
        worker._files.close()

    before = open_files_in(tmp_path)
    monkeypatch.setattr(PartFile, step, slow)
    worker.play(cancelled())
    assert open_files_in(tmp_path) == before


def open_files_in(folder: Path) -> list[str]:
    """Files and folders below one that this process has open."""
    found = []
    for link in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{link}"))
    return sorted(path for path in found if path.startswith(str(folder)))


def test_folders_too_deep_in_one_another_are_left_out_and_said(worker: Worker, tmp_path: Path) -> None:
    results = tmp_path / "run" / "results"
    (results / "/".join(["d"] * 40)).mkdir(parents=True)
    (results / "file").touch()
    assert list(get_results(worker, tmp_path)) == ["/".join(["d"] * 33)]
    assert (tmp_path / "back" / "results" / "file").exists()


def test_part_files_of_users_are_files_as_any_other(worker: Worker, tmp_path: Path) -> None:
    results = tmp_path / "run" / "results"
    results.mkdir()
    (results / "chapter.part").touch()
    (results / part_name("", "file", "0" * 64)).touch()
    assert get_results(worker, tmp_path) == {}
    assert os.listdir(tmp_path / "back" / "results") == ["chapter.part"]


def test_long_names_both_ways(worker: Worker, source: Path, tmp_path: Path) -> None:
    name = "数据" * 42
    worker.put(source, name)
    worker.get(name, tmp_path / "back")
    assert (tmp_path / "back" / name).read_bytes() == source.read_bytes()


def test_files_of_the_same_content_do_not_meet_in_one_part(worker: Worker, source: Path, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    for name in "abcd":
        (tmp_path / "library" / name).write_bytes(source.read_bytes())
    worker.play(worker.transfers.put_folder("worker-0", "run", tmp_path / "library"))
    assert {path.read_bytes() for path in (tmp_path / "run").iterdir()} == {source.read_bytes()}
    assert sorted(os.listdir(tmp_path / "run")) == ["a", "b", "c", "d"]


def test_a_file_that_goes_or_has_another_name_once_it_was_listed(worker: Worker, tmp_path: Path) -> None:
    results = tmp_path / "run" / "results"
    results.mkdir()
    for name in ("gone", "model.part", "stays"):
        (results / name).write_text(name)

    def change(message: Any) -> Any:
        if isinstance(message, wire.Chunk):  # the listing's
            (results / "gone").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (results / "model.part").rename(results / "model")
        return message

    worker.garbles = change
    assert get_results(worker, tmp_path) == {}
    assert sorted(os.listdir(tmp_path / "back" / "results")) == ["model", "stays"]


def test_the_first_failure_ends_the_others(worker: Worker, tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    for number in range(20):
        (folder / f"z{number}").write_bytes(source.read_bytes())
    (folder / "a").mkdir()
    (folder / "a" / "file").touch()
    (tmp_path / "run" / "a").touch()  # where the folder is to be

    async def put() -> int:
        before = asyncio.all_tasks()
        with pytest.raises(TransferFailed):
            await worker.transfers.put_folder("worker-0", "run", folder)
        return len(asyncio.all_tasks() - before)

    assert worker.play(put()) == 0
    assert len(os.listdir(tmp_path / "run")) < 21


def test_a_connection_that_takes_the_place_of_another_tears_its_transfers(tmp_path: Path, source: Path) -> None:
    sent: list[Any] = []
    transfers = Transfers(taken_by(sent), lease_seconds=5.0)

    async def main() -> None:
        transfers.on_connected("worker-0")
        put = asyncio.ensure_future(transfers.put("worker-0", "run", "file", source))
        await eventually(lambda: len(sent) == 1)
        transfers.on_connected("worker-0")  # with no word of the end of the one before
        await eventually(lambda: len(sent) == 2)
        transfers.on_message("worker-0", wire.Have(sent[-1].transfer, LARGE))
        await asyncio.wait_for(put, 5)

    asyncio.run(main())


def test_a_transfer_that_begins_while_the_worker_is_cut_waits_for_it(source: Path) -> None:
    sent: list[Any] = []  # the endpoint takes messages for one that may come back, and drops those of transfers
    transfers = Transfers(taken_by(sent), lease_seconds=5.0)

    async def main() -> None:
        transfers.on_connected("worker-0")
        transfers.on_cut("worker-0")
        put = asyncio.ensure_future(transfers.put("worker-0", "run", "file", source))
        await asyncio.sleep(0.05)
        assert not sent
        transfers.on_connected("worker-0")
        await eventually(lambda: len(sent) == 1)
        transfers.on_message("worker-0", wire.Have(sent[-1].transfer, LARGE))
        await asyncio.wait_for(put, 5)

    asyncio.run(main())


@pytest.mark.parametrize("began", ["before", "while it was cut", "after"])
def test_a_transfer_with_a_worker_whose_lease_ends_fails_at_once(source: Path, began: str) -> None:
    transfers = Transfers(taken_by([]), lease_seconds=3600.0)

    async def main() -> None:
        steps = {"before": transfers.on_connected, "while it was cut": transfers.on_cut, "after": transfers.on_lost}
        for moment, step in steps.items():
            step("worker-0")
            if moment == began:
                put = asyncio.ensure_future(transfers.put("worker-0", "run", "file", source))
                await asyncio.sleep(0.05)
        with pytest.raises(TransferFailed, match="has not come back"):
            await asyncio.wait_for(put, 5)

    asyncio.run(main())


def taken_by(sent: list[Any]) -> Callable[[str, Any], bool]:
    def send(worker: str, message: Any) -> bool:
        sent.append(message)
        return True

    return send


async def eventually(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not happen")


class Connections:
    """An endpoint's, as far as the exchange of files asks for them."""

    def __init__(self, worker: Worker, *connected: str) -> None:
        self.send = worker.to_agent
        self.connected = frozenset(connected)
        self.on_message: Callable[[str, Any], None] = lambda name, message: None
        nobody: Callable[[str], None] = lambda name: None  # noqa: E731
        self.on_lost = self.on_cut = self.on_back = nobody
        self.seconds_left = 0.0
        self.leases = SimpleNamespace(seconds_left=lambda name: self.seconds_left)

    def heard_at(self, name: str) -> float:
        """Return now, as its worker answers at any time."""
        return clock.now()


def exchange_of(worker: Worker, connections: Connections, tmp_path: Path) -> Exchange:
    context = SimpleNamespace(checked=SimpleNamespace(collect=()), job=SimpleNamespace(script=None),
        facts=SimpleNamespace(library_here=tmp_path), run_dir=tmp_path / "back",
        specs=[SimpleNamespace(name="worker-0", log=tmp_path / "log")], platform=SimpleNamespace(lease_seconds=0.5),
    )  # fmt: skip
    exchange = Exchange(context, connections)  # type: ignore[arg-type]
    worker.transfers = exchange._transfers
    exchange.listen()
    connections.on_message("worker-0", wire.Hello(wire.VERSION, "", "worker-0", 5, "127.0.0.1"))
    return exchange


def test_two_collections_at_once_do_not_fail_each_other(worker: Worker, source: Path, tmp_path: Path) -> None:
    worker.put(source, "results/file")
    exchange = exchange_of(worker, Connections(worker, "worker-0"), tmp_path)

    async def both() -> None:
        await asyncio.gather(exchange.collect(), exchange.collect())

    worker.play(both())
    assert (tmp_path / "back" / "results" / "file").read_bytes() == source.read_bytes()


def test_a_worker_that_is_cut_is_waited_for_and_one_that_is_gone_is_named(
    worker: Worker, source: Path, tmp_path: Path
) -> None:
    worker.put(source, "results/file")
    connections = Connections(worker)
    exchange = exchange_of(worker, connections, tmp_path)

    async def collect() -> None:
        connections.on_cut("worker-0")
        asyncio.get_running_loop().call_later(0.02, connections.on_back, "worker-0")
        await exchange.collect()

    with pytest.raises(PlatformError, match="worker-0"):
        worker.play(collect())
    assert not (tmp_path / "back").exists()
    connections.seconds_left = 0.5
    worker.play(collect())
    assert (tmp_path / "back" / "results" / "file").exists()


# -- attacks on a worker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../escape", "a/../../escape", "/etc/escape", "a//b", "./a", ".."])
def test_no_path_leads_out(worker: Worker, source: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises((wire.Misfit, OSError)):
        worker.put(source, path)
    assert not (tmp_path / "escape").exists()
    with pytest.raises((wire.Misfit, OSError)):
        worker.get(path, tmp_path / "back")


@pytest.mark.parametrize("path", ["link/file", "deep/link/file"])
def test_no_link_leads_out(worker: Worker, source: Path, tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    link = tmp_path / "run" / Path(path).parent
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    with pytest.raises(TransferFailed):
        worker.put(source, path)
    with pytest.raises(TransferFailed):
        worker.get(path, tmp_path / "back")
    assert (outside / "file").read_text() == "secret"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(
    worker: Worker, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "secret")
    with pytest.raises(TransferFailed):
        worker.get("file", tmp_path / "back")
    worker.put(source, "file")
    assert not (tmp_path / "run" / "file").is_symlink()
    assert (tmp_path / "secret").read_text() == "secret"


def part_of(source: Path, name: str) -> str:
    return part_name("", name, hashlib.sha256(source.read_bytes()).hexdigest())


def test_a_part_file_that_somebody_has_left_is_no_way_out(worker: Worker, source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / part_of(source, "linked")).symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", tmp_path / "run" / part_of(source, "hard"))
    os.mkfifo(tmp_path / "run" / part_of(source, "pipe"))
    for name in ("linked", "hard", "pipe"):
        with pytest.raises(TransferFailed):
            worker.put(source, name)
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_wrong_part_file_is_thrown_away_and_the_next_attempt_succeeds(
    worker: Worker, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / part_of(source, "file")).write_bytes(b"x" * 1000)
    with pytest.raises(TransferFailed, match="another one than was announced"):
        worker.put(source, "file")
    worker.put(source, "file")
    assert (tmp_path / "run" / "file").read_bytes() == source.read_bytes()


def test_a_place_that_nobody_knows(worker: Worker, source: Path) -> None:
    with pytest.raises(TransferFailed, match="no place 'etc'"):
        worker.put(source, "file", place="etc")


def test_pipes_devices_and_missing_files_are_refused(worker: Worker, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run" / "pipe")
    for name in ("pipe", "nothing"):
        with pytest.raises(TransferFailed):
            worker.get(name, tmp_path / "back")
    for odd in (tmp_path / "run" / "pipe", Path("/dev/zero")):
        with pytest.raises(FileNotFoundError, match="no regular file"):
            worker.put(odd, "there")


# -- attacks of a worker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garble",
    [
        lambda chunk: chunk._replace(payload=b"x" * len(chunk.payload)),
        lambda chunk: chunk._replace(offset=chunk.offset + 1),
        lambda chunk: chunk._replace(payload=chunk.payload + b"more"),
        lambda chunk: wire.Have(chunk.transfer, 5),
    ],
)
def test_what_is_not_as_announced_is_refused(
    worker: Worker, source: Path, tmp_path: Path, garble: Callable[[Any], Any]
) -> None:
    worker.put(source, "file")
    worker.garbles = lambda message: garble(message) if isinstance(message, wire.Chunk) else message
    with pytest.raises(TransferFailed):
        worker.get("file", tmp_path / "back")
    assert not (tmp_path / "back" / "file").exists()


@pytest.mark.parametrize(
    "listing", [[["../escape", 5]], [["/etc/escape", 5]], "nonsense", [["a", -1]], [[1, 2, 3]], [["a", 5]] * 20_000]
)
def test_a_listing_of_a_hostile_worker_leads_nowhere(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: Any
) -> None:
    (tmp_path / "run" / "results").mkdir()
    monkeypatch.setattr(agent_files.Outgoing, "_list", staticmethod(lambda *_: json.dumps(listing).encode()))
    with pytest.raises((TransferFailed, wire.Misfit, OSError)):
        worker.play(worker.transfers.get_folder("worker-0", "run", "results", tmp_path / "back", 10**9))
    assert not (tmp_path / "escape").exists()


def test_names_that_no_folder_takes_and_folders_without_end_are_left_out(
    worker: Worker, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.put(source, "results/file")
    listing = [["x" * 256, 5], ["a/" * 1000 + "b", 5], ["file", LARGE]]
    monkeypatch.setattr(agent_files.Outgoing, "_list", staticmethod(lambda *_: json.dumps(listing).encode()))
    assert len(get_results(worker, tmp_path)) == 2
    assert os.listdir(tmp_path / "back" / "results") == ["file"]


def test_what_another_has_put_in_the_way_of_a_file_costs_no_other_files(
    worker: Worker, source: Path, tmp_path: Path
) -> None:
    for name in ("a", "b/c", "d"):
        worker.put(source, f"results/{name}")
    (tmp_path / "back" / "results" / "a" / "inner").mkdir(parents=True)
    (tmp_path / "back" / "results" / "b").write_text("a file")
    assert set(get_results(worker, tmp_path)) == {"a", "b/c"}
    assert (tmp_path / "back" / "results" / "d").read_bytes() == source.read_bytes()


def test_the_names_of_what_is_left_out_are_not_kept_without_end(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "results").mkdir()
    numbers = itertools.count()

    def some_more(*_: object) -> bytes:
        return json.dumps([[f"{next(numbers):09}", None] for _ in range(MOST_FILES)]).encode()

    monkeypatch.setattr(agent_files.Outgoing, "_list", staticmethod(some_more))
    assert len(get_results(worker, tmp_path)) == MOST_FILES + 1


def test_a_worker_gives_no_value_or_log_of_another(worker: Worker, source: Path, tmp_path: Path) -> None:
    own = ("results/rank-0.json", "results/worker-0.pkl", "logs/ranks/rank-0.log", "results/rank-1.txt", "results/a")
    others = ("results/rank-1.json", "results/worker-1.pkl", "logs/ranks/rank-1.log", "logs/ranks/rank-1.log.1")
    for path in (*own, *others):
        worker.put(source, path)
    exchange = exchange_of(worker, Connections(worker, "worker-0"), tmp_path)
    processes = RunProcesses(["worker-0", "worker-1"])
    processes.place({0: "worker-0", 1: "worker-1"}, are_ordered=True)
    exchange.owner_of = processes.owner_of
    with pytest.raises(PlatformError, match=r"results/rank-1.json \(only another worker may give it\)"):
        worker.play(exchange.collect())
    back = tmp_path / "back"
    assert {path.relative_to(back).as_posix() for path in back.rglob("*") if path.is_file()} == set(own)


def test_files_that_were_not_asked_for_do_not_come(
    worker: Worker, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.put(source, "model.txt")
    worker.put(source, "results/train.py")
    monkeypatch.setattr(agent_files, "find", lambda *_: iter([("model.txt", 1), ("results/train.py", 1)]))
    with pytest.raises(TransferFailed, match="which model.txt does not match"):
        worker.play(worker.transfers.get_matching("worker-0", "run", "model.txt", tmp_path / "back", 10**9))
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "data",
    [b'[["a", Infinity]]', b'[["\\ud800", 1]]', b"[" * 100_000, b'[["a", true]]', b'{"a": 1}', b'[["a", 1], ["a", 1]]'],
)
def test_a_listing_that_is_nonsense_is_refused(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    (tmp_path / "run" / "results").mkdir()
    monkeypatch.setattr(agent_files.Outgoing, "_list", staticmethod(lambda *_: data))
    with pytest.raises(TransferFailed, match="has sent no listing"):
        get_results(worker, tmp_path)


def test_a_file_larger_than_its_listing_said_is_refused(worker: Worker, source: Path, tmp_path: Path) -> None:
    worker.put(source, "results/file")
    worker.garbles = lambda message: message
    with pytest.raises(TransferFailed, match="too large"):
        worker.play(worker.transfers.get("worker-0", "run", "results/file", tmp_path / "back", limit=CHUNK))
