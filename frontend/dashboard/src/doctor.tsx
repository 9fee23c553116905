// Why is nothing learnt: what the rules of the doctor find in a run, and which setting to change.
import { useAnswer } from "./api";
import { address } from "./route";
import { number, visible } from "./text";
import type { Diagnosis, Finding, Run } from "./types";

export function Doctor({ run }: { run: Run }) {
  const { data, error } = useAnswer<Diagnosis>(`runs/${encodeURIComponent(run.name)}/doctor`, run.name);
  if (error) return <p role="alert" class="pad">{error.message}</p>;
  if (!data) return <p class="loading">Loading …</p>;
  const empty = data.steps === 0 && data.rollouts === 0;
  return (
    <section>
      <h1>Why is nothing learnt?</h1>
      <p class="muted">Looked at {number(data.steps)} steps, {number(data.measurements)} measurements and the newest {number(data.rollouts)} rollouts of {visible(run.name)}.</p>
      {empty && <p>There is no step of reinforcement learning yet, so nothing can be said.</p>}
      {!empty && data.findings.length === 0 && <p>Nothing is wrong with this run.</p>}
      {data.findings.map((one) => <Found key={`${one.adapter} ${one.rule}`} run={run} finding={one} />)}
      {!empty && <p class="muted">Nothing was found by: {data.healthy.join(", ")}. Every rule, with what is healthy, stands in docs/doctor.md.</p>}
    </section>
  );
}

function Found({ run, finding }: { run: Run; finding: Finding }) {
  return (
    <article class={`finding ${finding.level}`}>
      <h2>{finding.adapter && `Adapter ${visible(finding.adapter)}: `}{finding.title} <small>{finding.level === "fault" ? "fault" : "to be watched"}</small></h2>
      <p>{capital(visible(finding.seen))}.</p>
      <p><Code text={visible(finding.advice)} />.</p>
      {finding.rollouts.length > 0 && (
        <p class="muted">For example: {finding.rollouts.map((id) => <><a key={id} href={address(["run", run.name, "rollout", id])}>{visible(id)}</a> </>)}</p>
      )}
    </article>
  );
}

function Code({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
