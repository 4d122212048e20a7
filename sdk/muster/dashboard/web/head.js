// What is said of the run as a whole, above its workers: its name and state, its fate, cause, notes and progress.

const SECONDS_UNTIL_STUCK = 30;

class Head {
  constructor(store, can) {
    Object.assign(this, { store, can });
    this.glyph = make("span", "muster-glyph", "", { "aria-hidden": "true" });
    this.name = make("strong");
    this.facts = make("span", "muster-muted muster-facts");
    this.id = make("span", "muster-muted muster-id", "", { title: "What commands in a terminal call this run" });
    this.title = make("div", "muster-title", [this.glyph, this.name, this.facts, this.id]);
    this.fate = make("div", "muster-fate", "", { role: "status" });
    this.fate.hidden = true;
    this.cause = make("div", "muster-cause", [], { role: "alert" });
    this.attempts = make("table", "muster-attempts");
    this.attempts.hidden = true;
    this.notes = make("div", "muster-notes");
    this.bar = make("progress", "", [], { max: "1", "aria-label": "progress of the run" });
    this.progress = make("div", "muster-progress", [this.bar, (this.pace = make("span"))]);
  }

  // isGone: whether the kernel is; trouble: why a click had no effect.
  paint(isGone, trouble) {
    const { run } = this.store;
    this.paintFate(run, isGone, trouble);
    this.paintTitle(run, isGone);
    this.paintCause(run);
    this.paintAttempts(run);
    this.paintNotes(run);
    this.paintProgress(run);
  }

  paintTitle(run, isGone) {
    const running = this.store.isRunning();
    const isLost = running && isGone && this.can.isOwn; // the run has ended with its session
    const status = run.started == null ? "not started" : isLost ? "lost" : run.status;
    setClass(this.glyph, `muster-glyph muster-is-${status.replace(" ", "-")}`);
    setText(this.glyph, GLYPHS[status] ?? " ");
    setText(this.name, run.name || "run");
    const took = run.started == null ? "" : duration(this.store.now() - run.started);
    const stage = !running ? status : isGone ? `was ${run.phase}` : run.phase;
    setText(this.facts, [run.strategy, stage, took].filter(Boolean).join(" · "));
    setText(this.id, run.run_id);
  }

  paintFate(run, isGone, trouble) {
    const show = `muster show ${run.run_id}`;
    const { silentSince } = this.store;
    let text = run.status === "running" ? trouble ?? "" : "";
    if (silentSince != null) {
      const ended = this.can.isOwn ? "the run has ended with it" : "the run goes on in a session of its own";
      text = isGone ? `The kernel has been restarted or has ended: ${ended}. To see its state now: ${show}`
        : `Nothing has been heard of the kernel for ${duration(Date.now() / 1000 - silentSince)}. To see its state: ${show}`;
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

  // The table of attempts; its first row has the titles.
  paintAttempts(run) {
    const rows = run.attempts ?? [];
    const text = JSON.stringify(rows);
    if (this.attemptsShown === text) return;
    this.attemptsShown = text;
    this.attempts.hidden = rows.length === 0;
    const tag = (number) => (number === 0 ? "th" : "td");
    const lines = rows.map((row, number) => make("tr", "", row.map((cell) => make(tag(number), "", cell))));
    this.attempts.replaceChildren(...lines);
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
      run.share_reporting,
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
}
