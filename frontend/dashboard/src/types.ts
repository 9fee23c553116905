// The JSON of the server; `dashboard/rollouts.py`, `sources.py` and `views.py` make it.
export interface Run {
  name: string;
  state: "finished" | "unfinished" | "empty" | "store";
  last?: { time?: number; phase?: string; step?: number };
  config?: Record<string, unknown>;
  summary?: Record<string, any>;
  resumes?: { time: number; step: number }[];
  intervals?: { name: string; step: number; accuracy: number; low: number; high: number; count: number }[];
  totals: { status: Record<string, number>; rollouts: number; spans: number };
}

export interface Curves {
  rows: number;
  series: Record<string, [number[], (number | null)[]]>;
}

export interface RolloutRow {
  id: string;
  status: string;
  mode: string | null;
  start: number;
  end: number | null;
  task: string;
  attempts: number;
  worker: string | null;
  reward: number | null;
  group: string | null;
  step: number | null;
  evaluation: string | null;
  why: string | null;
}

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface Text {
  text: string;
  more: number;
}

export interface Message {
  role: string;
  content: Text;
  calls: { name: Text; arguments: Text; id: string | null }[];
  answers: string | null;
}

export interface Conversation {
  attempt: string;
  messages: Message[];
  calls: number;
  tools: string[];
}

export interface SpanRow {
  id: string;
  parent: string | null;
  attempt: string;
  number: number;
  name: string;
  start: number | null;
  end: number | null;
  status: string;
  description: string | null;
  attributes: [string, string][];
  left_out: number;
  events: string[];
}

export interface Attempt {
  id: string;
  number: number;
  status: string;
  start: number;
  end: number | null;
  worker: string | null;
  error: string | null;
  spans: number;
}

export interface Rollout {
  id: string;
  status: string;
  mode: string | null;
  start: number;
  end: number | null;
  resources: string | null;
  group: string | null;
  task: Text;
  metadata: Text;
  reward: number | null;
  rewards: { attempt: string; span: string; scope: string; parts: { name: string; value: number }[] }[];
  why: string | null;
  attempts: Attempt[];
  conversations: Conversation[];
  spans: SpanRow[];
}

export interface TokenRow {
  attempt: string;
  tokens: number[];
  texts: string[] | null;
  left_out: number;
  sampled: number[];
  logprob: number[];
  version: number[];
  trained: boolean[];
  forced: boolean[];
  call: number[];
  temperature: number[];
  learner: (number | null)[];
  entropy: (number | null)[];
}

export interface Tokens {
  rows: TokenRow[];
  left_out: Record<string, number>;
  tokenizer: string | null;
}

export interface GroupRow {
  group: string;
  step: number | null;
  count: number;
  rewards: (number | null)[];
  task: string;
}

export interface TreeNode {
  id: number;
  parent: number;
  tokens: number;
  sampled: number;
  text: string | null;
  ids: number[];
  rollouts: string[];
  reward: number | null;
}

export interface Group {
  rollouts: (RolloutRow & {
    advantage: number | null;
    normalized: number | null;
    parts: { name: string; value: number }[];
    answer: string;
  })[];
  mean: number | null;
  deviation: number | null;
  why: string | null;
  tree: { nodes: TreeNode[]; tokens: number; unrolled: number; left_out: number };
}

export interface Finding {
  rule: string;
  level: "fault" | "watch";
  title: string;
  seen: string;
  advice: string;
  rollouts: string[];
  adapter: string;
  settings: string[];
}

export interface Diagnosis {
  steps: number;
  measurements: number;
  rollouts: number;
  findings: Finding[];
  healthy: string[];
}
