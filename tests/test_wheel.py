"""The wheel holds all that the package reads at run time, not only its modules."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import os

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = {".ipynb_checkpoints", "__pycache__"}

LIST_RESOURCES = """
import json, sys
from importlib.resources import files
import forge_nb

def walk(folder, prefix=""):
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from walk(entry, name + "/")
        else:
            yield name

print(json.dumps({"file": forge_nb.__file__, "resources": sorted(walk(files(forge_nb)))}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment that holds the wheel built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("forge_nb-*.whl")
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", wheel)
    borrow_dependencies(environment)
    return environment


@pytest.fixture(scope="module")
def resources(installed: Path) -> set[str]:
    """Paths below the installed package, as `importlib.resources` finds them."""
    report = json.loads(run(installed / "bin" / "python", "-I", "-c", LIST_RESOURCES))
    assert Path(report["file"]).is_relative_to(installed)
    return set(report["resources"])


def test_the_wheel_brings_the_widgets_script_and_style(resources: set[str]) -> None:
    static = {name for name in resources if name.startswith("widgets/assets/")}

    assert {Path(name).suffix for name in static} >= {".css", ".js"}


def test_the_wheel_brings_the_notebooks_and_their_data(resources: set[str]) -> None:
    wanted = {f"_notebooks/{name}" for name in notebook_files()}

    assert any(name.startswith("_notebooks/01") and name.endswith(".ipynb") for name in wanted)
    assert any(not name.endswith(".ipynb") for name in wanted), "notebook 01 has data"
    assert wanted <= resources


def test_the_wheel_brings_its_types_and_leaves_stores_behind(resources: set[str]) -> None:
    assert "py.typed" in resources
    assert {name for name in resources if name.endswith((".db", ".db-wal"))} == set()


def test_the_wheel_brings_the_command_and_its_version(installed: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ask = "import importlib.metadata as m; print(m.version('forge-nb'))"

    version = run(installed / "bin" / "python", "-I", "-c", ask).strip()
    usage = run(installed / "bin" / "forge-nb", "--help")

    assert version == project["version"]
    assert "import" in usage


def notebook_files() -> set[str]:
    folder = ROOT / "notebooks"
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {
        path.as_posix()
        for path in paths
        if NOT_SHIPPED.isdisjoint(path.parts) and ".db" not in path.suffixes
    }


def borrow_dependencies(environment: Path) -> None:
    """Let the new environment see what this one has installed, after its own packages.

    A line in a `.pth` file adds a folder but does not read the `.pth` files in it, so an editable
    install of this tree stays invisible.
    """
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")


def run(*command: str | os.PathLike[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
