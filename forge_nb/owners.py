"""Who holds a lease, by a name that tells whether that process still lives.

A lease ends by itself when it is not renewed, which takes seconds. Where the owner was a process of
this very machine that is gone, nobody has to wait: a restarted kernel finds its sessions free.
"""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path

__all__ = ["is_gone", "owner_name"]

_DIGEST_CHARS = 8


def owner_name(mark: str) -> str:
    """Return this process's name as an owner.

    Parameters
    ----------
    mark
        Tells several owners in one process apart.

    Examples
    --------
    >>> is_gone(owner_name("first"))
    False
    """
    return f"{_machine()}:{os.getpid()}:{mark}"


def is_gone(owner: str) -> bool:
    """Return whether an owner was a process of this machine and is no more.

    False for one of another machine, and wherever it cannot be told.
    """
    machine, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    if machine != _machine() or not pid.isdecimal() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


@cache
def _machine() -> str:
    """Name the machine: its boot and its table of processes, since containers may share a name."""
    facts = [_read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")]
    digest = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{socket.gethostname()}-{digest}".replace(":", "-")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
