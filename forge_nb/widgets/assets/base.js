/* What every view here builds with: elements, numbers for people, questions to the kernel.
 *
 * The files of this folder are joined into one module by `sources.py`; only a last one exports.
 * Text of a model, a tool or a file reaches the page only as text nodes. Nothing is ever parsed as
 * HTML.
 */

const KEYS = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home",
  "End", "Enter", "Escape", " "]);

const count = (n) => (n == null ? "—" : n.toLocaleString("en-US"));
const cost = (usd) => usd == null ? "—" : usd === 0 ? "$0" :
  "$" + usd.toFixed(usd >= 0.1 ? 2 : 4);
const seconds = (ms) => ms == null ? "—" : ms < 10_000 ? (Math.max(ms, 0) / 1000).toFixed(1) + " s" :
  ms < 60_000 ? Math.floor(ms / 1000) + " s" :
  Math.floor(ms / 60_000) + " min " + String(Math.floor(ms / 1000) % 60).padStart(2, "0") + " s";

function make(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children.filter((child) => child != null && child !== ""));
  return node;
}

function icon(glyph) {
  const node = make("span", "fnb-icon", glyph);
  node.setAttribute("aria-hidden", "true");
  return node;
}

/** Keep keys inside: JupyterLab hears them before the page does, and would leave the cell. */
function keepKeys(root) {
  const onKey = (event) => {
    if (!root.contains(event.target)) return;
    const own = KEYS.has(event.key) && !(event.ctrlKey || event.metaKey || event.altKey);
    if (own) event.target.setAttribute("data-lm-suppress-shortcuts", "true");
    else event.target.removeAttribute("data-lm-suppress-shortcuts");
  };
  window.addEventListener("keydown", onKey, true);
  return () => window.removeEventListener("keydown", onKey, true);
}

/** Questions to a `Panel` in the kernel; an answer that is an error rejects with its words. */
class Asker {
  constructor(model) {
    this.model = model;
    this.name = Math.random().toString(36).slice(2);
    this.waiting = new Map();
    this.count = 0;
    this.hear = (message) => {
      const asked = message.kind === "answer" && this.waiting.get(message.id);
      if (!asked) return;
      this.waiting.delete(message.id);
      if (message.error == null) asked.yes(message.value);
      else asked.no(new Error(message.error));
    };
    model.on("msg:custom", this.hear);
  }
  ask(what, args = {}) {
    const id = `${this.name}.${++this.count}`;
    return new Promise((yes, no) => {
      this.waiting.set(id, { yes, no });
      this.model.send({ kind: "ask", id, what, args });
    });
  }
  close() { this.model.off("msg:custom", this.hear); }
}

/** Hide the twin that stands in for a view where there is no kernel; returns how to undo it. */
function hideTwin(el, name) {
  const scope = el.closest(".jp-OutputArea, .output_subarea, .output") ?? document;
  const twins = [...scope.querySelectorAll(".fnb-twin")].filter((n) => n.dataset.twin === name);
  const hidden = twins.map((twin) => twin.closest(".jp-OutputArea-child") ?? twin);
  hidden.forEach((node) => { node.hidden = true; node.style.display = "none"; });
  return () => hidden.forEach((node) => { node.hidden = false; node.style.display = ""; });
}
