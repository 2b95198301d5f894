"""What every test may ask for: the recorded cases, a Chromium, and how long to try.

Environment variables: `FORGE_CASES` names the folder of recorded cases, `FORGE_CASES_REQUIRED=1`
turns its absence from a skip into a failure, `FORGE_CHROMIUM` names a browser, `FORGE_KILLS` and
`FORGE_FUZZ` lengthen the tests that kill processes and damage files, `HYPOTHESIS_PROFILE` is `ci`
(200 examples, the same each time) or `nightly`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).parent.parent
CASES = (ROOT / os.environ.get("FORGE_CASES", "../shared/cases")).resolve()
CASES_REQUIRED = os.environ.get("FORGE_CASES_REQUIRED") == "1"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CASE_OUTCOMES = pytest.StashKey[dict[str, int]]()

pytest.register_assert_rewrite("tests.contracts")  # suites of asserts outside test_*.py

settings.register_profile(
    "ci",
    max_examples=200,
    deadline=None,  # machines are shared; a slow example is no wrong one
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # as the deadline
)
settings.register_profile(
    "nightly", settings.get_profile("ci"), max_examples=10_000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# ----------------------------------------------------------------------------- recorded cases


@pytest.fixture(scope="session")
def cases(request: pytest.FixtureRequest) -> Path:
    """The folder of recorded cases; without it a test is skipped, or fails if it is required."""
    elsewhere = request.config.getoption("cases", default=None)
    if elsewhere is not None:
        return Path(elsewhere)
    if not CASES.is_dir():
        reason = f"no recorded cases at {CASES}; set FORGE_CASES to the folder that holds them"
        if CASES_REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return CASES


@pytest.fixture
def case(cases: Path, request: pytest.FixtureRequest) -> Path:
    """One path of those that `@pytest.mark.each_case(pattern)` matches below the cases folder."""
    if request.param is None:
        pytest.fail(f"nothing in {cases} matches the pattern of each_case")
    found: Path = request.param
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `case` once for each match, named by its path."""
    marker = metafunc.definition.get_closest_marker("each_case")
    if marker is None:
        return
    folder, pattern = CASES, marker.args[0]
    elsewhere = metafunc.config.getoption("cases", default=None)
    if elsewhere is not None and "elsewhere" in marker.kwargs:
        folder, pattern = Path(elsewhere), marker.kwargs["elsewhere"]
    found = sorted(folder.glob(pattern))
    names = [path.relative_to(folder).as_posix() for path in found]
    metafunc.parametrize("case", found or [None], ids=names or ["absent"], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count the tests that use the cases; where they are required, a skip is a failure."""
    report = yield
    if not isinstance(item, pytest.Function) or "cases" not in item.fixturenames:
        return report
    if report.skipped and CASES_REQUIRED and not _may_skip(item, report):
        report.outcome = "failed"
        report.longrepr = f"skipped although FORGE_CASES_REQUIRED=1: {report.longrepr}"
    counts = item.config.stash.setdefault(CASE_OUTCOMES, {"run": 0, "skipped": 0})
    if report.skipped and not hasattr(report, "wasxfail"):
        counts["skipped"] += 1
    elif report.when == "call":
        counts["run"] += 1
    return report


def _may_skip(item: pytest.Item, report: pytest.TestReport) -> bool:
    marked = any(item.get_closest_marker(name) is not None for name in ("browser", "may_skip"))
    return hasattr(report, "wasxfail") or marked


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests had recorded truth to hold against."""
    counts = config.stash.get(CASE_OUTCOMES, {"run": 0, "skipped": 0})
    terminalreporter.write_line(f"cases: {counts['run']} run, {counts['skipped']} skipped")


# ------------------------------------------------------------------------------------ browser


def _find_chromium() -> str | None:
    named = os.environ.get("FORGE_CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser that tests marked `browser` drive."""
    found = _find_chromium()
    if found is None:
        pytest.skip("no Chromium found; install one or set FORGE_CHROMIUM")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip browser tests, saying so, where there is no browser."""
    if _find_chromium() is not None:
        return
    skip = pytest.mark.skip(reason="no Chromium found; install one or set FORGE_CHROMIUM")
    for item in items:
        if item.get_closest_marker("browser") is not None:
            item.add_marker(skip)


def pytest_report_header() -> list[str]:
    """Say which browser and which cases this run has."""
    browser = _find_chromium() or "none found, browser tests are skipped"
    return [f"chromium: {browser}", f"cases: {CASES if CASES.is_dir() else 'absent'}"]


# ---------------------------------------------------------------------------- how long to try


@pytest.fixture(scope="session")
def kill_count() -> int:
    """How many times a test that kills a writing process does it."""
    return int(os.environ.get("FORGE_KILLS", "20"))


@pytest.fixture(scope="session")
def fuzz_count() -> int:
    """How many damaged files a test that damages files tries."""
    return int(os.environ.get("FORGE_FUZZ", "50"))
