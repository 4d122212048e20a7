// What is heard of a session: whether it has fallen silent, whether this page keeps up with it, and when to ask it for everything again.

const SECONDS_UNTIL_SILENT = 2; // a session that lives is heard of every 0.5 s, or somewhat later under load
const SECONDS_LATE = 1; // which what is heard may have waited here
const MOST_SECONDS_OF_QUIET = 10;
const SECONDS_TO_ASK_AGAIN = 2; // for a snapshot; twice as many each time

// What the views of a kernel's runs share, though each is a module of its own: when this page has asked for quiet, and the
// least delay from the session's clock, which is another, to this computer's. A view that begins when the page is behind
// would not know it.
const kernels = (globalThis.musterKernels ??= new Map());

class Hearing {
  // kernel: its id; send: asks the session.
  constructor(kernel, send) {
    this.send = send;
    this.at = Date.now() / 1000;
    this.pulse = kernels.get(kernel) ?? { leastDelay: Infinity, quietUntil: 0 };
    kernels.set(kernel, this.pulse);
  }

  // Takes a message's time, where it has one.
  hear({ sent }) {
    this.at = Date.now() / 1000;
    if (sent != null) this.keepUp(sent);
  }

  isSilent(now) {
    return now - Math.max(this.at, this.pulse.quietUntil) > SECONDS_UNTIL_SILENT;
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

  // Asks more and more rarely: a kernel that is busy with a cell answers everything when the cell has ended.
  askForSnapshot() {
    this.patience = this.askAgainAt ? 2 * this.patience : SECONDS_TO_ASK_AGAIN;
    this.askAgainAt = Date.now() / 1000 + this.patience;
    this.send({ ask: "snapshot" });
  }

  // A message before the one that has come was missed.
  missed() {
    if (Date.now() / 1000 >= this.askAgainAt) this.askForSnapshot();
  }

  // A snapshot has come. One that is sent unasked shows that the session has not heard this page yet, as when it asked
  // before Jupyter had given the kernel a thread that hears pages while a cell runs.
  answered({ unasked }) {
    if (unasked) this.missed();
    else this.askAgainAt = 0;
  }
}
