// A page by itself: the data are in it, and answer what the view would ask a kernel.

const data = JSON.parse(document.getElementById("muster-data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("muster-dark", dark.matches);
dark.addEventListener("change", follow);
follow();

const NO_LOG = { text: "This page has no log of this worker.\n", start: 0, before: 0, fresh: true };
const logs = new Map(Object.entries(data.logs));
const listeners = [];
const answer = (message) => setTimeout(() => listeners.forEach((listener) => listener(message)));
render({
  el: document.querySelector("main"),
  model: {
    get: () => false, // nothing can be done with it, and nobody is there to be heard
    on: (event, listener) => event === "msg:custom" && listeners.push(listener),
    off: () => {},
    send: ({ ask, worker }) => {
      if (ask === "snapshot") answer(data.snapshot);
      if (ask === "log" && worker != null) {
        answer({ kind: "log", worker, ...(logs.get(worker) ?? NO_LOG), isAll: true });
      }
    },
  },
});
