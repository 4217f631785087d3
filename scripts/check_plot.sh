#!/usr/bin/env bash
# Opens the page of `trireme plot` in a browser: every chart is drawn, each switch works, nothing is wider than a phone.
#   scripts/check_plot.sh TRIREME OUT [RUN...]      without runs, it trains two small ones
# OUT gets the page and pictures to look at: light.png, dark.png, phone.png, print.pdf. Exit codes: 0 good; 1 not;
# 77: there is no Chromium (Debian: apt-get install chromium).
set -euo pipefail
step=plot
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
for browser in chromium chromium-browser google-chrome none; do
  if command -v "$browser" >/dev/null; then break; fi
done
[ "$browser" != none ] || { say "SKIPPED: no Chromium here (apt-get install chromium)"; exit 77; }
trireme=$(readlink -f "$1")
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
offers='[a-z ]*'
if [ $# = 0 ]; then
  offers='step samples tokens seconds smoothing'
  mkdir -p "$out/text"
  cat "$root"/docs/*.md >"$out/text/docs.txt"
  for seed in 1 2; do
    logged "$out/train.log" "$trireme" train "$root/configs/shakespeare_gpt2.toml" --fresh --set train.max_steps=60 \
      --set data.path="$out/text" --set model.num_layers=1 --set run.seed="$seed" --set run.dir="$out/runs/seed$seed" \
      --set train.eval_every=20 --set run.checkpoint_every=20
  done
  set -- "$out/runs"
fi
"$trireme" plot "$@" --out "$out/plot.html"

# The page with a script before its own, which notes errors, and one after it, which uses every switch and then counts
# the pictures with colours in them: grey are the axes alone.
python3 - "$out" <<'PYTHON'
import pathlib, sys
out = pathlib.Path(sys.argv[1])
page = (out / "plot.html").read_text(encoding="utf-8")
before = """<script>
var errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push("blocked: " + event.blockedURI));
</script>"""
after = """<script>
function drawn() {
  return [...document.querySelectorAll("canvas")].filter((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
      const rgb = [data[i], data[i + 1], data[i + 2]];
      if (data[i + 3] > 100 && Math.max(...rgb) - Math.min(...rgb) > 60) return true;
    }
    return false;
  }).length;
}
const counts = [drawn()];
const smoothing = document.getElementById("smoothing");
// The moving average as TensorBoard writes it down.
function average(values, weight) {
  let last = 0;
  return values.map((value, i) => {
    last = weight * last + (1 - weight) * value;
    return last / (1 - weight ** (i + 1));
  });
}
function checkLines(weight) {
  const close = (a, b) => a.length === b.length && a.every((y, i) => Math.abs(y - b[i]) <= 1e-9 * Math.abs(b[i]));
  for (const { chart } of charts.filter(({ chart }) => chart.config.type === "line")) {
    const lines = chart.data.datasets.map((dataset) => dataset.data.map(({ y }) => y));
    for (const { series, values } of chart.data.datasets.filter((dataset) => dataset.series)) {
      const raw = lines.some((line) => close(line, series.value)), { value, least, most } = series.means || series;
      if (!raw) errors.push(`a curve without smoothing is missing at ${weight}`);
      for (const [got, of] of [[values.value, value], [values.least, least], [values.most, most]]) {
        if (of && values !== series && !close(got, average(of, weight))) errors.push(`smoothed otherwise at ${weight}`);
      }
    }
  }
}
const smooth = [...smoothing.options].map(({ value }) => value);
for (const weight of [...smooth, smooth[0]]) {
  smoothing.value = weight;
  smoothing.dispatchEvent(new Event("change"));
  counts.push(drawn());
  const behind = charts.some(({ chart }) => chart.data.datasets.some((dataset) => dataset.order === 1));
  if (behind !== (weight > 0 && !smoothing.disabled)) errors.push(`what is drawn behind is wrong at ${weight}`);
  checkLines(Number(weight));
}
for (const button of document.querySelectorAll("[data-axis], #switches input")) {
  button.click();
  counts.push(drawn());
}
const first = document.querySelector("#legend button");
first.click();
if (first.getAttribute("aria-pressed") !== "false") errors.push("a click in the legend does not hide the run");
first.click();
counts.push(drawn());
document.body.dataset.drawn = Math.min(...counts);
const axes = [...document.querySelectorAll("[data-axis]")].map((button) => button.dataset.axis);
document.body.dataset.offers = [...axes, ...(smoothing.disabled ? [] : ["smoothing"])].join(" ");
document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
document.body.dataset.errors = errors.join("; ");
</script>"""
(out / "check.html").write_text(page.replace("<style>", before + "<style>", 1).replace("</body>", after + "</body>"), encoding="utf-8")
PYTHON

failed=0
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
chrome() {
  timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" \
    --virtual-time-budget=5000 "$@" 2>>"$out/browser.log"
}
for size in 1300,2000 390,2000; do
  body=$(chrome --window-size=$size --dump-dom "file://$out/check.html" | grep -o '<body[^>]*>' | tail -n 1)
  good="data-ready=\"([1-9][0-9]*)\" data-drawn=\"([0-9]+)\" data-offers=\"$offers\" "
  good+='data-overflow="(0|-[0-9]+)" data-errors=""'
  if [[ $body =~ $good ]] && [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ]; then
    say "${size%,*} pixels wide: ${BASH_REMATCH[1]} charts are drawn on every axis"
  else
    say "${size%,*} pixels wide: not as it should be: $body"
    failed=1
  fi
done
chrome --window-size=1300,2500 --screenshot="$out/light.png" "file://$out/plot.html"
chrome --window-size=1300,2500 --blink-settings=preferredColorScheme=0 --screenshot="$out/dark.png" "file://$out/plot.html"
chrome --window-size=390,3500 --screenshot="$out/phone.png" "file://$out/plot.html"
chrome --no-pdf-header-footer --print-to-pdf="$out/print.pdf" "file://$out/plot.html"
for picture in light.png dark.png phone.png print.pdf; do
  [ -s "$out/$picture" ] || { say "no $picture; see $out/browser.log"; failed=1; }
done
say "pictures to look at: $out"
exit $failed
