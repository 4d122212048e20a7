"""Labels of processes, by which others find out whether the owner of a job, container or folder has ended."""

import os
import re
import socket

from . import linux

NUMBER = re.compile(r"[0-9]{1,20}\Z")


def owner() -> str:
    """Return a label that only this process ever has: boot id, namespace of process ids, user id, pid, start."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return "{}.{}.{}.{}.{}".format(boot, namespace, os.getuid(), os.getpid(), linux.start_of(os.getpid()))


def is_orphaned(label: str) -> bool:
    """Return whether the process with this label from ``owner()`` has ended for certain; False if it cannot be seen.

    The label may be anything, as others can label containers and pods.
    """
    mine, theirs = owner().split("."), label.split(".")
    if len(theirs) != len(mine) or theirs[:3] != mine[:3] or not all(map(NUMBER.match, theirs[3:])):
        return False
    return not linux.is_running(int(theirs[3]), int(theirs[4]))


def is_left_behind(label: str, host: str) -> bool:
    """Return whether the process with this label from ``owner()`` on this host has ended, or the host has rebooted."""
    is_here = host == socket.gethostname()  # other machines may share the home folder
    return is_orphaned(label) or (is_here and label.partition(".")[0] != owner().partition(".")[0])
