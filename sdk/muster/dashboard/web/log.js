// The log of one worker, live, with search.

const MAX_LOG_LINES = 5000;

class Log {
  constructor(onClose) {
    this.worker = null;
    this.title = make("strong");
    this.note = make("span", "muster-muted");
    this.search = make("input", "", [], { type: "search", placeholder: "Search this log", "aria-label": "Search this log" });
    this.close = make("button", "muster-button", "Close", { type: "button" });
    this.text = make("pre", "", [], { tabindex: "0", "aria-label": "log" });
    this.element = make("section", "muster-log", [
      make("div", "muster-bar", [this.title, this.note, this.search, this.close]), this.text,
    ]);
    this.element.hidden = true;
    this.search.addEventListener("input", () => this.paint());
    this.close.addEventListener("click", onClose);
  }

  open(worker) {
    Object.assign(this, { worker, lines: [], unfinished: "" });
    this.element.hidden = worker == null;
    setText(this.title, worker ?? "");
    setText(this.note, "…");
    setText(this.text, "");
  }

  say(text) {
    setText(this.note, text);
  }

  // Takes what was printed since the last time, or from the beginning.
  append({ worker, text, fresh }) {
    if (worker !== this.worker) return;
    if (fresh) Object.assign(this, { lines: [], unfinished: "" });
    const lines = (this.unfinished + text).split("\n");
    this.unfinished = lines.pop();
    this.lines.push(...lines);
    const dropped = this.lines.length - MAX_LOG_LINES;
    if (dropped > 0) this.lines.splice(0, dropped);
    this.paint(fresh);
  }

  paint(toEnd = false) {
    const { text } = this;
    const atEnd = toEnd || text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    const lines = this.unfinished ? [...this.lines, this.unfinished] : this.lines;
    const wanted = this.search.value.toLowerCase();
    const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    setText(text, found.join("\n") || (wanted ? "" : "It has printed nothing yet."));
    this.say(wanted ? `${found.length} of ${lines.length} lines` : `${lines.length} lines`);
    if (atEnd) text.scrollTop = text.scrollHeight;
  }
}
