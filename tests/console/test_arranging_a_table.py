"""Which rows of a table are seen, in which order, and that they fit."""

from hypothesis import given
from hypothesis import strategies as st

from console.arranged import LEAST, NAME_LEAST, Sight, arranged, gaps, natural, widths
from console.shown import Cell, Column, Row


def rows(*texts: str, faulty: str = "") -> list[Row]:
    return [Row(text, (Cell(text), Cell("", order=len(text))), faulty=text == faulty) for text in texts]


def keys(found) -> list[str]:
    return [row.key for row in found]


def test_names_with_numbers_are_sorted_as_people_count():
    assert keys(arranged(rows("node-10", "node-9", "Node-1"), Sight())) == ["Node-1", "node-9", "node-10"]


def test_a_column_of_numbers_is_sorted_by_them_and_equal_rows_keep_an_order():
    assert keys(arranged(rows("bbb", "cc", "aa"), Sight(sort=1))) == ["aa", "cc", "bbb"]
    assert keys(arranged(rows("bbb", "cc", "aa"), Sight(sort=1, falling=True))) == ["bbb", "cc", "aa"]


def test_every_word_of_a_filter_must_be_there_and_one_with_a_bang_must_not():
    found = rows("node-1 ready", "node-2 ready", "node-3 lost")
    assert keys(arranged(found, Sight(wanted="READY"))) == ["node-1 ready", "node-2 ready"]
    assert keys(arranged(found, Sight(wanted="ready !node-1"))) == ["node-2 ready"]
    assert keys(arranged(found, Sight(wanted="  "))) == keys(found)


def test_faults_only_leaves_what_is_well_out():
    assert keys(arranged(rows("a", "b", faulty="b"), Sight(faults_only=True))) == ["b"]


def test_what_happened_stays_in_its_order():
    assert keys(arranged(rows("b", "a"), Sight(), in_order=True)) == ["b", "a"]


@given(st.lists(st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3)), max_size=8))
def test_any_mixture_of_orders_can_be_sorted(orders):
    found = [Row(str(number), (Cell("x", order=order),)) for number, order in enumerate(orders)]
    assert len(arranged(found, Sight())) == len(orders)


columns = st.lists(
    st.builds(
        Column, st.text(max_size=12), st.booleans(), st.sampled_from([6, 12, 24, 30]), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=7,
)


@given(columns, st.text(alphabet="ab界é ", max_size=60), st.integers(60, 200))
def test_a_table_is_as_wide_as_the_screen_and_only_spare_columns_are_left_out(said, text, total):
    table = [*said, Column("REASON", most=0)]
    found = widths(table, [Row("k", tuple(Cell(text) for _ in table))], total)
    shown = [width for width in found if width]
    assert sum(shown) + sum(gaps(table, found)) <= total or all(width <= LEAST for width in shown[:-1])
    assert all(width <= column.most for width, column in zip(found, said, strict=False))
    assert all(width or column.spare for width, column in zip(found, said, strict=False))


def test_what_tells_rows_apart_is_cut_after_all_others():
    table = [Column("REPLICA", most=30, identifies=True), Column("NODES", most=20), Column("STATE", most=10)]
    row = [Row("k", (Cell("r" * 24), Cell("n" * 20), Cell("s" * 10)))]
    assert widths(table, row, 45) == (24, 9, 10)
    assert widths(table, row, 30) == (16, LEAST, LEAST)


def test_two_numbers_side_by_side_do_not_read_as_one():
    table = [Column("A", right=True), Column("B", right=True), Column("C", right=True), Column("D", most=0)]
    assert gaps(table, (3, 3, 3, 9)) == (2, 2, 1, 0)
    assert gaps(table, (3, 0, 3, 0)) == (2, 0, 0, 0)


def test_spare_columns_go_from_the_right_and_come_back_with_room():
    table = [Column("A", most=10), Column("B", most=10, spare=True), Column("C", most=10, spare=True)]
    row = [Row("k", tuple(Cell("x" * 10) for _ in table))]
    assert widths(table, row, 32) == (10, 10, 10)
    assert widths(table, row, 31) == (10, 10, 0)
    assert widths(table, row, 15) == (10, 0, 0)


def test_numbers_within_names_may_be_of_any_script():
    assert natural("a٣") == natural("a٣")
    assert natural("²") > natural("1")


def test_a_long_name_gives_way_before_the_titles_of_numbers_do():
    columns = (Column("NAME", most=40, identifies=True), Column("SERVING", right=True), Column("STATE", most=30))
    rows = (Row("a", (Cell("n" * 60), Cell("3"), Cell("loading"))),)
    name, serving, state = widths(columns, rows, 45)
    assert (serving, state) == (8, 7)
    assert name >= NAME_LEAST
