// The live view of a run. The files before this one are joined with it to one module (muster/dashboard/web/__init__.py).

const SECONDS_TO_ANSWER = 0.5; // what the session has before it counts as busy with a cell
const SECONDS_UNTIL_STUCK = 30;
const SECONDS_UNTIL_SILENT = 2; // a session that lives is heard of every 0.5 s, or somewhat later under load
const SECONDS_LATE = 1; // which what is heard may have waited here
const MOST_SECONDS_OF_QUIET = 10;
const SECONDS_TO_ASK_AGAIN = 10; // for a snapshot; twice as many each time
const SECONDS_TO_END = 6; // what an interrupt has to show an effect

// What the views of a kernel's runs share, though each is a module of its own: when this page has asked for quiet, and the
// least delay from the session's clock, which is another, to this computer's. A view that begins when the page is behind
// would not know it.
const kernels = (globalThis.musterKernels ??= new Map());

class View {
  // can: what the session can do for this view: stop, sayStacks; isLive: whether it is there at all; isOwn: whether the
  // run is its own, so that interrupt, which it hears when it is busy with a cell, ends the run as well; kernel: its id.
  constructor(root, send, can) {
    this.send = send;
    this.can = can;
    this.heardAt = Date.now() / 1000;
    this.pulse = kernels.get(can.kernel) ?? { leastDelay: Infinity, quietUntil: 0 };
    kernels.set(can.kernel, this.pulse);
    this.isGone = false;
    this.store = new Store();
    this.table = new Table(this.store, (worker) => this.select(worker));
    this.log = new Log(
      () => this.select(null),
      (start) => this.send({ ask: "older", start }),
      (worker) => `muster logs ${this.store.run.run_id} ${worker}`,
    );
    this.build(root);
    this.clock = setInterval(() => this.tick(), 250);
    this.askForSnapshot();
  }

  build(root) {
    this.glyph = make("span", "muster-glyph", "", { "aria-hidden": "true" });
    this.name = make("strong");
    this.facts = make("span", "muster-muted");
    this.copy = make("button", "muster-button", "Copy command", { type: "button", title: "The command that would repeat this run" });
    this.board = make("button", "muster-button", "TensorBoard", { type: "button", title: "Opens in a tab of its own" });
    this.board.hidden = true;
    this.hang = make("button", "muster-button", "Where does it hang?", { type: "button", title: "The Python stacks of all ranks, right now" });
    this.stop = make("button", "muster-button muster-stop", "Stop", { type: "button" });
    this.fate = make("div", "muster-fate", "", { role: "status" });
    this.fate.hidden = true;
    this.stacks = make("section", "muster-stacks", [], { "aria-label": "stacks" });
    this.stacks.hidden = true;
    this.cause = make("div", "muster-cause", [], { role: "alert" });
    this.notes = make("div", "muster-notes");
    this.bar = make("progress", "", [], { max: "1", "aria-label": "progress of the run" });
    this.progress = make("div", "muster-progress", [this.bar, (this.pace = make("span"))]);
    this.charts = new Charts(make("div", "muster-charts"));
    this.chips = make("div", "muster-chips", [], { role: "group", "aria-label": "filter by status" });
    this.filter = make("input", "", [], { type: "search", placeholder: "Filter workers", "aria-label": "Filter workers" });
    this.said = make("div", "muster-said", "", { "aria-live": "polite" });
    this.empty = make("div", "muster-muted", "No worker has been launched yet.");
    this.element = make("section", "muster", [
      make("div", "muster-bar", [
        make("div", "muster-title", [this.glyph, this.name, this.facts]),
        make("div", "muster-buttons", [this.hang, this.board, this.copy, this.stop]),
      ]),
      this.fate, this.cause, this.notes, this.progress, this.charts.element,
      (this.tools = make("div", "muster-bar muster-tools", [this.chips, this.filter])),
      this.table.element, this.table.extent, this.empty, this.stacks, this.log.element, this.said,
    ], { "aria-label": "Muster run" });
    this.board.addEventListener("click", () => this.openBoard());
    this.copy.addEventListener("click", () => this.copyCommand());
    this.stop.addEventListener("click", () => this.stopRun());
    this.hang.addEventListener("click", () => this.askForStacks());
    this.filter.addEventListener("input", () => this.query({ words: this.filter.value }));
    root.replaceChildren(this.element);
  }

  destroy() {
    clearInterval(this.clock);
  }

  receive(message) {
    this.heardAt = Date.now() / 1000;
    if (message.sent != null) this.keepUp(message.sent);
    if (this.store.silentSince != null && !this.isGone) this.tick();
    if (message.kind === "older") {
      this.log.prepend(message);
    } else if (message.kind === "stacks") {
      this.showStacks(message);
    } else if (message.kind === "log") {
      clearTimeout(this.waitsForLog);
      this.log.append(message);
    } else if (message.kind === "stopping") {
      clearTimeout(this.waitsForStop);
      this.trouble = null; // it was said to be busy where this took long
      if (message.error) this.cannotStop(message.error);
      this.paintSoon();
    } else if (message.kind === "tensorboard") {
      this.showBoard(message);
    } else if (this.store.apply(message)) {
      if (message.kind === "snapshot") this.askAgainAt = 0;
      if (message.kind !== "beat") this.paintSoon();
    } else if (Date.now() / 1000 >= this.askAgainAt) {
      this.askForSnapshot();
    }
  }

  // Asks more and more rarely: a kernel that is busy with a cell answers everything when the cell has ended.
  askForSnapshot() {
    this.patience = this.askAgainAt ? 2 * this.patience : SECONDS_TO_ASK_AGAIN;
    this.askAgainAt = Date.now() / 1000 + this.patience;
    this.send({ ask: "snapshot" });
  }

  // Asks for quiet if a message has waited long: more comes than this page can show, and it would fall ever further
  // behind. It gets twice the time that it is behind, since it may have been behind from the beginning.
  keepUp(sent) {
    const delay = performance.now() / 1000 - sent;
    this.pulse.leastDelay = Math.min(this.pulse.leastDelay, delay);
    const now = Date.now() / 1000;
    if (now < this.pulse.quietUntil) return;
    // What was sent after a quiet and is as late as before was in no queue: a clock stood still, as computers sleep.
    const { asked } = this.pulse;
    if (asked && sent >= asked.sent + asked.seconds && delay >= asked.delay) this.pulse.leastDelay = delay;
    const late = delay - this.pulse.leastDelay;
    if (late < SECONDS_LATE) return;
    const seconds = Math.min(2 * late, MOST_SECONDS_OF_QUIET);
    this.pulse.asked = { sent, seconds, delay };
    this.pulse.quietUntil = now + seconds;
    this.send({ ask: "quiet", seconds });
  }

  query(change) {
    Object.assign(this.table.query, change);
    this.table.window.scrollTop = 0;
    this.paintSoon();
  }

  select(worker) {
    const chosen = worker === this.log.worker ? null : worker;
    this.table.selected = chosen;
    this.log.open(chosen);
    this.send({ ask: "log", worker: chosen });
    clearTimeout(this.waitsForLog);
    if (chosen != null) {
      const busy = () => this.log.say("The kernel is busy with a cell; the log comes when it has time.");
      this.waitsForLog = setTimeout(busy, SECONDS_TO_ANSWER * 1000);
    }
    this.paintSoon();
  }

  // A kernel that is busy with a cell may not hear; an interrupt it always hears, and that ends the run as well.
  stopRun() {
    this.stop.disabled = true;
    setText(this.stop, "Stopping …");
    this.send({ ask: "stop" });
    this.waitsForStop = setTimeout(() => this.interrupt(), SECONDS_TO_ANSWER * 1000);
  }

  // Some editors let no widget interrupt the kernel, and say so in no way but that nothing happens.
  interrupt() {
    const how = this.can.isOwn ? "Interrupt it, or in" : "In";
    const refused = () => this.cannotStop(`The kernel is busy with a cell. ${how} a terminal: muster stop ${this.store.run.run_id}`);
    if (!this.can.isOwn) return refused();
    this.waitsForStop = setTimeout(() => this.store.run.phase !== "ending" && refused(), SECONDS_TO_END * 1000);
    Promise.resolve().then(this.can.interrupt).catch(() => {
      clearTimeout(this.waitsForStop);
      refused();
    });
  }

  cannotStop(why) {
    this.stop.disabled = false;
    setText(this.stop, "Stop");
    this.trouble = why;
    this.paintSoon();
  }

  askForStacks() {
    this.hang.disabled = true;
    this.send({ ask: "stacks" });
    this.stacks.hidden = false;
    this.fillStacks(make("div", "muster-muted", "All ranks are asked …"));
    const busy = () => this.showStacks({
      error: `The kernel is busy with a cell. In a terminal: muster stacks ${this.store.run.run_id}`,
    });
    this.waitsForStacks = setTimeout(busy, 6000);
  }

  showStacks({ said, error }) {
    clearTimeout(this.waitsForStacks);
    this.hang.disabled = false;
    if (this.stacks.hidden) return; // another view of this run has asked
    const ended = error ? [] : this.store.ended();
    const found = Object.entries(said ?? {}).sort(([a], [b]) => naturally.compare(a, b));
    const close = make("button", "muster-button", "Close", { type: "button" });
    close.addEventListener("click", () => { this.stacks.hidden = true; });
    const taken = new Date().toLocaleTimeString("en-GB");
    this.fillStacks(
      make("div", "muster-bar", [make("strong", "", "Where every rank is"), make("span", "muster-muted", taken), close]),
      ...(error ? [make("div", "", error)] : []),
      ...(!error && !found.length ? [make("div", "muster-muted", "No rank runs, or none has answered.")] : []),
      ...found.map(([name, text]) => make("details", "", [make("summary", "", `${name}: ${whereIs(text)}`), make("pre", "", text)])),
      ...(ended.length ? [make("div", "muster-muted", `Ended: ${ended.join(", ")}.`)] : []),
    );
  }

  // The button is above the table and the stacks are below it, often out of sight.
  fillStacks(...parts) {
    this.stacks.replaceChildren(...parts);
    this.stacks.scrollIntoView({ block: "nearest" });
  }

  // Hears the session's pulse. What is known of a run whose session is silent is old, and is shown as that.
  tick() {
    const { run } = this.store;
    const now = Date.now() / 1000;
    const alive = run.status === "running" && run.started != null && this.can.isLive;
    const silent = alive && (this.isGone || now - Math.max(this.heardAt, this.pulse.quietUntil) > SECONDS_UNTIL_SILENT);
    const changed = silent !== (this.store.silentSince != null);
    this.store.silentSince = silent ? this.heardAt : null;
    if (changed || now - (this.tickedAt ?? 0) >= 1) {
      this.tickedAt = now;
      this.paintSoon();
    }
  }

  // The kernel has been restarted, or has ended.
  lose() {
    this.isGone = true;
    if (this.can.isOwn) this.store.loseWorkers();
    this.tick();
  }

  // The tab is opened within the click, since browsers block those that come later.
  openBoard() {
    this.board.disabled = true;
    this.tab = window.open("", "_blank");
    this.sayInTab("TensorBoard is starting. While a cell runs, the kernel may first hear of it when that has ended.");
    this.send({ ask: "tensorboard" });
  }

  showBoard({ url, error }) {
    if (!this.board.disabled) return; // another view of this run has asked
    this.board.disabled = false;
    if (error) {
      this.sayInTab(error);
    } else if (this.tab && !this.tab.closed) {
      this.tab.opener = null;
      this.tab.location.replace(url);
    } else {
      window.prompt("TensorBoard is here:", url);
    }
  }

  sayInTab(text) {
    const page = this.tab?.document;
    if (!page) return;
    page.title = "TensorBoard";
    page.body.style.cssText = "font: 14px system-ui, sans-serif; white-space: pre-wrap; color-scheme: light dark";
    page.body.textContent = text;
  }

  async copyCommand() {
    try {
      await navigator.clipboard.writeText(this.store.run.command);
      setText(this.copy, "Copied");
    } catch {
      window.prompt("The command that would repeat this run:", this.store.run.command);
    }
    setTimeout(() => setText(this.copy, "Copy command"), 2000);
  }

  paintSoon() {
    this.scheduled ??= requestAnimationFrame(() => {
      this.scheduled = null;
      this.paint();
    });
  }

  paint() {
    const { run, names } = this.store;
    this.element.classList.toggle("muster-silent", this.store.silentSince != null);
    this.paintFate(run);
    this.paintTitle(run);
    this.paintCause(run);
    this.paintNotes(run);
    this.paintProgress(run);
    if (this.painted !== this.store.version) this.charts.paint(this.store.curves, run.started);
    this.painted = this.store.version;
    this.paintChips();
    this.table.element.hidden = this.tools.hidden = names.length === 0;
    this.table.extent.hidden ||= names.length === 0;
    this.empty.hidden = names.length > 0;
    if (names.length) this.table.paint();
  }

  paintTitle(run) {
    const running = run.status === "running" && run.started != null;
    const isLost = running && this.isGone && this.can.isOwn; // the run has ended with its session
    const status = run.started == null ? "not started" : isLost ? "lost" : run.status;
    setClass(this.glyph, `muster-glyph muster-is-${status.replace(" ", "-")}`);
    setText(this.glyph, GLYPHS[status] ?? " ");
    setText(this.name, run.name || "run");
    const took = run.started == null ? "" : duration(this.store.now() - run.started);
    const stage = !running ? status : this.isGone ? `was ${run.phase}` : run.phase;
    setText(this.facts, [run.strategy, stage, took].filter(Boolean).join(" · "));
    this.stop.hidden = !running || !this.can.stop || this.isGone;
    this.hang.hidden = !running || !this.can.sayStacks || this.isGone || !this.store.names.length;
    this.copy.hidden = !run.command;
  }

  paintFate(run) {
    const show = `muster show ${run.run_id}`;
    let text = run.status === "running" ? this.trouble ?? "" : "";
    if (this.store.silentSince != null) {
      const ended = this.can.isOwn ? "the run has ended with it" : "the run goes on in a session of its own";
      text = this.isGone ? `The kernel has been restarted or has ended: ${ended}. To see its state now: ${show}`
        : `Nothing has been heard of the kernel for ${duration(Date.now() / 1000 - this.heardAt)}. To see its state: ${show}`;
    }
    setText(this.fate, text);
    this.fate.hidden = !text;
  }

  paintCause(run) {
    const blame = run.culprit && !run.reason?.includes(run.culprit) ? `${run.culprit}: ` : "";
    const text = [run.reason, run.advice, run.exception].join("\0");
    if (this.causeShown === text) return;
    this.causeShown = text;
    this.cause.hidden = !run.reason;
    this.cause.classList.toggle("muster-calm", run.status === "stopped");
    this.cause.replaceChildren(
      make("strong", "", blame + (run.reason ?? "")),
      ...(run.advice ? [make("div", "", `Try: ${run.advice}`)] : []),
      ...(run.exception ? [make("details", "", [make("summary", "", "traceback"), make("pre", "", run.exception)])] : []),
    );
  }

  paintNotes(run) {
    const silent = this.store.now() - run.moved;
    const stuck = run.status === "running" && run.phase !== "serving" && run.moved && silent > SECONDS_UNTIL_STUCK;
    const late = this.store.columns.phase?.filter((phase) => phase === "requested" || phase === "scheduled").length;
    const waiting = late && run.phase !== "training" ? `, ${late} of ${this.store.names.length} workers have not connected` : "";
    const notes = [...(run.notes ?? []), ...(stuck ? [`Nothing has moved for ${duration(silent)}${waiting}.`] : [])];
    setText(this.notes, notes.join("\n"));
    this.notes.hidden = notes.length === 0;
  }

  paintProgress(run) {
    this.progress.hidden = run.fraction == null;
    if (this.progress.hidden) return;
    if (this.bar.value !== run.fraction) this.bar.value = run.fraction;
    setText(this.pace, [
      ...run.position,
      run.tellers,
      run.left == null || run.status !== "running" || this.isStill(run) ? "" : `${duration(run.left)} left`,
      run.rate == null ? "" : `${perSecond(run.rate)} examples/s`,
      run.efficiency == null ? "" : `scaling efficiency ${Math.round(100 * run.efficiency)} %`,
      run.laggard ? `slowest: ${run.laggard}` : "",
    ].filter(Boolean).join(" · "));
  }

  // Whether nobody knows when the run will be done: nothing moves, or nothing is heard of it.
  isStill(run) {
    return this.store.silentSince != null || this.store.now() - run.moved > SECONDS_UNTIL_STUCK;
  }

  paintChips() {
    const counts = [...this.store.counts()];
    const shown = JSON.stringify([counts, this.table.query.status]);
    if (this.chipsShown === shown) return;
    this.chipsShown = shown;
    this.chips.replaceChildren(...counts.map(([status, count]) => this.makeChip(status, count)));
    setText(this.said, counts.map(([status, count]) => `${count} ${status}`).join(", "));
  }

  makeChip(status, count) {
    const pressed = this.table.query.status === status;
    const glyph = make("span", `muster-glyph muster-is-${status}`, GLYPHS[status] ?? "", { "aria-hidden": "true" });
    const chip = make("button", "muster-chip", [glyph, `${count} ${status}`], { type: "button", "aria-pressed": pressed });
    chip.addEventListener("click", () => this.query({ status: pressed ? "" : status }));
    return chip;
  }
}

// The innermost call of a stack: a file's or a cell's, below the line that names the thread.
function whereIs(text) {
  const lines = text.split("\n");
  return (lines.find((line) => line.startsWith("  ")) ?? lines[0]).trim();
}

// anywidget has the messages of a model wait until that is loaded, and refuses all of them for good if this took longer
// than two seconds, as it does on a busy computer. It is loaded here, so those go where they would have gone.
async function hearInAnyCase(model) {
  const own = await model.widget_manager?.get_model?.(model.get("own_id"));
  const inherited = own && Object.getPrototypeOf(own.constructor.prototype)._handle_comm_msg;
  if (!inherited || !own.comm) return;
  own.comm.on_msg(async (message) => {
    try {
      await own._handle_comm_msg(message);
    } catch {
      await inherited.call(own, message);
    }
  });
}

// A view of a model in an element; returns what ends it.
function attach(model, el) {
  const kernel = () => model.widget_manager?.kernel;
  const send = (message) => {
    try {
      model.send(message);
    } catch { // its kernel is gone, which the view itself finds out and says
    }
  };
  const view = new View(el, send, {
    stop: model.get("can_stop"),
    sayStacks: model.get("can_say_stacks"),
    isOwn: model.get("is_own"),
    isLive: model.get("is_live"),
    kernel: kernel()?.id,
    interrupt: () => kernel().interrupt(),
  });
  const receive = (message) => view.receive(message);
  const offerBoard = () => { view.board.hidden = !model.get("has_tensorboard"); };
  const watch = (_, status) => {
    if (["restarting", "autorestarting", "terminating", "dead"].includes(status)) view.lose();
  };
  const watched = kernel();
  watched?.statusChanged?.connect(watch);
  model.on("msg:custom", receive);
  model.on("change:has_tensorboard", offerBoard);
  offerBoard();
  return () => {
    watched?.statusChanged?.disconnect(watch);
    model.off("msg:custom", receive);
    model.off("change:has_tensorboard", offerBoard);
    view.destroy();
  };
}

function render({ model, el }) {
  return attach(model, el);
}
