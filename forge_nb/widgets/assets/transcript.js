/* The live transcript of one session. */

const ACK_MS = 500;

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
    this.freeKeys = keepKeys(this.root);
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
    this.freeKeys();
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
