"""``forge-nb lab``: JupyterLab on the notebooks, or the first one run and checked."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_nb.cli.output import fail, say

__all__ = ["lab"]

_FIRST = "01_bring_a_session.ipynb"
_INSTALL = "pip install 'forge-nb[lab]'"
_CELL_TIMEOUT_S = 120


def lab(
    directory: Annotated[
        Path, typer.Argument(help="Where the notebooks go, outside a clone.")
    ] = Path("forge-notebooks"),
    check: Annotated[
        bool, typer.Option("--check", help="Run the first notebook headless and check it.")
    ] = False,
    db: Annotated[
        Path | None, typer.Option("--db", help="Not used; notebooks make theirs.")
    ] = None,
) -> None:
    """Open JupyterLab on the notebooks."""
    del db
    if check:
        raise SystemExit(_check())
    if importlib.util.find_spec("jupyterlab") is None:
        fail(f"JupyterLab is not installed; {_INSTALL}")
    folder = _folder(directory)
    command = [sys.executable, "-m", "jupyterlab", str(folder / _FIRST)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    raise SystemExit(subprocess.call(command))


def _source() -> Path:
    """Return where the notebooks are: beside the package in a clone, in it when installed."""
    clone = Path(__file__).parents[2] / "notebooks"
    packaged = Path(str(files("forge_nb"))) / "_notebooks"
    for folder in (packaged, clone):
        if (folder / _FIRST).exists():
            return folder
    fail("the notebooks are not installed; install forge-nb again")
    return None


def _folder(directory: Path) -> Path:
    """Return the folder to open; outside a clone the notebooks are copied, never over a file."""
    here = Path.cwd() / "notebooks"
    if (here / _FIRST).exists():
        return here
    _copy(_source(), directory)
    say(f"the notebooks are in {directory}")
    return directory


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        is_junk = any(part.startswith((".", "__")) for part in path.relative_to(source).parts)
        if path.is_file() and not is_junk and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def _check() -> int:
    """Run the first notebook on a copy; print its closing table; return the exit code."""
    if importlib.util.find_spec("nbclient") is None:
        fail(f"nbclient is not installed; {_INSTALL}")
    import nbclient  # noqa: PLC0415  only with the extra
    import nbformat  # noqa: PLC0415  only with the extra

    with tempfile.TemporaryDirectory(prefix="forge-lab-") as folder:
        _copy(_source(), Path(folder))
        read: Any = nbformat.read
        notebook = read(Path(folder) / _FIRST, as_version=4)
        client = nbclient.NotebookClient(
            notebook,
            timeout=_CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:
            fail(f"{_FIRST} failed: {error.ename}: {error.evalue}", code=1)
    say(_last_text(notebook))
    return 0


def _last_text(notebook: Any) -> str:
    """Return the text of the last output of a notebook."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    for output in reversed(outputs):
        text = output.get("text") or output.get("data", {}).get("text/plain")
        if text:
            return str(text).rstrip("\n")
    return ""
