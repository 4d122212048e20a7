"""Counts of processes that the kernel has killed for lack of memory in a worker's own control group.

A container engine often does not know of them: it looks at the first process alone, and some do not even report that.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence, Union

COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # of cgroups v2 and v1
PEAKS = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")


def own_group(mark: str, listing: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> "list[str]":
    """Return, as a list, the folder of the group that counts this process's memory, if its path contains ``mark``.

    The list is empty for any other group, as processes that do not belong to the worker may share it.
    """
    for line in "\n".join(_read([listing])).splitlines():
        _, controllers, path = line.split(":", 2)
        if mark in path and (not controllers or "memory" in controllers.split(",")):
            return [mounted + ("/memory" if controllers else "") + path]
    return []


class MemoryKills:
    """Tells whether the kernel has killed processes for lack of memory since the last check."""

    @classmethod
    def of(cls, has_cgroup: "Union[bool, str, None]") -> "MemoryKills | None":
        """Return an object for this worker's own group; None where it has none.

        Args:
            has_cgroup: True where the worker sees only its own group, as in a container; a text that the path of its
                own group contains; or False or None where it has no group of its own.
        """
        if not isinstance(has_cgroup, str):
            return cls() if has_cgroup else None
        folders = own_group(has_cgroup)
        counters = [folder + name for folder in folders for name in ("/memory.events", "/memory.oom_control")]
        peaks = [folder + name for folder in folders for name in ("/memory.peak", "/memory.max_usage_in_bytes")]
        return cls(counters, peaks) if folders else None

    def __init__(self, counters: "Sequence[str]" = COUNTERS, peaks: "Sequence[str]" = PEAKS) -> None:
        self._counters = counters
        self._peaks = peaks
        self._known = self._count()

    def has_more(self) -> bool:
        """Return whether the count has grown since the last call, or since this object was made."""
        before, self._known = self._known, self._count()
        return self._known > before

    def peak(self) -> int:
        """Return the most memory that the group has ever used, in bytes; 0 where the kernel does not say."""
        return max([int(text) for text in _read(self._peaks) if text.isdecimal()], default=0)

    def _count(self) -> int:
        lines = [line.split() for text in _read(self._counters) for line in text.splitlines()]
        return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")


def _read(paths: "Sequence[str]") -> "list[str]":
    """Return the contents of those files that can be read."""
    found = []
    for path in paths:
        try:
            with open(path) as file:
                found.append(file.read().strip())
        except OSError:
            pass
    return found
