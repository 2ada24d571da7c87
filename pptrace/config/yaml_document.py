"""YAML 1.2 documents with the place of each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.config.limits import is_named_pipe
from pptrace.config.yaml_scalars import is_one_word, tag_of, value_of
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    import yaml

    from pptrace.config.places import Places
    from pptrace.config.yaml_nodes import Plain

_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document."""

    value: Plain = None
    """Its content."""
    places: Places = field(default_factory=dict)
    """Where each key and list item is."""
    source: str = ""
    """The file's name, as the user gave it."""


def read_yaml(path: Path, example: str = "schedule: 1f1b") -> Document:
    """Read a configuration file, whose top level is a mapping.

    Args:
        path: the file.
        example: a key and its value, for the message where there is none.

    Raises:
        ConfigError: it cannot be read, is no text, no YAML, too large, or no mapping.
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
    import yaml

    from pptrace.config.yaml_nodes import Builder, NodeLoader

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


def parse_value(text: str, source: str) -> Plain:
    """Read one value as YAML, as behind ``--set key=``.

    >>> parse_value("{a: [1, 0x10, no]}", "--set")
    {'a': [1, 16, 'no']}
    """
    if is_one_word(text):
        return value_of(tag_of(text), text)
    try:
        return parse_yaml(text, source).value
    except ConfigError as error:
        raise ConfigError(error.message, file=source) from None


def _text(path: Path) -> str:
    if is_named_pipe(Path(path)):
        raise ConfigError("is a pipe: save what it gives to a file first", file=path)
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
