// The tokens of a rollout as it is trained, coloured by what is recorded of them.
import { useMemo, useState } from "preact/hooks";
import { useAnswer } from "./api";
import { replaceQuery, type Route } from "./route";
import { number, visible } from "./text";
import type { Group, Rollout, Run, TokenRow, Tokens } from "./types";

const COLOURS: Record<string, string> = {
  logprob: "log-probability",
  advantage: "advantage (reward less the group's mean)",
  version: "policy version",
  mask: "loss mask",
  entropy: "entropy",
  gap: "gap of sampler and learner",
};
const NOT_RECORDED: Record<string, string> = {
  entropy: "The entropy of single tokens is recorded of what was learnt from, by runs of today. Of these tokens it is not; its mean of each step is among the curves.",
  gap: "The learner's log-probability of single tokens is recorded of what was learnt from, by runs of today. Of these tokens it is not; the mean gap of each step is the curve “mismatch”.",
};

export function TokensView({ run, path, rollout, route }: { run: Run; path: string; rollout: Rollout; route: Route }) {
  const { data: tokens, error } = useAnswer<Tokens>(path + "/tokens");
  const group = useAnswer<Group>(rollout.group ? `runs/${encodeURIComponent(run.name)}/groups/view?group=${encodeURIComponent(rollout.group)}` : null);
  const by = route.query.get("color") ?? "logprob";
  if (error) return <p role="alert">{error.message}</p>;
  if (!tokens) return <p class="loading">Loading …</p>;
  const recorded = tokens.rows.some((row) => row.entropy.some((value) => value !== null));
  const advantage = group.data?.rollouts.find((one) => one.id === rollout.id)?.advantage ?? null;
  return (
    <>
      <div class="tools">
        <label>
          Colour{" "}
          <select value={by} onChange={(event) => replaceQuery({ color: event.currentTarget.value })}>
            {Object.entries(COLOURS).map(([name, title]) => <option key={name} value={name}>{title}{NOT_RECORDED[name] && !recorded && " (not recorded)"}</option>)}
          </select>
        </label>
        <Legend by={by} />
      </div>
      {NOT_RECORDED[by] && !recorded && <p class="why">{NOT_RECORDED[by]}</p>}
      {by === "advantage" && <p class="muted">{advantage === null ? "This rollout has no group with rewards." : `Every trained token of this rollout: ${number(advantage)}. What the run trained with depends on its settings, and is not recorded.`}</p>}
      {!tokens.tokenizer && <p class="muted">The run's tokenizer is not on this computer: ids are shown for texts.</p>}
      {tokens.rows.length === 0 && <p class="muted">No tokens were recorded.</p>}
      {Object.entries(tokens.left_out).map(([why, count]) => <p key={why} class="why">{count} LLM {count === 1 ? "call is" : "calls are"} not trained: {visible(why)}</p>)}
      {tokens.rows.map((row, index) => <Row key={index} row={row} title={tokens.rows.length > 1 ? `Row ${index + 1} of ${tokens.rows.length}` : "Tokens"} by={by} advantage={advantage} />)}
    </>
  );
}

function Legend({ by }: { by: string }) {
  if (by === "logprob") return <span class="legend"><span class="token surprise5">unlikely</span><span class="token surprise2" /><span class="token surprise0">certain</span></span>;
  if (by === "advantage") return <span class="legend"><span class="token worse">worse</span><span class="token better">better</span></span>;
  if (by === "entropy") return <span class="legend"><span class="token surprise0">certain</span><span class="token surprise2" /><span class="token surprise5">any of many (3 nats)</span></span>;
  if (by === "gap") return <span class="legend"><span class="token surprise0">alike</span><span class="token surprise2" /><span class="token surprise5">0.25 nats apart</span></span>;
  if (by === "mask") return <span class="legend"><span class="token trained">trained</span><span class="token forced">no choice</span><span class="token untrained">not trained</span></span>;
  return null;
}

function Row({ row, title, by, advantage }: { row: TokenRow; title: string; by: string; advantage: number | null }) {
  const place = useMemo(() => new Map(row.sampled.map((position, index) => [position, index])), [row]);
  const [chosen, setChosen] = useState<number | null>(null);
  const versions = [...new Set(row.version)].sort((a, b) => a - b);
  const kind = (position: number): string => {
    const i = place.get(position);
    if (i === undefined) return "given";
    if (by === "logprob") return "surprise" + Math.min(5, Math.floor(-row.logprob[i] / 1.2));
    if (by === "entropy" && row.entropy[i] !== null) return "surprise" + Math.min(5, Math.floor(row.entropy[i]! / 0.6));
    if (by === "gap" && row.learner[i] !== null) return "surprise" + Math.min(5, Math.floor(Math.abs(row.learner[i]! - row.logprob[i]) / 0.05));
    if (by === "version") return "version" + (versions.indexOf(row.version[i]) % 6);
    if (by === "mask") return row.trained[i] ? "trained" : row.forced[i] ? "forced" : "untrained";
    if (by === "advantage" && advantage !== null && row.trained[i]) return advantage > 0 ? "better" : advantage < 0 ? "worse" : "";
    return "";
  };
  const keys = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (by === undefined) return;
    const next = Math.max(0, Math.min(row.tokens.length - 1, (chosen ?? -1) + by));
    setChosen(next);
    document.querySelector(`[data-token="${next}"]`)?.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  };
  const hovered = (event: Event) => {
    const at = (event.target as HTMLElement).dataset?.token;
    if (at !== undefined) setChosen(Number(at));
  };
  return (
    <>
      <h2>{title} <small class="muted">{number(row.tokens.length + row.left_out)} tokens, {number(row.sampled.length)} of them sampled{row.left_out > 0 && `; the first ${number(row.left_out)} are not shown`}</small></h2>
      {by === "version" && versions.length > 0 && <p class="legend">{versions.slice(0, 6).map((version, index) => <span key={version} class={`token version${index}`}>version {version}</span>)}</p>}
      <div class="tokens" tabIndex={0} role="group" aria-label="Tokens; arrow keys move from one to the next" onKeyDown={keys} onMouseOver={hovered} onClick={hovered}>
        {row.tokens.map((id, position) => (
          <span key={position} data-token={position} class={`token ${kind(position)}${chosen === position ? " chosen" : ""}`}>{row.texts ? spelled(row.texts[position]) : `${id} `}</span>
        ))}
      </div>
      <Told row={row} position={chosen} at={chosen === null ? undefined : place.get(chosen)} advantage={advantage} />
    </>
  );
}

function spelled(text: string): string {
  return text === "" ? "∅" : visible(text).replace(/\n/g, "⏎\n").replace(/\t/g, "⇥");
}

function Told({ row, position, at, advantage }: { row: TokenRow; position: number | null; at: number | undefined; advantage: number | null }) {
  const facts: [string, string][] = [];
  if (position !== null) {
    facts.push(["token", String(row.tokens[position])]);
    if (row.texts) facts.push(["text", JSON.stringify(visible(row.texts[position]))]);
    facts.push(["position", number(position + row.left_out)]);
    if (at === undefined) facts.push(["from", "the prompt, a tool or a template: not sampled, loss mask 0"]);
    else
      facts.push(
        ["log-probability", number(row.logprob[at])],
        ["probability", number(Math.exp(row.logprob[at]))],
        ["temperature", number(row.temperature[at])],
        ["policy version", String(row.version[at])],
        ["LLM call", String(row.call[at])],
        ["loss mask", row.trained[at] ? "1" : row.forced[at] ? "0: a constraint left no choice" : "0: its call is not trained"],
        ["advantage", row.trained[at] ? number(advantage) : "–"],
        ["entropy", row.entropy[at] === null ? "not recorded" : `${number(row.entropy[at])} nats`],
        ["gap to the learner", row.learner[at] === null ? "not recorded" : number(row.learner[at]! - row.logprob[at])],
      );
  }
  return (
    <div class="told sticky" role="status">
      {facts.length === 0 && <p class="muted">Point at a token, or move with the arrow keys.</p>}
      <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
    </div>
  );
}
