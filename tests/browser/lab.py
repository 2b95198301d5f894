"""A real JupyterLab on loopback, and what a test does in it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent.parent

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LAB_FLAGS = [
    "--no-browser",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--ServerApp.terminals_enabled=False",
    "--LanguageServerManager.autodetect=False",
]
FOLDERS = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "IPYTHONDIR": "ipython",
}
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
START_TRIES = 1_200  # of 50 ms

# `evaluate` has no timeout of its own: a promise that is lost would hang the test for ever
EVALUATE = """([source, given, ms]) => Promise.race([
    Promise.resolve((0, eval)('(' + source + ')')(given)),
    new Promise((_, no) => setTimeout(() => no(new Error('no answer in ' + ms + ' ms')), ms)),
])"""


class Lab(msgspec.Struct, frozen=True):
    """A running server."""

    url: str
    token: str
    root: Path

    def write_notebook(self, name: str, *cells: str) -> None:
        """Put a notebook with these code cells into the server's folder."""
        blank: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
        }
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {
            "cells": [blank | {"id": f"cell-{n}", "source": c} for n, c in enumerate(cells)],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.root / name).write_text(json.dumps(notebook), "utf-8")

    def end_sessions(self) -> None:
        """Shut down every kernel, so that tests do not meet each other's."""
        for session in json.loads(self._call("GET", "/api/sessions")):
            self._call("DELETE", f"/api/sessions/{session['id']}")

    def _call(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(  # noqa: S310  the address is ours
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  as above
            body: bytes = answer.read()
        return body


@contextlib.contextmanager
def running_lab(root: Path) -> Iterator[Lab]:
    """Start a server with settings of its own; end it, and its kernels, afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16), root)
    with tempfile.TemporaryDirectory(prefix="forge-lab-") as own:
        base = Path(own)
        settings = base / "settings/@jupyterlab/apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET), "utf-8")
        flags = [
            *LAB_FLAGS,
            f"--ServerApp.port={port}",
            f"--IdentityProvider.token={lab.token}",
            f"--ServerApp.root_dir={root}",
            *(["--allow-root"] if os.geteuid() == 0 else []),
        ]
        folders = {name: str(base / folder) for name, folder in FOLDERS.items()}
        env = os.environ | folders | {"PYTHONPATH": str(ROOT)}
        log = base / "lab.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *flags],
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _wait_for(lab, process, log)
                yield lab
            finally:
                _end(process)


def _wait_for(lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(START_TRIES):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{lab.url}/api?token={lab.token}", timeout=5).close()  # noqa: S310  ours
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    msg = f"JupyterLab did not start:\n{log.read_text('utf-8')[-4_000:]}"
    raise RuntimeError(msg)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def evaluate(page: Page, source: str, given: object = None, *, timeout_s: float = 60) -> Any:
    """Run a JavaScript function in the page and return what it resolves to."""
    return page.evaluate(EVALUATE, [source, given, timeout_s * 1000])


def open_notebook(page: Page, lab: Lab, name: str, *, reset: bool = True) -> None:
    """Open a notebook and wait until its kernel can be used."""
    page.goto(f"{lab.url}/lab/tree/{name}?token={lab.token}{'&reset' if reset else ''}")
    page.wait_for_selector(".jp-Notebook")
    page.wait_for_function(
        "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
    )
    # "idle" is shown before the kernel is connected; a run-all fired then is lost
    evaluate(
        page,
        """async () => {
            const panel = jupyterapp.shell.currentWidget, context = panel.sessionContext;
            await context.ready; await context.session.kernel.info; await panel.revealed;
        }""",
    )


def run_all(page: Page, *, timeout_s: float = 120) -> None:
    """Run every cell and wait until all are done."""
    command(page, "notebook:run-all-cells", timeout_s=timeout_s)


def start_all(page: Page) -> None:
    """Begin to run every cell; do not wait."""
    evaluate(page, "() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def command(page: Page, name: str, given: object = None, *, timeout_s: float = 60) -> None:
    """Execute one of JupyterLab's commands."""
    source = "async ([name, given]) => { await jupyterapp.commands.execute(name, given ?? {}); }"
    evaluate(page, source, [name, given], timeout_s=timeout_s)


def cells(page: Page) -> list[dict[str, Any]]:
    """Return the cells from the model: the page draws only what is in sight."""
    found: list[dict[str, Any]] = page.evaluate(
        """() => {
            const model = jupyterapp.shell.currentWidget.content.model;
            return [...Array(model.cells.length).keys()].map((i) => model.cells.get(i).toJSON());
        }"""
    )
    return found
