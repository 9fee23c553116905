// The token tree of a group as a picture: what its rollouts share is drawn once, and forks where they part.
import { useMemo, useState } from "preact/hooks";
import { address } from "./route";
import { Scroll } from "./scroll";
import { number, visible } from "./text";
import type { Group, Run, TreeNode } from "./types";

const ROW = 26;
const WIDE = 900;
const NARROW = 250;

interface Placed {
  node: TreeNode;
  from: number;
  to: number;
  y: number;
  parentY: number | null;
}

function placed(nodes: TreeNode[], width: number): Placed[] {
  const children = new Map<number, TreeNode[]>();
  for (const node of nodes) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  const ends = new Map<number, number>([[0, 0]]);
  let longest = 1;
  for (const node of nodes) {
    // Lengths are drawn by their root: a prompt of thousands of tokens leaves room for answers of ten.
    const end = (ends.get(node.parent) ?? 0) + Math.sqrt(node.tokens) + 0.6;
    ends.set(node.id, end);
    longest = Math.max(longest, end);
  }
  const heights = new Map<number, number>();
  let rows = 0;
  for (const node of [...nodes].reverse()) heights.set(node.id, 0);
  const leaves = nodes.filter((node) => !children.has(node.id));
  for (const leaf of leaves) heights.set(leaf.id, rows++);
  for (const node of [...nodes].reverse()) {
    const below = children.get(node.id);
    if (below) heights.set(node.id, below.reduce((sum, child) => sum + heights.get(child.id)!, 0) / below.length);
  }
  return nodes.map((node) => ({
    node,
    from: ((ends.get(node.parent) ?? 0) / longest) * width,
    to: (ends.get(node.id)! / longest) * width,
    y: heights.get(node.id)! * ROW + ROW,
    parentY: node.parent === 0 ? null : heights.get(node.parent)! * ROW + ROW,
  }));
}

export function TreePicture({ run, tree }: { run: Run; tree: Group["tree"] }) {
  const [chosen, setChosen] = useState<TreeNode | null>(null);
  const width = innerWidth < 760 ? NARROW : WIDE;
  const places = useMemo(() => placed(tree.nodes, width), [tree, width]);
  if (!places.length) return <p class="muted">No tokens were recorded.</p>;
  const height = Math.max(...places.map((place) => place.y)) + ROW;
  const rewards = tree.nodes.map((node) => node.reward).filter((reward) => reward !== null);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const shade = (reward: number | null) => (reward === null || high === low ? "even" : "r" + Math.round(((reward - low) / (high - low)) * 4));
  return (
    <>
      <p class="muted">
        {number(tree.tokens)} tokens in the tree, {number(tree.unrolled)} if each call stood by itself{tree.tokens > 0 && ` (${(tree.unrolled / tree.tokens).toFixed(1)} times as many)`}. A line is as thick as rollouts go through it; dashed ones were not sampled. Colour: mean reward of the rollouts, <span class="r0 swatch">{number(low)}</span> to <span class="r4 swatch">{number(high)}</span>.
        {tree.left_out > 0 && ` ${tree.left_out} branches are not drawn.`}
      </p>
      <Scroll label="Token tree">
        <svg class="tree" viewBox={`0 0 ${width + 90} ${height}`} width={width + 90} height={height} role="group" aria-label="Token tree">
          {places.map(({ node, from, to, y, parentY }) => (
            <g key={node.id} class={`node ${shade(node.reward)}${node.sampled ? "" : " given"}${chosen === node ? " chosen" : ""}`} tabIndex={0} role="button" aria-label={`${node.tokens} tokens, ${node.rollouts.length} rollouts, mean reward ${number(node.reward)}`} onMouseOver={() => setChosen(node)} onFocus={() => setChosen(node)} onClick={() => setChosen(node)}>
              {parentY !== null && <path d={`M${from} ${parentY} V${y}`} stroke-width={1.5} />}
              <path d={`M${from} ${y} H${Math.max(from + 3, to - 2)}`} stroke-width={2 + Math.min(8, node.rollouts.length)} />
              {!places.some((other) => other.node.parent === node.id) && <text x={to + 4} y={y + 4}>{number(node.reward)}</text>}
            </g>
          ))}
        </svg>
      </Scroll>
      <div class="told" role="status">
        {chosen === null ? (
          <p class="muted">Point at a branch, or move with the tab key.</p>
        ) : (
          <>
            <p>{number(chosen.tokens)} tokens, {number(chosen.sampled)} sampled · mean reward {number(chosen.reward)} · {chosen.rollouts.length} rollouts: {chosen.rollouts.slice(0, 8).map((id) => <a key={id} class="pad" href={address(["run", run.name, "rollout", id])}>{id.slice(-6)}</a>)}</p>
            <p class="text" dir="auto">{chosen.text === null ? chosen.ids.join(" ") : visible(chosen.text)}{chosen.tokens > 48 && " …"}</p>
          </>
        )}
      </div>
    </>
  );
}
