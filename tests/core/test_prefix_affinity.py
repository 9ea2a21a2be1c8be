"""Which endpoint has seen the beginning of a prompt, and that remembering has a bound."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.prefix import PrefixIndex


def test_an_endpoint_has_seen_as_much_as_the_longest_beginning_it_served():
    index = PrefixIndex(100)
    index.served("a", [1, 2, 3, 4])
    index.served("b", [1, 2, 30])

    assert index.matches([1, 2, 3, 4]) == {"a": 1.0, "b": 0.5}
    assert index.matches([1, 2, 30, 40]) == {"a": 0.5, "b": 0.75}
    assert index.matches([9]) == {}
    assert index.matches([]) == {}


def test_what_was_not_asked_for_longest_is_forgotten_first():
    index = PrefixIndex(4)
    index.served("a", [1, 2])
    index.served("a", [10, 20])
    index.served("a", [1, 2])
    index.served("a", [5, 6])

    assert index.matches([1, 2]) == {"a": 1.0}
    assert index.matches([10, 20]) == {}


def test_a_chain_is_forgotten_from_its_end():
    index = PrefixIndex(4)
    index.served("a", [1, 2, 3])
    index.served("a", [7, 8])

    assert index.matches([1, 2, 3]) == {"a": 2 / 3}


def test_one_endpoint_is_forgotten_without_the_others():
    index = PrefixIndex(10)
    index.served("a", [1])
    index.served("b", [1])

    index.forget("a")
    index.forget("nobody")

    assert index.matches([1]) == {"b": 1.0}
    assert (index.size("a"), index.size("b")) == (0, 1)


# A chain's number stands for all before it, as the gateway's hashes do: a path in a tree of three branches.
chains = st.lists(st.integers(1, 3), min_size=1, max_size=8).map(
    lambda path: [int("".join(map(str, path[: n + 1]))) for n in range(len(path))]
)
stories = st.lists(st.tuples(st.sampled_from("abc"), chains), max_size=60)


@given(st.integers(1, 20), stories)
def test_no_endpoint_is_remembered_with_more_blocks_than_it_may(most: int, story: list[tuple[str, list[int]]]):
    index = PrefixIndex(most)
    for endpoint, chain in story:
        index.served(endpoint, chain)
        assert index.size(endpoint) <= most


@given(st.integers(1, 20), stories, chains)
def test_a_match_is_the_share_of_leading_blocks_and_never_skips_one(
    most: int, story: list[tuple[str, list[int]]], asked: list[int]
):
    index = PrefixIndex(most)
    for endpoint, chain in story:
        index.served(endpoint, chain)

    found = index.matches(asked)

    for endpoint in "abc":
        # Block by block, where the index itself bisects.
        seen = [bool(index.matches([block]).get(endpoint)) for block in asked]
        leading = seen.index(False) if False in seen else len(seen)
        assert not any(seen[leading:])
        assert found.get(endpoint, 0.0) == leading / len(asked)


@given(st.integers(8, 20), stories, st.sampled_from("abc"), chains)
def test_what_was_served_last_is_known_whole(
    most: int, story: list[tuple[str, list[int]]], endpoint: str, last: list[int]
):
    index = PrefixIndex(most)
    for each, chain in story:
        index.served(each, chain)
    index.served(endpoint, last)

    assert index.matches(last)[endpoint] == 1.0
