// Words, numbers and signs. What workers say is only ever put into a page as text, never as markup.

const GLYPHS = Object.assign(Object.create(null), { // names that workers make up find nothing here
  "not started": "○", scheduling: "○", starting: "◔", running: "●", stopping: "◑", succeeded: "✓", failed: "✗",
  stopped: "■", ended: "✓", timedout: "✗", lost: "?",
});
const UNITS = ["B", "kB", "MB", "GB", "TB"];
const FAILURES = new Set(["failed", "timedout", "lost"]);

function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const pad = (n) => String(n).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.floor(s) % 60];
  return hours ? `${hours}:${pad(minutes)}:${pad(rest)}` : `${minutes}:${pad(rest)}`;
}

function gigabytes(bytes, limit) {
  if (bytes == null) return "";
  return limit ? `${(bytes / 1e9).toFixed(2)} / ${limit / 1e9} GB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

function volume(bytes) {
  if (bytes == null) return "";
  let [count, power] = [bytes, 0];
  while (count >= 1000 && power < UNITS.length - 1) [count, power] = [count / 1000, power + 1];
  return `${count.toFixed(power ? 1 : 0)} ${UNITS[power]}`;
}

function perSecond(rate) {
  if (rate == null) return "";
  return rate >= 10000 ? `${(rate / 1000).toFixed(1)}k` : rate.toFixed(0);
}

function number(value, digits = 4) {
  if (value == null) return "nan";
  return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
}

// The part of its work that a worker has done, 0 to 1; null where it did not say how much there is.
function fraction({ epoch, epochs, step, steps, status }) {
  const part = (done, total) => (done != null && total ? Math.min(Math.max(done / total, 0), 1) : null);
  const within = part(step, steps);
  const whole = !epochs ? within : epoch == null ? null : part(epoch - 1 + (within ?? 0), epochs);
  return whole != null && status === "succeeded" ? 1 : whole;
}

function position({ epoch, epochs, step, steps }) {
  if (epoch != null && epochs) return `epoch ${epoch}/${epochs}`;
  return step == null ? "" : `step ${step}${steps ? `/${steps}` : ""}`;
}

// The longest that a position becomes, so that its column stays as wide.
function positionAtMost({ epoch, epochs, step, steps }) {
  const most = (done, all) => (done == null ? done : Math.max(done, all ?? 0));
  return position({ epoch: most(epoch, epochs), epochs, step: most(step, steps), steps });
}

// An element with a class, its text or its children.
function make(tag, className, content = [], attributes = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (typeof content === "string") element.textContent = content;
  else element.append(...content);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function makeButton(text, onClick, attributes = {}) {
  const button = make("button", "muster-button", text, { type: "button", ...attributes });
  button.addEventListener("click", onClick);
  return button;
}

// Writes to the page only what is news to it: most of what is painted is what was there before.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setClass(element, className) {
  if (element.className !== className) element.className = className;
}
