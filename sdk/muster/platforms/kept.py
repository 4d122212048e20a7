"""A local platform that stays between runs: its guard, and the template from which the next run's ranks are forked."""

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
    """The platform of this machine, kept for one run after another.

    Each run has its own agents, which remove everything that the run leaves. The process that forks agents and the
    template stay. They end with this session, however that ends; after some idle time; and with ``close``.

    Args:
        idle_seconds: how long they stay without a run; None for as long as the session.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._platform: LocalPlatform | None = None
        self._runs = 0
        self._timer: threading.Timer | None = None
        self._pid = os.getpid()
        self._why = ""  # why there is no platform

    @property
    def warmth(self) -> dict[str, object]:
        """The template's state, the reason for it, and its process id."""
        platform = self._platform if self._pid == os.getpid() else None
        with contextlib.suppress(Exception):  # the platform is being closed
            if platform is not None:
                return dict(platform.warmth)
        return {"state": "none", "why": self._why, "pid": 0}

    def borrow(self) -> LocalPlatform:
        """Return the platform for one run, which gives it back."""
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
            if platform is not self._platform:  # it was closed meanwhile, and the run may have started its guard again
                threading.Thread(target=platform.close, name="muster-pool", daemon=True).start()
            elif self._runs == 0 and self._idle_seconds is not None and self._platform is not None:
                self._timer = threading.Timer(self._idle_seconds, self._close, [True])
                self._timer.daemon = True
                self._timer.start()

    def lends(self, platform: Platform) -> bool:
        """Return whether this platform is the one that ``borrow`` returns."""
        return platform is self._platform

    def close(self) -> None:
        """End the guard and the template, and wait until they are gone. The next run starts cold."""
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
        """Forget the platform in a forked child: it is the parent's."""
        if self._pid != os.getpid():
            self._pid, self._platform, self._runs, self._timer = os.getpid(), None, 0, None


IDLE_SECONDS = 600.0
_shared: list[KeptPlatform] = []  # the one for ``reuse=True``


def shared() -> KeptPlatform:
    """Return the kept platform that all runs of this session with ``reuse=True`` share."""
    if not _shared:
        _shared.append(KeptPlatform(IDLE_SECONDS))
    return _shared[0]


def kept_for(
    reuse: bool | KeptPlatform | None, platform: str | Platform | None, is_detached: bool
) -> KeptPlatform | None:
    """Return the kept platform that a run is to use; None for a run that starts every process anew.

    Args:
        reuse: as the user gave it; None for what ``MUSTER_REUSE`` says, where that is possible.

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
