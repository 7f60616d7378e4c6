"""Texts as hostile logs hold them, for the outputs that others render."""

HOSTILE = (
    "plain",
    "![x](http://evil.example/p.png)",
    "[click](http://evil.example) https://evil.example www.evil.example",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "@octocat @org/team fixes #123 GH-45 owner/repo#6 mail a.b@evil.example mailto:a@evil.example",
    "``` ` `` ````",
    "`",
    "a|b \\| \\\\| |",
    "```\n# heading\n- item\n\n> quote\n```",
    "**bold** __bold__ _em_ ~~gone~~ $x$ &lt; &#64;me",
    "1. one",
    "# one",
    "- one",
    "--- ",
    "    indented",
    "\x1b[31mred\x00\x07\u202eevil\u2028\ud800\ufffe\uffff\x85",
    "]]> --> <!-- & \" '",
    "x" * 9000,
    "{0} {run} }{",
)
