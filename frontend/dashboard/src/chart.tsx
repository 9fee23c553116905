// One chart: the curves of a metric in several runs, each smoothed over its raw values, with its spread as a band.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { number } from "./text";

export interface Line {
  run: string;
  color: string;
  label: string;
  steps: number[];
  values: (number | null)[];
  low?: (number | null)[];
  high?: (number | null)[];
  points?: boolean;
}

/** The exponential moving average whose weights sum to one (as Adam corrects its bias). */
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

function plain(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function color(index: number): string {
  return plain(`--series-${(index % 6) + 1}`);
}

export function Chart({ title, lines, smooth, marks, theme }: { title: string; lines: Line[]; smooth: number; marks: { step: number; color: string }[]; theme: string }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const tables: uPlot.AlignedData[] = [];
    const series: uPlot.Series[] = [{ label: "step" }];
    const bands: uPlot.Band[] = [];
    const width = () => Math.max(240, element.clientWidth);
    for (const line of lines) {
      const columns: (number | null)[][] = [];
      const stroke = line.color;
      const shown = line.points ? line.values : smoothed(line.values, smooth);
      if (line.low && line.high) {
        const first = series.length + columns.length;
        columns.push(line.high, line.low);
        bands.push({ series: [first, first + 1], fill: stroke + "26" });
        for (const end of ["highest", "lowest"]) series.push({ label: `${line.label} ${end}`, stroke: "transparent", points: { show: false } });
      }
      if (smooth > 0 && !line.points) {
        columns.push(line.values);
        series.push({ label: `${line.label} raw`, stroke: stroke + "55", width: 1, points: { show: false } });
      }
      columns.push(shown);
      series.push({
        label: line.label,
        stroke,
        width: 2,
        spanGaps: true,
        points: { show: line.points || line.steps.length < 3, size: 7, fill: stroke },
        value: (_, value) => number(value),
      });
      tables.push([line.steps, ...columns] as uPlot.AlignedData);
    }
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const axis: uPlot.Axis = { stroke: plain("--muted"), grid: { stroke: plain("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot(
      {
        width: width(),
        height: 190,
        series,
        bands,
        legend: { show: false },
        scales: { x: { time: false } },
        axes: [
          { ...axis, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
          { ...axis, size: 54, values: (_, ticks) => ticks.map((tick) => number(tick)) },
        ],
        cursor: { y: false, sync: { key: "steps" } },
        hooks: {
          draw: [
            (chart) => {
              for (const mark of marks) {
                const x = Math.round(chart.valToPos(mark.step, "x", true));
                if (x < chart.bbox.left || x > chart.bbox.left + chart.bbox.width) continue;
                chart.ctx.save();
                chart.ctx.strokeStyle = mark.color;
                chart.ctx.setLineDash([4, 4]);
                chart.ctx.beginPath();
                chart.ctx.moveTo(x, chart.bbox.top);
                chart.ctx.lineTo(x, chart.bbox.top + chart.bbox.height);
                chart.ctx.stroke();
                chart.ctx.restore();
              }
            },
          ],
          setCursor: [
            (chart) => {
              const index = chart.cursor.idx;
              const told = element.nextElementSibling;
              if (!told) return;
              if (index === null || index === undefined) {
                told.textContent = "";
                return;
              }
              const parts = chart.series.flatMap((one, i) => {
                const value = chart.data[i]?.[index];
                return i === 0 || value === null || value === undefined || one.stroke === undefined || String(one.label).match(/ (highest|lowest|raw)$/)
                  ? []
                  : [`${one.label} ${number(value)}`];
              });
              told.textContent = `step ${number(chart.data[0][index])}: ${parts.join(" · ")}`;
            },
          ],
        },
      },
      data,
      element,
    );
    const observer = new ResizeObserver(() => plot.setSize({ width: width(), height: 190 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [lines, smooth, marks, theme]);
  const last = lines.map((line) => {
    const values = line.values.filter((value) => value !== null);
    return `${line.label}: ${number(values.at(-1))} after ${line.steps.length} values`;
  });
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div class="plot" ref={place} role="img" aria-label={`${title}. ${last.join(". ")}`} />
      <p class="told" aria-hidden="true" />
    </figure>
  );
}
