// The table of workers. Only the rows in sight are in the page, so that a thousand workers cost what twenty do.

const ROW_HEIGHT = 26;
const ROWS_IN_SIGHT = 14;
const ROWS_BEYOND = 4;

const ORDINARY_NAME = 16; // characters of a worker and its ranks
const TABLE_COLUMNS = [
  { key: "worker", title: "worker" },
  { key: "status", title: "status" },
  { key: "phase", title: "phase" },
  { key: "address", title: "address" },
  { key: "progress", title: "progress" },
  { key: "rate", title: "ex/s" },
  { key: "sent", title: "sent" },
  { key: "cpu", title: "cpu" },
  { key: "gpu", title: "gpu" },
  { key: "memory", title: "memory" },
  { key: "line", title: "last line" },
];

class Table {
  constructor(store, onSelect) {
    this.store = store;
    this.onSelect = onSelect;
    this.query = { words: "", status: "", by: "", descending: false };
    this.selected = null;
    this.rows = [];
    this.head = make("div", "muster-row muster-head", [], { role: "row" });
    this.headers = TABLE_COLUMNS.map((column) => this.makeHeader(column));
    this.body = make("div", "muster-body", [], { role: "rowgroup" });
    this.window = make("div", "muster-window", [this.body], { role: "presentation" });
    this.element = make("div", "muster-table", [
      make("div", "", [this.head], { role: "rowgroup" }), this.window,
    ], { role: "table", "aria-label": "workers" });
    this.extent = make("div", "muster-muted muster-extent");
    this.window.addEventListener("scroll", () => this.paintRows());
  }

  makeHeader({ key, title }) {
    const button = make("button", "", title, { type: "button", title: `Sort by ${title}` });
    const header = make("div", `muster-cell muster-${key}`, [button], { role: "columnheader", "aria-sort": "none" });
    button.addEventListener("click", () => this.sort(key));
    this.head.append(header);
    return header;
  }

  // A first click sorts upwards, a second downwards, a third goes back to failures first.
  sort(key) {
    const { by, descending } = this.query;
    if (by !== key) Object.assign(this.query, { by: key, descending: false });
    else if (!descending) this.query.descending = true;
    else Object.assign(this.query, { by: "", descending: false });
    TABLE_COLUMNS.forEach((column, i) => {
      const sorted = this.query.by !== column.key ? "none" : this.query.descending ? "descending" : "ascending";
      this.headers[i].setAttribute("aria-sort", sorted);
    });
    this.paint();
  }

  paint() {
    this.order = this.store.order(this.query);
    const height = `${this.order.length * ROW_HEIGHT}px`;
    if (this.body.style.height !== height) this.body.style.height = height;
    this.window.style.height = `${Math.min(Math.max(this.order.length, 1), ROWS_IN_SIGHT) * ROW_HEIGHT}px`;
    this.element.setAttribute("aria-rowcount", String(this.order.length + 1));
    this.element.classList.toggle("muster-has-limit", this.store.run.memory_limit != null);
    this.paintWidths();
    this.paintRows();
  }

  // Columns that say nothing are left out. Names are never cut: they are what tells workers apart.
  paintWidths() {
    const { names, columns } = this.store;
    if (this.measured === this.store.version) return;
    this.measured = this.store.version;
    const some = (title) => columns[title]?.some((value) => value != null && value !== "") ?? false;
    for (const title of ["address", "rate", "sent", "cpu", "gpu", "memory"]) this.show(title, some(title));
    this.show("progress", some("step") || some("epoch"));
    this.show("phase", columns.phase?.some((phase, row) => phase !== "done" || columns.ending?.[row]) ?? false);
    const longest = (values) => Math.max(0, ...values.map((value) => value?.length ?? 0));
    const width = longest(names.map((name, row) => `${name} ${columns.ranks?.[row] ?? ""}`));
    this.element.style.setProperty("--worker", `${(0.92 * Math.min(Math.max(width, 8), 60) + 1).toFixed(1)}ch`);
    this.element.style.setProperty("--beyond", `${(0.92 * Math.max(Math.min(width, 60) - ORDINARY_NAME, 0)).toFixed(1)}ch`);
    this.element.style.setProperty("--address-width", `${Math.min(Math.max(longest(columns.address ?? []), 9), 40) + 1}ch`);
    const said = longest((columns.phase ?? []).map((phase, row) => (phase === "done" ? columns.ending?.[row] : `${phase} 10:00:00`)));
    const told = longest(names.map((_, row) => positionAtMost(this.store.worker(row))));
    this.element.style.setProperty("--progress-width", `${Math.min(Math.max(told, 11), 24)}ch`);
    this.element.style.setProperty("--phase-width", `${(0.92 * Math.min(said, 48) + 1).toFixed(1)}ch`);
  }

  show(title, wanted) {
    this.element.classList.toggle(`muster-has-${title}`, wanted);
  }

  // The rows in sight out of all, and a shadow where there are more.
  paintExtent() {
    const { scrollTop, clientHeight } = this.window;
    const shown = Math.min(this.order.length, ROWS_IN_SIGHT);
    this.element.classList.toggle("muster-more-above", scrollTop > 2);
    this.element.classList.toggle("muster-more-below", scrollTop + clientHeight < this.order.length * ROW_HEIGHT - 2);
    const all = this.store.names.length;
    setText(this.extent, shown < all ? `${shown} of ${all} shown${shown < this.order.length ? ", scroll for more" : ""}` : "");
    this.extent.hidden = shown === all;
  }

  paintRows() {
    this.paintExtent();
    const first = Math.max(0, Math.floor(this.window.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const last = Math.min(this.order.length, first + ROWS_IN_SIGHT + 2 * ROWS_BEYOND);
    while (this.rows.length < last - first) this.addRow();
    this.rows.forEach((row, i) => {
      row.element.hidden = first + i >= last;
      if (!row.element.hidden) this.paintRow(row, first + i);
    });
  }

  addRow() {
    const cells = Object.fromEntries(TABLE_COLUMNS.map(({ key }) => [
      key, make("div", `muster-cell muster-${key}`, [], { role: "cell" }),
    ]));
    const row = {
      cells,
      element: make("div", "muster-row", Object.values(cells), { role: "row" }),
      button: make("button", "", "", { type: "button", title: "Show its log" }),
      ranks: make("span", "muster-muted"),
      glyph: make("span", "muster-glyph", "", { "aria-hidden": "true" }),
      word: make("span"),
      bar: make("progress", "", [], { max: "1" }),
      position: make("span"),
    };
    cells.worker.append(row.button, row.ranks);
    cells.status.append(row.glyph, row.word);
    cells.progress.append(row.bar, row.position);
    row.element.addEventListener("click", () => this.onSelect(row.name));
    this.rows.push(row);
    this.body.append(row.element);
  }

  paintRow(row, place) {
    const { run } = this.store;
    const worker = this.store.worker(this.order[place]);
    const failed = FAILURES.has(worker.status);
    const done = fraction(worker);
    row.name = worker.name;
    row.element.style.transform = `translateY(${place * ROW_HEIGHT}px)`;
    row.element.setAttribute("aria-rowindex", String(place + 2));
    setClass(row.element, `muster-row${worker.name === this.selected ? " muster-selected" : ""}`);
    setText(row.button, worker.name);
    setText(row.ranks, worker.ranks ? ` ${worker.ranks}` : "");
    setClass(row.glyph, `muster-glyph muster-is-${worker.status}`);
    setText(row.glyph, GLYPHS[worker.status] ?? " ");
    setText(row.word, worker.status);
    row.cells.status.title = worker.status;
    const phase = this.phase(worker);
    setText(row.cells.phase, phase);
    row.cells.phase.title = phase;
    setText(row.cells.address, worker.address);
    row.cells.worker.title = `${worker.name} ${worker.ranks || ""}`;
    row.bar.hidden = done == null;
    if (done != null && row.bar.value !== done) row.bar.value = done;
    row.bar.setAttribute("aria-label", `progress of ${worker.name}`);
    setText(row.position, position(worker));
    setText(row.cells.rate, perSecond(worker.rate));
    setText(row.cells.sent, volume(worker.sent));
    setText(row.cells.cpu, worker.cpu == null ? "" : worker.cpu.toFixed(1));
    setText(row.cells.gpu, worker.gpu);
    setText(row.cells.memory, gigabytes(worker.memory, worker.name.startsWith("ps-") ? run.ps_memory_limit : run.memory_limit));
    const coming = worker.phase === "requested" || worker.phase === "scheduled";
    const line = (failed || coming) && worker.reason ? worker.reason.split("\n")[0] : this.silence(worker) || worker.line;
    setText(row.cells.line, line);
    setClass(row.cells.line, `muster-cell muster-line${failed && worker.reason ? " muster-failure" : ""}`);
    row.cells.line.title = line;
  }

  // What is the matter with a worker that does not go on.
  silence(worker) {
    if (!worker.silent) return "";
    const [text, since, why] = worker.silent;
    return `${text} for ${duration(this.store.now() - since)}. ${why}`.trim();
  }

  phase(worker) {
    if (worker.phase === "done") return worker.ending;
    return `${worker.phase} ${duration(this.store.now() - worker.since)}`;
  }
}
