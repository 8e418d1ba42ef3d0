from dataclasses import dataclass

import pytest

from mm2.ui.elements.listing import Listing, Query, Shared, page_of


@dataclass(frozen=True)
class Line:
    flow: str
    name: str
    lag: int | None
    state: str = "RUNNING"


ROWS = (
    Line("A->B", "orders", 5),
    Line("A->B", "payments", None, "CORRUPT"),
    Line("B->A", "orders-archive", 700),
    Line("B->A", "clicks", 0),
)
LISTING = Listing[Line](
    flow=lambda row: row.flow,
    text=lambda row: f"{row.name} {row.state}",
    kind=lambda row, kind: row.state == kind,
    keys={"lag": lambda row: row.lag},
)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (Query(), "orders payments orders-archive clicks"),
        (Query(flow="B->A"), "orders-archive clicks"),
        (Query(kind="CORRUPT"), "payments"),
        (Query(text="ORDERS"), "orders orders-archive"),
        (Query(text="orders arch"), "orders-archive"),
        (Query(text="nothing"), ""),
        (Query(text="ord*"), "orders orders-archive"),
        (Query(text="*ers"), "orders"),
        (Query(text="?licks"), "clicks"),
        (Query(text="o*s RUNN*"), "orders"),
        (Query(text="*ders*ch arch"), ""),
        (Query(text="***a***"), "payments orders-archive"),
        (Query(text="o[r"), ""),
        (Query(text="*.*"), ""),
        (Query(sort="lag"), "clicks orders orders-archive payments"),
        (Query(sort="lag", descending=True), "orders-archive orders clicks payments"),
        (Query(sort="no such column"), "orders payments orders-archive clicks"),
    ],
)
def test_search_filter_and_order(query: Query, names: str) -> None:
    assert " ".join(row.name for row in LISTING.select(ROWS, query)) == names


def test_sorting_by_the_same_column_reverses_the_order() -> None:
    once = Query(page=3).sorted_by("lag")
    assert (once.descending, once.page) == (True, 0)
    assert not once.sorted_by("lag").descending
    assert once.sorted_by("name").descending


def test_rows_are_gathered_and_selected_once_for_all_clients() -> None:
    gathered: list[object] = []

    def gather(source: tuple[Line, ...]) -> tuple[Line, ...]:
        gathered.append(source)
        return source

    shared = Shared(LISTING, gather)
    first = shared.select(ROWS, Query(text="orders"))
    assert shared.select(ROWS, Query(text="orders", page=7)) is first
    assert shared.select(ROWS, Query()) == ROWS
    assert len(gathered) == 1
    assert shared.select(ROWS[:1], Query(text="orders")) == [ROWS[0]]
    assert len(gathered) == 2


@pytest.mark.parametrize(
    ("number", "first", "count"), [(0, 0, 50), (1, 50, 50), (2, 100, 20), (9, 100, 20), (-1, 0, 50)]
)
def test_pages(number: int, first: int, count: int) -> None:
    page = page_of(range(120), number, 50)
    assert (page.first, len(page.rows), page.total) == (first, count, 120)


def test_an_empty_list_has_one_page() -> None:
    assert page_of((), 4, 50).first == 0


def test_a_search_with_many_wildcards_takes_no_time() -> None:
    row = (Line("A->B", "a" * 249, 0),)
    assert LISTING.select(row, Query(text="*a" * 99 + "b")) == []


@pytest.mark.parametrize(
    "query",
    [
        Query(),
        Query("A->B", "TOO_LARGE", "ord* x", "lag", descending=True, page=4),
        Query(kind="", sort="lag"),
    ],
)
@pytest.mark.parametrize(("kind", "name"), [("", "state"), ("given", "state"), ("", "reason")])
def test_the_address_of_a_page_has_its_whole_query(query: Query, kind: str, name: str) -> None:
    params = {key: value for key, value in query.params(kind, name).items() if value}
    assert Query.of(params, kind, name) == query


@pytest.mark.parametrize("page", ["0", "-1", "x", "", "٣", "9" * 30, "9" * 5_000])
def test_an_impossible_page_is_ignored(page: str) -> None:
    assert Query.of({"page": page}).page == 0


def test_the_largest_page() -> None:
    assert Query.of({"page": "1000000"}).page == Query.of({"page": "9999999"}).page == 999_999
