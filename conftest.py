"""How notebooks run under pytest: in file order, each in a folder of its own.

Stands at the top because a `conftest.py` in `tests/` is not asked about files in `notebooks/`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).parent
LEFT_BEHIND = shutil.ignore_patterns("*.db", "*.db-*", ".ipynb_checkpoints", "__pycache__")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the conformance tests run on other recordings than the usual ones."""
    parser.addoption(
        "--cases",
        metavar="DIR",
        help="folder of recorded runs for tests/conformance, each in a folder of its own",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say what a notebook's output may differ in, from whatever folder pytest is started."""
    config.option.nbval_sanitize_with = str(ROOT / "tests" / "notebooks.cfg")


class NotebookFile(IPyNbFile):
    """A notebook whose kernel runs in a fresh copy of the notebook's folder.

    So it finds its data by relative paths, writes its store where nobody else reads it, and what a
    reader's own runs left beside the original changes nothing.
    """

    path: Path
    scratch: Path

    def setup(self) -> None:
        """Start the kernel in the copy, with no IPython profile of the user's."""
        self.scratch = Path(tempfile.mkdtemp(prefix="forge-notebook-"))
        copy = self.scratch / "notebooks"
        shutil.copytree(self.path.parent, copy, ignore=LEFT_BEHIND)
        original, self.path = self.path, copy / self.path.name
        try:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("IPYTHONDIR", str(self.scratch / "ipython"))
                environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
                super().setup()
        finally:
            self.path = original

    def teardown(self) -> None:
        """Stop the kernel and remove the copy."""
        super().teardown()
        shutil.rmtree(self.scratch, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[Any], list[Any]]:
    """Collect notebooks as ours where nbval collects them as its own."""
    collected = yield
    return [
        NotebookFile.from_parent(parent, path=file_path) if isinstance(node, IPyNbFile) else node
        for node in collected
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the notebooks' cells last and in order; the rest stays as it was shuffled.

    pytest-randomly shuffles in a wrapper, before this runs. A cell needs those above it.
    """
    cells = [item for item in items if isinstance(item, IPyNbCell)]
    cells.sort(key=lambda cell: (cell.parent.path, cell.cell_num))
    items[:] = [item for item in items if not isinstance(item, IPyNbCell)] + cells
