"""Kernel that reads the text of Chrome JSON events into columns.

The kernel accepts the JSON (RFC 8259) that profilers write. It stops at other text, which its caller decodes:
surrogates, escapes in keys, times with an exponent, types that a field has in no trace. It does not check UTF-8.
"""

from typing import Any, NamedTuple

INVALID = -1
"""End of text that the kernel does not accept."""
ABSENT = -1
"""Number of an absent text, and decimals of an absent number."""

TAB, NEWLINE, RETURN, SPACE, QUOTE, PLUS, COMMA, MINUS, POINT, COLON, BACKSLASH = tuple(b'\t\n\r "+,-.:\\')
BEGIN, END, BEGIN_LIST, END_LIST = tuple(b"{}[]")
ZERO, NINE, LOWER_A, LOWER_D, LOWER_E, LOWER_F, LOWER_U = tuple(b"09adefu")
NULL, TRUE, FALSE, FALSE_END = tuple(b"null"), tuple(b"true"), tuple(b"false"), tuple(b"alse")
WORD_LENGTH = 4
ESCAPED = tuple(b'"\\/bfnrt')
ESCAPED_COUNT, HEX_DIGITS = 8, 4
LOWER_CASE = 0x20
"""The bit that only lower-case letters have."""

PH, TS, CAT, PID, TID, DUR, NAME, ARGS = (
    int.from_bytes(key, "big") for key in (b"ph", b"ts", b"cat", b"pid", b"tid", b"dur", b"name", b"args")
)
LONGEST_KEY = 4
"""Maximum length of the keys that have columns."""
CORRELATION, STREAM = 0, 1
"""Numbers of the names of arguments that have columns."""

MOST_DEPTH = 60
"""Maximum depth of nested values in a field."""
LARGEST_TENTH = 2**63 // 10
"""Mantissas below can be multiplied by 10."""
EXACT = 2**53
"""Mantissas up to here are exact in a double."""
MOST_DECIMALS, MOST_INEXACT_DECIMALS = 18, 3
"""Maximum decimals of a number with an exact mantissa, whose power of ten has 64 bits, and of a longer number."""


class Names(NamedTuple):
    """Names of the arguments whose values have a type, first those with columns."""

    text: Any
    """The bytes of all names."""
    start: Any
    """The start of each name, and the end of the last."""


class Texts(NamedTuple):
    """Distinct values of fields, as JSON, in the order of their first occurrence."""

    start: Any
    end: Any
    slot: Any
    """Hash table of numbers of texts, ABSENT for a free slot; its length is a power of two."""
    count: Any
    """The number of texts, in a column of one value."""


class Rows(NamedTuple):
    """One row per event; a field that an event lacks is ABSENT."""

    phase: Any
    """Number of the text of the phase; category, name, process and thread are numbers of texts, too."""
    category: Any
    name: Any
    pid: Any
    tid: Any
    start: Any
    """Mantissa of the start in microseconds."""
    start_decimals: Any
    """Number of decimals of the start."""
    duration: Any
    duration_decimals: Any
    arguments: Any
    """Start of the arguments' text; equal to its end for an event without arguments."""
    arguments_end: Any
    correlation: Any
    stream: Any
    unread: Any
    """Whether the columns lack a value of the arguments, or it may have the wrong type."""


def skip_blanks(text, position):
    """Return the position of the next byte that is not blank."""
    byte = text[position]
    while byte == SPACE or byte == NEWLINE or byte == RETURN or byte == TAB:
        position += 1
        byte = text[position]
    return position


def escape_end(text, position):
    """Return the end of an escape sequence; INVALID for a surrogate, which is half a character."""
    if position + 2 + HEX_DIGITS > len(text):
        return INVALID
    byte = text[position + 1]
    for number in range(ESCAPED_COUNT):
        if byte == ESCAPED[number]:
            return position + 2
    if byte != LOWER_U or text[position + 2] | LOWER_CASE == LOWER_D:
        return INVALID
    for digit in range(position + 2, position + 2 + HEX_DIGITS):
        if not (ZERO <= text[digit] <= NINE or LOWER_A <= text[digit] | LOWER_CASE <= LOWER_F):
            return INVALID
    return position + 2 + HEX_DIGITS


def string_end(text, position):
    """Return the end of a string."""
    if text[position] != QUOTE:
        return INVALID
    position += 1
    byte = text[position]
    while byte != QUOTE:
        position = position + 1 if byte != BACKSLASH else escape_end(text, position)
        if byte < SPACE or position < 0:
            return INVALID
        byte = text[position]
    return position + 1


def key_end(text, position):
    """Return the end of a key without escapes."""
    if text[position] != QUOTE:
        return INVALID
    position += 1
    byte = text[position]
    while byte != QUOTE:
        if byte < SPACE or byte == BACKSLASH:
            return INVALID
        position += 1
        byte = text[position]
    return position + 1


def after_colon(text, position):
    """Return the start of the value of a key that ends at a position."""
    position = skip_blanks(text, position)
    return skip_blanks(text, position + 1) if text[position] == COLON else INVALID


def digits_end(text, position):
    """Return the end of one or more digits."""
    first = position
    while ZERO <= text[position] <= NINE:
        position += 1
    return position if position > first else INVALID


def number_end(text, position):
    """Return the end of a number."""
    first = position + (text[position] == MINUS)
    position = digits_end(text, first)
    if text[first] == ZERO and position > first + 1:
        return INVALID
    if position > 0 and text[position] == POINT:
        position = digits_end(text, position + 1)
    if position > 0 and text[position] | LOWER_CASE == LOWER_E:
        position += 1
        position = digits_end(text, position + (text[position] == PLUS or text[position] == MINUS))
    return position


def decimal(text, position):
    """Return the mantissa, the number of decimals and the end of a number; INVALID if it is longer."""
    is_negative = text[position] == MINUS
    first = position = position + is_negative
    mantissa, point, byte = 0, 0, text[position]
    while (ZERO <= byte <= NINE and mantissa < LARGEST_TENTH) or (byte == POINT and point == 0):
        if byte == POINT:
            point = position
        else:
            mantissa = mantissa * 10 + byte - ZERO
        position += 1
        byte = text[position]
    decimals = position - point - 1 if point else 0
    whole_end = point or position
    if (
        whole_end == first
        or (text[first] == ZERO and whole_end > first + 1)
        or (point and decimals == 0)
        or decimals > (MOST_DECIMALS if mantissa <= EXACT else MOST_INEXACT_DECIMALS)
        or ZERO <= byte <= NINE
        or byte | LOWER_CASE == LOWER_E
    ):
        return 0, 0, INVALID
    return -mantissa if is_negative else mantissa, decimals, position


def word_end(text, position, word):
    """Return the end of a word of four letters."""
    for offset in range(WORD_LENGTH):
        if text[position + offset] != word[offset]:
            return INVALID
    return position + WORD_LENGTH


def scalar_end(text, position):
    """Return the end of a value that is no object and no list."""
    byte = text[position]
    if byte == QUOTE:
        return string_end(text, position)
    if byte == NULL[0]:
        return word_end(text, position, NULL)
    if byte == TRUE[0]:
        return word_end(text, position, TRUE)
    if byte == FALSE[0]:
        return word_end(text, position + 1, FALSE_END)
    return number_end(text, position)


def value_end(text, position):
    """Return the end of a value."""
    depth, objects = 0, 0  # a bit of objects per level: whether it is an object
    while True:
        byte = text[position]
        if byte == BEGIN or byte == BEGIN_LIST:
            depth, objects = depth + 1, objects << 1 | (byte == BEGIN)
            position = skip_blanks(text, position + 1)
            has_ended = text[position] == (END if byte == BEGIN else END_LIST)
            if depth == MOST_DEPTH:
                return INVALID
        else:
            position, has_ended = scalar_end(text, position), 1
            if position < 0 or depth == 0:
                return position
            position = skip_blanks(text, position)
        if has_ended:
            while text[position] == (END if objects & 1 else END_LIST):
                depth, objects = depth - 1, objects >> 1
                if depth == 0:
                    return position + 1
                position = skip_blanks(text, position + 1)
            if text[position] != COMMA:
                return INVALID
            position = skip_blanks(text, position + 1)
        if objects & 1:
            position = string_end(text, position)
            if position > 0:
                position = after_colon(text, position)
            if position < 0:
                return INVALID


def word_at(text, position):
    """Return four bytes, which LLVM loads at once."""
    return text[position] | text[position + 1] << 8 | text[position + 2] << 16 | text[position + 3] << 24


def is_equal(text, first, last, other, other_first, other_last):
    """Return whether two parts of texts are equal."""
    if last - first != other_last - other_first:
        return 0
    shift = other_first - first
    while first + WORD_LENGTH <= last:
        if word_at(text, first) != word_at(other, first + shift):
            return 0
        first += WORD_LENGTH
    for position in range(first, last):
        if text[position] != other[position + shift]:
            return 0
    return 1


def number_of(text, first, last, texts):
    """Return the number of a text; INVALID if it is new and there is no place for it."""
    digest, position = last - first, first
    while position + WORD_LENGTH <= last:
        digest = (digest * 31 + word_at(text, position)) & 0xFFFFFFFF
        position += WORD_LENGTH
    while position < last:
        digest = (digest * 31 + text[position]) & 0xFFFFFFFF
        position += 1
    mask = len(texts.slot) - 1
    slot = (digest ^ digest >> 15) & mask
    number = texts.slot[slot]
    while number >= 0:
        if is_equal(text, first, last, text, texts.start[number], texts.end[number]):
            return number
        slot = (slot + 1) & mask
        number = texts.slot[slot]
    number = texts.count[0]
    if number == len(texts.start):
        return INVALID
    texts.slot[slot] = number
    texts.start[number], texts.end[number] = first, last
    texts.count[0] = number + 1
    return number


def is_name(text, first, last, names, number):
    """Return whether a part of the text is a name of arguments."""
    return is_equal(text, first, last, names.text, names.start[number], names.start[number + 1])


def read_arguments(text, position, names, rows, row):
    """Fill columns from the arguments at a position; return their end."""
    position = skip_blanks(text, position + 1)
    if text[position] == END:
        return position + 1
    while True:
        first = position + 1
        position = key_end(text, position)
        last = position - 1
        if position > 0:
            position = after_colon(text, position)
        if position < 0:
            return INVALID
        byte = text[position]
        if byte == MINUS or ZERO <= byte <= NINE:
            mantissa, decimals, end = decimal(text, position)
            rows.unread[row] |= end < 0
            if is_name(text, first, last, names, CORRELATION):
                rows.correlation[row] = mantissa
                rows.unread[row] |= decimals > 0
            elif is_name(text, first, last, names, STREAM):
                rows.stream[row] = mantissa
                rows.unread[row] |= decimals > 0
            position = end if end > 0 else number_end(text, position)
        else:
            # Text and null have a valid type, but no column. Other values have a valid type without a name.
            is_valid = byte == QUOTE or byte == NULL[0]
            for number in range(STREAM + 1 if is_valid else len(names.start) - 1):
                rows.unread[row] |= is_name(text, first, last, names, number)
            position = value_end(text, position)
        if position > 0:
            position = skip_blanks(text, position)
        if position < 0 or (text[position] != COMMA and text[position] != END):
            return INVALID
        if text[position] == END:
            return position + 1
        position = skip_blanks(text, position + 1)


def read_text(text, position, key, texts, rows, row):
    """Fill the column of a text, or of an id; return its end."""
    byte = text[position]
    is_id = key == PID or key == TID
    if byte != QUOTE and not (is_id and (byte == MINUS or ZERO <= byte <= NINE)):
        return INVALID
    end = scalar_end(text, position)
    if end < 0:
        return INVALID
    number = number_of(text, position, end, texts)
    if key == PH:
        rows.phase[row] = number
    elif key == CAT:
        rows.category[row] = number
    elif key == NAME:
        rows.name[row] = number
    elif key == PID:
        rows.pid[row] = number
    else:
        rows.tid[row] = number
    return end if number >= 0 else INVALID


def read_field(text, first, last, position, names, texts, rows, row):
    """Fill columns from the field at a position, whose key is between others; return its end."""
    key = 0
    if last - first <= LONGEST_KEY:
        for letter in range(first, last):
            key = key << 8 | text[letter]
    if key == PH or key == CAT or key == NAME or key == PID or key == TID:
        return read_text(text, position, key, texts, rows, row)
    if key == TS:
        rows.start[row], rows.start_decimals[row], end = decimal(text, position)
        return end
    if key == DUR:
        rows.duration[row], rows.duration_decimals[row], end = decimal(text, position)
        return end
    if key != ARGS:
        return value_end(text, position)
    rows.correlation[row] = rows.stream[row] = ABSENT
    is_object = text[position] == BEGIN
    rows.unread[row] = not is_object
    end = read_arguments(text, position, names, rows, row) if is_object else value_end(text, position)
    rows.arguments[row], rows.arguments_end[row] = position, end
    return end


def read_event(text, position, names, texts, rows, row):
    """Fill a row from the event at a position; return its end."""
    rows.phase[row] = rows.category[row] = rows.name[row] = rows.pid[row] = rows.tid[row] = ABSENT
    rows.start_decimals[row] = rows.duration_decimals[row] = ABSENT
    rows.correlation[row] = rows.stream[row] = ABSENT
    rows.arguments[row] = rows.arguments_end[row] = rows.unread[row] = 0
    if text[position] != BEGIN:
        return INVALID
    position = skip_blanks(text, position + 1)
    if text[position] == END:
        return position + 1
    while True:
        first = position + 1
        position = key_end(text, position)
        last = position - 1
        if position > 0:
            position = after_colon(text, position)
        if position > 0:
            position = read_field(text, first, last, position, names, texts, rows, row)
        if position > 0:
            position = skip_blanks(text, position)
        if position < 0 or (text[position] != COMMA and text[position] != END):
            return INVALID
        if text[position] == END:
            return position + 1
        position = skip_blanks(text, position + 1)


def read_blocks(text, block_ends, names, texts, rows, row_counts):
    """Fill rows with the events of blocks, up to a block that the kernel does not accept.

    Args:
        text: bytes of blocks with a comma between them, as between events of a block. A quote and
            a zero follow the last block.
        block_ends: end of each block.
        names: names of arguments.
        texts: distinct values of fields.
        rows: the events.
        row_counts: number of events before each block, and at the end of the last; initially 0.

    Returns:
        Number of accepted blocks.
    """
    position, row = 0, 0
    for block in range(len(block_ends)):
        end = block_ends[block]
        while position <= end:
            if row == len(rows.name):
                return block
            position = read_event(text, skip_blanks(text, position), names, texts, rows, row)
            if position < 0:
                return block
            row += 1
            position = skip_blanks(text, position)
            if position > end or (position < end and text[position] != COMMA):
                return block
            position += 1
        row_counts[block + 1] = row
    return len(block_ends)
