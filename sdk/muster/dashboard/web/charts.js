// Curves of the metrics: a small chart for each kind, in which training is solid, validation dashed and a test a dot.

const SVG = "http://www.w3.org/2000/svg";
const MAX_CHARTS = 4;
const VARIANT = /^(val|validation|test|eval|train)_(.+)$/;

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Curves by what they measure, [["loss", Map { train, val }], ...]; loss and accuracy first. Scripts choose the names.
function families(curves) {
  const found = new Map();
  for (const [name, points] of curves) {
    const [, variant, family] = VARIANT.exec(name) ?? [null, "train", name];
    if (!found.has(family)) found.set(family, new Map());
    found.get(family).set(variant, points);
  }
  const urgency = ([family]) => (family === "loss" ? 0 : /acc/.test(family) ? 1 : 2);
  return [...found].sort((a, b) => urgency(a) - urgency(b));
}

class Charts {
  constructor(element) {
    this.element = element;
    this.figures = new Map();
  }

  paint(curves, started) {
    const shown = families(curves).slice(0, MAX_CHARTS);
    for (const [family, variants] of shown) {
      if (!this.figures.has(family)) {
        const figure = new Chart(family);
        this.figures.set(family, figure);
        this.element.append(figure.element);
      }
      this.figures.get(family).paint(variants, started);
    }
    this.element.hidden = shown.length === 0;
  }
}

class Chart {
  constructor(family) {
    this.family = family;
    this.caption = make("figcaption", "muster-caption");
    this.high = make("span", "muster-high");
    this.low = make("span", "muster-low");
    this.from = make("span");
    this.to = make("span");
    this.plot = svg("svg", { viewBox: "0 0 300 80", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.element = make("figure", "muster-chart", [
      this.caption, this.high, this.low, this.plot, make("span", "muster-x", [this.from, this.to]),
    ]);
  }

  paint(variants, started) {
    const place = (x) => (x > 1e9 ? x - started : x); // seconds of the run where the script counts no steps
    const points = [...variants.values()].flat();
    const values = points.map(([, value]) => value).filter((value) => value != null);
    const places = points.map(([x]) => place(x));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [left, right] = [Math.min(...places), Math.max(...places)];
    const x = (p) => (300 * (place(p[0]) - left)) / (right - left || 1);
    const y = (p) => 77 - (74 * (p[1] - low)) / (high - low || 1);
    const unit = points.some(([where]) => where > 1e9) ? "s" : "step";
    const [most, least] = apart(high, low);
    setText(this.high, values.length && high > low ? most : "");
    setText(this.low, values.length ? least : "");
    setText(this.from, right > left ? `${unit === "step" ? "step " : ""}${left.toFixed(0)}` : "");
    setText(this.to, `${right.toFixed(0)}${unit === "s" ? " s" : ""}`);
    this.plot.replaceChildren(...[...variants].map(([variant, curve]) => line(variant, curve, x, y)));
    this.paintCaption(variants);
  }

  paintCaption(variants) {
    const names = [...variants.keys()];
    if (this.names !== names.join()) {
      this.names = names.join();
      this.latest = names.map(() => make("b"));
      this.caption.replaceChildren(make("strong", "", this.family, { title: this.family }), ...names.map((variant, i) => make("span", "", [
        make("i", `muster-key muster-${style(variant)}`, [], { "aria-hidden": "true" }),
        names.length > 1 || variant !== "train" ? `${variant} ` : "", this.latest[i],
      ])));
    }
    [...variants.values()].forEach((curve, i) => setText(this.latest[i], number(curve[curve.length - 1]?.[1])));
  }
}

// Both bounds of an axis, in as few digits as tell them apart, at least 3 and at most 6.
function apart(high, low) {
  const written = [3, 4, 5, 6].map((digits) => [number(high, digits), number(low, digits)]);
  return written.find(([most, least]) => most !== least) ?? written[0];
}

function style(variant) {
  return variant === "train" ? "train" : variant.startsWith("val") ? "val" : "test";
}

// A polyline for each stretch without a gap; a lone point is a line of no length, which round ends make a dot.
function line(variant, curve, x, y) {
  let path = "";
  let open = false;
  for (const [i, point] of curve.entries()) {
    if (point[1] == null) {
      open = false;
      continue;
    }
    const at = `${x(point).toFixed(1)} ${y(point).toFixed(1)}`;
    const alone = !open && curve[i + 1]?.[1] == null;
    path += open ? `L${at}` : `M${at}${alone ? `L${at}` : ""}`;
    open = true;
  }
  return svg("path", { d: path, class: `muster-${style(variant)}${curve.length < 2 ? " muster-dot" : ""}` });
}
