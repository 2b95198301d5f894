"""The house rules that no other tool checks, each failure naming its file."""

from __future__ import annotations

import ast
import importlib
import io
import json
import math
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "forge_nb"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = [ROOT / "conftest.py", *sorted((ROOT / "tests").rglob("*.py"))]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_NOQA_PER_1000_LINES = 2
HEAVY = frozenset(
    {
        "altair",
        "anthropic",
        "duckdb",
        "genai_prices",
        "openai",
        "pandas",
        "pyarrow",
        "pydantic_ai",
        "sqlalchemy",
    }
)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_file = pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=named)
each_module = pytest.mark.parametrize("path", MODULES, ids=named)
each_test_file = pytest.mark.parametrize("path", TESTS, ids=named)


@each_file
def test_a_file_has_at_most_500_lines(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())

    assert lines <= MAX_FILE_LINES


@each_file
def test_a_function_has_at_most_60_lines(path: Path) -> None:
    too_long = {
        node.name: length
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }

    assert too_long == {}


@each_module
def test_a_module_lists_its_public_names_in_order(path: Path) -> None:
    """Constants, then classes, then the rest: the order ruff sorts by."""
    module = parsed(path)
    if is_only_a_docstring(module):
        return

    names = public_names(module)

    assert names is not None, "no __all__"
    assert names == sorted(set(names), key=isort_key)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name == "__init__.py"], ids=named
)
def test_every_name_a_package_lists_can_be_had(path: Path) -> None:
    """Names that load on first use are easily listed and forgotten."""
    package = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))

    missing = [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)]

    assert missing == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after("import forge_nb")

    assert loaded & (HEAVY | {"ipywidgets", "anywidget", "IPython"}) == set()


def test_loading_the_extension_loads_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # not the user's profile and history

    loaded = modules_after(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "InteractiveShell.instance().extension_manager.load_extension('forge_nb')\n"
    )

    assert "forge_nb.magics" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("files", [MODULES, TESTS], ids=["forge_nb", "tests"])
def test_at_most_two_noqa_per_1000_lines_each_with_a_code(files: list[Path]) -> None:
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    found = {f"{named(path)}: {comment}" for path in files for comment in noqa_comments(path)}
    blanket = {line for line in found if not re.search(r"# noqa: [A-Z]+[0-9]+", line)}

    assert blanket == set()
    assert len(found) <= math.ceil(lines / 1000) * MAX_NOQA_PER_1000_LINES, sorted(found)


@each_test_file
def test_no_test_sleeps(path: Path) -> None:
    """Tests wait for what they want to see, not for a while."""
    sleeps = [
        node.lineno
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep")
        or (
            isinstance(node, ast.ImportFrom) and node.module == "time" and "sleep" in imported(node)
        )
    ]

    assert sleeps == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=named)
def test_a_notebook_is_saved_executed(path: Path) -> None:
    """Without outputs a reader sees nothing, and nbval compares nothing."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code" and cell["source"]]

    never_run = [cell["source"] for cell in code if cell["execution_count"] is None]

    assert never_run == []


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def is_only_a_docstring(module: ast.Module) -> bool:
    return all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in module.body
    )


def public_names(module: ast.Module) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return list(ast.literal_eval(node.value))
    return None


def isort_key(name: str) -> tuple[int, str]:
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[:1].isupper() else 2), name


def imported(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def noqa_comments(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in comments if re.search(r"\bnoqa\b", comment, re.IGNORECASE)]


def modules_after(code: str) -> set[str]:
    """Top-level names and our own modules that a fresh interpreter holds after running `code`."""
    report = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name if name.startswith("forge_nb") else name.partition(".")[0] for name in names}
