"""The style sheet of the report: light and dark by the reader's preference, readable on a telephone and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --ink: #22262b; --muted: #68707a; --grid: #e4e2dd; --accent: #2f6fb2;
  --system: #f0efeb; --user: #e4eefa; --assistant: #eef5e9; --tool: #faf1de;
  --series-1: #2f6fb2; --series-2: #c2571a; --series-3: #3b8a4e; --series-4: #8a4fa3; --series-5: #a8841b;
  --series-6: #5d6670;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181b; --card: #1e2125; --ink: #e3e5e8; --muted: #98a0aa; --grid: #33373d; --accent: #6ea8e6;
    --system: #26292e; --user: #1f3047; --assistant: #21331f; --tool: #3a301a;
    --series-1: #6ea8e6; --series-2: #ee9157; --series-3: #74c089; --series-4: #c394dc; --series-5: #d9b859;
    --series-6: #a5adb7;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; margin: 8px 0 20px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
  padding: 18px; margin: 0 0 18px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-top: 1px solid var(--grid); vertical-align: middle;
  overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
th { font-weight: 500; color: var(--muted); white-space: nowrap; }
.pairs th { width: 1%; padding-right: 40px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { width: 40%; min-width: 160px; }
.ends { display: flex; justify-content: space-between; font-size: 12px; }
.muted { color: var(--muted); margin: 4px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 18px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 500; margin-bottom: 4px; }
figure ul { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 2px 0 0; padding: 0 0 0 12px;
  font-size: 13px; }
figure li::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; background: var(--line); }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--muted); }
svg polyline { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
svg .raw { stroke-width: 1; opacity: 0.45; }
svg circle { fill: var(--line); }
svg .grid { stroke: var(--grid); }
svg.bar { height: 12px; }
.bar .track { fill: var(--grid); opacity: 0.6; }
.bar .value { fill: var(--accent); opacity: 0.55; }
.bar .interval { stroke: var(--ink); stroke-width: 2; vector-effect: non-scaling-stroke; }
details { border-top: 1px solid var(--grid); padding: 10px 0; }
details:first-of-type { border-top: 0; padding-top: 0; }
summary { cursor: pointer; font-weight: 500; }
.badge { font-weight: 400; font-size: 13px; border: 1px solid var(--grid); border-radius: 9px; padding: 1px 8px; }
.message { border-radius: 8px; padding: 8px 12px; margin: 8px 0; max-width: 85%; background: var(--system); }
.message p { margin: 2px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.message.user { background: var(--user); }
.message.assistant { background: var(--assistant); margin-left: auto; }
.message.tool { background: var(--tool); }
.role { font-size: 12px; color: var(--muted); }
.call { font-family: ui-monospace, monospace; font-size: 13px; }
@media print { section { break-inside: avoid; } }
"""
