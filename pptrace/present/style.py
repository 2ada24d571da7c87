"""The report's style sheet: colours for light and dark screens, and for paper."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = """
--ground:#fff;--ink:#15202b;--soft:#5b6673;--rule:#d5dbe2;--panel:#f4f6f8;
--one:#3d74b8;--two:#c9772b;--longer:#c4473d;--shorter:#2f8f5b;
--f:#9cc3f0;--b:#8fd19e;--i:#7cc4b4;--w:#d3e58f;--x:#c9cdd4;--on:#102030;
"""
_DARK = """
--ground:#14181d;--ink:#e3e8ee;--soft:#9aa6b3;--rule:#343d47;--panel:#1c2229;
--one:#6ea4e4;--two:#e39a55;--longer:#e8776d;--shorter:#58b983;
--f:#6d9fd6;--b:#63ad75;--i:#55a393;--w:#aebf68;--x:#8a929c;--on:#0b1117;
"""
_PARTS = (
    "#6f9fd8",
    "#8b7fc7",
    "#b48ac0",
    "#b9c0c8",
    "#98a1ab",
    "#e3a34f",
    "#d97a4e",
    "#cf5f6a",
    "#5fae9b",
    "#a8b25c",
)

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{color-scheme:light;{_LIGHT}}}body{{max-width:none}}section{{break-inside:avoid}}}}"
    """
*{box-sizing:border-box;print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{margin:0 auto;padding:24px 20px 60px;max-width:1060px;background:var(--ground);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
h1{font-size:22px;margin:0 0 12px}h2{font-size:16px;margin:34px 0 4px}
p{margin:4px 0 8px}.soft{color:var(--soft)}
.sides{display:grid;grid-template-columns:max-content 1fr max-content max-content;
gap:2px 18px;align-items:baseline}
.sides b,.figure{font-variant-numeric:tabular-nums}.name{overflow-wrap:anywhere}
.verdict{display:inline-block;margin-top:12px;padding:5px 12px;border-radius:6px;font-weight:600}
.verdict.same{background:color-mix(in srgb,var(--shorter) 22%,transparent)}
.verdict.different{background:color-mix(in srgb,var(--longer) 22%,transparent)}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:6px 0}
th,td{padding:3px 12px 3px 0;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:500;text-align:left}.figure{text-align:right;padding:3px 0 3px 18px}
td.word{overflow-wrap:anywhere}.heat td,.heat th{padding:4px 9px;text-align:center;border:1px solid var(--ground)}
svg{display:block;width:100%;height:auto;margin:6px 0}
svg text{font:12px system-ui,Helvetica,Arial,sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}svg .small{font-size:10px}svg .on{fill:var(--on)}svg .strong{font-weight:600}
.rule{stroke:var(--rule);stroke-width:1}.dash{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.one{fill:var(--one);background:var(--one)}.two{fill:var(--two);background:var(--two)}
.longer{fill:var(--longer);background:var(--longer)}.shorter{fill:var(--shorter);background:var(--shorter)}
.path{stroke:var(--ink);stroke-width:1.1}.row{fill:var(--panel)}.mark{fill:none;stroke:var(--longer);stroke-width:2.5}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--soft)}
.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.chain{list-style:none;padding:0;margin:6px 0;display:flex;flex-wrap:wrap;gap:6px;align-items:center}
.chain li{padding:2px 10px;border:1px solid var(--rule);border-radius:12px;background:var(--panel)}
.chain li:last-child{border-color:var(--longer)}.chain li+li::before{content:"";margin-left:-4px}
ul.plain{margin:4px 0;padding-left:18px}footer{margin-top:40px;color:var(--soft);font-size:12px}
"""
    + "".join(f".{kind}{{fill:var(--{kind});background:var(--{kind})}}" for kind in "fbiwx")
    + "".join(f".p{at}{{fill:{colour};background:{colour}}}" for at, colour in enumerate(_PARTS))
)
"""Two colours for the sides, one for what lengthens and one for what shortens, one per kind and part."""
