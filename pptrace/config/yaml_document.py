"""YAML 1.2 documents with the place of each value, and configurations as YAML text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pptrace.config.limits import is_named_pipe
from pptrace.config.places import Document, KeyPath, Place, Plain, key_text
from pptrace.config.quantities import MOST_DIGITS, is_of, tag_of, value_of
from pptrace.errors import ConfigError

_MOST_BYTES = 2**20
_MOST_VALUES = 100_000
_DEEPEST = 32
_PREFIX = "tag:yaml.org,2002:"


def read_yaml(path: Path, example: str = "schedule: 1f1b") -> Document:
    """Read a configuration file, whose top level is a mapping; the error for an empty file has the ``example``.

    Raises:
        ConfigError: it cannot be read, is not text, no YAML, too large, or no mapping.
    """
    document = parse_yaml(_text(path), str(path))
    if document.value is None:
        key = example.partition(":")[0]
        raise ConfigError(f"the file is empty; write at least '{key}:', such as {example}", file=path)
    if not isinstance(document.value, Mapping):
        raise ConfigError(
            f"the top level must be a mapping of keys, such as {example}", file=path, line=1, column=1
        )
    return document


def parse_yaml(text: str, source: str) -> Document:
    """Read YAML text that came from ``source``.

    Raises:
        ConfigError: the text is no YAML, repeats a key, uses tags, or is too large or too deep.
    """
    loader = None
    try:
        loader = NodeLoader(text, source)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _broken(error, source) from None
    except yaml.YAMLError as error:
        raise _unreadable(text, source, error) from None
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"the text is no YAML: {error}", file=source) from None
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        return Document(source=source)
    builder = Builder(source)
    value = builder.build(node, ())
    return Document(value=value, places=builder.places, source=source)


def yaml_text(values: Mapping[str, Any], *, head: str, width: int = 110) -> str:
    """Return YAML text of a configuration in the order of its keys, below comments.

    ``head`` has comment lines, each with its ``#`` and line end.
    """
    body = yaml.safe_dump(
        dict(values), sort_keys=False, allow_unicode=True, default_flow_style=None, width=width
    )  # fmt: skip
    return head + str(body)


def _text(path: Path) -> str:
    if is_named_pipe(Path(path)):
        raise ConfigError("is a pipe: save its contents to a file first", file=path)
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("no such file", file=path) from None
    except IsADirectoryError:
        raise ConfigError("is a directory; name a YAML file in it", file=path) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    except ValueError:
        raise ConfigError("no such file: its name holds a zero byte", file=repr(str(path))) from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"is larger than a configuration may be, {_MOST_BYTES // 1024} KiB", file=path)
    if b"\0" in content:
        raise ConfigError("is a binary file, not YAML text", file=path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", file=path, line=line) from None


def _broken(error: yaml.MarkedYAMLError, source: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    parts = [part for part in (error.problem, error.context) if part]
    # The context is where ("while parsing a mapping"), but for one that is half of the sentence.
    words = ", ".join(reversed(parts)) if (error.context or "").startswith("expected") else " ".join(parts)
    message = "broken YAML: " + " ".join(words.split())
    if mark is None:
        return ConfigError(message, file=source)
    return ConfigError(message, file=source, line=mark.line + 1, column=mark.column + 1)


def _unreadable(text: str, source: str, error: yaml.YAMLError) -> ConfigError:
    position = getattr(error, "position", 0)
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    character = text[position : position + 1]
    message = f"broken YAML: character {character!a} is not allowed"
    return ConfigError(message, file=source, line=line, column=column)


class NodeLoader(yaml.SafeLoader):
    """Composes nodes, whose plain scalars have the types of YAML 1.2."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.depth = self.count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose as the superclass does, down to a depth and up to a number of nodes."""
        self.depth += 1
        self.count += 1
        if self.depth > _DEEPEST:
            raise ConfigError(f"values are nested more than {_DEEPEST} deep", file=self.source)
        if self.count > _MOST_VALUES:
            raise ConfigError(f"more than {_MOST_VALUES} values", file=self.source)
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node that states none."""
        if kind is yaml.ScalarNode:
            return _PREFIX + (tag_of(value) if implicit[0] else "str")
        return _PREFIX + ("seq" if kind is yaml.SequenceNode else "map")


class Builder:
    """Turns nodes into plain values and notes where each is."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.places: dict[str, Place] = {}
        self.count = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Plain:
        """Return the value of the node at ``path``.

        Raises:
            ConfigError: a key that stands twice or is not text, a tag, too many or too deep values.
        """
        self.count += 1
        if self.count > _MOST_VALUES:
            raise self._error(node, path, f"more than {_MOST_VALUES} values, aliases counted each time")
        if len(path) > _DEEPEST:
            raise self._error(node, (), f"values are nested more than {_DEEPEST} deep")
        if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
            return [self._item(below, (*path, index)) for index, below in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._error(node, path, f"tag {node.tag!r} is not allowed here; leave it out")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Plain]:
        built: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            below = (*path, key)
            if key in built:
                first = self.places[key_text(below)].line
                raise self._error(key_node, below, f"the key is repeated, first on line {first}; keep one")
            self.places[key_text(below)] = self._place(key_node)
            built[key] = self.build(value_node, below)
        return built

    def _key(self, node: yaml.Node, path: KeyPath) -> str:
        if isinstance(node, yaml.ScalarNode) and node.tag in {_PREFIX + "str", _PREFIX + "int"}:
            return self._text(node, path)  # a number as it is written
        raise self._error(node, path, "a key must be text; put it in quotes")

    def _item(self, node: yaml.Node, path: KeyPath) -> Plain:
        self.places[key_text(path)] = self._place(node)
        return self.build(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Plain:
        tag = node.tag.removeprefix(_PREFIX)
        if tag == "str":
            return self._text(node, path)
        if not is_of(tag, node.value):
            raise self._error(node, path, f"tag {node.tag!r} is not allowed here; leave it out")
        if tag in {"int", "float"} and len(node.value) > MOST_DIGITS:
            raise self._error(node, path, f"a number of {len(node.value)} characters is too long")
        return value_of(tag, node.value)

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        try:
            node.value.encode()
        except UnicodeEncodeError:
            raise self._error(node, path, "half of a surrogate pair is not text") from None
        return str(node.value)

    def _place(self, node: yaml.Node) -> Place:
        mark = node.start_mark
        return Place(source=self.source, line=mark.line + 1, column=mark.column + 1)

    def _error(self, node: yaml.Node, path: KeyPath, message: str) -> ConfigError:
        return self._place(node).error(key_text(path), message)
