// A view of a model of the kernel's, which is what a page of a notebook has of a run.

// anywidget has the messages of a model wait until that is loaded, and refuses all of them for good if this took longer
// than two seconds, as it does on a busy computer. It is loaded here, so those go where they would have gone.
async function hearInAnyCase(model) {
  const own = await model.widget_manager?.get_model?.(model.get("own_id"));
  const inherited = own && Object.getPrototypeOf(own.constructor.prototype)._handle_comm_msg;
  if (!inherited || !own.comm) return;
  own.comm.on_msg(async (message) => {
    try {
      await own._handle_comm_msg(message);
    } catch {
      await inherited.call(own, message);
    }
  });
}

// A view of a model in an element; returns what ends it.
function attach(model, el) {
  const kernel = () => model.widget_manager?.kernel;
  const send = (message) => {
    try {
      model.send(message);
    } catch { // its kernel is gone, which the view itself finds out and says
    }
  };
  const view = new View(el, send, {
    stop: model.get("can_stop"),
    sayStacks: model.get("can_say_stacks"),
    isOwn: model.get("is_own"),
    isLive: model.get("is_live"),
    kernel: kernel()?.id,
    interrupt: () => kernel().interrupt(),
  });
  const receive = (message) => view.receive(message);
  const offerBoard = () => { view.board.element.hidden = !model.get("has_tensorboard"); };
  const watch = (_, status) => {
    if (["restarting", "autorestarting", "terminating", "dead"].includes(status)) view.lose();
  };
  const watched = kernel();
  watched?.statusChanged?.connect(watch);
  model.on("msg:custom", receive);
  model.on("change:has_tensorboard", offerBoard);
  offerBoard();
  return () => {
    watched?.statusChanged?.disconnect(watch);
    model.off("msg:custom", receive);
    model.off("change:has_tensorboard", offerBoard);
    view.destroy();
  };
}

function render({ model, el }) {
  return attach(model, el);
}
