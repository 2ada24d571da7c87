"""One small pipeline, and writers of it in the formats of several profilers."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from native_perfetto import Slice, write_native
from torch_stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import SimpleNamespace

MS = 1_000_000
EPOCH = 1_790_000_000 * 1_000 * MS


class Act(NamedTuple):
    """An action: rank, text, start and end."""

    rank: int
    text: str
    start: int
    end: int


class Sent(NamedTuple):
    """A message: both ranks, both actions, when it was sent and when it was there."""

    source: int
    target: int
    send: str
    receive: str
    start: int
    end: int


class Pipeline:
    """1F1B on two ranks with two microbatches; a forward takes 10 ms, a backward 20, a message 1."""

    acts = tuple(
        Act(rank, text, start * MS, end * MS)
        for rank, text, start, end in (
            (0, "0F0", 0, 10), (0, "0F1", 10, 20), (1, "1F0", 11, 21), (1, "1B0", 21, 41),
            (0, "0B0", 42, 62), (1, "1F1", 41, 51), (1, "1B1", 51, 71), (0, "0B1", 72, 92),
        )
    )  # fmt: skip
    sents = (
        Sent(0, 1, "0SEND_F0", "1RECV_F0", 10 * MS, 11 * MS),
        Sent(0, 1, "0SEND_F1", "1RECV_F1", 20 * MS, 21 * MS),
        Sent(1, 0, "1SEND_B0", "0RECV_B0", 41 * MS, 42 * MS),
        Sent(1, 0, "1SEND_B1", "0RECV_B1", 71 * MS, 72 * MS),
    )
    size = 4096

    def of(self, rank: int) -> list[Act]:
        """Return a rank's actions by time."""
        return sorted((action for action in self.acts if action.rank == rank), key=lambda one: one.start)

    def ends(self, rank: int) -> Iterator[tuple[str, int, Sent]]:
        """Yield a rank's ends of messages: its action, its peer, the message."""
        for item in self.sents:
            if rank == item.source:
                yield item.send, item.target, item
            if rank == item.target:
                yield item.receive, item.source, item

    def chrome(self, folder: Path, prefix: str = "QQ:") -> Path:
        """Write both ranks into one file of Chrome JSON: pairs of B and E, and messages with arguments."""
        events: list[dict[str, Any]] = []
        for rank in (0, 1):
            name = {"name": f"worker {rank}"}
            events.append({"ph": "M", "name": "process_name", "pid": 50 + rank, "tid": 0, "args": name})
            for item in self.of(rank):
                where = {"pid": 50 + rank, "tid": 7}
                events.append({"ph": "B", "name": prefix + item.text, "ts": item.start / 1000, **where})
                events.append({"ph": "E", "ts": item.end / 1000, **where})
            for text, peer, sent in self.ends(rank):
                sort = "send" if "SEND" in text else "recv"
                args = {"op": sort, "peer": peer, "nbytes": self.size, "dir": text[-2], "mb": int(text[-1])}
                at, length = sent.start / 1000, (sent.end - sent.start) / 1000
                where = {"pid": 50 + rank, "tid": 8}
                events.append({"ph": "X", "name": "p2p", "ts": at, "dur": length, **where, "args": args})
        path = folder / "all.json"
        path.write_text(json.dumps(events), encoding="utf-8")
        return path

    def rules(self, folder: Path) -> Path:
        """Write the rules that :meth:`chrome` needs."""
        path = folder / "rules.yaml"
        message = r"{peer: '(?P<peer>\d+)', nbytes: '(?P<bytes>\d+)', mb: '(?P<microbatch>\d+)', "
        message += "dir: '(?P<kind>.)', "
        path.write_text(
            "actions:\n"
            "  - name: 'QQ:(?P<action>.+)'\n"
            f"  - {{name: p2p, args: {message}op: send}}, stream: send}}\n"
            f"  - {{name: p2p, args: {message}op: recv}}, stream: receive}}\n"
            "rank: {from: process_name, pattern: 'worker (?P<rank>[0-9]+)'}\n",
            encoding="utf-8",
        )
        return path

    def nsys(self, path: Path, *, drop: str = "", name: str = "PP:", mpi: bool = True) -> Path:
        """Write both ranks into one database of Nsight Systems, without one table."""
        with closing(sqlite3.connect(path)) as database:
            for table, columns in _NSYS.items():
                database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            self._nsys_rows(database, name, mpi=mpi)
            if drop:
                database.execute(f"DROP TABLE {drop}")
            database.commit()
        return path

    def _nsys_rows(self, database: sqlite3.Connection, name: str, *, mpi: bool) -> None:
        strings = {1: "cudaLaunchKernel", 2: "gemm", 3: "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}
        correlation = 0
        for rank in (0, 1):
            process = (1 << 56) | ((900 + rank) << 24)
            thread = process | (900 + rank)
            if mpi:
                database.execute("INSERT INTO MPI_RANKS VALUES (?, ?)", (thread, rank))
            own = [(item.text, item.start, item.end, 7, 2) for item in self.of(rank)]
            own += [(text, sent.start, sent.end, 20 + peer, 3) for text, peer, sent in self.ends(rank)]
            for text, start, end, stream, label in own:
                correlation += 1
                strings[100 + correlation] = name + text
                post = start - MS // 2 + (20_000 if stream != 7 else 0)
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (start, end, 0, stream, correlation, process, label, label),
                )
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
                    (post, post + 1000, correlation, thread, 1),
                )
                database.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?)",
                    (post - 1000, post + 2000, 100 + correlation, thread),
                )
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (EPOCH,))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())

    def nccl(self, folder: Path, *, shift: tuple[int, int] = (0, 0), hashed: int = 2**64 - 1) -> list[Path]:
        """Write both ranks' files of NCCL's profiler plugin, each with its clock shifted."""
        paths = []
        for rank in (0, 1):
            own, lines = {"pid": 900 + rank, "tid": 1}, []
            for number, (text, peer, sent) in enumerate(self.ends(rank)):
                begin, end = (f"{(at + MS + shift[rank]) / 1000:.6f}" for at in (sent.start, sent.end))
                sort = "Send" if "SEND" in text else "Recv"
                args = {"CommHash": hashed, "Rank": rank, "Peer": peer, "Count": self.size // 2}
                clock = {"Channel": 0, "StartGpuClk": EPOCH + sent.start, "StopGpuClk": EPOCH + sent.end}
                about = {**args, "Datatype": "ncclBfloat16", "nChannels": 1}
                called = {"count": 1, "datatype": "ncclBfloat16", "Stream": "0x50"}
                outer = [("Group API", "GROUP_API", {"groupDepth": 1}), (sort, "P2P_API", called)]
                inner = [(sort, "P2P", about), ("KernelCh", "GPU", clock)]
                begun = [(name, cat, "b", begin, given) for name, cat, given in outer + inner]
                ended = [(name, cat, "e", end if cat == "GPU" else begin, None) for name, cat, _ in outer + inner]
                for name, cat, phase, ts, given in begun + ended[::-1]:
                    event = {"name": name, "cat": cat, "ph": phase, "id": 0 if cat == "GPU" else number, **own}
                    record = {**event, "ts": 0, **({} if given is None else {"args": given})}
                    lines.append(json.dumps(record).replace('"ts": 0', f'"ts": {ts}') + ",\n")
            path = folder / f"run_{hashed}_{rank}.json"
            path.write_text("[\n" + "".join(lines) + "{}]\n", encoding="utf-8")
            paths.append(path)
        return paths

    def inspector(self, folder: Path, *, verbose: bool = True) -> list[Path]:
        """Write both ranks' lines of NCCL Inspector."""
        paths = []
        for rank in (0, 1):
            lines = []
            for number, (text, peer, sent) in enumerate(self.ends(rank)):
                own: dict[str, Any] = {
                    "p2p": "Send" if "SEND" in text else "Recv", "p2p_sn": number, "p2p_peer": peer,
                    "p2p_msg_size_bytes": self.size, "p2p_exec_time_us": (sent.end - sent.start) // 1000,
                    "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 0.004096, "p2p_busbw_gbs": 0.004096,
                }  # fmt: skip
                if verbose:
                    start, stop = (EPOCH + sent.start) // 1000, (EPOCH + sent.end) // 1000
                    own |= {"event_trace_ts": {"p2p_start_ts": start, "p2p_stop_ts": stop}}
                header = {"id": "0x7f", "comm_name": "pp", "rank": rank, "n_ranks": 2, "nnodes": 1}
                about = {"inspector_output_format_version": "v4.0", "hostname": "h", "pid": 900 + rank}
                lines.append(json.dumps({"header": header, "metadata": about, "p2p_perf": own}) + "\n")
            path = folder / f"h-pid{900 + rank}.log"
            path.write_text("".join(lines), encoding="utf-8")
            paths.append(path)
        return paths

    def kineto(self, folder: Path) -> list[Path]:
        """Write both ranks' GPU traces as Kineto does."""
        paths = []
        for rank in (0, 1):
            events = [
                {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": at / 1000, "dur": length / 1000,
                 "args": args}
                for cat, name, tid, at, length, args in self._torch_events(rank)
            ]  # fmt: skip
            about = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": EPOCH}
            path = folder / f"rank{rank}.json.gz"
            text = json.dumps({"schemaVersion": 1, **about, "traceEvents": events})
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
            paths.append(path)
        return paths

    def pftrace(self, folder: Path, *, stages: bool = False) -> list[Path]:
        """Write both ranks' Perfetto traces: as Kineto does, or with GPU work as render stages."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        paths = []
        for rank in (0, 1):
            trace = Trace()
            self._tracks(trace, rank)
            for number, (cat, name, tid, at, length, args) in enumerate(self._torch_events(rank)):
                start, end = EPOCH + at, EPOCH + at + length
                if stages and cat == "kernel":
                    packet = trace.packet.add(timestamp=start, trusted_packet_sequence_id=1)
                    stage = packet.gpu_render_stage_event
                    stage.duration, stage.name, stage.hw_queue_iid = length, name, 100
                    for key, value in (("stream id", args["stream"]), ("correlation", args["correlation"])):
                        stage.extra_data.add(name=key, value=str(value))
                    continue
                uuid = 1000 + number
                track = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
                track.uuid, track.parent_uuid, track.name = uuid, tid, name
                event = trace.packet.add(timestamp=start, trusted_packet_sequence_id=1).track_event
                event.type, event.track_uuid, event.name = 1, uuid, name
                event.debug_annotations.add(name="metadata", string_value=json.dumps(args)[1:-1])
                event = trace.packet.add(timestamp=end, trusted_packet_sequence_id=1).track_event
                event.type, event.track_uuid = 2, uuid
            path = folder / f"rank{rank}.pftrace"
            path.write_bytes(trace.SerializeToString())
            paths.append(path)
        return paths

    def native_pftrace(self, folder: Path) -> list[Path]:
        """Write both ranks' Perfetto traces as PyTorch 2.15 does."""
        return [
            write_native(folder / f"rank{rank}.pftrace", [
                Slice(category, name, thread, EPOCH + at, length, args)
                for category, name, thread, at, length, args in self._torch_events(rank)
            ])
            for rank in (0, 1)
        ]  # fmt: skip

    def _tracks(self, trace: Any, rank: int) -> None:
        process = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
        process.uuid, process.process.pid = 1, 1
        for tid in (5, 7, 20, 21):
            thread = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
            thread.uuid, thread.parent_uuid, thread.thread.pid, thread.thread.tid = tid, 1, 1, tid
        about = trace.packet.add(trusted_packet_sequence_id=1).track_event
        about.type, about.track_uuid, about.name = 3, 1, "trace_metadata"
        info = json.dumps({"rank": rank, "world_size": 2})
        about.debug_annotations.add(name="distributedInfo", string_value=info)

    def rocprofv3(self, folder: Path) -> list[Path]:
        """Write both ranks' JSON files of rocprofv3, with annotations as ROCTx ranges."""
        paths = []
        for rank in (0, 1):
            records: dict[str, list[dict[str, Any]]] = {"kernel_dispatch": [], "hip_api": [], "marker_api": []}
            symbols: dict[str, int] = {}
            texts = []
            for number, (cat, name, tid, at, length, args) in enumerate(self._torch_events(rank)):
                correlation = {"internal": args.get("correlation", 1000 + number), "external": 0}
                record: dict[str, Any] = {
                    "start_timestamp": EPOCH + at, "end_timestamp": EPOCH + at + length, "thread_id": tid,
                    "correlation_id": correlation, "kind": 1, "operation": 0,
                }  # fmt: skip
                if cat == "kernel":
                    kernel = symbols.setdefault(name, len(symbols) + 3)
                    record["stream_id"] = {"handle": args["stream"]}
                    record["dispatch_info"] = {"agent_id": {"handle": 77 + rank}, "kernel_id": kernel}
                elif cat == "user_annotation":
                    texts.append({"key": correlation["internal"], "value": name})
                sort = {"kernel": "kernel_dispatch", "user_annotation": "marker_api"}.get(cat, "hip_api")
                records[sort].append(record)
            kernels = [
                {"kernel_id": number, "demangled_kernel_name": f"{name}.kd"} for name, number in symbols.items()
            ]
            kinds = [{"kind": "NONE", "operations": []}, {"kind": "HIP", "operations": ["hipLaunchKernel"]}]
            process = {
                "metadata": {"pid": 900 + rank}, "kernel_symbols": kernels,
                "strings": {"buffer_records": kinds, "marker_api": texts}, "buffer_records": records,
            }  # fmt: skip
            path = folder / f"rank{rank}_results.json"
            path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}), encoding="utf-8")
            paths.append(path)
        return paths

    def xplane(self, folder: Path) -> Path:
        """Write the operations of both ranks' accelerators as an XPlane file of one host."""
        planes = [_field(2, b"/host:metadata")]
        for rank in (0, 1):
            numbers: dict[str, int] = {}
            lines: dict[int, bytes] = {}
            for cat, name, _, at, length, args in self._torch_events(rank):
                if cat == "kernel":
                    number = numbers.setdefault(name, len(numbers) + 5)
                    event = _field(1, number) + _field(2, 1000 * at) + _field(3, 1000 * length)
                    lines[args["stream"]] = lines.get(args["stream"], b"") + _field(4, event)
            plane = _field(1, rank + 1) + _field(2, f"/device:GPU:{rank}".encode())
            for stream, events in lines.items():
                plane += _field(3, _field(2, f"Stream #{stream}(Kernel)".encode()) + _field(3, EPOCH) + events)
            plane += _field(3, _field(2, b"XLA Modules") + _field(3, EPOCH) + next(iter(lines.values())))
            for name, number in numbers.items():
                plane += _field(4, _field(1, number) + _field(2, _field(1, number) + _field(2, name.encode())))
            planes.append(plane)
        path = folder / "host.xplane.pb"
        path.write_bytes(b"".join(_field(1, plane) for plane in planes))
        return path

    def _torch_events(self, rank: int) -> Iterator[tuple[str, str, int, int, int, dict[str, Any]]]:
        """Yield category, name, thread, start, length and arguments of annotations, launches and kernels."""
        own = [(item.text, item.start, item.end, 7, "gemm") for item in self.of(rank)]
        kernel = "ncclDevKernel_SendRecv(x)"
        own += [(text, sent.start, sent.end, 20 + peer, kernel) for text, peer, sent in self.ends(rank)]
        for correlation, (text, start, end, stream, kernel) in enumerate(own, 1):
            post = start + MS + (20_000 if stream != 7 else 0)  # one thread posts one after another
            args = {"correlation": correlation}
            yield "user_annotation", f"PP:{text}", 5, post - 1000, 3000, {}
            yield "cuda_runtime", "cudaLaunchKernel", 5, post, 1000, args
            yield "kernel", kernel, stream, start + 2 * MS, end - start, {"device": 0, "stream": stream, **args}


def _field(number: int, value: int | bytes) -> bytes:
    """Return a field in protobuf's encoding: a varint, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = b""
    while value > 127:
        result += bytes([value & 127 | 128])
        value >>= 7
    return result + bytes([value])


_NSYS = {
    "StringIds": ("id INTEGER", "value TEXT"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER", "end INTEGER", "deviceId INTEGER", "streamId INTEGER", "correlationId INTEGER",
        "globalPid INTEGER", "demangledName INTEGER", "shortName INTEGER",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER", "end INTEGER", "correlationId INTEGER", "globalTid INTEGER", "nameId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER", "end INTEGER", "eventType INTEGER", "text TEXT", "textId INTEGER", "globalTid INTEGER"
    ),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER",),
    "MPI_RANKS": ("globalTid INTEGER", "rank INTEGER"),
}  # fmt: skip


@pytest.fixture
def pipeline() -> Pipeline:
    """Return the small pipeline."""
    return Pipeline()


@pytest.fixture
def log() -> list[str]:
    """Return what was marked and what was posted in it, in order."""
    return []


@pytest.fixture
def torch(log: list[str], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what stands in for torch."""
    return stand_in(log, monkeypatch)
