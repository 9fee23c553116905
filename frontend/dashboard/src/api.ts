// Requests to the server, and its events. A key that the server asks for is kept for this tab alone.
import { useEffect, useRef, useState } from "preact/hooks";

const KEY = "mini-agentic-rl-key";
const API = "/dashboard/api/";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

const keyListeners = new Set<() => void>();
let keyWanted = false;

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
  keyWanted = false;
  keyListeners.forEach((heard) => heard());
}

export function useKeyWanted(): boolean {
  const [wanted, setWanted] = useState(keyWanted);
  useEffect(() => {
    const heard = () => setWanted(keyWanted);
    keyListeners.add(heard);
    heard();
    return () => void keyListeners.delete(heard);
  }, []);
  return wanted;
}

function headers(key = sessionStorage.getItem(KEY)): Record<string, string> {
  return key ? { Authorization: "Bearer " + key } : {};
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const key = sessionStorage.getItem(KEY);
  const response = await fetch(API + path, { headers: headers(key), signal });
  // A refusal of an earlier key may come after a later one was given.
  if (response.status === 401 && key === sessionStorage.getItem(KEY)) {
    keyWanted = true;
    keyListeners.forEach((heard) => heard());
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new ApiError(body?.error?.message ?? `status ${response.status}`, response.status);
  }
  return response.json();
}

export interface Answer<T> {
  data: T | null;
  error: ApiError | null;
}

/** What the server answers, asked again when the run has written something. */
export function useAnswer<T>(path: string | null, run?: string): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T> & { path: string | null }>({ data: null, error: null, path: null });
  const news = useNews(run);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    get<T>(path, abort.signal).then(
      (data) => setAnswer({ data, error: null, path }),
      (error) => {
        if (!abort.signal.aborted) setAnswer((before) => ({ data: before.path === path ? before.data : null, error, path }));
      },
    );
    return () => abort.abort();
  }, [path, news]);
  return answer.path === path ? answer : { data: null, error: null };
}

type Listener = (runs: string[]) => void;
const listeners = new Set<Listener>();
const stateListeners = new Set<(live: boolean) => void>();
let isLive = false;

function tellState(live: boolean): void {
  isLive = live;
  stateListeners.forEach((heard) => heard(live));
}

/** Hear the server's events for as long as the page is open. `EventSource` could send no key. */
export async function listen(): Promise<never> {
  for (let wait = 1000; ; wait = Math.min(wait * 2, 15000)) {
    try {
      const response = await fetch(API + "events", { headers: headers() });
      if (!response.ok || !response.body) throw new Error(String(response.status));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop() ?? "";
        for (const part of parts) {
          const kind = /^event: (\w+)$/m.exec(part)?.[1];
          if (kind === "ready") {
            if (!isLive && wait > 1000) listeners.forEach((heard) => heard(["*"]));
            tellState(true);
            wait = 1000;
          } else if (kind === "changed") {
            const runs = JSON.parse(/^data: (.*)$/m.exec(part)?.[1] ?? "[]");
            listeners.forEach((heard) => heard(runs));
          }
        }
      }
    } catch {
      // The server has gone, or wants a key: tried again below.
    }
    tellState(false);
    await new Promise((done) => setTimeout(done, wait));
  }
}

export function useLive(): boolean {
  const [live, setLive] = useState(isLive);
  useEffect(() => {
    stateListeners.add(setLive);
    setLive(isLive);
    return () => void stateListeners.delete(setLive);
  }, []);
  return live;
}

const EVERY = 2000;

/** A number that grows when a run has written something, at most every two seconds; of any run without a name. */
export function useNews(run?: string): number {
  const [news, setNews] = useState(0);
  const timer = useRef(0);
  useEffect(() => {
    const heard: Listener = (runs) => {
      if (run !== undefined && !runs.includes(run) && !runs.includes("*")) return;
      if (!timer.current) {
        timer.current = window.setTimeout(() => {
          timer.current = 0;
          setNews((before) => before + 1);
        }, EVERY);
      }
    };
    const keyed = () => setNews((before) => before + 1);
    listeners.add(heard);
    keyListeners.add(keyed);
    return () => {
      listeners.delete(heard);
      keyListeners.delete(keyed);
      clearTimeout(timer.current);
      timer.current = 0;
    };
  }, [run]);
  return news;
}
