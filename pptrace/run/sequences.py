"""Sequence lengths of microbatches, and documents packed into sequences.

A sequence of packed documents has causal attention inside each document. Its attention costs as much as that of
equal documents with the same tokens and the same sum of squared lengths. All other work follows from its tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import chain, count, cycle, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Balance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.random import Generator

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Documents
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.workload import Workload

_LENGTHS, _DOCUMENTS = "batch.lengths", "batch.documents"
_NUMBER = re.compile(r"[^\s,;]+")
_LONGEST = 2**31 - 1
_DRAWN = 4096
"""Documents that are drawn at once."""
_MOST_MISFITS = 100
"""Documents that can wait for the next step, because only groups for shorter documents have room."""
MOST_PACKS, FEWEST_PACKS, _MOST_STAGES = 64, 20, 2560
"""Limits of the number of packs of different cost, and of the number of their stages."""
_LINEAR = 6
"""Work of a token outside attention per hidden width, in units of a squared length: a layer has 24 h² and 4 h l
FLOPs per token, as in verl's ``calculate_workload``."""


class Pack(NamedTuple):
    """Sequences of one cost."""

    tokens: int
    """Tokens of a sequence."""
    document: int = 0
    """Mean length of its documents, weighted by tokens; 0 for one document."""
    cp: int = 0
    """Context-parallel size of the group that computes it; 0 for that of the configuration."""


class Sequences(Struct, frozen=True, kw_only=True, eq=False):
    """The packs of a step's microbatches."""

    packs: tuple[Pack, ...]
    """Packs of different cost."""
    pack_of: Int32s
    """Index of the pack that determines the time of each microbatch, shape (replicas, microbatches); -1 for a
    microbatch that the replica does not have."""
    counts: tuple[int, ...]
    """How often the step has each pack."""
    tokens: int
    """Tokens of the step."""
    note: str = ""
    """What the documents are, as a sentence; empty for lengths."""

    @property
    def microbatches(self) -> list[int]:
        """Number of microbatches of each replica."""
        numbers: list[int] = (self.pack_of >= 0).sum(axis=1).tolist()
        return numbers

    def costs(self, base: Workload, build: Callable[[Pack], Workload]) -> Workload:
        """Return costs with a class for each pack; microbatches are those of the replica with the most.

        If microbatches of a pack differ by loads of experts, each pack has a class for each kind of loads. Costs
        ``base`` are of whole sequences of one document; ``build`` returns those of a pack.
        """
        by_pack = [build(pack) for pack in self.packs]
        place = np.arange(self.pack_of.shape[1])
        class_of = np.stack([
            costs.microbatch_class[place % costs.microbatch_class.size] if costs.classes else 0 * place
            for costs in by_pack
        ])  # fmt: skip
        _, first, kind_of = np.unique(class_of, axis=1, return_index=True, return_inverse=True)
        classes = tuple(costs.of_microbatch(microbatch) for costs in by_pack for microbatch in first.tolist())
        longest = int(np.argmax(self.microbatches))
        flops = sum(costs.model_flops * times for costs, times in zip(by_pack, self.counts, strict=True))
        return replace(
            base, classes=classes, tokens=self.tokens, model_flops=flops,
            microbatch_class=(self.pack_of[longest] * first.size + kind_of.ravel() + 1).astype(np.int32),
        )  # fmt: skip

    def classes_of(self, costs: Workload) -> Int32s:
        """Return the class of each microbatch in costs of :meth:`costs`; 0 where a replica does not have it.

        The shape is (replicas, microbatches).
        """
        kinds = len(costs.classes) // len(self.packs)
        classes = self.pack_of * kinds + (costs.microbatch_class - 1) % kinds + 1
        return np.where(self.pack_of < 0, 0, classes).astype(np.int32)


def sequences_of(resolved: Resolved, hidden: int = 0) -> tuple[Resolved, Sequences | None]:
    """Return the packs of a configuration, and fill in the sizes that follow; None where all sequences are equal.

    Args:
        resolved: the configuration.
        hidden: the model's hidden width, for ``batch.documents.balance: work``; 0 without a model.

    Raises:
        ConfigError: an invalid file, a wrong number of lengths, a length above the sequence, or documents that do
            not fit the microbatches.
    """
    batch = resolved.experiment.batch
    if batch.documents is not None:
        if batch.lengths is not None:
            raise resolved.error(_LENGTHS, "batch.documents has the lengths, too: remove one of the two keys")
        return _packed(resolved, batch.documents, hidden)
    return (resolved, None) if batch.lengths is None else _with_lengths(resolved, batch.lengths)


def _with_lengths(resolved: Resolved, source: list[int] | str) -> tuple[Resolved, Sequences]:
    """Return a pack for each length, and fill in the longest as the sequence."""
    batch, dp = resolved.experiment.batch, resolved.experiment.parallel.dp
    values = source if isinstance(source, list) else _read_lengths(resolved, source, _LENGTHS)
    microbatches = batch.known_microbatches
    if len(values) not in {microbatches, dp * microbatches}:
        each = f"{microbatches} or, replica after replica, {dp * microbatches}" if dp > 1 else str(microbatches)
        of = f"{microbatches} microbatches" + (f" on {dp} replicas" if dp > 1 else "")
        raise resolved.error(_LENGTHS, f"{len(values)} lengths for {of}: write {each}")
    lengths = np.broadcast_to(np.array(values, dtype=np.int64).reshape(-1, microbatches), (dp, microbatches))
    longest = int(lengths.max())
    if batch.sequence is None:
        resolved = resolved.with_values("batch", {"sequence": longest}, "the longest of batch.lengths")
    elif longest > batch.sequence:
        place = values.index(longest)
        raise resolved.error(_LENGTHS, f"{longest} in place {place} passes batch.sequence ({batch.sequence})")
    distinct, number = np.unique(lengths, return_inverse=True)
    return resolved, Sequences(
        packs=tuple(Pack(length) for length in distinct.tolist()),
        pack_of=number.reshape(lengths.shape).astype(np.int32),
        counts=tuple(np.bincount(number.ravel(), minlength=distinct.size).tolist()),
        tokens=batch.micro * int(lengths.sum()),
    )


def _read_lengths(resolved: Resolved, file: str, key: str) -> list[int]:
    lengths = []
    try:
        content = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "it is not a text file"
        raise resolved.error(key, f"{file} cannot be read: {reason}") from None
    for line, text in enumerate(content.splitlines(), start=1):
        for word in _NUMBER.findall(text):
            if not word.isdecimal() or not 0 < int(word) < 2**31:
                message = f"{file}, line {line}: {word[:20]!r} is not a number of tokens: a whole number from 1"
                raise resolved.error(key, message)
            lengths.append(int(word))
    return lengths


class Bin(NamedTuple):
    """Documents that a context-parallel group computes together."""

    tokens: int
    squares: int
    """Sum of the squared lengths."""
    cp: int
    """Ranks of the group."""


Microbatch = tuple[Bin, ...]
"""The bins of one microbatch, which groups of one replica compute simultaneously."""
Replicas = list[list[Microbatch]]
"""The microbatches of each replica."""


class Packing(Struct, frozen=True, kw_only=True):
    """Sizes of a step whose microbatches consist of documents."""

    limit: int
    """Tokens of a sequence, over all ranks of its context-parallel group."""
    replicas: int
    """Data-parallel replicas."""
    cp: int = 1
    """Context-parallel size."""
    micro: int = 1
    """Sequences of a microbatch."""
    microbatches: int = 0
    """Microbatches of each replica; 0 for as many as its documents fill."""
    linear: int = 0
    """Work of a token outside attention, in units of a squared length; 0 to balance attention alone."""
    dynamic: bool = False
    """Whether each bin has the smallest group of 2^k ranks that holds its longest document."""

    def load(self, microbatch: Microbatch) -> float:
        """Return the work of the slowest group of a microbatch, per rank."""
        return max(((each.squares + self.linear * each.tokens) / each.cp for each in microbatch), default=0)

    def maximum(self, replicas: Replicas) -> tuple[float, float]:
        """Return the largest work of a replica, and of a microbatch."""
        loads = [[self.load(microbatch) for microbatch in row] for row in replicas]
        return max(map(sum, loads)), max(map(max, loads))

    def arrange(self, lengths: Iterable[Int64s], *, known: bool, whole: bool, balanced: bool) -> Replicas:
        """Return the microbatches of each replica.

        Balanced assignments are the in-order one or the best of two greedy ones, by :meth:`maximum`: none has a
        larger maximum than the order of arrival.

        Args:
            lengths: documents in order of arrival, in parts.
            known: whether these are all documents of the step, else as many are taken as fill it.
            whole: whether a document is in one sequence; otherwise it continues in the next.
            balanced: whether documents and sequences are assigned by their work.

        Raises:
            ValueError: the documents do not fit the microbatches.
        """
        if self.dynamic:
            return self._in_groups(lengths, known=known, balanced=balanced)
        if not whole:
            return self._dealt([Bin(self.limit, each, self.cp) for each in self._cut(lengths)], balanced=balanced)
        if known:
            return self._of_known(np.concatenate([*lengths]), balanced=balanced)
        documents = self._in_order(chain.from_iterable(part.tolist() for part in lengths), self._sequences)
        arrived = self._dealt([self._bin(each) for each in documents], balanced=balanced)
        if not balanced:
            return arrived
        spread = self._spread(sorted(chain.from_iterable(documents), reverse=True))
        return arrived if spread is None else min(arrived, spread, key=self.maximum)

    @property
    def _sequences(self) -> int:
        return self.replicas * self.microbatches * self.micro

    def _bin(self, documents: Sequence[int], cp: int = 0) -> Bin:
        return Bin(sum(documents), sum(length * length for length in documents), cp or self.cp)

    def _cut(self, lengths: Iterable[Int64s]) -> list[int]:
        """Return the sum of squares of each sequence; documents continue in the next sequence."""
        squares, filled, most = np.zeros(self._sequences, dtype=np.int64), 0, self._sequences * self.limit
        for part in lengths:
            stops = filled + np.cumsum(part)
            stop = min(int(stops[-1]), most)
            borders = np.arange(filled // self.limit + 1, stop // self.limit + 1) * self.limit
            edges = np.unique(np.concatenate([[filled], stops[stops < stop], borders, [stop]]))
            pieces = np.diff(edges)
            np.add.at(squares, edges[:-1] // self.limit, pieces * pieces)
            filled = stop
            if filled == most:
                break
        result: list[int] = squares.tolist()
        return result

    def _in_order(self, lengths: Iterable[int], most: int = _LONGEST) -> list[list[int]]:
        """Return at most so many sequences; a document that does not fit opens the next one."""
        documents: list[list[int]] = [[]]
        room = self.limit
        for each in lengths:
            length = min(each, self.limit)
            if length > room:
                if len(documents) == most:
                    break
                documents.append([])
                room = self.limit
            documents[-1].append(length)
            room -= length
        return documents

    def _dealt(self, bins: Sequence[Bin], *, balanced: bool) -> Replicas:
        """Deal sequences to replicas: in turn, or by work, each replica as many."""
        microbatches = self._grouped(bins)
        arrived = [microbatches[replica :: self.replicas] for replica in range(self.replicas)]
        if not balanced:
            return arrived
        rows = _greedy([self.load((each,)) for each in bins], self.replicas, len(bins) // self.replicas)
        return min(arrived, [self._grouped([bins[index] for index in row]) for row in rows], key=self.maximum)

    def _grouped(self, bins: Sequence[Bin]) -> list[Microbatch]:
        """Return microbatches of consecutive sequences."""
        parts = [bins[first : first + self.micro] for first in range(0, len(bins), self.micro)]
        sums = [(sum(each.tokens for each in part), sum(each.squares for each in part)) for part in parts]
        return [(Bin(tokens, squares, self.cp),) for tokens, squares in sums]

    def _spread(self, descending: Sequence[int]) -> Replicas | None:
        """Assign documents by work to replicas, then to their sequences; None where they do not fit this way."""
        room = self.microbatches * self.micro * self.limit if self.microbatches else _LONGEST * len(descending)
        shares = self._fill(descending, self.replicas, room)
        if shares is None:
            return None
        replicas = []
        for share in shares:
            bins = self._sequences_of_share(share)
            if bins is None:
                return None
            replicas.append(bins)
        return replicas

    def _sequences_of_share(self, share: Sequence[int]) -> list[Microbatch] | None:
        if self.microbatches:
            filled = self._fill(share, self.microbatches * self.micro, self.limit)
        else:
            fewest = -(-sum(share) // self.limit)
            tried = (self._fill(share, sequences, self.limit) for sequences in count(max(fewest, 1)))
            filled = next(each for each in tried if each is not None)
        if filled is None or not all(filled):
            return None
        return self._grouped([self._bin(each) for each in filled])

    def _fill(self, descending: Sequence[int], parts: int, room: int) -> list[list[int]] | None:
        """Give each document to the part with the least work that has room for it; None where none has."""
        filled: list[list[int]] = [[] for _ in range(parts)]
        rooms, heap = [room] * parts, [(0.0, part) for part in range(parts)]
        for length in descending:
            full = []
            while heap and rooms[heap[0][1]] < length:
                full.append(heappop(heap))
            if not heap:
                return None
            load, part = heappop(heap)
            filled[part].append(length)
            rooms[part] -= length
            heappush(heap, (load + length * length + self.linear * length, part))
            for each in full:
                heappush(heap, each)
        return filled

    def _of_known(self, lengths: Int64s, *, balanced: bool) -> Replicas:
        """Assign all documents of a step: consecutive ones to each replica, or by work."""
        documents = np.minimum(lengths, self.limit).tolist()
        total, sequences = len(documents), self.microbatches * self.micro
        if total < self.replicas * max(sequences, 1):
            raise ValueError(f"{total} documents are fewer than the sequences of the step: write a larger count")
        borders = [replica * total // self.replicas for replica in range(self.replicas + 1)]
        packed = [self._in_order(documents[start:stop]) for start, stop in pairwise(borders)]
        most = max(map(len, packed))
        spread = self._spread(sorted(documents, reverse=True)) if balanced else None
        if sequences and most > sequences:
            if spread is not None:
                return spread
            text = f"the documents of a replica fill {most} sequences in order of arrival, and the step has"
            raise ValueError(f"{text} {sequences}: write more microbatches, or none")
        arrived = [self._grouped([self._bin(each) for each in _split(parts, sequences)]) for parts in packed]
        return arrived if spread is None else min(arrived, spread, key=self.maximum)

    def group(self, length: int) -> int:
        """Return the ranks that a document needs: the smallest power of two whose part of the limit holds it."""
        cp = 1
        while cp < self.cp and length * self.cp > self.limit * cp:
            cp *= 2
        return cp

    def _in_groups(self, lengths: Iterable[Int64s], *, known: bool, balanced: bool) -> Replicas:
        """Pack documents in order with documents of the same group, and groups into microbatches of all ranks."""
        most = self.replicas * self.microbatches * self.cp or _LONGEST
        bins: dict[int, list[list[int]]] = {}
        rooms: dict[int, int] = {}
        used = misfits = 0
        for each in chain.from_iterable(part.tolist() for part in lengths):
            length = min(each, self.limit)
            cp = self.group(length)
            if cp not in rooms or rooms[cp] < length:
                if used + cp > most:
                    if known:
                        text = "the documents need more ranks than the microbatches of the step have"
                        raise ValueError(f"{text}: write more microbatches, or none")
                    misfits += 1
                    if misfits == _MOST_MISFITS:
                        break
                    continue
                bins.setdefault(cp, []).append([])
                rooms[cp], used = self.limit * cp // self.cp, used + cp
            bins[cp][-1].append(length)
            rooms[cp] -= length
        filled = {cp: [self._bin(each, cp) for each in parts] for cp, parts in bins.items()}
        arrived = self._microbatches(filled, balanced=False)
        return min(arrived, self._microbatches(filled, balanced=True), key=self.maximum) if balanced else arrived

    def _microbatches(self, bins: dict[int, list[Bin]], *, balanced: bool) -> Replicas:
        """Put bins into microbatches, large groups first; balanced, neighbours have equal work."""
        microbatches: list[Microbatch] = []
        room = 0
        for cp in sorted(bins, reverse=True):
            ordered = sorted(bins[cp], key=lambda each: -self.load((each,))) if balanced else bins[cp]
            for each in ordered:
                if not room:
                    microbatches.append(())
                    room = self.cp
                microbatches[-1] += (each,)
                room -= cp
        wanted = max(self.replicas * self.microbatches, -(-len(microbatches) // self.replicas) * self.replicas)
        microbatches = _split(microbatches, wanted if self.microbatches else min(wanted, len(microbatches)))
        arrived = [microbatches[replica :: self.replicas] for replica in range(self.replicas)]
        if not all(arrived):
            few = f"{len(microbatches)} microbatches for {self.replicas} replicas"
            raise ValueError(f"{few}: write a larger count")
        if not balanced:
            return arrived
        rows = _greedy([self.load(each) for each in microbatches], self.replicas, len(arrived[0]))
        return [[microbatches[index] for index in row] for row in rows] if all(rows) else arrived


def _split(parts: Sequence[Any], wanted: int) -> list[Any]:
    """Move last elements of later parts into parts of their own, until there are as many as wanted."""
    split, place = [*parts], len(parts) - 1
    while len(split) < wanted and place >= 0:
        if len(split[place]) > 1:
            split.append(split[place][-1:])
            split[place] = split[place][:-1]
        else:
            place -= 1
    return split


def _greedy(loads: Sequence[float], parts: int, most: int) -> list[list[int]]:
    """Give the items, the largest first, to the part with the least load and fewer items than ``most``."""
    rows: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    heapify(heap)
    for item in sorted(range(len(loads)), key=lambda item: -loads[item]):
        load, part = heappop(heap)
        rows[part].append(item)
        if len(rows[part]) < most:
            heappush(heap, (load + loads[item], part))
    return [sorted(row) for row in rows]


def _packed(resolved: Resolved, documents: Documents, hidden: int) -> tuple[Resolved, Sequences]:
    """Return the packs of a step's documents, and fill in the number of its microbatches if only they give it."""
    batch, parallel = resolved.experiment.batch, resolved.experiment.parallel
    limit = batch.sequence or 0
    if not limit:
        raise resolved.error("batch.sequence", "missing: documents are packed into sequences of so many tokens")
    if documents.balance is Balance.WORK and not hidden:
        message = "work weighs a model's layers: write balance: attention, or take costs of a model"
        raise resolved.error(f"{_DOCUMENTS}.balance", message)
    if documents.dynamic_cp:
        _check_groups(resolved)
    is_fixed = documents.count is None or documents.equal
    packing = Packing(
        limit=limit, replicas=parallel.dp, cp=parallel.cp, micro=batch.micro,
        microbatches=batch.known_microbatches if is_fixed else 0,
        linear=_LINEAR * hidden if documents.balance is Balance.WORK else 0, dynamic=documents.dynamic_cp,
    )  # fmt: skip
    parts: list[Int64s] = []
    try:
        replicas = _arranged(packing, _drawn(_source(resolved, documents), documents.count, parts), documents)
    except ValueError as error:
        raise resolved.error(_DOCUMENTS, str(error)) from None
    most = max(map(len, replicas))
    if not batch.known_microbatches:
        values = {"microbatches": most, "global_batch": most * parallel.dp * batch.micro}
        resolved = resolved.with_values("batch", values, "as many as the documents fill")
    elif most != batch.known_microbatches:
        counted = f"the {documents.count} documents of batch.documents.count fill {most} microbatches of a replica"
        message = f"{counted}, not {batch.known_microbatches}: remove one of the two keys"
        raise resolved.error("batch.microbatches", f"{message}, or write batch.documents.equal: true")
    unit = parallel.tp if parallel.sequence_parallel else 1
    most = min(max(_MOST_STAGES // ((parallel.pp or 1) * parallel.vp), FEWEST_PACKS), MOST_PACKS)
    packs = _packs_of_bins(packing, replicas, unit, most)
    drawn = np.concatenate(parts)
    return resolved, _sequences(packing, replicas, packs, round(int(drawn.sum()) / drawn.size))


def _arranged(packing: Packing, drawn: Iterable[Int64s], documents: Documents) -> Replicas:
    """Return the microbatches of replicas, of each as many if configured."""
    parts = [*drawn] if documents.count else drawn

    def arranged(packing: Packing) -> Replicas:
        return packing.arrange(
            parts, known=documents.count is not None, whole=documents.is_whole,
            balanced=documents.balance is not Balance.NONE,
        )  # fmt: skip

    replicas = arranged(packing)
    if documents.equal and not packing.microbatches:
        replicas = arranged(replace(packing, microbatches=max(map(len, replicas))))
    return replicas


def _check_groups(resolved: Resolved) -> None:
    batch, cp = resolved.experiment.batch, resolved.experiment.parallel.cp
    key = f"{_DOCUMENTS}.dynamic_cp"
    if cp == 1 or cp & (cp - 1):
        raise resolved.error(key, f"groups are powers of two up to parallel.cp ({cp}): write cp: 2, 4 or 8")
    if batch.micro > 1:
        raise resolved.error(key, f"a group computes one sequence, not {batch.micro}: write batch.micro: 1")
    if (batch.sequence or 0) % cp:
        raise resolved.error(key, f"batch.sequence ({batch.sequence}) is not a multiple of parallel.cp ({cp})")


def _drawn(draw: Callable[[int], Int64s], number: int | None, parts: list[Int64s]) -> Iterator[Int64s]:
    """Yield ``number`` documents in order of arrival, in parts, or without end; append each part to ``parts``."""
    for remaining in repeat(_DRAWN) if number is None else range(number, 0, -_DRAWN):
        parts.append(draw(min(_DRAWN, remaining)))
        yield parts[-1]


def _source(resolved: Resolved, documents: Documents) -> Callable[[int], Int64s]:
    """Return a function that draws the lengths of the next documents."""
    if len(documents.sources) != 1:
        names = ", ".join(documents.sources)
        missing = "no lengths: write lengths, lognormal, uniform, fixed or histogram"
        raise resolved.error(_DOCUMENTS, f"{names}: keep one of them" if names else missing)
    if documents.lengths is not None:
        return _listed(resolved, documents.lengths)
    if documents.fixed is not None:
        fixed = documents.fixed
        return lambda number: np.full(number, fixed, dtype=np.int64)
    return _random(resolved, documents, np.random.default_rng(1 if documents.seed is None else documents.seed))


def _listed(resolved: Resolved, source: list[int] | str) -> Callable[[int], Int64s]:
    key = f"{_DOCUMENTS}.lengths"
    values = source if isinstance(source, list) else _read_lengths(resolved, source, key)
    if not values:
        raise resolved.error(key, f"{source} has no lengths")
    endless = cycle(values)
    return lambda number: np.fromiter(endless, dtype=np.int64, count=number)


def _random(resolved: Resolved, documents: Documents, random: Generator) -> Callable[[int], Int64s]:
    """Return a function that draws from a distribution; lengths are from 1 to 2^31 - 1 tokens."""
    lognormal, uniform, histogram = documents.lognormal, documents.uniform, documents.histogram

    def whole(values: Any) -> Int64s:
        rounded: Int64s = np.clip(np.rint(values), 1, _LONGEST).astype(np.int64)
        return rounded

    if lognormal is not None:
        return lambda number: whole(random.lognormal(np.log(lognormal.median), lognormal.sigma, number))
    if uniform is not None:
        least, most = uniform
        if most < least:
            raise resolved.error(f"{_DOCUMENTS}.uniform", f"{least} to {most}: write the smaller length first")
        return lambda number: random.integers(least, most, number, endpoint=True)
    edges = sorted((_edge(resolved, text), share) for text, share in (histogram or {}).items())
    highs = np.array([edge for edge, _ in edges])
    lows = np.concatenate([[1], highs[:-1] + 1])
    shares = np.array([share for _, share in edges], dtype=float)
    if not shares.sum():
        raise resolved.error(f"{_DOCUMENTS}.histogram", "all shares are 0: write how many documents each bin has")

    def draw(number: int) -> Int64s:
        chosen = random.choice(highs.size, number, p=shares / shares.sum())
        return random.integers(lows[chosen], highs[chosen], endpoint=True)

    return draw


def _edge(resolved: Resolved, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _LONGEST:
        message = f"{text!r} is not a number of tokens: write the longest length of each bin"
        raise resolved.error(f"{_DOCUMENTS}.histogram", message)
    return int(text)


def _packs_of_bins(packing: Packing, replicas: Replicas, unit: int, most: int) -> dict[Bin, Pack]:
    """Return the pack of each bin; with more than ``most`` packs, bins of similar work share one.

    A pack has the mean tokens and squares of its bins, so sums over the step do not change. Its tokens are then
    rounded up to a multiple of ``unit`` and of the group.
    """
    numbers = Counter(each for row in replicas for microbatch in row for each in microbatch)
    linear_packing = packing if packing.linear else replace(packing, linear=packing.limit)
    work_of = {each: linear_packing.load((each,)) for each in numbers}
    largest = max(work_of.values())
    group_of: dict[Bin, Any] = {each: each for each in numbers}
    for levels in range(most, 0, -1):
        if len({*group_of.values()}) <= most:
            break
        group_of = {each: (each.cp, round(levels * work / largest)) for each, work in work_of.items()}
    members: dict[Any, list[Bin]] = {}
    for each, group in group_of.items():
        members.setdefault(group, []).append(each)
    pack_of: dict[Bin, Pack] = {}
    for bins in members.values():
        pack = _mean_pack(packing, [(each, numbers[each]) for each in bins], unit)
        pack_of |= dict.fromkeys(bins, pack)
    return pack_of


def _mean_pack(packing: Packing, bins: Sequence[tuple[Bin, int]], unit: int) -> Pack:
    """Return the pack of bins of one group size that occur so many times."""
    cp, total = bins[0][0].cp, sum(number for _, number in bins) * packing.micro
    tokens = sum(each.tokens * number for each, number in bins)
    squares = sum(each.squares * number for each, number in bins)
    full = packing.limit * cp // packing.cp
    mean = min(-(-tokens // (total * unit * cp)) * unit * cp, full)
    document = min(max(-(-squares // tokens), cp), mean)
    return Pack(mean, document, 0 if cp == packing.cp else cp)


def _sequences(packing: Packing, replicas: Replicas, pack_of_bin: dict[Bin, Pack], mean: int) -> Sequences:
    """Return the packs of microbatches; the slowest group determines the pack of a microbatch.

    ``mean`` is the mean length of documents in tokens.
    """
    distinct = sorted({*pack_of_bin.values()})
    index = {pack: number for number, pack in enumerate(distinct)}
    pack_of = np.full((len(replicas), max(map(len, replicas))), -1, dtype=np.int32)
    counts = [0] * len(distinct)
    for replica, row in enumerate(replicas):
        for place, microbatch in enumerate(row):
            slowest = max(microbatch, key=lambda each: packing.load((each,)))
            pack_of[replica, place] = index[pack_of_bin[slowest]]
            for each in microbatch:
                counts[index[pack_of_bin[each]]] += 1
    sums = [sum(packing.load(microbatch) for microbatch in row) for row in replicas]
    counted = "work" if packing.linear else "attention"
    note = (
        f"Documents have {mean:,} tokens on average; the replica with the most {counted} has "
        f"{max(sums) * len(sums) / max(sum(sums), 1):.2f} times the mean."
    )
    return Sequences(
        packs=tuple(distinct), pack_of=pack_of, counts=tuple(counts), note=note,
        tokens=sum(each.tokens for row in replicas for microbatch in row for each in microbatch),
    )  # fmt: skip
