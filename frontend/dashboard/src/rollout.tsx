// One rollout: what was said, how long what took, its rewards, and why it was left out.
import { useState } from "preact/hooks";
import { useAnswer } from "./api";
import { address, replaceQuery, type Route } from "./route";
import { Scroll } from "./scroll";
import { clock, number, seconds, visible } from "./text";
import { TokensView } from "./tokens";
import type { Conversation, Message, Rollout, Run, SpanRow, Text } from "./types";

const TABS = ["conversation", "tokens", "spans", "facts"];

export function RolloutPage({ run, id, route }: { run: Run; id: string; route: Route }) {
  const full = route.query.get("full") ? "?full=1" : "";
  const path = `runs/${encodeURIComponent(run.name)}/rollouts/${encodeURIComponent(id)}`;
  const { data: rollout, error } = useAnswer<Rollout>(path + full, run.name);
  if (error && !rollout) return <section><h1>Rollout</h1><p role="alert">{error.status === 404 ? `${run.name} holds no rollout ${visible(id)}.` : error.message}</p></section>;
  if (!rollout) return <section><p class="loading">Loading …</p></section>;
  const tab = TABS.includes(route.query.get("tab") ?? "") ? route.query.get("tab")! : "conversation";
  return (
    <section>
      <h1>Rollout <code>{visible(rollout.id)}</code></h1>
      <dl class="facts">
        <div><dt>status</dt><dd class={`status ${rollout.status}`}>{rollout.status}</dd></div>
        <div><dt>reward</dt><dd>{number(rollout.reward)}</dd></div>
        <div><dt>took</dt><dd>{seconds(rollout.start, rollout.end)}</dd></div>
        <div><dt>began</dt><dd>{clock(rollout.start)}</dd></div>
        {rollout.mode && <div><dt>mode</dt><dd>{rollout.mode}</dd></div>}
        {rollout.group && <div><dt>group</dt><dd><a href={address(["run", run.name, "group"], { group: rollout.group })}>{visible(rollout.group)}</a></dd></div>}
      </dl>
      {rollout.why && <p class="why" dir="auto"><strong>Left out:</strong> {visible(rollout.why)}</p>}
      <nav class="tabs" role="tablist" aria-label="Views of the rollout">
        {TABS.map((one) => (
          <button key={one} type="button" role="tab" id={`tab-${one}`} aria-controls="panel" aria-selected={one === tab} tabIndex={one === tab ? 0 : -1} onClick={() => replaceQuery({ tab: one })} onKeyDown={(event) => turn(event, one)}>{one}</button>
        ))}
      </nav>
      <div id="panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "conversation" && <Conversations rollout={rollout} />}
        {tab === "tokens" && <TokensView run={run} path={path} rollout={rollout} route={route} />}
        {tab === "spans" && <Waterfall rollout={rollout} />}
        {tab === "facts" && <Facts rollout={rollout} />}
      </div>
    </section>
  );
}

function turn(event: KeyboardEvent, tab: string) {
  const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
  if (!by) return;
  const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length];
  replaceQuery({ tab: next });
  document.getElementById(`tab-${next}`)?.focus();
}

function Long({ text, plain }: { text: Text; plain?: boolean }) {
  const [all, setAll] = useState(false);
  const most = 3000;
  const shown = all || text.text.length <= most ? text.text : text.text.slice(0, most);
  const left = text.text.length - shown.length;
  return (
    <>
      <span class={plain ? "" : "text"} dir="auto">{visible(shown)}</span>
      {left > 0 && <button type="button" class="more" onClick={() => setAll(true)}>{number(left)} more characters</button>}
      {left === 0 && text.more > 0 && (
        <button type="button" class="more" onClick={() => replaceQuery({ full: 1 })}>{number(text.more)} more characters were not sent; ask for all</button>
      )}
    </>
  );
}

function Conversations({ rollout }: { rollout: Rollout }) {
  if (!rollout.conversations.length) return <><h2>Task</h2><Long text={rollout.task} /><p class="muted">No LLM call was recorded.</p></>;
  const attempts = rollout.attempts.length;
  return (
    <>
      {rollout.conversations.map((one, index) => (
        <div key={index}>
          <h2>
            {attempts > 1 && `Attempt ${rollout.attempts.find((attempt) => attempt.id === one.attempt)?.number ?? ""}: `}
            {rollout.conversations.length > 1 ? `Conversation ${index + 1}` : "Conversation"} <small class="muted">{one.calls} LLM {one.calls === 1 ? "call" : "calls"}{one.tools.length > 0 && `; tools: ${visible(one.tools.join(", "))}`}</small>
          </h2>
          <Talk conversation={one} />
        </div>
      ))}
      <Rewards rollout={rollout} />
    </>
  );
}

function Talk({ conversation }: { conversation: Conversation }) {
  return <ol class="talk">{conversation.messages.map((message, index) => <Said key={index} message={message} />)}</ol>;
}

function Said({ message }: { message: Message }) {
  const known = ["system", "user", "assistant", "tool", "developer"].includes(message.role);
  const body = message.content.text || message.content.more ? <Long text={message.content} /> : null;
  return (
    <li class={`message ${known ? message.role : "other"}`}>
      <span class="role">{visible(message.role)}</span>
      {message.role === "tool" ? (
        <details><summary>result of the tool, {number(message.content.text.length + message.content.more)} characters: {visible(message.content.text.slice(0, 60).replace(/\s+/g, " "))}</summary>{body}</details>
      ) : body}
      {message.calls.map((call, index) => (
        <details key={index} class="call">
          <summary>calls <code>{visible(call.name.text)}</code> {visible(call.arguments.text.slice(0, 60))}</summary>
          <Long text={call.arguments} />
        </details>
      ))}
    </li>
  );
}

function Rewards({ rollout }: { rollout: Rollout }) {
  if (!rollout.rewards.length) return <p class="muted">No reward was given.</p>;
  return (
    <>
      <h2>Rewards</h2>
      <Scroll label="Rewards">
        <table>
          <thead><tr><th>for</th><th>component</th><th class="n">value</th></tr></thead>
          <tbody>
            {rollout.rewards.flatMap((reward, index) =>
              reward.parts.map((part, place) => (
                <tr key={`${index} ${place}`}><td>{place === 0 ? (reward.scope === "rollout" ? "the rollout" : "the call before it") : ""}</td><th scope="row" class="foreign">{visible(part.name)}</th><td class="n">{number(part.value)}</td></tr>
              )),
            )}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}

function Waterfall({ rollout }: { rollout: Rollout }) {
  const times = rollout.spans.flatMap((span) => [span.start, span.end]).filter((time) => time !== null);
  const first = Math.min(...times);
  const whole = Math.max(...times) - first || 1;
  const depth = depths(rollout.spans);
  if (!rollout.spans.length) return <p class="muted">No span was recorded.</p>;
  return (
    <div class="waterfall">
      {rollout.spans.map((span) => {
        const left = span.start === null ? 0 : (span.start - first) / whole;
        const wide = span.start === null || span.end === null ? 0 : (span.end - span.start) / whole;
        return (
          <details key={span.attempt + span.id}>
            <summary>
              <span class="name" style={{ paddingLeft: `${Math.min(8, depth.get(span.id) ?? 0) * 12}px` }}>{visible(span.name)}</span>
              <span class="track" aria-hidden="true"><span class={`bar ${span.status === "ERROR" ? "failed" : ""}`} style={{ left: `${100 * left}%`, width: `${Math.max(0.4, 100 * wide)}%` }} /></span>
              <span class="n">{seconds(span.start, span.end)}</span>
            </summary>
            {span.description && <p class="why">{visible(span.description)}</p>}
            <table class="pairs">
              <tbody>{span.attributes.map(([name, value]) => <tr key={name}><th scope="row">{visible(name)}</th><td class="text" dir="auto">{visible(value)}</td></tr>)}</tbody>
            </table>
            {span.left_out > 0 && <p class="muted">{span.left_out} more attributes</p>}
            {span.events.length > 0 && <p class="muted">events: {visible(span.events.join(", "))}</p>}
          </details>
        );
      })}
    </div>
  );
}

function depths(spans: SpanRow[]): Map<string, number> {
  const parents = new Map(spans.map((span) => [span.id, span.parent]));
  return new Map(
    spans.map((span) => {
      let depth = 0;
      for (let at = span.parent; at !== null && parents.has(at) && depth < 20; at = parents.get(at) ?? null) depth++;
      return [span.id, depth];
    }),
  );
}

function Facts({ rollout }: { rollout: Rollout }) {
  return (
    <>
      <h2>Task</h2>
      <Long text={rollout.task} />
      <h2>Attempts</h2>
      <Scroll label="Attempts">
        <table>
          <thead><tr><th class="n">no.</th><th>status</th><th>worker</th><th>began</th><th class="n">took</th><th class="n">spans</th><th>error</th></tr></thead>
          <tbody>
            {rollout.attempts.map((one) => (
              <tr key={one.id}><td class="n">{one.number}</td><td class={`status ${one.status}`}>{one.status}</td><td class="foreign">{visible(one.worker ?? "–")}</td><td class="whole">{clock(one.start)}</td><td class="n">{seconds(one.start, one.end)}</td><td class="n">{one.spans}</td><td class="foreign" dir="auto">{visible(one.error ?? "")}</td></tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      <Rewards rollout={rollout} />
      <h2>Metadata</h2>
      <Long text={rollout.metadata} />
    </>
  );
}
