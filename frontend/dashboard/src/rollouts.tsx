// The list of rollouts: filtered by the server, page by page, and only the lines in sight are in the page.
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { ApiError, get, useNews } from "./api";
import { address, replaceQuery, type Route } from "./route";
import { number, seconds, stepOf, visible } from "./text";
import type { Page, RolloutRow, Run } from "./types";

const STATUSES = ["queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing"];
const LINE = 40;
const PAGE = 100;
const FILTERS = ["status", "mode", "reward_min", "reward_max", "task", "worker", "text", "step", "group"];

interface Loaded {
  items: RolloutRow[];
  next: string | null;
  ended: boolean;
  error: ApiError | null;
  query: string;
}

const NOTHING: Loaded = { items: [], next: null, ended: false, error: null, query: "\0" };

export function Rollouts({ run, route }: { run: Run; route: Route }) {
  const given = FILTERS.flatMap((name) => (route.query.get(name) ? [[name, route.query.get(name)!]] : []));
  const query = new URLSearchParams(given).toString();
  const [loaded, setLoaded] = useState<Loaded>(NOTHING);
  const [loading, setLoading] = useState(false);
  const [selected, setSelected] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const busy = useRef<AbortController | null>(null);
  const news = useNews(run.name);

  const load = (from: Loaded, fresh: boolean) => {
    busy.current?.abort();
    const abort = (busy.current = new AbortController());
    setLoading(true);
    const cursor = fresh || !from.next ? "" : `&cursor=${from.next}`;
    get<Page<RolloutRow>>(`runs/${encodeURIComponent(run.name)}/rollouts?limit=${PAGE}&${query}${cursor}`, abort.signal).then(
      (page) => {
        const items = fresh ? page.items : [...from.items, ...page.items];
        setLoaded({ items, next: page.next, ended: page.next === null, error: null, query });
        setLoading(false);
      },
      (error) => {
        if (abort.signal.aborted) return;
        setLoaded({ ...(fresh ? NOTHING : from), error, query, ended: true });
        setLoading(false);
      },
    );
  };
  useEffect(() => {
    setSelected(0);
    scroller.current?.scrollTo(0, 0);
    const timer = setTimeout(() => load(NOTHING, true), loaded.query === "\0" ? 0 : 200);
    return () => clearTimeout(timer);
  }, [query, run.name]);
  useEffect(() => {
    if (news && (scroller.current?.scrollTop ?? 0) < LINE) load(loaded, true);
  }, [news]);
  useEffect(() => () => busy.current?.abort(), []);

  const items = loaded.items;
  const virtual = useVirtual(items.length, () => scroller.current);
  const lines = virtual.getVirtualItems();
  const lastSeen = lines.at(-1)?.index ?? 0;
  useEffect(() => {
    if (!loading && !loaded.ended && loaded.query === query && lastSeen >= items.length - 30) load(loaded, false);
  }, [lastSeen, items.length, loading, loaded]);

  const keys = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps) {
      const next = Math.max(0, Math.min(items.length - 1, selected + steps[event.key]));
      setSelected(next);
      virtual.scrollToIndex(next, { align: "auto" });
      event.preventDefault();
    } else if (event.key === "Enter" && items[selected]) {
      location.hash = address(["run", run.name, "rollout", items[selected].id]);
    }
  };
  const field = (name: string, label: string, type: "search" | "number" = "search", width = "w") => (
    <label>
      {label}{" "}
      {type === "number" ? (
        <input class={width} type="number" step="any" value={route.query.get(name) ?? ""} onInput={(event) => replaceQuery({ [name]: event.currentTarget.value || null })} />
      ) : (
        <input class={width} type="search" value={route.query.get(name) ?? ""} onInput={(event) => replaceQuery({ [name]: event.currentTarget.value || null })} />
      )}
    </label>
  );
  const { status } = run.totals;
  return (
    <section class="tall">
      <h1>Rollouts of {run.name}</h1>
      <div class="tools" role="search">
        <label>
          Status{" "}
          <select value={route.query.get("status") ?? ""} onChange={(event) => replaceQuery({ status: event.currentTarget.value || null })}>
            <option value="">all ({number(run.totals.rollouts)})</option>
            {STATUSES.map((one) => <option key={one} value={one}>{one}{status[one] !== undefined && ` (${number(status[one])})`}</option>)}
          </select>
        </label>
        <label>
          Mode{" "}
          <select value={route.query.get("mode") ?? ""} onChange={(event) => replaceQuery({ mode: event.currentTarget.value || null })}>
            {["", "train", "val", "test"].map((one) => <option key={one} value={one}>{one || "all"}</option>)}
          </select>
        </label>
        {field("reward_min", "Reward from", "number", "s")}
        {field("reward_max", "to", "number", "s")}
        {field("step", "Step", "number", "s")}
        {field("task", "Task")}
        {field("worker", "Worker", "search", "s")}
        {field("text", "Text anywhere")}
        {given.length > 0 && <button type="button" onClick={() => replaceQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear</button>}
      </div>
      <p class="muted" role="status">
        {loaded.error ? loaded.error.message : counted(items.length, loaded.ended, loading, given.length ? null : run.totals.rollouts)}
      </p>
      <div class="list" role="grid" aria-rowcount={loaded.ended ? items.length : -1} aria-label="Rollouts" tabIndex={0} onKeyDown={keys} ref={scroller}>
        <div role="rowgroup" class="inner" style={{ height: `${virtual.getTotalSize()}px` }}>
          {lines.map((line) => {
            const item = items[line.index];
            return (
              <div key={item.id} role="row" aria-rowindex={line.index + 1} class={`row${line.index === selected ? " selected" : ""}`} style={{ transform: `translateY(${line.start}px)` }} onMouseDown={() => setSelected(line.index)}>
                <span role="gridcell" class={`status ${item.status}`}>{item.status}</span>
                <span role="gridcell" class="n reward">{number(item.reward)}</span>
                <span role="gridcell" class="task" dir="auto"><a href={address(["run", run.name, "rollout", item.id])} tabIndex={-1}>{visible(item.task) || item.id}</a></span>
                <span role="gridcell" class="wide">{item.group ? <a href={address(["run", run.name, "group"], { group: item.group })}>{stepOf(item.group, item.step)}</a> : item.evaluation && visible(item.evaluation)}</span>
                <span role="gridcell" class="wide muted">{item.why ? visible(item.why) : item.worker && visible(item.worker)}</span>
                <span role="gridcell" class="n wide muted">{seconds(item.start, item.end)}{item.attempts > 1 && ` · ${item.attempts} attempts`}</span>
              </div>
            );
          })}
        </div>
        {loaded.ended && items.length === 0 && !loaded.error && <p class="muted pad">{given.length ? "No rollout passes these filters." : "There are no rollouts yet."}</p>}
      </div>
    </section>
  );
}

function counted(count: number, ended: boolean, loading: boolean, all: number | null): string {
  if (ended) return `${number(count)} in all`;
  const of = all === null ? "" : ` of ${number(all)}`;
  return `the newest ${number(count)}${of}; more come as the list is scrolled${loading ? " (searching …)" : ""}`;
}

function useVirtual(count: number, getScrollElement: () => HTMLDivElement | null) {
  const [, redraw] = useReducer<number, void>((n) => n + 1, 0);
  const options = {
    count,
    getScrollElement,
    estimateSize: () => LINE,
    overscan: 12,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => redraw(),
  };
  const [virtual] = useState(() => new Virtualizer<HTMLDivElement, Element>(options));
  virtual.setOptions(options);
  useLayoutEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  return virtual;
}
