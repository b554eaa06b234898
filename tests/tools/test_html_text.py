"""HTML to text in bounded work: pages that take quadratic time in common parsers."""

import pytest

from metis.tools.html_text import html_to_text

HOSTILE = {
    "open tags": "<a",
    "tags with space": "<a ",
    "unclosed quotes": '<a b="',
    "both quotes": "<a b='<a c=\"",
    "comments": "<!--",
    "odd comments": "<!--->",
    "declarations": "<!",
    "declarations of sections": "<![CDATA[",
    "instructions": "<?",
    "end tags": "</",
    "named end tags": "</a ",
    "hidden elements": "<svg>",
    "hidden and shown": "<svg><p></template>",
    "templates": "<template></svg>",
    "raw elements": "<script>",
    "raw ends": "<script></scrip",
    "textareas": "<textarea>",
    "titles": "<title>",
    "references": "&",
    "numbers": "&#",
    "digits": "9",
    "long names": "&amp",
    "equal signs": "<a = ",
    "links": "<a href=x href=",
    "spaces in links": "<a href",
    "signs": "<",
    "bodies": "<head><body>",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_page_takes_linear_work(kind: str) -> None:
    unit = HOSTILE[kind]
    page = ("&#" if kind == "digits" else "") + unit * (400_000 // len(unit))
    assert len(html_to_text(page)) <= len(page)


def test_text_of_a_page() -> None:
    page = """<!doctype html><html><head><title>No</title><style>p { x: "</p>" }</style>
    <body class="a>b"><!-- a <p> comment --><h1>One &amp; two</h1><p title=it's>Three < four
    <a class=x href="https://a.example/?b=1&amp;c=2">link</a> <a href='/local'>local</a>
    <script>if (a < b) { "</p>" }</script><svg><text>no</text></svg>&#65;&#99999999999;
    <noscript><p>no</p></noscript><br>end</html>"""
    assert html_to_text(page).splitlines() == [
        "One & two",
        "Three < four",
        "[https://a.example/?b=1&c=2] link local",
        "A\ufffd",
        "end",
    ]


def test_character_reference_with_many_digits_is_not_an_error() -> None:
    page = "a &#" + "9" * 10_000 + "; &#x" + "f" * 10_000 + "; b"
    assert html_to_text(page) == "a \ufffd \ufffd b"
