"""A platform that stays between runs: its guard, and the template that the next run's ranks are forks of."""

from __future__ import annotations

import contextlib
import os
import threading

from muster import platforms
from muster.errors import JobError, PlatformUnsupported
from muster.platforms.base import Platform
from muster.platforms.local import LocalPlatform
from muster.runtime.forks import in_forked_children


class KeptPlatform:
    """This machine, for one run after another.

    Each run has agents of its own, which take with them whatever it leaves. What stays is the process that forks
    agents, and a template. It ends with this session, however that ends; after some idle time; and when it is closed.

    Args:
        idle_seconds: how long it stays without a run; None: as long as the session.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._platform: LocalPlatform | None = None
        self._runs = 0
        self._timer: threading.Timer | None = None
        self._pid = os.getpid()
        self._why = ""  # it is cold, where it has no platform

    @property
    def is_warm(self) -> bool:
        """True if there is a template, or there soon is."""
        return self.warmth["state"] in ("ready", "importing")

    @property
    def warmth(self) -> dict[str, object]:
        """State of the template, why it is so, and its process id."""
        platform = self._platform if self._pid == os.getpid() else None
        with contextlib.suppress(Exception):  # it is ending
            if platform is not None:
                return dict(platform.warmth)
        return {"state": "none", "why": self._why, "pid": 0}

    def borrow(self) -> LocalPlatform:
        """Return the platform for one run."""
        with self._lock:
            self._forget_if_forked()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._platform is not None and self._platform.has_lost_guard:
                self._platform.close()
                self._platform = None
            if self._platform is None:
                self._platform = LocalPlatform()
                self._platform.keeps_templates = True
            self._runs += 1
            return self._platform

    def give_back(self, platform: LocalPlatform) -> None:
        """Take the platform back from a run that has ended."""
        with self._lock:
            self._runs -= 1
            if platform is not self._platform:  # it was closed meanwhile, and the run may have had it start again
                threading.Thread(target=platform.close, name="muster-pool", daemon=True).start()
            elif self._runs == 0 and self._idle_seconds is not None and self._platform is not None:
                self._timer = threading.Timer(self._idle_seconds, self._close, [True])
                self._timer.daemon = True
                self._timer.start()

    def lends(self, platform: Platform) -> bool:
        """Return whether this platform is the one that runs borrow."""
        return platform is self._platform

    def close(self) -> None:
        """End everything and wait until it is gone. The next run begins cold."""
        self._close(only_if_idle=False)

    def _close(self, only_if_idle: bool) -> None:
        with self._lock:
            self._forget_if_forked()
            if only_if_idle and self._runs:
                return
            platform, self._platform = self._platform, None
            if only_if_idle and self._idle_seconds is not None:
                self._why = f"it was not used for {self._idle_seconds / 60:g} minutes"
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if platform is not None:
            platform.close()

    def _forget_if_forked(self) -> None:
        """Leave to the parent what is the parent's, in a forked child."""
        if self._pid != os.getpid():
            self._pid, self._platform, self._runs, self._timer = os.getpid(), None, 0, None


IDLE_SECONDS = 600.0
_shared: list[KeptPlatform] = []  # what ``reuse=True`` uses


def shared() -> KeptPlatform:
    """The platform that all runs of this session share which are to leave their workers' processes warm."""
    if not _shared:
        _shared.append(KeptPlatform(IDLE_SECONDS))
    return _shared[0]


def kept_for(
    reuse: bool | KeptPlatform | None, platform: str | Platform | None, is_detached: bool
) -> KeptPlatform | None:
    """Return what stays between runs where a run is to use it; None where it launches everything anew.

    Args:
        reuse: what was asked for; None: what ``MUSTER_REUSE`` says, where that is possible.

    Raises:
        PlatformUnsupported, JobError: it was asked for, and is not possible.
    """
    if isinstance(reuse, KeptPlatform):
        return reuse
    wanted = os.environ.get("MUSTER_REUSE") == "1" if reuse is None else reuse
    is_here = not isinstance(platform, Platform) and platforms.platform_name(platform) == "local"
    if not wanted or (reuse is None and (is_detached or not is_here)):
        return None
    if not is_here:
        raise PlatformUnsupported(
            "reuse=True is about workers on this machine, and these are to run elsewhere.", advice="leave it out"
        )
    if is_detached:
        raise JobError("A detached run keeps nothing for the next: reuse=True has no effect.", advice="leave it out")
    return shared()


in_forked_children(_shared.clear)
