/* The live transcript of one session.
 *
 * Text of a model reaches the page only as text nodes: markdown arrives as a tree of plain values
 * ([tag, children]) and elements are built from it, from a fixed list of tags. Nothing is ever
 * parsed as HTML.
 */

const TAGS = new Set(("p ul ol li blockquote hr table thead tbody tr th td strong em s br code " +
  "h4 h5 h6").split(" "));
const LINK = /^(https?:|mailto:)/i;
const TOKENS = ["input", "output", "reasoning", "cache read", "cache write"];
const TOOL_STATES = {
  pending: ["○", "waiting"], running: ["●", "running"], completed: ["✓", "done"],
  error: ["✕", "failed"], aborted: ["⊘", "aborted"],
};
const CHIP_ICONS = { file: "▤", agent: "@", subtask: "↳", patch: "±", unknown: "?" };
const ACK_MS = 500;
const MAX_UNITS = 200_000; // of one text on the page
const KEYS = new Set(["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", "Enter", " "]);
const MAX_PIECES = 400; // text nodes of one text before they are joined

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

/** Build elements from a markdown tree; what is not in the list of tags becomes its text. */
function build(nodes) {
  const out = document.createDocumentFragment();
  for (const node of nodes) {
    if (typeof node === "string") { out.append(node); continue; }
    const [tag, children, extra] = node;
    if (tag === "pre") {
      const pre = make("pre", "fnb-code", make("code", "", ...children));
      if (extra) pre.dataset.language = extra;
      pre.tabIndex = 0;
      out.append(pre);
    } else if (tag === "a" && LINK.test(extra)) {
      const link = make("a", "", build(children));
      link.href = extra;
      link.rel = "noopener noreferrer";
      link.target = "_blank";
      out.append(link);
    } else if (TAGS.has(tag)) {
      out.append(make(tag, "", build(children ?? [])));
    } else {
      out.append(build(children ?? []));
    }
  }
  return out;
}

/** A text that grows: appends only, bounded, and knows which unit comes next. */
class Growing {
  constructor(ask) {
    this.ask = ask;
    this.note = make("div", "fnb-note");
    this.note.hidden = true;
    this.pre = make("div", "fnb-pre");
    this.start = this.next = 0;
  }
  nodes() { return [this.note, this.pre]; }
  set(text, off, asked = false) {
    this.pre.textContent = text;
    this.start = off;
    this.next = off + text.length;
    if (!asked) this.trim();
    this.tell();
  }
  append(text) {
    this.pre.append(text);
    this.next += text.length;
    if (this.pre.childNodes.length > MAX_PIECES) this.pre.normalize();
    this.trim();
  }
  trim() {
    if (this.next - this.start > MAX_UNITS) {
      const text = this.pre.textContent.slice(-MAX_UNITS * 0.75);
      this.start = this.next - text.length;
      this.pre.textContent = text;
      this.tell();
    }
  }
  tell() {
    this.note.hidden = this.start === 0;
    this.note.replaceChildren(...(this.start ? [older(this.start, this.ask)] : []));
  }
}

function older(units, ask) {
  const out = document.createDocumentFragment();
  out.append(`${count(units)} earlier characters are not shown`);
  if (ask) {
    const button = make("button", "fnb-link", "show all");
    button.type = "button";
    button.addEventListener("click", ask);
    out.append(" · ", button);
  }
  return out;
}

/** One part of a message on the page. */
class PartView {
  constructor(view, item) {
    this.view = view;
    this.node = make("div", "fnb-part");
    this.text = null;
    this.clock = null;
    this.update(item);
  }

  update(item) {
    const opened = this.node.querySelector(":scope > details")?.open;
    const focused = this.node.contains(document.activeElement);
    this.item = item;
    this.since = performance.now() - (item.age_ms ?? 0);
    this.clock = null;
    this.text = null;
    this.node.className = "fnb-part fnb-" + item.kind;
    this.node.dataset.part = item.id;
    this.node.classList.toggle("fnb-discarded", Boolean(item.discarded));
    this.node.replaceChildren(...this.draw(item));
    if (item.discarded) this.node.prepend(make("div", "fnb-note", `attempt ${item.discarded}, given up`));
    const details = this.node.querySelector(":scope > details");
    if (details && opened != null) details.open = opened;
    if (details && focused) details.querySelector("summary").focus({ preventScroll: true });
    this.tick();
  }

  draw(item) {
    const how = { text: "drawText", reasoning: "drawReasoning", tool: "drawTool", step: "drawStep",
      compaction: "drawMarker", chip: "drawChip" }[item.kind];
    return how ? this[how](item) : [];
  }

  askAll(item) { return item.open ? null : () => this.view.send({ kind: "text", part: item.id }); }

  grow(item) {
    this.text = new Growing(this.askAll(item));
    this.text.set(item.text ?? "", item.off ?? 0);
    return this.text.nodes();
  }

  drawText(item) {
    if (item.synthetic) {
      const label = make("summary", "fnb-quiet", "added by the program");
      return [make("details", "", label, ...this.grow(item))];
    }
    if (item.nodes) return [make("div", "fnb-md", build(item.nodes))];
    return this.grow(item);
  }

  drawReasoning(item) {
    const label = make("span", "");
    const summary = make("summary", "", icon("✳"), label);
    if (item.open) {
      this.clock = (ms) => { label.textContent = `Thinking… ${seconds(ms)}`; };
    } else {
      label.textContent = item.ms == null ? "Thought" : `Thought for ${seconds(item.ms)}`;
    }
    return [make("details", "", summary, make("div", "fnb-fold", ...this.grow(item)))];
  }

  drawTool(item) {
    const [glyph, word] = TOOL_STATES[item.status] ?? ["?", item.status];
    this.node.dataset.state = item.status;
    const time = make("span", "fnb-time", item.ms == null ? "" : seconds(item.ms));
    if (item.open) this.clock = (ms) => { time.textContent = seconds(ms); };
    const summary = make("summary", "", icon(glyph), make("span", "fnb-tool-name", item.tool),
      make("span", "fnb-brief", item.brief), make("span", "fnb-state", word), time);
    const body = make("div", "fnb-fold");
    if (item.input) body.append(...this.box("input", item.input, item.input_cut &&
      `${count(item.input_cut)} more characters`));
    if (item.output != null) body.append(...this.output("output", item, item.output));
    if (item.error != null) body.append(...this.output("error", item, item.error));
    if (item.attachments) body.append(make("div", "fnb-note", `${item.attachments} attachment(s)`));
    if (item.cleared) body.append(make("div", "fnb-note", "no longer sent to the model"));
    const details = make("details", "", summary, body);
    details.open = item.status === "error";
    return [details];
  }

  box(label, text, note) {
    const pre = make("pre", "fnb-box", text);
    pre.tabIndex = 0;
    pre.setAttribute("aria-label", label);
    return [make("div", "fnb-label", label), pre, note ? make("div", "fnb-note", note) : ""];
  }

  output(label, item, text) {
    const [head, pre] = this.box(label, text === "" ? "(empty)" : text);
    if (label === "error") pre.classList.add("fnb-bad");
    this.text = { all: (s) => { pre.textContent = s; note.remove(); } };
    const note = make("div", "fnb-note");
    if (item.output_cut) note.append(older(item.output_cut, this.askAll(item)));
    return [head, note, pre];
  }

  drawStep(item) {
    const pairs = item.tokens.map((n, i) => make("span", "fnb-kind", TOKENS[i] + " ",
      make("b", "", count(n))));
    const title = "Step" + (item.step ? " " + item.step : "");
    const ended = item.reason && !["stop", "tool-calls"].includes(item.reason) ? item.reason : "";
    const price = make("span", "fnb-kind fnb-cost", "cost ", make("b", "", cost(item.cost)));
    if (item.cost == null) price.title = "unknown price";
    return [make("span", "fnb-step-name", title), ...pairs, price,
      ended && make("span", "fnb-kind", "ended by " + ended)].filter(Boolean);
  }

  drawMarker(item) {
    const why = item.overflow ? "the request was too long" : item.auto ? "the window was full" :
      "asked for";
    const state = { pending: "Compacting", failed: "Compaction failed", done: "Compacted" }[item.state];
    const gain = `${count(item.before)} → ${item.state === "done" ? count(item.after) : "…"} tokens`;
    this.node.dataset.state = item.state;
    return [make("span", "fnb-marker-name", state), make("span", "fnb-gain", gain),
      make("span", "fnb-quiet", why + (item.tail ? ", recent messages kept" : ""))];
  }

  drawChip(item) {
    const chip = make("span", "fnb-chip-body", icon(CHIP_ICONS[item.icon] ?? "?"), item.label);
    if (item.detail) chip.append(make("span", "fnb-quiet", item.detail));
    chip.title = item.detail ?? "";
    return [chip];
  }

  tick() { this.clock?.(performance.now() - this.since); }

  all(text) {
    if (this.text instanceof Growing) { this.text.set(text, 0, true); return; }
    if (this.text) { this.text.all(text); return; }
    this.node.replaceChildren(...this.grow(this.item));
    this.text.set(text, 0, true);
  }
}

/** One message: a line that says who speaks, and the parts. */
class MessageView {
  constructor(view, item) {
    this.view = view;
    this.head = make("div", "fnb-who");
    this.body = make("div", "fnb-parts");
    this.foot = make("div", "fnb-error");
    this.node = make("section", "fnb-message", this.head, this.body, this.foot);
    this.update(item);
  }

  update(item) {
    this.node.dataset.face = item.face;
    const names = { user: "You", assistant: "Assistant", summary: "Summary", marker: "" };
    this.head.replaceChildren(make("span", "fnb-name", names[item.face] ?? item.role),
      ...(item.model ? [make("span", "fnb-quiet", item.model)] : []));
    this.foot.hidden = !item.error;
    if (item.error) {
      const aborted = item.error.name === "MessageAbortedError";
      this.foot.classList.toggle("fnb-aborted", aborted);
      this.foot.replaceChildren(icon(aborted ? "⊘" : "✕"), aborted ? "Stopped" :
        `${item.error.name}${item.error.message ? ": " + item.error.message : ""}`);
    }
  }
}

/** The header: status, gauge, sums, Stop. */
class Header {
  constructor(view) {
    this.view = view;
    this.title = make("span", "fnb-title");
    this.status = make("span", "fnb-status");
    this.status.setAttribute("role", "status");
    this.status.setAttribute("aria-live", "polite");
    this.wait = make("span", "fnb-wait"); // apart: a countdown is not to be read out
    this.wait.setAttribute("aria-hidden", "true");
    this.sums = make("span", "fnb-sums");
    this.fill = make("span", "fnb-meter-fill");
    this.meter = make("span", "fnb-meter", this.fill);
    this.meter.setAttribute("role", "meter");
    this.meter.setAttribute("aria-label", "context window");
    this.reading = make("span", "fnb-reading");
    this.stop = make("button", "fnb-stop", icon("■"), "Stop");
    this.stop.type = "button";
    this.stop.addEventListener("click", () => {
      this.stop.disabled = true;
      this.stop.lastChild.textContent = "Stopping…";
      view.send({ kind: "stop" });
    });
    this.node = make("header", "fnb-head",
      make("div", "fnb-head-line", this.status, this.wait, this.title, this.stop),
      make("div", "fnb-head-line fnb-facts", this.meter, this.reading, this.sums));
  }

  update(model) {
    this.title.textContent = model.get("title") || model.get("session_id");
    this.drawStatus(model.get("status"));
    this.drawGauge(model.get("gauge"));
    const sums = model.get("counters");
    const plural = (n, word) => `${n ?? 0} ${word}${n === 1 ? "" : "s"}`;
    const unpriced = sums.cost != null && sums.unpriced ? ` + ${sums.unpriced} unpriced` : "";
    this.sums.textContent = [plural(sums.steps, "step"), plural(sums.tools, "tool call"),
      "cost " + cost(sums.cost) + unpriced].join(" · ");
  }

  drawStatus(status) {
    const state = status.state ?? "idle";
    const wait = status.next_ms ? Math.round((status.next_ms - Date.now()) / 1000) : 0;
    const words = { idle: "Idle", busy: "Working…", compacting: "Compacting…",
      retry: `Waiting to try again (attempt ${status.attempt})` };
    this.wait.hidden = state !== "retry" || !(wait > 0 && wait < 3600);
    this.wait.textContent = `${wait} s`;
    const said = (words[state] ?? state) + (status.message ? " · " + status.message : "");
    if (this.status.textContent !== said) this.status.replaceChildren(make("i", "fnb-dot"), said);
    this.node.dataset.state = state;
    this.view.root.dataset.state = state;
    this.stop.hidden = state === "idle";
    if (state === "idle") { this.stop.disabled = false; this.stop.lastChild.textContent = "Stop"; }
  }

  drawGauge(gauge) {
    const { used, usable } = gauge;
    this.meter.hidden = usable == null;
    const share = used == null || !usable ? 0 : used / usable;
    const text = usable == null ? `context ${count(used)} tokens` : used == null ?
      `context — of ${count(usable)}` :
      `context ${count(used)} of ${count(usable)} · ${Math.round(100 * share)} %`;
    this.reading.textContent = text;
    this.fill.style.width = `${Math.min(100, 100 * share)}%`;
    this.meter.dataset.level = share >= 1 ? "over" : share >= 0.8 ? "near" : "fine";
    this.meter.setAttribute("aria-valuemin", "0");
    this.meter.setAttribute("aria-valuemax", String(usable ?? 0));
    this.meter.setAttribute("aria-valuenow", String(used ?? 0));
    this.meter.setAttribute("aria-valuetext", text);
  }
}

/** One view of the session; several may show the same model. */
class View {
  constructor(model, el) {
    this.model = model;
    this.name = Math.random().toString(36).slice(2);
    this.root = make("div", "fnb fnb-live");
    this.head = new Header(this);
    this.note = make("div", "fnb-note fnb-older");
    this.note.hidden = true;
    this.log = make("div", "fnb-log", this.note);
    this.log.tabIndex = 0;
    this.log.setAttribute("role", "region");
    this.log.setAttribute("aria-label", "transcript");
    this.root.append(this.head.node, this.log);
    el.append(this.root);
    this.reset();
    this.waiting = true; // for a snapshot
    this.queue = [];
    this.seen = this.acked = 0;
    this.ackedAt = 0;
    this.stick = true;
    this.log.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.log;
      if (clientHeight) this.stick = scrollHeight - scrollTop - clientHeight < 40;
    });
    // JupyterLab takes cells that are out of sight off the page, and their place is lost
    this.sizes = new ResizeObserver(() => this.follow());
    this.sizes.observe(this.log);
    this.timer = setInterval(() => this.tick(), 200);
    // JupyterLab hears keys before the page does, and would leave the cell on an arrow
    this.onKey = (event) => {
      if (!this.root.contains(event.target)) return;
      const own = KEYS.has(event.key) && !(event.ctrlKey || event.metaKey || event.altKey);
      if (own) event.target.setAttribute("data-lm-suppress-shortcuts", "true");
      else event.target.removeAttribute("data-lm-suppress-shortcuts");
    };
    window.addEventListener("keydown", this.onKey, true);
  }

  reset() { this.messages = new Map(); this.parts = new Map(); }

  send(content) { this.model.send({ ...content, view: this.name }); }

  hydrate() { this.waiting = true; this.send({ kind: "hydrate" }); }

  receive(message) {
    if (message.kind === "snap") this.restore(message);
    else if (message.kind === "text") this.parts.get(message.part)?.all(message.s);
    else if (message.kind === "ops") {
      if (this.waiting) this.queue.push(message);
      else this.frame(message);
    }
    if (message.n != null) this.saw(message.n);
    this.follow();
  }

  /** Replace everything; the same snapshot twice gives the same page. */
  restore(snap) {
    const folds = new Map();
    for (const [id, part] of this.parts) {
      const details = part.node.querySelector(":scope > details");
      if (details) folds.set(id, details.open);
    }
    this.reset();
    this.log.replaceChildren(this.note);
    for (const { parts, ...item } of snap.messages) {
      this.message(item);
      for (const part of parts) this.part(item.id, part);
    }
    for (const [id, open] of folds) {
      const details = this.parts.get(id)?.node.querySelector(":scope > details");
      if (details) details.open = open;
    }
    this.older(snap.older);
    this.waiting = false;
    this.seq = snap.seq;
    this.queue.splice(0).filter(({ seq }) => seq > snap.seq).forEach((frame) => this.frame(frame));
  }

  /** Apply one frame; a number left out means that Jupyter dropped one. */
  frame({ seq, ops }) {
    if (this.waiting) return;
    if (seq !== this.seq + 1) { this.hydrate(); return; }
    this.seq = seq;
    ops.forEach((op) => this.apply(op));
  }

  apply(op) {
    if (this.waiting) return;
    if (op.kind === "d") this.grow(op);
    else if (op.kind === "part") this.part(op.message, op.item);
    else if (op.kind === "message") this.message(op.item);
    else if (op.kind === "gone") this.remove(op);
  }

  grow({ part, off, s }) {
    const shown = this.parts.get(part);
    const text = shown?.text;
    if (shown && !shown.item.open) return; // its closing row said it all
    if (!(text instanceof Growing) || off > text.next) { this.hydrate(); return; }
    if (off + s.length > text.next) text.append(s.slice(text.next - off));
  }

  message(item) {
    const known = this.messages.get(item.id);
    if (known) { known.update(item); return known; }
    const made = new MessageView(this, item);
    this.messages.set(item.id, made);
    this.log.append(made.node);
    return made;
  }

  part(messageId, item) {
    const known = this.parts.get(item.id);
    if (known) { known.update(item); return; }
    const message = this.messages.get(messageId) ??
      this.message({ id: messageId, role: "assistant", face: "assistant" });
    const made = new PartView(this, item);
    this.parts.set(item.id, made);
    message.body.append(made.node);
  }

  remove({ part, message, older: left }) {
    if (part) { this.parts.get(part)?.node.remove(); this.parts.delete(part); }
    if (message) {
      const gone = this.messages.get(message);
      gone?.body.querySelectorAll(":scope > .fnb-part").forEach((n) => this.parts.delete(n.dataset.part));
      gone?.node.remove();
      this.messages.delete(message);
    }
    if (left != null) this.older(left);
  }

  older(n) {
    this.note.hidden = !n;
    this.note.textContent = n ? `${count(n)} earlier parts are not shown` : "";
  }

  saw(n) {
    this.seen = Math.max(this.seen, n);
    if (performance.now() - this.ackedAt > ACK_MS) this.ack();
  }

  ack() {
    if (this.seen === this.acked) return;
    this.acked = this.seen;
    this.ackedAt = performance.now();
    this.send({ kind: "ack", n: this.seen });
  }

  tick() {
    for (const part of this.parts.values()) part.tick();
    if (this.head.node.dataset.state === "retry") this.head.drawStatus(this.model.get("status"));
    if (performance.now() - this.ackedAt > ACK_MS) this.ack();
  }

  follow() {
    if (!this.stick || this.following) return;
    this.following = requestAnimationFrame(() => {
      this.following = 0;
      if (this.stick) this.log.scrollTop = this.log.scrollHeight;
    });
  }

  close() {
    clearInterval(this.timer);
    window.removeEventListener("keydown", this.onKey, true);
    cancelAnimationFrame(this.following);
    this.sizes.disconnect();
    try { this.send({ kind: "bye" }); } catch { /* the kernel is gone; nobody waits for this */ }
  }
}

export default {
  render({ model, el }) {
    const view = new View(model, el);
    const onMessage = (message) => view.receive(message);
    const onChange = () => view.head.update(model);
    model.on("msg:custom", onMessage);
    model.on("change", onChange);
    onChange();
    view.hydrate();
    return () => {
      model.off("msg:custom", onMessage);
      model.off("change", onChange);
      view.close();
    };
  },
};
