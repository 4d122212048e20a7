// Where every rank is: the Python stacks of all ranks, with the button that asks for them.

const SECONDS_FOR_STACKS = 6; // what all ranks have to answer before the kernel counts as busy with a cell

class Stacks {
  constructor(store, send) {
    Object.assign(this, { store, send });
    this.button = makeButton("Where does it hang?", () => this.ask(), { title: "The Python stacks of all ranks, right now" });
    this.element = make("section", "muster-stacks", [], { "aria-label": "stacks" });
    this.element.hidden = true;
  }

  ask() {
    this.button.disabled = true;
    this.send({ ask: "stacks" });
    this.element.hidden = false;
    this.fill(make("div", "muster-muted", "All ranks are asked …"));
    const busy = () => this.answered({
      error: `The kernel is busy with a cell. In a terminal: muster stacks ${this.store.run.run_id}`,
    });
    this.waits = setTimeout(busy, SECONDS_FOR_STACKS * 1000);
  }

  // Takes the session's answer.
  answered({ said, error }) {
    clearTimeout(this.waits);
    this.button.disabled = false;
    if (this.element.hidden) return; // another view of this run has asked
    const ended = error ? [] : this.store.ended();
    const found = Object.entries(said ?? {}).sort(([a], [b]) => naturally.compare(a, b));
    const close = makeButton("Close", () => { this.element.hidden = true; });
    const taken = new Date().toLocaleTimeString("en-GB");
    this.fill(
      make("div", "muster-bar", [make("strong", "", "Where every rank is"), make("span", "muster-muted", taken), close]),
      ...(error ? [make("div", "", error)] : []),
      ...(!error && !found.length ? [make("div", "muster-muted", "No rank runs, or none has answered.")] : []),
      ...found.map(([name, text]) => make("details", "", [make("summary", "", `${name}: ${whereIs(text)}`), make("pre", "", text)])),
      ...(ended.length ? [make("div", "muster-muted", `Ended: ${ended.join(", ")}.`)] : []),
    );
  }

  // The button is above the table and the stacks are below it, often out of sight.
  fill(...parts) {
    this.element.replaceChildren(...parts);
    this.element.scrollIntoView({ block: "nearest" });
  }
}

// The innermost call of a stack, below the line that names the thread: a cell's, or a file's, by its name and folder. What
// Muster itself does for a script is none of interest, as long as the script is on the stack, too.
function whereIs(text) {
  const lines = text.split("\n");
  const calls = lines.filter((line) => line.startsWith("  "));
  const call = (calls.find((line) => !/\/muster\/(agent|runner|training)\//.test(line)) ?? calls[0] ?? lines[0]).trim();
  const [, path, line] = /^File "(.*)"(, line .*)$/.exec(call) ?? [];
  return path == null ? call : path.split("/").slice(-2).join("/") + line;
}
