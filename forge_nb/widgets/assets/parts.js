/* Messages and their parts on the page: used by the live transcript and by replay.
 *
 * Markdown arrives as a tree of plain values ([tag, children]) and elements are built from it, from
 * a fixed list of tags.
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
const MAX_UNITS = 200_000; // of one text on the page
const MAX_PIECES = 400; // text nodes of one text before they are joined

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
