"""The building blocks of pages: HTML elements that send only changes to the browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from mm2.copy.causes import shortened
from mm2.copy.progress.segments import INTENDED, RESET
from mm2.observer.shown.tones import STATE_TONES, Tone
from mm2.ui.elements.listing import MOST_TEXT, Query, page_of
from mm2.ui.elements.wording import RANGE, UNKNOWN

#: Rows of a table that are shown at once.
PAGE_ROWS: Final = 50
#: Characters of a cell. A reason has up to two thousand.
LONGEST_CELL: Final = 300

#: The tone of each state and of each reason of gaps.
TONES: Final[Mapping[str, Tone]] = {
    **STATE_TONES,
    **dict.fromkeys(INTENDED, Tone.OK),
    **dict.fromkeys(("retention", "truncated", "recreated", "quarantined", "skipped", "missing", RESET), Tone.BAD),
}
#: More columns than this need a wide window.
_MANY_COLUMNS: Final = 6
#: Sort direction in the labels of such columns.
_FALLING: Final[Mapping[str, str]] = {"number": "largest first", "word": "worst first"}
_WORST_FIRST: Final = tuple(Tone)


class Element(TextElement):
    """An HTML element with a text, classes and attributes."""

    def __init__(self, tag: str, text: str = "", classes: str = "", **attributes: str | bool) -> None:
        """``attributes`` by name, with ``_`` for ``-``; True for an attribute without a value."""
        super().__init__(tag=tag, text=text)
        self._names = ""
        if classes:
            self.show_classes(classes)
        for name, value in attributes.items():
            self.attribute(name, value)

    def show(self, text: str) -> None:
        """Set the text."""
        self.text = text  # unchanged text is not sent

    def show_classes(self, classes: str) -> None:
        """Replace all classes."""
        if classes != self._names:
            self._names = classes
            self.classes(replace=classes)

    def show_state(self, state: str, tone: str = "") -> None:
        """Show a state in its tone, unless another tone is given."""
        self.show(state or UNKNOWN)
        self.show_classes(f"state {tone or TONES.get(state, Tone.UNKNOWN)}")

    def attribute(self, name: str, value: str | bool | None) -> None:
        """Set an attribute; None and False remove it."""
        key = name.strip("_").replace("_", "-")
        if value is None or value is False:
            if key in self.props:
                del self.props[key]
        elif self.props.get(key) != value:
            self.props[key] = value


def rank_of(state: str) -> int:
    """The severity of a state: the worst states have the lowest numbers."""
    return _WORST_FIRST.index(TONES.get(state, Tone.UNKNOWN))


def within(tag: str, classes: str = "", **attributes: str | bool) -> Element:
    """An element without text, as a container."""
    return Element(tag, "", classes, **attributes)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``sort`` is the name of a sort key of the listing, "" for none. ``kind`` is one or several, separated by spaces, of:
    number, word (never broken), head (the subject of a row), flow-name, prose (sentences), name (a key, broken
    only if it would not fit), wide (a long text without spaces), link (its cells may be links), drawing (SVG), action; "" for text.
    """

    title: str
    kind: str = ""
    sort: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    ``state``: the text is a state and is styled as one. ``hint`` is the tooltip. ``tone``: bad or care, for text that
    already describes an error. ``href``: where the text leads, in a column of links. ``drawing`` is SVG without foreign text.
    """

    text: str
    state: bool = False
    hint: str = ""
    tone: str = ""
    href: str = ""
    drawing: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row; ``key`` identifies it for its button."""

    cells: Sequence[Cell | str]
    key: Any = None


class Table:
    """A table of at most ``rows`` rows, whose cells are updated in place."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        caption: str,
        nothing: str,
        rows: int = PAGE_ROWS,
        on_sort: Callable[[str], None] | None = None,
        action: tuple[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        """``nothing`` is shown if there are no rows.

        ``action``: the label of a button in the last column, and its function.
        """
        self._columns = columns
        self._rows: list[tuple[Element, list[_TableCell]]] = []
        self._keys: list[Any] = []
        self._most = rows
        self._action = action
        self._heads: dict[str, Element] = {}
        self._nothing = Element("p", nothing, "nothing", role="status")
        with within("div", _container_class(columns)), within("table") as self._table:
            Element("caption", caption, "visually-hidden")
            with within("thead"), within("tr"):
                for column in columns:
                    if column.sort and on_sort is not None:
                        with within("th", column.kind, scope="col") as head:
                            button = Element("button", column.title, type="button")
                            button.on("click", lambda _, name=column.sort: on_sort(name), args=[])
                        self._heads[column.sort] = head
                    else:
                        Element("th", column.title, column.kind, scope="col")
            self._body = within("tbody")

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows, at most as many as the table has."""
        rows = rows[: self._most]
        while len(self._rows) < len(rows):
            self._add()
        for index, row in enumerate(rows):
            element, cells = self._rows[index]
            element.show_classes("")
            self._keys[index] = row.key
            for part, cell in zip(cells, row.cells, strict=False):
                part.show(cell if isinstance(cell, Cell) else Cell(cell))
        for element, _ in self._rows[len(rows) :]:
            element.show_classes("hidden")
        self._nothing.show_classes("hidden" if rows else "nothing")
        self._table.show_classes("" if rows else "hidden")

    def show_order(self, query: Query) -> None:
        """Show by which column the rows are sorted."""
        for name, head in self._heads.items():
            order = "descending" if query.descending else "ascending"
            head.attribute("aria_sort", order if query.sort == name else "none")

    def _add(self) -> None:
        index = len(self._rows)
        with self._body, within("tr") as element:
            cells = [_TableCell(column) for column in self._columns if column.kind != "action"]
            if self._action is not None:
                label, function = self._action
                with within("td", "action"):
                    button = Element("button", label, "plain", type="button")
                    button.on("click", lambda: function(self._keys[index]), args=[])
        self._rows.append((element, cells))
        self._keys.append(None)


class _TableCell:
    """A cell of a table, updated in place."""

    def __init__(self, column: Column) -> None:
        self._kind = column.kind
        kinds = column.kind.split()
        self._part = Element("td", "", column.kind, data_label=column.title)
        self._text, self._drawing = self._part, None
        with self._part:
            if "link" in kinds:
                self._text = Element("a")
            elif "drawing" in kinds:
                self._drawing = ui.html("", sanitize=False, tag="span")

    def show(self, cell: Cell) -> None:
        """Show this content; a long text is shortened."""
        text = shortened(cell.text, LONGEST_CELL)
        if self._drawing is not None and self._drawing.content != cell.drawing:
            self._drawing.set_content(cell.drawing)
        if self._text is not self._part:
            self._text.attribute("href", cell.href or None)
        if cell.state:
            self._text.show(cell.text or UNKNOWN)
            self._part.show_classes(f"{self._kind} state {TONES.get(cell.text, Tone.UNKNOWN)}".strip())
        else:
            self._text.show(text)
            is_empty = not cell.text and not cell.drawing
            self._part.show_classes(" ".join(filter(None, (self._kind, cell.tone, "none" if is_empty else ""))))
        self._part.attribute("title", cell.hint or None)


class Browser:
    """A table with search, filters, sort and pagination over all rows.

    ``select(query)`` returns all matching rows, sorted; ``row_of`` converts one of them.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        select: Callable[[Query], Sequence[Any]],
        row_of: Callable[[Any], Row],
        *,
        flow_of: Callable[[Any], str],
        query: Query,
        noun: str,
        caption: str,
        nothing: str,
        search: str,
        kinds: Mapping[str, str] | None = None,
        flows: Sequence[str] = (),
        kind: tuple[str, str] = ("", "state"),
    ) -> None:
        """``search`` describes the field, ``kinds`` are the choices of the filter by their names in a query, ``kind`` is
        its default and its name in the address.

        ``flows`` are the choices of flows; if there are several, each row shows its flow. The address of the page follows the query.
        """
        self._select = select
        self._row_of = row_of
        self._flow_of = flow_of
        self._noun = noun
        self._several = len(flows) > 1
        self._columns = (Column("Flow", "flow-name"), *columns) if self._several else columns
        self._falling = {column.sort for column in columns if set(column.kind.split()) & _FALLING.keys()}
        self._kind = kind
        self.query = query
        with within("div", _container_class(self._columns)) as self._around:
            self._make_tools(search, flows, kinds or {})
            self._table = Table(self._columns, caption=caption, nothing=nothing, on_sort=self._sort)

    def _make_tools(self, search: str, flows: Sequence[str], kinds: Mapping[str, str]) -> None:
        query = self.query
        with within("div", "tools", role="search"):
            # Not its value: Vue would reset it at each change of the page, while the user types.
            field = within(
                "input", "field", type="search", placeholder=search, aria_label=search, defaultValue=query.text
            )
            field.on(
                "input",
                lambda event: self._change(text=event.args),
                throttle=0.25,
                leading_events=False,
                js_handler="(event) => emit(event.target.value)",
            )
            if self._several:
                self._choice("Flow", {"": "All flows", **{name: name for name in flows}}, query.flow, "flow")
            if kinds:
                self._choice("State", kinds, query.kind, "kind")
            # Where rows are shown as paragraphs, there are no column heads to click on.
            orders = {column.sort: _order(column) for column in self._columns if column.sort}
            self._choice("Order", {"": "Usual order", **orders}, query.sort, "order", "narrow")
            with within("span", "pager"):
                self._count = Element("span", "", "count", role="status")
                self._before = Element("button", "Previous", "plain", type="button")
                self._before.on("click", lambda: self._change(page=self.query.page - 1), args=[])
                self._after = Element("button", "Next", "plain", type="button")
                self._after.on("click", lambda: self._change(page=self.query.page + 1), args=[])

    def show(self) -> None:
        """Show the current rows."""
        found = self._select(self.query)
        page = page_of(found, self.query.page, PAGE_ROWS)
        number = page.first // PAGE_ROWS
        if number != self.query.page:
            self._set(page=number)
        self._table.show_order(self.query)
        self._around.show_classes(f"{_container_class(self._columns)}{' single-flow' if self.query.flow else ''}")
        self._table.show([self._row(row) for row in page.rows])
        last = page.first + len(page.rows)
        shown = f"{page.first + 1:,}{RANGE}{last:,} of {page.total:,} {self._noun}"
        self._count.show(shown if page.rows else f"0 {self._noun}")
        self._before.attribute("disabled", page.first == 0)
        self._after.attribute("disabled", last >= page.total)

    def _row(self, entry: Any) -> Row:
        row = self._row_of(entry)
        return replace(row, cells=(self._flow_of(entry), *row.cells)) if self._several else row

    def _choice(self, label: str, choices: Mapping[str, str], chosen: str, name: str, classes: str = "") -> None:
        select = within("select", classes, aria_label=label)
        select.on(
            "change", lambda event: self._change(**{name: event.args}), js_handler="(event) => emit(event.target.value)"
        )
        with select:
            for value, title in choices.items():
                Element("option", title, value=value, selected=value == chosen)

    def _sort(self, column: str) -> None:
        self.query = self.query.sorted_by(column)
        self._show_changed()

    def _show_changed(self) -> None:
        self.show()
        params = self.query.params(*self._kind)
        if not self._several:
            del params["flow"]  # it cannot be changed here
        set_address(params)

    def _change(self, **changes: Any) -> None:
        # Input from a browser is not trusted: it is converted to short strings.
        checked = {name: value if name == "page" else str(value)[:MOST_TEXT] for name, value in changes.items()}
        if "order" in checked:
            column = checked.pop("order")
            checked |= {"sort": column, "descending": column in self._falling}
        self._set(**{"page": 0, **checked})
        self._show_changed()

    def _set(self, **changes: Any) -> None:
        self.query = replace(self.query, **changes)


def _container_class(columns: Sequence[Column]) -> str:
    is_broad = len(columns) > _MANY_COLUMNS or any("wide" in column.kind.split() for column in columns)
    return "columns broad" if is_broad else "columns"


def _order(column: Column) -> str:
    order = next((_FALLING[kind] for kind in column.kind.split() if kind in _FALLING), "A to Z")
    return f"{column.title}, {order}"


def set_address(params: Mapping[str, str]) -> None:
    """Set parameters of the page's address, so that it can be bookmarked and sent; "" removes one."""
    ui.run_javascript(f"mm2SetAddress({json.dumps(params)})")


class Confirmation:
    """The confirmation dialog of a page: the first button confirms, Cancel and Escape do not."""

    def __init__(self) -> None:
        # The name of the dialog is that of Quasar's element, which has the role.
        self._dialog = ui.dialog().props("role=alertdialog aria-labelledby=question aria-describedby=consequence")
        with self._dialog, within("div", "dialog"):
            self._question = Element("h2", id="question")
            self._text = Element("p", id="consequence")
            self._field = within("input", "field hidden", type="text", aria_labelledby="question")
            self._field.on(
                "input", lambda event: self._set_value(event.args), js_handler="(event) => emit(event.target.value)"
            )
            with within("div", "buttons"):
                no = Element("button", "Cancel", "plain", type="button", data_autofocus=True)
                self._yes = Element("button", "", "plain first", type="button")
        self._value = ""
        no.on("click", self._dialog.close, args=[])
        self._yes.on("click", lambda: self._dialog.submit(True), args=[])

    def _set_value(self, text: object) -> None:
        self._value = str(text)[:MOST_TEXT]

    async def ask_value(self, question: str, text: str, action: str) -> str | None:
        """The text that the user enters; None if it is cancelled."""
        self._value = ""
        is_confirmed = await self.ask(question, text, action, is_destructive=False, has_field=True)
        return self._value if is_confirmed else None

    async def ask(
        self, question: str, text: str, action: str, *, is_destructive: bool, has_field: bool = False
    ) -> bool:
        """Whether the user confirms."""
        self._field.show_classes("field" if has_field else "field hidden")
        self._question.show(question)
        self._text.show(text)
        self._yes.show(action)
        self._yes.show_classes("plain first dangerous" if is_destructive else "plain first")
        is_confirmed = await self._dialog
        self._dialog.close()
        return bool(is_confirmed)
