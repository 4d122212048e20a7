// The buttons of the view: they stop the run, open TensorBoard, and copy the command that would repeat the run.

const SECONDS_TO_ANSWER = 0.5; // what the session has before it counts as busy with a cell
const SECONDS_TO_END = 6; // what an interrupt has to show an effect

class StopButton {
  // onChange: called when there is something to be said, or no more (trouble).
  constructor(store, can, send, onChange) {
    Object.assign(this, { store, can, send, onChange, trouble: null });
    this.element = makeButton("Stop", () => this.press(), { class: "muster-button muster-stop" });
  }

  // A kernel that is busy with a cell may not hear; an interrupt it always hears, and that ends the run as well.
  press() {
    this.element.disabled = true;
    setText(this.element, "Stopping …");
    this.send({ ask: "stop" });
    this.waits = setTimeout(() => this.interrupt(), SECONDS_TO_ANSWER * 1000);
  }

  // Some editors let no widget interrupt the kernel, and say so in no way but that nothing happens.
  interrupt() {
    const how = this.can.isOwn ? "Interrupt it, or in" : "In";
    const refused = () => this.refuse(`The kernel is busy with a cell. ${how} a terminal: muster stop ${this.store.run.run_id}`);
    if (!this.can.isOwn) return refused();
    this.waits = setTimeout(() => this.store.run.phase !== "ending" && refused(), SECONDS_TO_END * 1000);
    Promise.resolve().then(this.can.interrupt).catch(() => {
      clearTimeout(this.waits);
      refused();
    });
  }

  refuse(why) {
    this.element.disabled = false;
    setText(this.element, "Stop");
    this.trouble = why;
    this.onChange();
  }

  // Takes the session's answer.
  answered({ error }) {
    clearTimeout(this.waits);
    this.trouble = null; // it was said to be busy where this took long
    if (error) this.refuse(error);
    this.onChange();
  }
}

class BoardButton {
  constructor(send) {
    this.send = send;
    this.element = makeButton("TensorBoard", () => this.press(), { title: "Opens in a tab of its own" });
    this.element.hidden = true;
  }

  // The tab is opened within the click, since browsers block those that come later.
  press() {
    this.element.disabled = true;
    this.tab = window.open("", "_blank");
    this.sayInTab("TensorBoard is starting. While a cell runs, the kernel may first hear of it when that has ended.");
    this.send({ ask: "tensorboard" });
  }

  // Takes the session's answer.
  answered({ url, error }) {
    if (!this.element.disabled) return; // another view of this run has asked
    this.element.disabled = false;
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
}

class CopyButton {
  constructor(store) {
    this.store = store;
    this.element = makeButton("Copy command", () => this.press(), { title: "The command that would repeat this run" });
  }

  async press() {
    const { command } = this.store.run;
    try {
      await navigator.clipboard.writeText(command);
      setText(this.element, "Copied");
    } catch {
      window.prompt("The command that would repeat this run:", command);
    }
    setTimeout(() => setText(this.element, "Copy command"), 2000);
  }
}
