// The live view of a run. The files before this one are joined with it to one module (muster/dashboard/web/__init__.py).

class View {
  // can: what the session can do for this view: stop, sayStacks; isLive: whether it is there at all; isOwn: whether the
  // run is its own, so that interrupt, which it hears when it is busy with a cell, ends the run as well; kernel: its id.
  constructor(root, send, can) {
    this.send = send;
    this.can = can;
    this.isGone = false;
    this.store = new Store();
    this.hearing = new Hearing(can.kernel, send);
    this.head = new Head(this.store, can);
    this.stop = new StopButton(this.store, can, send, () => this.paintSoon());
    this.board = new BoardButton(send);
    this.copy = new CopyButton(this.store);
    this.stacks = new Stacks(this.store, send);
    this.table = new Table(this.store, (worker) => this.select(worker));
    this.log = new Log(
      () => this.select(null),
      (start) => this.send({ ask: "older", start }),
      (worker) => `muster logs ${this.store.run.run_id} ${worker}`,
    );
    this.build(root);
    this.clock = setInterval(() => this.tick(), 250);
    this.hearing.askForSnapshot();
  }

  build(root) {
    const { head } = this;
    this.charts = new Charts(make("div", "muster-charts"));
    this.chips = make("div", "muster-chips", [], { role: "group", "aria-label": "filter by status" });
    this.filter = make("input", "", [], { type: "search", placeholder: "Filter workers", "aria-label": "Filter workers" });
    this.said = make("div", "muster-said", "", { "aria-live": "polite" });
    this.empty = make("div", "muster-muted", "No worker has been launched yet.");
    this.element = make("section", "muster", [
      make("div", "muster-bar", [
        head.title,
        make("div", "muster-buttons", [this.stacks.button, this.board.element, this.copy.element, this.stop.element]),
      ]),
      head.fate, head.cause, head.attempts, head.notes, head.progress, this.charts.element,
      (this.tools = make("div", "muster-bar muster-tools", [this.chips, this.filter])),
      this.table.element, this.table.extent, this.empty, this.stacks.element, this.log.element, this.said,
    ], { "aria-label": "Muster run" });
    this.filter.addEventListener("input", () => this.query({ words: this.filter.value }));
    root.replaceChildren(this.element);
  }

  destroy() {
    clearInterval(this.clock);
  }

  receive(message) {
    this.hearing.hear(message);
    if (this.store.silentSince != null && !this.isGone) this.tick();
    if (message.kind === "older") {
      this.log.prepend(message);
    } else if (message.kind === "stacks") {
      this.stacks.answered(message);
    } else if (message.kind === "log") {
      clearTimeout(this.waitsForLog);
      this.log.append(message);
    } else if (message.kind === "stopping") {
      this.stop.answered(message);
    } else if (message.kind === "tensorboard") {
      this.board.answered(message);
    } else if (this.store.apply(message)) {
      if (message.kind === "snapshot") this.hearing.answered(message);
      if (message.kind !== "beat") this.paintSoon();
    } else {
      this.hearing.missed();
    }
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

  // Hears the session's pulse. What is known of a run whose session is silent is old, and is shown as that.
  tick() {
    const now = Date.now() / 1000;
    const silent = this.store.isRunning() && this.can.isLive && (this.isGone || this.hearing.isSilent(now));
    const changed = silent !== (this.store.silentSince != null);
    this.store.silentSince = silent ? this.hearing.at : null;
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

  paintSoon() {
    this.scheduled ??= requestAnimationFrame(() => {
      this.scheduled = null;
      this.paint();
    });
  }

  paint() {
    const { run, names } = this.store;
    this.element.classList.toggle("muster-silent", this.store.silentSince != null);
    this.head.paint(this.isGone, this.stop.trouble);
    this.paintButtons(run);
    if (this.painted !== this.store.version) this.charts.paint(this.store.curves, run.started);
    this.painted = this.store.version;
    this.paintChips();
    this.table.element.hidden = this.tools.hidden = names.length === 0;
    this.table.extent.hidden ||= names.length === 0;
    this.empty.hidden = names.length > 0;
    if (names.length) this.table.paint();
  }

  paintButtons(run) {
    const hears = this.store.isRunning() && !this.isGone;
    this.stop.element.hidden = !hears || !this.can.stop;
    this.stacks.button.hidden = !hears || !this.can.sayStacks || !this.store.names.length;
    this.copy.element.hidden = !run.command;
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
