import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { listen, setKey, useAnswer, useKeyWanted, useLive } from "./api";
import { Doctor } from "./doctor";
import { GroupPage, Groups } from "./group";
import { RolloutPage } from "./rollout";
import { Rollouts } from "./rollouts";
import { address, useRoute } from "./route";
import { Runs } from "./runs";
import "./style.css";
import { ResourcesView, Workers } from "./tables";
import { visible } from "./text";
import type { Run } from "./types";

const VIEWS = ["doctor", "rollouts", "groups", "workers", "resources"];

function App() {
  const route = useRoute();
  const [theme, setTheme] = useTheme();
  const live = useLive();
  const keyWanted = useKeyWanted();
  const { data, error } = useAnswer<{ runs: Run[] }>("runs");
  const runs = data?.runs ?? null;
  const name = route.path[0] === "run" ? route.path[1] : null;
  const run = runs?.find((one) => one.name === name) ?? null;
  useEffect(() => {
    document.title = ["mini-agentic-rl", ...route.path.slice(1)].join(" · ");
  }, [route]);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
      const first = run?.name ?? runs?.[0]?.name;
      const go: Record<string, string> = { h: address([]) };
      if (first) Object.assign(go, { d: address(["run", first, "doctor"]), r: address(["run", first, "rollouts"]), g: address(["run", first, "groups"]), w: address(["run", first, "workers"]), v: address(["run", first, "resources"]) });
      if (event.key in go) location.hash = go[event.key];
      else if (event.key === "/") {
        document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
        event.preventDefault();
      }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, [run, runs]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>To the content</a>
      <header>
        <a class="brand" href={address([])}>mini-agentic-rl</a>
        <nav aria-label="Views">
          <a href={address([])} aria-current={route.path.length === 0 ? "page" : undefined}>Runs</a>
          {runs && runs.length > 1 && (
            <select aria-label="Run" value={run?.name ?? ""} onChange={(event) => { location.hash = event.currentTarget.value ? address(["run", event.currentTarget.value, VIEWS.includes(route.path[2]) ? route.path[2] : "rollouts"]) : address([]); }}>
              <option value="">choose a run</option>
              {runs.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
            </select>
          )}
          {runs && (run ?? (runs.length === 1 ? runs[0] : null)) &&
            VIEWS.map((view) => <a key={view} href={address(["run", (run ?? runs[0]).name, view])} aria-current={route.path[2]?.startsWith(view.slice(0, -1)) ? "page" : undefined}>{view[0].toUpperCase() + view.slice(1)}</a>)}
        </nav>
        <span class={`live ${live ? "on" : ""}`} title={live ? "New results appear by themselves" : "The server is not heard of; it is tried again"}>{live ? "live" : "not connected"}</span>
        <button type="button" class="theme" onClick={() => setTheme(theme === "dark" ? "light" : "dark")} aria-label={`Use the ${theme === "dark" ? "light" : "dark"} colours`}>{theme === "dark" ? "☀" : "☾"}</button>
      </header>
      <main id="main" tabIndex={-1}>
        {keyWanted ? <KeyForm /> : error && !runs ? <p role="alert" class="pad">{error.message}</p> : !runs ? <p class="loading">Loading …</p> : <View runs={runs} run={run} theme={theme} />}
      </main>
      <footer class="muted">Keys: <kbd>h</kbd> runs, <kbd>d</kbd> doctor, <kbd>r</kbd> rollouts, <kbd>g</kbd> groups, <kbd>w</kbd> workers, <kbd>v</kbd> resources, <kbd>/</kbd> search, arrows in lists and tokens.</footer>
    </>
  );
}

function View({ runs, run, theme }: { runs: Run[]; run: Run | null; theme: string }) {
  const route = useRoute();
  const [place, name, view, id] = route.path;
  if (place === undefined || place === "main") return <Runs runs={runs} route={route} theme={theme} />;
  if (place === "run" && run === null) return <p role="alert" class="pad">There is no run {visible(name ?? "")} here.</p>;
  if (place === "run" && run) {
    if (view === "doctor") return <Doctor key={run.name} run={run} />;
    if (view === "rollouts") return <Rollouts key={run.name} run={run} route={route} />;
    if (view === "rollout" && id) return <RolloutPage key={id} run={run} id={id} route={route} />;
    if (view === "groups") return <Groups key={run.name} run={run} />;
    if (view === "group") return <GroupPage run={run} route={route} />;
    if (view === "workers") return <Workers run={run} />;
    if (view === "resources") return <ResourcesView run={run} />;
  }
  return <p role="alert" class="pad">There is no such view. <a href={address([])}>All runs</a></p>;
}

function KeyForm() {
  const [key, change] = useState("");
  return (
    <form class="key" onSubmit={(event) => { event.preventDefault(); setKey(key); }}>
      <h1>Key</h1>
      <p>This server asks for a key (<code>--api-key</code>, <code>AGL_API_KEY</code>). It is kept until this tab is closed.</p>
      <input type="password" autocomplete="off" aria-label="Key" value={key} onInput={(event) => change(event.currentTarget.value)} />
      <button type="submit">Open</button>
    </form>
  );
}

function useTheme(): [string, (theme: string) => void] {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? preferred);
  document.documentElement.dataset.theme = theme;
  return [
    theme,
    (chosen) => {
      localStorage.setItem("theme", chosen);
      document.documentElement.dataset.theme = chosen;
      setTheme(chosen);
    },
  ];
}

const root = document.getElementById("app")!;
root.replaceChildren();
render(<App />, root);
void listen();
