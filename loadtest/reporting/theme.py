"""How Marina's reports look: one style sheet, light and dark, for a desk and a phone. No network, no script."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5a6878; --rule: #e1e6ec; --shade: #eef1f5;
  --pass: #0f7b4f; --fail: #b3261e; --invalid: #8a5a00; --on-status: #ffffff;
  --one: #1d66d6; --two: #c2500c; --three: #0f7b6c; --limit: #b3261e;
  --e1: #b3261e; --e2: #d98200; --e3: #7a4fb5; --e4: #1d66d6; --e5: #5a6878;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151c; --card: #19212b; --ink: #e8edf3; --soft: #9fadbd; --rule: #2b3643; --shade: #212b37;
    --pass: #3ecf8e; --fail: #ff7b72; --invalid: #f0b429; --on-status: #10151c;
    --one: #6aa5ff; --two: #ff9d5c; --three: #4fd1be; --limit: #ff7b72;
    --e1: #ff7b72; --e2: #f0b429; --e3: #b794f6; --e4: #6aa5ff; --e5: #9fadbd;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 48px; }
header { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin-bottom: 8px; }
h1 { font-size: 24px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
.badge { padding: 4px 14px; border-radius: 999px; font-weight: 700; letter-spacing: .04em; color: var(--on-status); }
.badge.PASS { background: var(--pass); } .badge.FAIL { background: var(--fail); }
.badge.INVALID { background: var(--invalid); }
.lead { margin: 0 0 20px; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 16px; }
.card, .charts { margin-bottom: 16px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 16px; }
.charts .card { margin: 0; }
table { width: 100%; border-collapse: collapse; }
th, td { text-align: left; padding: 8px 12px 8px 0; border-top: 1px solid var(--rule); vertical-align: top; }
thead th { border-top: 0; padding-top: 0; color: var(--soft); font-size: 13px; font-weight: 500; }
td.number, th.number { text-align: right; white-space: nowrap; }
tr > :last-child { padding-right: 0; }
.status { font-weight: 700; }
.status.PASS { color: var(--pass); } .status.FAIL { color: var(--fail); } .status.INVALID { color: var(--invalid); }
ul.reasons { margin: 12px 0 0; padding: 12px 0 0; border-top: 1px solid var(--rule); list-style: none; }
ul.reasons li { margin: 8px 0; overflow-wrap: anywhere; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
ul.reasons code { padding: 1px 6px; border-radius: 6px; background: var(--shade); margin-right: 8px; }
.note { color: var(--soft); font-size: 13px; margin: 0 0 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--soft); margin: 0 0 8px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 14px; height: 3px; border-radius: 2px; background: currentColor; }
.legend i.block { height: 10px; width: 10px; }
.legend i.dash { background: none; border-top: 2px dashed currentColor; height: 0; border-radius: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--soft); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .shade { fill: var(--shade); }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .dot.pass { fill: var(--card); stroke-width: 1.8; } svg .dot.fail { stroke: none; fill: currentColor; }
svg .mark { stroke: var(--soft); stroke-width: 1.4; stroke-dasharray: 2 3; }
svg .limit { stroke: var(--limit); stroke-width: 1.4; stroke-dasharray: 5 4; }
.one { stroke: var(--one); } .two { stroke: var(--two); } .three { stroke: var(--three); }
.bar { stroke: none; }
.ink-one { color: var(--one); } .ink-two { color: var(--two); } .ink-three { color: var(--three); }
.ink-limit { color: var(--limit); } .ink-soft { color: var(--soft); } .ink-shade { color: var(--rule); }
.e1 { fill: var(--e1); color: var(--e1); } .e2 { fill: var(--e2); color: var(--e2); }
.e3 { fill: var(--e3); color: var(--e3); } .e4 { fill: var(--e4); color: var(--e4); }
.e5 { fill: var(--e5); color: var(--e5); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 20px; margin: 8px 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 13px; }
@media (max-width: 560px) {
  main { padding: 16px 12px 32px; }
  h1 { font-size: 20px; }
  .wide { overflow-x: auto; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 10px; }
  th, td { padding-right: 10px; }
  .wide table { font-size: 13px; }
}
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""


def page(title: str, body: str) -> str:
    """A whole document; `title` and `body` are HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n"
        # An empty icon, or a browser asks the server of the page for one.
        '<link rel="icon" href="data:,">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
