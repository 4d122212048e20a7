// The log of one worker: its end, live, with search; older parts as they are scrolled to.

const LIVE_LINES = 20000; // kept of a log whose end is looked at; older ones come again when they are scrolled to
const MOST_LINES = 60000; // kept while it is read above its end, or searched
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
  // command: gives the command that prints the whole log of a worker.
  constructor(onClose, onOlder, command) {
    this.worker = null;
    this.onOlder = onOlder;
    this.command = command;
    this.title = make("strong");
    this.note = make("span", "muster-muted");
    this.search = make("input", "", [], { type: "search", placeholder: "Search this log", "aria-label": "Search this log" });
    this.close = makeButton("Close", onClose);
    this.text = make("pre", "", [], { tabindex: "0", "aria-label": "log" });
    this.element = make("section", "muster-log", [
      make("div", "muster-bar", [this.title, this.note, this.search, this.close]), this.text,
    ]);
    this.element.hidden = true;
    this.search.addEventListener("input", () => this.paint());
    this.text.addEventListener("scroll", () => this.scrolled());
  }

  open(worker) {
    this.begin(worker);
    this.element.hidden = worker == null;
    setText(this.title, worker ?? "");
    setText(this.note, "…");
    setText(this.text, "");
    if (worker != null) this.comeIntoSight();
  }

  // The worker that was clicked on is in a table above it, which may be as high as the window.
  comeIntoSight() {
    this.element.scrollIntoView({ block: "nearest" });
  }

  // Marks are places in the file where a line begins, each with the index of that line among those that are here.
  begin(worker, start = 0, before = 0) {
    Object.assign(this, { worker, lines: [], unfinished: "", before, marks: [[start, 0]], asked: false });
  }

  say(text) {
    setText(this.note, text);
  }

  // Takes what was printed since the last time, or, if fresh, the end of the log without all that was left out.
  // Of a page by itself that is all there is.
  append({ worker, text, start, line, before, fresh, isAll = false }) {
    if (worker !== this.worker) return;
    this.isAll = isAll;
    const atEnd = fresh || this.isAtEnd();
    const isFirst = fresh && !this.lines.length && !this.unfinished;
    if (fresh) this.begin(worker, start, before);
    else if (line != null) this.marks.push([line, this.lines.length + (line > start ? 1 : 0)]);
    const lines = (this.unfinished + text).split("\n");
    this.unfinished = overwritten(lines.pop());
    this.lines.push(...lines.map(ended));
    if (atEnd && !this.search.value) this.drop(LIVE_LINES);
    this.paint(atEnd);
    if (isFirst) this.comeIntoSight();
    if (this.lines.length > MOST_LINES) this.changeAbove(() => this.drop(MOST_LINES));
  }

  // Drops the oldest lines beyond so many, up to a mark, since those before it are asked for by its place.
  drop(most) {
    const count = this.lines.length - most;
    const kept = this.marks.findLastIndex(([, index]) => index <= count);
    if (kept <= 0) return;
    const dropped = this.marks[kept][1];
    this.lines.splice(0, dropped);
    this.before += dropped;
    this.marks = this.marks.slice(kept).map(([place, index]) => [place, index - dropped]);
  }

  // Takes the lines that end where those begin that are here, and leaves what is read where it is.
  prepend({ worker, text, start, end }) {
    if (worker !== this.worker) return;
    this.asked = false;
    if (end !== this.marks[0][0]) return; // others are here meanwhile
    const lines = text ? text.split("\n") : [];
    if (lines[lines.length - 1] === "") lines.pop();
    this.changeAbove(() => {
      this.lines.unshift(...lines.map(ended));
      this.before = lines.length ? Math.max(0, this.before - lines.length) : 0;
      this.marks = [[start, 0], ...this.marks.map(([place, index]) => [place, index + lines.length])];
    });
  }

  // Changes lines above those that are read, which stay where they are.
  changeAbove(change) {
    const fromEnd = this.text.scrollHeight - this.text.scrollTop;
    change();
    this.paint(false);
    this.text.scrollTop = this.text.scrollHeight - fromEnd;
  }

  scrolled() {
    const wanted = this.text.scrollTop < NEAR && this.before > 0 && this.lines.length < MOST_LINES;
    if (!wanted || this.asked || this.isAll || this.search.value) return;
    this.asked = true;
    this.onOlder(this.marks[0][0]);
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.text;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  paint(atEnd = this.isAtEnd()) {
    const lines = this.unfinished ? [...this.lines, ended(this.unfinished)] : this.lines;
    const wanted = this.search.value.toLowerCase();
    const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
    setText(this.text, found.join("\n") || (wanted ? "None of the lines that are here has it." : "It has printed nothing yet."));
    this.say(this.extent(wanted, found.length, lines.length));
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }

  extent(wanted, found, here) {
    const count = (n) => n.toLocaleString("en");
    const lines = `${this.before ? "the last " : ""}${count(here)} lines`;
    const rest = `in a terminal: ${this.command(this.worker)}`;
    if (!this.before) return wanted ? `${count(found)} of ${lines}` : lines;
    if (wanted) return `${count(found)} of ${lines}; the ${count(this.before)} before them are not searched, ${rest}`;
    return `${lines}, ${count(this.before)} before them${this.isAll ? `, ${rest}` : ""}`;
  }
}
