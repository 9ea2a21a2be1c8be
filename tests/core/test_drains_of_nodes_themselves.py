"""Which of a node's own wishes to be drained count, and when one is over."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.drain import Drain, DrainEnd, asks_anew, is_over_by_boot

boots = st.sampled_from(["one", "another"])
ends = st.sampled_from([None, *DrainEnd])
of_operators = st.builds(lambda end: Drain(60.0, 60.0, ended=end), ends)
of_nodes = st.builds(lambda end, boot: Drain(60.0, 60.0, ended=end, until_boot=boot), ends, boots)


@given(of_operators, boots)
def test_an_operators_drain_is_neither_replaced_nor_lifted(drain, boot):
    assert not asks_anew(drain, boot)
    assert not is_over_by_boot(drain, boot)


@given(of_nodes, boots)
def test_a_nodes_own_lasts_as_long_as_its_boot(drain, boot):
    assert is_over_by_boot(drain, boot) is (boot != drain.until_boot)
    assert not is_over_by_boot(drain, "")
    if boot != drain.until_boot:
        assert asks_anew(drain, boot)


@given(of_nodes)
def test_in_one_boot_it_counts_once_unless_it_got_nowhere(drain):
    assert asks_anew(drain, drain.until_boot) is (drain.ended is DrainEnd.BLOCKED)


@given(boots)
def test_one_that_was_not_asked_for_is_asked_for(boot):
    assert asks_anew(None, boot)
    assert not is_over_by_boot(None, boot)
