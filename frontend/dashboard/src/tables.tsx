// Workers, and the versions of resources.
import { useAnswer } from "./api";
import { address } from "./route";
import { Scroll } from "./scroll";
import { ago, clock, number, visible } from "./text";
import type { Run } from "./types";

interface Worker {
  worker_id: string;
  status: string;
  heartbeat_stats: Record<string, unknown> | null;
  last_heartbeat_time: number | null;
  last_busy_time: number | null;
  current_rollout_id: string | null;
}

export function Workers({ run }: { run: Run }) {
  const { data, error } = useAnswer<{ items: Worker[] }>(`runs/${encodeURIComponent(run.name)}/workers`, run.name);
  return (
    <section>
      <h1>Workers of {run.name}</h1>
      {error && <p role="alert">{error.message}</p>}
      {data?.items.length === 0 && <p class="muted">No worker was heard of.</p>}
      <Scroll label="Workers">
        <table>
          <thead><tr><th>worker</th><th>status</th><th>heard of</th><th>rollout</th><th class="n">attempts</th><th class="n">failed</th><th class="n">memory</th></tr></thead>
          <tbody>
            {inOrder(data?.items ?? []).map((one) => (
              <tr key={one.worker_id}>
                <th scope="row" class="foreign"><a href={address(["run", run.name, "rollouts"], { worker: one.worker_id })}>{visible(one.worker_id)}</a></th>
                <td>{one.status}</td>
                <td class="whole">{ago(one.last_heartbeat_time)}</td>
                <td class="foreign">{one.current_rollout_id && <a href={address(["run", run.name, "rollout", one.current_rollout_id])}>{visible(one.current_rollout_id)}</a>}</td>
                <td class="n">{stat(one, "attempts")}</td>
                <td class="n">{stat(one, "failed")}</td>
                <td class="n">{stat(one, "memory_mib", " MiB")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

/** By name, in which runner-2 stands before runner-10. */
function inOrder(workers: Worker[]): Worker[] {
  return [...workers].sort((one, other) => one.worker_id.localeCompare(other.worker_id, "en", { numeric: true }));
}

function stat(worker: Worker, name: string, unit = ""): string {
  const value = worker.heartbeat_stats?.[name];
  return typeof value === "number" ? number(value) + unit : "–";
}

interface Resources {
  resources_id: string;
  version: number;
  create_time: number;
  update_time: number;
  resources: Record<string, unknown>;
}

export function ResourcesView({ run }: { run: Run }) {
  const { data, error } = useAnswer<{ items: Resources[] }>(`runs/${encodeURIComponent(run.name)}/resources`, run.name);
  return (
    <section>
      <h1>Resources of {run.name}</h1>
      {error && <p role="alert">{error.message}</p>}
      {data?.items.length === 0 && <p class="muted">There are no resources yet.</p>}
      {data?.items.map((one) => (
        <details key={one.resources_id}>
          <summary><code>{visible(one.resources_id)}</code> version {one.version}, {clock(one.update_time)}: {visible(Object.keys(one.resources).join(", "))}</summary>
          <pre dir="auto">{visible(JSON.stringify(one.resources, null, 2))}</pre>
        </details>
      ))}
    </section>
  );
}
