"""Which files a step changed, told by git without touching the user's own repository.

A repository beside the store holds trees of the working folder; the folder's index and history
are never written, and what its `.gitignore` names is never looked at. Where git or a repository is
missing, nothing is known, and that is what is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["GitSnapshots"]

_TIMEOUT_S = 20.0  # longer than that, a folder is too large to be watched
_HASH_CHARS = frozenset("0123456789abcdef")
_LARGE_FILE = "2m"  # larger files are left out


class GitSnapshots:
    """States of a folder.

    Parameters
    ----------
    root
        The folder; it has to be inside a git repository.
    store
        Where the trees are kept, outside of the folder's own `.git`; made when needed.
    """

    def __init__(self, root: Path, store: Path) -> None:
        self._root = root.resolve()
        self._store = store.resolve()
        self._is_usable: bool | None = None

    def track(self) -> str | None:
        """Return an id of the files as they are; None when that cannot be told."""
        if self._is_usable is None:
            self._is_usable = self._prepare()
        if not self._is_usable or self._git("add", "--all", "--ignore-errors", ".") is None:
            return None
        tree = self._git("write-tree")
        return tree.strip() if tree else None

    def changed(self, since: str) -> list[str]:
        """Return the absolute paths of files that are other, new or gone since a state."""
        now = self.track()
        if now is None or now == since or not _is_hash(since):
            return []
        names = self._git("diff", "--name-only", "--no-renames", "-z", since, now) or ""
        return [str(self._root / name) for name in names.split("\0") if name]

    def restore(self, since: str, paths: list[str]) -> list[str]:
        """Give files back as they were; return those that could not be.

        Parameters
        ----------
        since
            The state, as `track` returned it.
        paths
            Absolute paths below the folder; a file that did not exist then is removed.
        """
        failed: list[str] = []
        for path in map(Path, paths):
            if not _is_hash(since) or not path.resolve().is_relative_to(self._root):
                failed.append(str(path))
                continue
            name = str(path.resolve().relative_to(self._root))
            if self._git("cat-file", "-e", f"{since}:{name}") is None:
                path.unlink(missing_ok=True)
            elif self._git("checkout", since, "--", name) is None:
                failed.append(str(path))
        return failed

    def _prepare(self) -> bool:
        if shutil.which("git") is None or not _in_repository(self._root):
            return False
        if not (self._store / "HEAD").exists():
            self._store.mkdir(parents=True, exist_ok=True)
            if self._git("init", "--quiet") is None:
                return False
            self._git("config", "core.bigFileThreshold", _LARGE_FILE)
        return True

    def _git(self, *arguments: str) -> str | None:
        """Run git on the private repository; None when it fails."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        places = {"GIT_DIR": str(self._store), "GIT_WORK_TREE": str(self._root)}
        try:
            done = subprocess.run(  # noqa: S603  the arguments are ours
                ["git", *arguments],  # noqa: S607  found on the path, as everywhere
                cwd=self._root,
                env={**own, **places, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None


def _in_repository(folder: Path) -> bool:
    return any((one / ".git").exists() for one in (folder, *folder.parents))


def _is_hash(text: str) -> bool:
    return bool(text) and set(text) <= _HASH_CHARS
