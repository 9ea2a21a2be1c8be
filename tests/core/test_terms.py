"""Which of two terms counts, and whether anybody can have led between them."""

import pytest

from llmgw.core.term import Term


@pytest.mark.parametrize(
    ("later", "earlier", "right_after"),
    [
        (Term(1, 7, "a"), Term(1, 7, "a"), True),  # led again under the same one
        (Term(1, 8, "b"), Term(1, 7, "a"), True),
        (Term(1, 9, "b"), Term(1, 7, "a"), False),  # somebody led under 8
        (Term(1, 6, "b"), Term(1, 7, "a"), False),  # the store went back in time
        (Term(2, 8, "b"), Term(1, 7, "a"), False),  # another database, which may have had leaders of its own
    ],
)
def test_terms_follow_each_other_when_no_number_lies_between(later, earlier, right_after):
    assert later.comes_right_after(earlier) is right_after
