"""The one way to read and write YAML: as PyYAML's safe loader does, since Axolotl and accelerate use it.

`load` gives the values, `read` gives the values with where each key stands (for findings) and which keys
were written twice (PyYAML silently lets the last win). `dump` writes what reads back equal. Called by
render, checks, intake and the command line; nothing else in rankcall imports PyYAML.

YAML 1.1 rules apply on purpose: `no` is False and `1e-5` is a string, exactly as for the programs that
will read the file. Text is untrusted: nesting, size after alias expansion and control characters are
bounded here, and everything wrong is a `YamlError` with a line and a column.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from coordinator.core.tabs import Span, separating_tab, span_of

if TYPE_CHECKING:
    from yaml import SafeLoader as _PyYamlLoader
else:
    _PyYamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# All far above any real configuration; they stop "billion laughs", stack exhaustion (libyaml's composer
# recurses in C: 100,000 open brackets end the whole process) and numbers that take seconds to read.
MAX_NODES = 50_000
MAX_DEPTH = 64
MAX_NUMBER = 400
# Characters that PyYAML's own scanner is asked to read: a fifth of a second.
MAX_SCANNED = 20_000
_TAB = "a tab is used {}; YAML takes spaces only"

KeyPath = tuple[str, ...]

_NUMERIC = re.compile(r"^[-+0-9a-fA-FxXoO_.:]+$")
UNDECODABLE = re.compile(r"[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class _SafeLoader(_PyYamlLoader):
    """PyYAML's safe loader, whose constructors raise whatever they run into (`!!bool maybe` a KeyError, `!!int ''`
    an IndexError, a date that is none a ValueError): all of it becomes PyYAML's own error, with the place."""

    def construct_object(self, node: Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError, MemoryError):
            raise
        except Exception:
            kind = str(node.tag).rpartition(":")[2]
            written = f"{node.value[:40]!r}" if isinstance(node, ScalarNode) else "this"
            problem = f"{written} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


class YamlError(ValueError):
    """A file that is not the YAML it should be.

    Attributes:
        name: the file, as the user knows it.
        line, column: where, from 1; 0 where it concerns the whole file.
        problem: one sentence saying what is wrong.
        text: the line in question, for showing.
    """

    def __init__(self, name: str, line: int, column: int, problem: str, text: str = "") -> None:
        where = f"{name}:{line}:{column}" if line else name
        super().__init__(f"{where}: {problem}")
        self.name = name
        self.line = line
        self.column = column
        self.problem = problem
        self.text = text


@dataclass(frozen=True)
class Position:
    """Where a key (or list item) and its value begin, from 1."""

    line: int
    column: int
    value_line: int
    value_column: int


@dataclass(frozen=True)
class Duplicate:
    """A key written twice in one mapping; the last one wins when the file is read."""

    path: KeyPath
    first_line: int
    line: int


@dataclass(frozen=True)
class Document:
    """A mapping read from a file, and where its parts stand.

    Attributes:
        values: what `yaml.safe_load` gives.
        positions: by path, list items by their index: `("datasets", "0", "path")`.
        duplicates: keys written more than once.
    """

    name: str
    values: dict[str, object]
    positions: Mapping[KeyPath, Position] = field(default_factory=dict)
    duplicates: tuple[Duplicate, ...] = ()

    def line(self, *path: str) -> int | None:
        """The line of a key, or of the nearest parent that is written down."""
        for length in range(len(path), 0, -1):
            position = self.positions.get(path[:length])
            if position is not None:
                return position.line
        return None


def load(text: str, name: str = "config.yml") -> dict[str, object]:
    """The mapping in `text`.

    Raises:
        YamlError: not YAML, not a mapping, or beyond the bounds of this module.
    """
    return read(text, name).values


def read(text: str, name: str = "config.yml") -> Document:
    """As `load`, with positions and duplicates.

    Raises:
        YamlError: as `load`.
    """
    lines = text.splitlines()
    bad = UNDECODABLE.search(text.removeprefix("\ufeff"))
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - (text.rfind("\n", 0, bad.start()) + 1) + 1
        raise YamlError(name, line, column, f"unprintable character {bad.group()!r}", _line_of(lines, line))
    loader = _SafeLoader(text)
    try:
        scalars = _bound(text, name)
        root = loader.get_node() if loader.check_node() else None
        if root is None:
            raise YamlError(name, 0, 0, "the file is empty")
        second = loader.get_node() if loader.check_node() else None
        if second is not None:
            line = second.start_mark.line + 1
            raise YamlError(name, line, 1, "a second document begins here (`---`); only one is read")
        if not isinstance(root, MappingNode):
            mark = root.start_mark
            raise YamlError(
                name, mark.line + 1, mark.column + 1, _not_a_mapping(root), _line_of(lines, mark.line + 1)
            )
        walk = _Walk(name)
        walk.visit(root, (), 0)
        values = loader.construct_document(root)
        _refuse_separating_tabs(text, scalars, name, lines)
        if not isinstance(values, dict):  # `!!set {a, b}`
            raise YamlError(name, root.start_mark.line + 1, root.start_mark.column + 1, _not_a_mapping(root))
        for key_node, _ in root.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _not_text(name, key_node, key, lines)
    except yaml.MarkedYAMLError as error:
        raise _from_pyyaml(name, error, lines) from None
    except yaml.YAMLError as error:
        raise YamlError(name, 0, 0, str(error).splitlines()[0]) from None
    except RecursionError:
        raise YamlError(name, 0, 0, f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(name, 0, 0, f"cannot be read: {error}") from None
    finally:
        loader.dispose()
    return Document(name, values, walk.positions, tuple(walk.duplicates))


def dump(values: Mapping[str, object]) -> str:
    """YAML that reads back equal: block style, order kept, `no` and its like quoted.

    Raises:
        TypeError: for a value that YAML's safe types do not hold.
    """
    try:
        text = yaml.safe_dump(
            _plain(values), sort_keys=False, allow_unicode=True, default_flow_style=False, width=4096
        )
    except yaml.representer.RepresenterError as error:
        raise TypeError(f"cannot be written as YAML: {error}") from None
    return str(text)


def _bound(text: str, name: str) -> list[Span]:
    """Reads the events, which takes neither recursion nor memory, before anything is built from them.

    Returns:
        Where its scalars stand, if there are tabs to be judged.
    """
    depth = nodes = 0
    scalars: list[Span] = []
    tabs = "\t" in text
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        if tabs and isinstance(event, yaml.ScalarEvent) and (span := span_of(event, text)) is not None:
            scalars.append(span)
        nodes += 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        if nodes > MAX_NODES:
            problem = f"more than {MAX_NODES} values"
        elif depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(event, yaml.ScalarEvent) and _endless_number(event):
            problem = f"a number of {len(event.value)} digits; write text in quotes"
        else:
            continue
        mark = event.start_mark
        raise YamlError(name, mark.line + 1 if mark else 0, mark.column + 1 if mark else 0, problem)
    return scalars


def _refuse_separating_tabs(text: str, scalars: Sequence[Span], name: str, lines: Sequence[str]) -> None:
    """libyaml, which reads here, lets tabs stand where PyYAML's own scanner takes spaces only; Axolotl and accelerate
    read with the latter. It has the last word, but is too slow for a long text.

    Raises:
        yaml.MarkedYAMLError: as that scanner says it.
        YamlError: for a long text.
    """
    at = separating_tab(text, scalars)
    if at is None:
        return
    if len(text) > MAX_SCANNED:
        line = text.count("\n", 0, at) + 1
        begins = text.rfind("\n", 0, at) + 1
        problem = _TAB.format("as a space" if text[begins:at].strip() else "for indentation")
        raise YamlError(name, line, at - begins + 1, problem, _line_of(lines, line))
    for _ in yaml.scan(text, Loader=yaml.SafeLoader):
        pass


def _endless_number(event: yaml.ScalarEvent) -> bool:
    if len(event.value) <= MAX_NUMBER:
        return False
    return event.tag in _NUMBER_TAGS or (event.implicit[0] and _NUMERIC.match(event.value) is not None)


@dataclass
class _Walk:
    """Visits the composed nodes once, counting what aliases expand to."""

    name: str
    positions: dict[KeyPath, Position] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    nodes: int = 0

    def visit(self, node: Node, path: KeyPath, depth: int) -> None:
        self.nodes += 1
        mark = node.start_mark
        if self.nodes > MAX_NODES:
            raise YamlError(self.name, mark.line + 1, mark.column + 1, f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise YamlError(self.name, mark.line + 1, mark.column + 1, problem)
        if isinstance(node, MappingNode):
            self._visit_mapping(node, path, depth)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                at = (*path, str(index))
                self.positions[at] = _position(item, item)
                self.visit(item, at, depth + 1)

    def _visit_mapping(self, node: MappingNode, path: KeyPath, depth: int) -> None:
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            text = key.value if isinstance(key, ScalarNode) else str(key.tag)
            at = (*path, text)
            line = key.start_mark.line + 1
            if text in seen and text != "<<":
                self.duplicates.append(Duplicate(at, seen[text], line))
            seen[text] = line
            self.positions[at] = _position(key, value)
            self.visit(value, at, depth + 1)


def _position(key: Node, value: Node) -> Position:
    return Position(
        key.start_mark.line + 1,
        key.start_mark.column + 1,
        value.start_mark.line + 1,
        value.start_mark.column + 1,
    )


def _from_pyyaml(name: str, error: yaml.MarkedYAMLError, lines: Sequence[str]) -> YamlError:
    mark = error.problem_mark or error.context_mark
    problem = (error.problem or "not YAML").strip()
    if error.context:
        problem = f"{problem} ({error.context})"
    if mark is None:
        return YamlError(name, 0, 0, problem)
    text = _line_of(lines, mark.line + 1)
    if text[mark.column : mark.column + 1] == "\t":
        indents = not text[: mark.column].strip()
        problem = _TAB.format("for indentation" if indents else "as a space")
    return YamlError(name, mark.line + 1, mark.column + 1, problem, text)


def _not_text(name: str, node: Node, key: object, lines: Sequence[str]) -> YamlError:
    mark = node.start_mark
    problem = f"the key is read as {key!r}, which is not text: write it in quotes"
    return YamlError(name, mark.line + 1, mark.column + 1, problem, _line_of(lines, mark.line + 1))


def _not_a_mapping(root: Node) -> str:
    if isinstance(root, MappingNode):
        return f"plain text, where `key: value` lines are expected: it begins with the tag {root.tag}"
    if isinstance(root, SequenceNode):
        return "a list, where `key: value` lines are expected"
    return "plain text, where `key: value` lines are expected"


def _line_of(lines: Sequence[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def copied(value: object) -> object:
    """Mappings and lists made anew, at any depth; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def _plain(value: object) -> object:
    """Copies, so that PyYAML writes no anchors for what appears twice; tuples become lists."""
    return copied(value)
