"""The kernel's count of processes that it has ended for want of memory, in the control group that is this worker's own.

A container engine often does not know: it looks at the first process alone, and some say no even then.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence, Union

COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # of cgroups v2 and v1
PEAKS = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")


def own_group(mark: str, listing: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> "list[str]":
    """Return the folder of the group that this process's memory is counted in, where its path has ``mark`` in it.

    Other groups are shared with who knows whom.
    """
    for line in "\n".join(_read([listing])).splitlines():
        _, controllers, path = line.split(":", 2)
        if mark in path and (not controllers or "memory" in controllers.split(",")):
            return [mounted + ("/memory" if controllers else "") + path]
    return []


class MemoryKills:
    """Tells whether the kernel has ended something since it was last asked."""

    @classmethod
    def of(cls, has_cgroup: "Union[bool, str, None]") -> "MemoryKills | None":
        """Return what looks at this worker's group; None where it has none.

        Args:
            has_cgroup: True where it sees no other group, as in a container; else what the path of its own has in it.
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
        """Return whether there are more than there were when this was last asked."""
        before, self._known = self._known, self._count()
        return self._known > before

    def peak(self) -> int:
        """The most memory that the group has ever had in use, in bytes; 0 where the kernel does not say."""
        return max([int(text) for text in _read(self._peaks) if text.isdigit()], default=0)

    def _count(self) -> int:
        lines = [line.split() for text in _read(self._counters) for line in text.splitlines()]
        return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")


def _read(paths: "Sequence[str]") -> "list[str]":
    """The texts of those files that are there."""
    found = []
    for path in paths:
        try:
            with open(path) as file:
                found.append(file.read().strip())
        except OSError:
            pass
    return found
