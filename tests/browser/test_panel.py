"""A panel's questions, and its twin beside a living and a dead kernel, in a real JupyterLab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import Lab, command, open_notebook, run_all

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

TOY = '''
from forge_nb.errors import UsageError
from forge_nb.widgets.panel import Panel
from forge_nb.widgets.markup import tag
from forge_nb.widgets.sources import script, style
from forge_nb.widgets import sources

class Toy(Panel):
    _esm = script() + """
    export default { render({ model, el }) {
      const asker = new Asker(model);
      const root = make("div", "fnb", make("p", "toy", "asking"));
      el.append(root);
      const show = (text) => { root.firstChild.textContent = text; };
      asker.ask("twice", { n: 21 }).then((n) => {
        asker.ask("fail").catch((e) => show(`${n}, ${e.message}`));
      });
      const undo = hideTwin(el, model.get("twin"));
      return () => { asker.close(); undo(); };
    } };
    """
    _css = style()

    async def twice(self, n):
        return 2 * n

    def fail(self):
        raise UsageError("no, this <b>value</b>")

    @property
    def answers(self):
        return {"twice": self.twice, "fail": self.fail}

    def twin_html(self):
        return tag("p", "", "the <i>twin</i>")

    def twin_text(self):
        return "the twin"

Toy()
'''
ANSWERED = "() => document.querySelector('.toy')?.textContent === '42, no, this <b>value</b>'"


def test_a_panel_answers_and_hides_its_twin_while_it_lives(page: Page, lab: Lab) -> None:
    lab.write_notebook("panel.ipynb", TOY, "1")
    open_notebook(page, lab, "panel.ipynb")

    run_all(page)

    page.wait_for_function(ANSWERED)
    assert not page.locator(".fnb-twin").is_visible()


def test_a_panel_without_its_kernel_shows_the_twin_alone(page: Page, lab: Lab) -> None:
    lab.write_notebook("panel_dead.ipynb", TOY, "1")
    open_notebook(page, lab, "panel_dead.ipynb")
    run_all(page)
    page.wait_for_function(ANSWERED)
    command(page, "docmanager:save")
    lab.end_sessions()

    open_notebook(page, lab, "panel_dead.ipynb")
    page.wait_for_selector(".fnb-twin p")

    assert page.locator(".fnb-twin p").inner_text() == "the <i>twin</i>"
    assert not page.get_by_text("model not found").is_visible()
