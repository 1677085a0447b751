// The connection: server-sent events, from where this page was when it was lost.

const SILENT_MILLISECONDS = 6000; // Something comes every second.
const RETRY_MILLISECONDS = 1000;

export class Feed {
  // `heard(kind, data)` takes messages, `changed(state)` one of live, lost, locked.
  constructor(heard, changed) {
    this.heard = heard;
    this.changed = changed;
    this.last = "";
    this.link = "";
    this.source = null;
    this.watch = 0;
  }

  async begin() {
    if (location.hash.length > 1) {
      // The token is good once; it is not left in the address, nor in the browser's history.
      this.link = location.hash.slice(1);
      history.replaceState(null, "", location.pathname);
    }
    const link = this.link;
    try {
      const asked = link ? { method: "POST", body: link } : {};
      const answer = await fetch("/session", { cache: "no-store", ...asked });
      let open = (await answer.json()).open;
      if (!open && link) {
        // The link is used up, but this browser may have a session of before.
        open = (await (await fetch("/session", { cache: "no-store" })).json()).open;
      }
      // Not before: a connection that broke may have used up nothing.
      this.link = "";
      if (open) this.connect();
      else this.changed("locked", link ? "The link was used before, or is older than five minutes." : "");
    } catch {
      this.lost();
    }
  }

  connect() {
    const source = new EventSource(this.last ? `/feed?after=${encodeURIComponent(this.last)}` : "/feed");
    this.source = source;
    for (const kind of ["about", "history", "news", "status"]) {
      source.addEventListener(kind, (message) => {
        if (message.lastEventId) this.last = message.lastEventId;
        this.alive();
        this.heard(kind, JSON.parse(message.data));
      });
    }
    source.onerror = () => {
      // The browser tries again by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) this.lost();
      else this.changed("lost");
    };
    this.alive();
  }

  alive() {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.lost(), SILENT_MILLISECONDS);
  }

  lost() {
    clearTimeout(this.watch);
    this.source?.close();
    this.changed("lost");
    setTimeout(() => this.begin(), RETRY_MILLISECONDS);
  }
}
