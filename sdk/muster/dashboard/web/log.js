// The log of one worker: its end, live, with search; older parts as they are scrolled to.

const MAX_LOG_LINES = 20000; // in the page; the oldest go, and come again when they are scrolled to
const NEAR = 40; // pixels from an end of what is shown

// A line as a terminal leaves it: what follows a carriage return overwrites what was there. One at its end still has
// nothing to overwrite it with.
function overwritten(line) {
  if (!line.includes("\r")) return line;
  const last = line.split("\r").filter(Boolean).pop() ?? "";
  return line.endsWith("\r") ? `${last}\r` : last;
}

const ended = (line) => overwritten(line).replace("\r", "");

class Log {
  constructor(onClose, onOlder) {
    this.worker = null;
    this.onOlder = onOlder;
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
    this.text.addEventListener("scroll", () => this.scrolled());
  }

  open(worker) {
    Object.assign(this, { worker, lines: [], unfinished: "", start: 0, before: 0, dropped: false, asked: false });
    this.element.hidden = worker == null;
    setText(this.title, worker ?? "");
    setText(this.note, "…");
    setText(this.text, "");
  }

  say(text) {
    setText(this.note, text);
  }

  // Takes what was printed since the last time, or, if fresh, the end of the log without all that was left out.
  append({ worker, text, start, before, fresh }) {
    if (worker !== this.worker) return;
    if (fresh) Object.assign(this, { lines: [], unfinished: "", start: start ?? 0, before: before ?? 0, dropped: false });
    const lines = (this.unfinished + text).split("\n");
    this.unfinished = overwritten(lines.pop());
    this.lines.push(...lines.map(ended));
    const dropped = this.lines.length - MAX_LOG_LINES;
    if (dropped > 0) {
      this.lines.splice(0, dropped);
      this.before += dropped;
      this.dropped = true; // where they begin in the file is no longer known
    }
    this.paint(fresh);
  }

  // Takes the lines before those that are here, and leaves what is read where it is.
  prepend({ worker, text, start }) {
    if (worker !== this.worker || !this.asked) return;
    this.asked = false;
    if (text) {
      const lines = text.split("\n");
      if (lines[lines.length - 1] === "") lines.pop();
      this.lines.unshift(...lines.map(ended));
      this.before = Math.max(0, this.before - lines.length);
    } else {
      this.before = 0;
    }
    this.start = start;
    const fromEnd = this.text.scrollHeight - this.text.scrollTop;
    this.paint();
    this.text.scrollTop = this.text.scrollHeight - fromEnd;
  }

  scrolled() {
    const { text } = this;
    const wanted = text.scrollTop < NEAR && this.before > 0 && !this.asked && !this.dropped && !this.search.value;
    if (!wanted || this.lines.length >= MAX_LOG_LINES) return;
    this.asked = true;
    this.onOlder(this.start);
  }

  paint(toEnd = false) {
    const { text } = this;
    const atEnd = toEnd || text.scrollHeight - text.scrollTop - text.clientHeight < NEAR;
    const lines = this.unfinished ? [...this.lines, ended(this.unfinished)] : this.lines;
    const wanted = this.search.value.toLowerCase();
    const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    setText(text, found.join("\n") || (wanted ? "" : "It has printed nothing yet."));
    this.say(this.extent(wanted, found.length, lines.length));
    if (atEnd) text.scrollTop = text.scrollHeight;
  }

  extent(wanted, found, here) {
    const count = (n) => n.toLocaleString("en");
    const older = this.before ? `, ${count(this.before)} before them` : "";
    if (wanted) return `${count(found)} of ${count(here)} lines${older}`;
    return `${this.before ? "the last " : ""}${count(here)} lines${older}`;
  }
}
