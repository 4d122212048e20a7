// State of the run as this page knows it: put together from a snapshot and the diffs after it.

const MAX_POINTS = 600;
const naturally = new Intl.Collator("en", { numeric: true }); // worker-10 comes after worker-9

class Store {
  constructor() {
    this.number = null;
    this.run = {};
    this.names = [];
    this.columns = {};
    this.curves = new Map(); // by the names that scripts choose, which may be "__proto__"
    this.offset = 0;
    this.version = 0;
    this.silentSince = null; // when the session was last heard of, by this computer's clock, where it is silent now
  }

  // Takes a message in; false where one before it has been missed.
  apply(message) {
    if (message.kind !== "snapshot") {
      if (this.number == null || message.number > this.number + (message.kind === "diff" ? 1 : 0)) return false;
      if (message.number <= this.number) return true; // nothing is new in it
    }
    this.number = message.number;
    this.offset = message.now - Date.now() / 1000;
    this.version += 1;
    if (message.kind === "snapshot") {
      ({ run: this.run, names: this.names, columns: this.columns } = message);
      this.places = null;
      this.curves = new Map(Object.entries(message.curves));
      return true;
    }
    Object.assign(this.run, message.run);
    for (const name of message.names) if (!this.names.includes(name)) this.names.push(name);
    for (const [title, values] of Object.entries(message.columns)) {
      const column = (this.columns[title] ??= []);
      message.rows.forEach((row, i) => { column[row] = values[i]; });
    }
    for (const name of message.anew) this.curves.set(name, []);
    for (const [name, points] of Object.entries(message.points)) this.addPoints(name, points);
    return true;
  }

  // Of a long curve every other point stays, and the first and the last one always do.
  addPoints(name, points) {
    let curve = [...(this.curves.get(name) ?? []), ...points];
    while (curve.length > MAX_POINTS) curve = curve.filter((_, i) => i % 2 === 0 || i === curve.length - 1);
    this.curves.set(name, curve);
  }

  isRunning() {
    return this.run.status === "running" && this.run.started != null;
  }

  // The session's time, by this computer's clock.
  now() {
    return this.run.ended ?? (this.silentSince ?? Date.now() / 1000) + this.offset;
  }

  worker(row) {
    const worker = { name: this.names[row] };
    for (const title in this.columns) worker[title] = this.columns[title][row];
    return worker;
  }

  // How many workers have each status: in one order, wherever they stand, as in a terminal.
  counts() {
    const counts = new Map();
    for (const status of this.columns.status ?? []) counts.set(status, (counts.get(status) ?? 0) + 1);
    return new Map([...counts].sort());
  }

  // The session has ended, and with it all workers that had not.
  loseWorkers() {
    const { status = [], phase = [] } = this.columns;
    status.forEach((_, row) => {
      if (phase[row] !== "done") [status[row], phase[row]] = ["lost", "done"];
    });
    this.version += 1;
  }

  // The workers that have ended, and how.
  ended() {
    const rows = this.naturalPlaces().map((_, row) => row).filter((row) => this.columns.phase?.[row] === "done");
    return rows.map((row) => {
      const { name, ranks, ending, status } = this.worker(row);
      return `${name}${ranks ? ` ${ranks}` : ""} (${ending || status})`;
    });
  }

  // The place of each row in natural order; names are compared once, since that is slow.
  naturalPlaces() {
    if (this.places?.length !== this.names.length) {
      const rows = this.names.map((_, row) => row).sort((a, b) => naturally.compare(this.names[a], this.names[b]));
      this.places = [];
      rows.forEach((row, place) => { this.places[row] = place; });
    }
    return this.places;
  }

  // The rows to show, in order: the culprit and other failures first unless something else is asked for.
  order({ words, status, by, descending }) {
    const { columns, names, run } = this;
    const wanted = words.toLowerCase();
    const seen = ["status", "phase", "address", "reason", "line"];
    const matches = (row) => (!status || columns.status[row] === status) && (!wanted
      || names[row].toLowerCase().includes(wanted)
      || seen.some((title) => String(columns[title][row] ?? "").toLowerCase().includes(wanted)));
    const rows = names.map((_, row) => row).filter(matches);
    const urgency = (row) => (names[row] === run.culprit ? 0 : FAILURES.has(columns.status[row]) ? 1 : 2);
    const places = this.naturalPlaces();
    const natural = (a, b) => places[a] - places[b];
    if (!by) return rows.sort((a, b) => urgency(a) - urgency(b) || natural(a, b));
    if (by === "worker") return rows.sort(descending ? (a, b) => natural(b, a) : natural);
    const key = by === "progress" ? (row) => fraction(this.worker(row))
      : (row) => columns[by]?.[row];
    const keys = new Map(rows.map((row) => [row, key(row)]));
    const sign = descending ? -1 : 1;
    return rows.sort((a, b) => compare(keys.get(a), keys.get(b), sign) || natural(a, b));
  }
}

// Unknown values come last, in either direction.
function compare(a, b, sign) {
  const [missingA, missingB] = [a == null || a === "", b == null || b === ""];
  if (missingA || missingB) return missingA - missingB;
  return sign * (a < b ? -1 : a > b ? 1 : 0);
}
