// Groups: their list, and one with its rollouts by advantage next to each other, and its token tree.
import { useEffect, useState } from "preact/hooks";
import { get, useAnswer, useNews } from "./api";
import { address, replaceQuery, type Route } from "./route";
import { Scroll } from "./scroll";
import { marked, number, stepOf, visible } from "./text";
import { TreePicture } from "./tree";
import type { Group, GroupRow, Page, Run } from "./types";

export function Groups({ run }: { run: Run }) {
  const [items, setItems] = useState<GroupRow[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [known, setKnown] = useState(false);
  const news = useNews(run.name);
  const load = (cursor: string | null) =>
    get<Page<GroupRow>>(`runs/${encodeURIComponent(run.name)}/groups?limit=100${cursor ? `&cursor=${cursor}` : ""}`).then(
      (page) => {
        setItems((before) => (cursor ? [...before, ...page.items] : page.items));
        setNext(page.next);
        setKnown(true);
      },
      (problem) => setError(problem.message),
    );
  useEffect(() => {
    if (items.length <= 100) void load(null);
  }, [run.name, news]);
  return (
    <section>
      <h1>Groups of {run.name}</h1>
      {error && <p role="alert">{error}</p>}
      {known && items.length === 0 && <p class="muted">No group was sampled yet.</p>}
      <Scroll label="Groups">
        <table>
          <thead><tr><th>group</th><th>task</th><th class="n">rollouts</th><th class="n">mean reward</th><th>rewards</th></tr></thead>
          <tbody>
            {items.map((one) => (
              <tr key={one.group}>
                <th scope="row" class="whole"><a href={address(["run", run.name, "group"], { group: one.group })}>{stepOf(one.group, one.step)}</a></th>
                <td class="task foreign" dir="auto">{visible(one.task)}</td>
                <td class="n">{one.count}</td>
                <td class="n">{number(mean(one.rewards))}</td>
                <td><Dots rewards={one.rewards} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {next && <button type="button" onClick={() => void load(next)}>More</button>}
    </section>
  );
}

function mean(rewards: (number | null)[]): number | null {
  const given = rewards.filter((reward) => reward !== null);
  return given.length ? given.reduce((sum, reward) => sum + reward, 0) / given.length : null;
}

function Dots({ rewards }: { rewards: (number | null)[] }) {
  const equal = new Set(rewards).size <= 1;
  return <span class="dots">{rewards.map((reward, index) => <span key={index} class="dot">{number(reward)}</span>)}{equal && <span class="muted"> all equal: nothing to learn</span>}</span>;
}

export function GroupPage({ run, route }: { run: Run; route: Route }) {
  const name = route.query.get("group") ?? "";
  const { data: group, error } = useAnswer<Group>(`runs/${encodeURIComponent(run.name)}/groups/view?group=${encodeURIComponent(name)}`, run.name);
  if (error && !group) return <section><h1>Group {visible(name)}</h1><p role="alert">{error.status === 404 ? "There is no such group." : error.message}</p></section>;
  if (!group) return <section><p class="loading">Loading …</p></section>;
  const best = group.rollouts[0];
  const against = group.rollouts.find((one) => one.id === route.query.get("against")) ?? best;
  return (
    <>
      <section>
        <h1>Group <small>{stepOf(name, best.step)}</small></h1>
        <p dir="auto">{visible(best.task)}</p>
        <p class="muted">{group.rollouts.length} rollouts · mean reward {number(group.mean)} · standard deviation {number(group.deviation)}</p>
        {group.why && <p class="why"><strong>Left out:</strong> {group.why}</p>}
        <p class="muted">Words that the answer of the rollout marked “compared with” does not have are underlined. The advantage is the reward less the group's mean; what the run trained with depends on its settings.</p>
        <div class="side">
          {group.rollouts.map((one) => (
            <article key={one.id} class={one.advantage === null ? "" : one.advantage > 0 ? "better" : one.advantage < 0 ? "worse" : ""}>
              <h2>
                <a href={address(["run", run.name, "rollout", one.id])}>reward {number(one.reward)}</a> <small>advantage {number(one.advantage)}</small>
              </h2>
              {one.parts.length > 1 && <p class="muted">{one.parts.map((part) => `${visible(part.name)} ${number(part.value)}`).join(" · ")}</p>}
              {one.why && <p class="why" dir="auto">{visible(one.why)}</p>}
              {one === against ? (
                <p class="text" dir="auto"><small class="muted">compared with</small>{"\n"}{visible(one.answer)}</p>
              ) : (
                <p class="text" dir="auto">{marked(visible(one.answer), visible(against.answer)).map(([word, same], index) => (same || !word.trim() ? word : <mark key={index}>{word}</mark>))}</p>
              )}
              {one !== against && <button type="button" class="more" onClick={() => replaceQuery({ against: one.id })}>compare with this</button>}
            </article>
          ))}
        </div>
      </section>
      <section>
        <h2>Token tree</h2>
        <TreePicture run={run} tree={group.tree} />
      </section>
    </>
  );
}
