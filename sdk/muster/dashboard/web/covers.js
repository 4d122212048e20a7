// The live view over the pictures that a notebook keeps: it saves these, and never a widget.

class Covers {
  constructor(model) {
    this.model = model;
    this.name = model.get("cover");
    this.shown = new Map(); // an output -> what is put over it
    this.observer = new MutationObserver(() => this.look());
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.look();
  }

  look() {
    for (const [host, over] of this.shown) {
      if (!host.getElementsByClassName(this.name).length || (!host.isConnected && !over.mount.isConnected && over.lost++ > 200)) {
        this.uncover(host, over);
      }
    }
    for (const picture of document.getElementsByClassName(this.name)) {
      const host = picture.closest(".jp-OutputArea-output") ?? picture.parentElement;
      if (!this.shown.has(host)) this.cover(host);
    }
  }

  cover(host) {
    const mount = make("div", "muster-over");
    host.after(mount);
    host.classList.add("muster-under");
    this.shown.set(host, { mount, lost: 0, detach: attach(this.model, mount) });
  }

  uncover(host, { mount, detach }) {
    detach();
    mount.remove();
    host.classList.remove("muster-under");
    this.shown.delete(host);
  }
}

function initialize({ model }) {
  hearInAnyCase(model).catch(() => {}); // a page that has no such model of its own
  if (model.get("cover")) new Covers(model);
}
