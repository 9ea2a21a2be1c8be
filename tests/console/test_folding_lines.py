"""A line that is too long goes on below, and nothing of it is lost."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.shown import Cell, Line, Place, Tone
from console.views.fitting import folded

cells = st.lists(st.builds(Cell, st.text(alphabet="ab 界é", max_size=30), st.sampled_from(list(Tone))), max_size=6)


@given(cells, st.integers(6, 40))
def test_every_line_fits_and_together_they_say_the_same(said, width):
    lines = folded(Line(tuple(said), Place("nodes")), width)
    assert all(cell_len(str(line)) <= width for line in lines)
    assert "".join("".join(str(line).split()) for line in lines) == "".join("".join(c.text.split()) for c in said)
    assert all(line.leads_to == Place("nodes") for line in lines)


def test_what_fits_stays_as_it_is():
    line = Line((Cell("a  b"),))
    assert folded(line, 4) == (line,)


def test_a_long_line_is_broken_between_words_and_hangs():
    line = Line((Cell("why     ", Tone.DIM), Cell("short of memory", Tone.WARN)))
    assert [str(one) for one in folded(line, 14)] == ["why     short", "  of memory"]
