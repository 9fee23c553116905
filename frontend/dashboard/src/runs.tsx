// All runs, and their curves side by side.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, useNews } from "./api";
import { Chart, color, type Line } from "./chart";
import { address, replaceQuery, type Route } from "./route";
import { Scroll } from "./scroll";
import { ago, number } from "./text";
import type { Curves, Run } from "./types";

const HEAD: [string, string[]][] = [
  ["Reward", ["reward/mean", "reward"]],
  ["Accuracy, held out", ["accuracy"]],
  ["Length (sampled tokens of a rollout)", ["rollout/sampled_tokens", "answer_length"]],
  ["Entropy", ["entropy", "entropy/mean"]],
  ["KL to the reference", ["kl", "kl/mean"]],
  ["Mismatch of sampler and learner", ["mismatch/mean_abs", "mismatch/kl"]],
  ["Share of clipped tokens", ["clip_fraction", "clip_ratio", "clip_ratio/region_mean"]],
  ["Tokens a second", ["tokens_per_second"]],
  ["Memory (GiB)", ["memory_gib"]],
  ["Staleness (policy versions)", ["age/max", "staleness", "age/mean"]],
];
const SPREAD: Record<string, string> = { "reward/mean": "reward/std" };

export function Runs({ runs, route, theme }: { runs: Run[]; route: Route; theme: string }) {
  const chosen = route.query.get("runs")?.split(",") ?? runs.map((run) => run.name);
  const smooth = Math.min(0.99, Math.max(0, Number(route.query.get("smooth") ?? 0)));
  const wanted = route.query.get("metric") ?? "";
  const [curves, setCurves] = useState<Record<string, Curves>>({});
  const news = useNews();
  const names = runs.map((run) => run.name).join("\n");
  useEffect(() => {
    const abort = new AbortController();
    for (const name of names.split("\n").filter(Boolean)) {
      get<Curves>(`runs/${encodeURIComponent(name)}/curves`, abort.signal).then(
        (found) => setCurves((before) => (before[name]?.rows === found.rows && found.rows ? before : { ...before, [name]: found })),
        () => setCurves((before) => ({ [name]: { rows: 0, series: {} }, ...before })),
      );
    }
    return () => abort.abort();
  }, [names, news]);
  const shown = runs.filter((run) => chosen.includes(run.name));
  const toggle = (name: string) => {
    const now = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
    replaceQuery({ runs: now.length === runs.length ? null : now.join(",") });
  };
  return (
    <>
      <section>
        <h1>Runs</h1>
        <Scroll label="Runs">
          <table>
            <thead>
              <tr>
                <th>shown</th><th>run</th><th>state</th><th class="n">step</th><th>phase</th><th class="n">rollouts</th><th>accuracy</th><th>last written</th>
              </tr>
            </thead>
            <tbody>
              {runs.map((run, index) => (
                <tr key={run.name}>
                  <td>
                    <label class="swatch">
                      <input type="checkbox" checked={chosen.includes(run.name)} onChange={() => toggle(run.name)} aria-label={`Show ${run.name}`} />
                      <span class={`line s${(index % 6) + 1}`} />
                    </label>
                  </td>
                  <th scope="row" class="foreign"><a href={address(["run", run.name, "rollouts"])}>{run.name}</a></th>
                  <td class="whole">{run.state}{(run.resumes?.length ?? 0) > 0 && ` · resumed after step ${run.resumes!.map((one) => one.step).join(", ")}`}</td>
                  <td class="n">{run.last?.step ?? "–"}</td>
                  <td>{run.last?.phase ?? "–"}</td>
                  <td class="n"><a href={address(["run", run.name, "rollouts"])}>{number(run.totals.rollouts)}</a></td>
                  <td>{accuracy(run).map((one, place) => [" ", <span key={place} class="whole">{place > 0 && "→ "}{one}</span>])}</td>
                  <td class="whole">{ago(run.last?.time)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </section>
      <section>
        <h2>Curves</h2>
        <div class="tools">
          <label>
            Smoothing{" "}
            <input type="range" min="0" max="0.98" step="0.02" value={smooth} onInput={(event) => replaceQuery({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />{" "}
            <output>{smooth}</output>
          </label>
          <label>
            Metric{" "}
            <input class="metric" type="search" value={wanted} placeholder="the main ones; type a name for others" onInput={(event) => replaceQuery({ metric: event.currentTarget.value || null })} />
          </label>
        </div>
        <Charts runs={shown} all={runs} curves={curves} smooth={smooth} wanted={wanted} theme={theme} />
      </section>
      {shown.map((run) => <Summary key={run.name} run={run} />)}
    </>
  );
}

function Charts({ runs, all, curves, smooth, wanted, theme }: { runs: Run[]; all: Run[]; curves: Record<string, Curves>; smooth: number; wanted: string; theme: string }) {
  const key = runs.map((run) => `${run.name} ${curves[run.name]?.rows}`).join();
  const charts = useMemo(() => {
    const names = [...new Set(runs.flatMap((run) => Object.keys(curves[run.name]?.series ?? {})))];
    const found: { title: string; name: string }[] = wanted
      ? names.filter((name) => name.includes(wanted)).sort().slice(0, 60).map((name) => ({ title: name, name }))
      : [
          ...HEAD.flatMap(([title, choices]) => {
            const name = choices.find((choice) => names.includes(choice));
            return name ? [{ title, name }] : [];
          }),
          ...names.filter((name) => /(^|\/)(sft\/)?loss$/.test(name)).map((name) => ({ title: name.includes("sft") ? "Loss of the imitation (its own steps)" : name === "loss" ? "Loss" : `Loss: ${name}`, name })),
        ];
    return found.map(({ title, name }) => {
      const lines: Line[] = [];
      for (const run of runs) {
        const series = curves[run.name]?.series;
        if (!series?.[name]) continue;
        const [steps, values] = series[name];
        const line: Line = { run: run.name, color: color(all.indexOf(run)), label: run.name, steps, values };
        const spread = SPREAD[name] && series[SPREAD[name]];
        if (spread && spread[0].length === steps.length) {
          line.low = values.map((value, i) => (value === null || spread[1][i] === null ? null : value - spread[1][i]!));
          line.high = values.map((value, i) => (value === null || spread[1][i] === null ? null : value + spread[1][i]!));
        }
        if (name === "accuracy") {
          line.points = true;
          const near = steps.map((step, i) => run.intervals?.find((one) => one.step === step && Math.abs(one.accuracy - (values[i] ?? -1)) < 1e-9));
          line.low = near.map((one) => one?.low ?? null);
          line.high = near.map((one) => one?.high ?? null);
        }
        lines.push(line);
      }
      return { title, name, lines };
    });
  }, [key, wanted, theme]);
  const marks = useMemo(
    () => runs.flatMap((run) => (run.resumes ?? []).map((one) => ({ step: one.step, color: color(all.indexOf(run)) }))),
    [runs.map((run) => `${run.name} ${run.resumes?.length}`).join(), theme],
  );
  if (runs.some((run) => run.state !== "store" && !(run.name in curves)) && !charts.length) return <p class="loading">Loading …</p>;
  if (!charts.length) return <p class="muted">{wanted ? "No metric has this in its name." : "No numbers were logged yet."}</p>;
  return (
    <>
      <div class="charts">
        {charts.map((chart) => <Chart key={chart.name} title={chart.title} lines={chart.lines} smooth={smooth} marks={marks} theme={theme} />)}
      </div>
      <p class="muted">Steps are those of reinforcement learning. Bands: one standard deviation of the rewards; the 95 % interval of an accuracy.{marks.length > 0 && " Dashed lines: the run was resumed there."}</p>
    </>
  );
}

function accuracy(run: Run): string[] {
  const rows: any[] = Array.isArray(run.summary?.accuracy) ? run.summary.accuracy : [];
  return rows.length ? rows.map((row) => `${row.name} ${(100 * row.accuracy).toFixed(1)} %`) : ["–"];
}

function Summary({ run }: { run: Run }) {
  if (run.state === "store") return null;
  const untrained = Object.entries((run.summary?.untrained ?? {}) as Record<string, number>);
  const rows: any[] = Array.isArray(run.summary?.accuracy) ? run.summary.accuracy : [];
  return (
    <section>
      <h2>{run.name}</h2>
      {rows.length > 0 && (
        <table class="pairs">
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}><th scope="row">{String(row.name)}</th><td>{(100 * row.accuracy).toFixed(1)} % (95 %: {(100 * row.low).toFixed(1)} – {(100 * row.high).toFixed(1)} %), {number(row.correct)} of {row.count}</td></tr>
            ))}
          </tbody>
        </table>
      )}
      {untrained.length > 0 && (
        <>
          <h3>Rollouts that gave nothing to train on</h3>
          <ul>{untrained.map(([why, count]) => <li key={why}>{count} × {why}</li>)}</ul>
        </>
      )}
      <details>
        <summary>Settings</summary>
        <pre>{JSON.stringify(run.config ?? {}, null, 2)}</pre>
      </details>
    </section>
  );
}
