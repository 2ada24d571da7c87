"""An executor on the workers of a cluster, which must have the same versions as this process.

distributed moves the calls of a lost worker to other workers. A call fails if several workers were lost while they
ran it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

from distributed import Client, LocalCluster, Security
from distributed.comm import connect as connect_to
from pydantic import Field

from pptrace.plugin import ConfigError, Parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from pptrace.plugin import ExecutorRequest

P = ParamSpec("P")
R = TypeVar("R")

_SCHEDULER, _WORKERS = "executor.scheduler", "executor"
_GRACE = 0.5
"""Seconds after the timeout in which distributed can report an unreachable address."""


class DaskOptions(Parameters):
    """Where the workers are."""

    scheduler: str | None = None
    """Address of a scheduler that runs already, such as tcp://10.0.0.1:8786; processes here by default."""
    timeout: Annotated[float, Field(gt=0, le=3600)] = 30
    """Seconds to wait for the scheduler and its first worker."""


class DaskExecutor(Executor):
    """Executor on the workers of a dask client. ``shutdown`` also stops a cluster that :func:`connect` started."""

    def __init__(self, client: Client, resources: ExitStack) -> None:
        self._inner = client.get_executor(pure=False)
        self._resources = resources

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a call to the scheduler; it fails on a worker with other versions than this process."""
        future: Future[R] = self._inner.submit(partial(run_there, dict(installed()), fn, *args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Wait for running calls, or cancel them, and leave the cluster; stop a cluster that was started here."""
        self._inner.shutdown(wait=wait and not cancel_futures)
        self._resources.close()


def connect(request: ExecutorRequest) -> DaskExecutor:
    """Return an executor on the workers of a scheduler, or on ``request.workers`` processes of this machine.

    Raises:
        ConfigError: no scheduler answers, the scheduler has no worker, or a worker has other versions or plugins.
    """
    options = DaskOptions.model_validate(dict(request.options))
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are raised instead
    with ExitStack() as resources:
        target: Any = options.scheduler
        if target is None:
            target = resources.enter_context(_processes(request.workers))
        else:
            _check_answer(target, options)
        client = resources.enter_context(_client(target, options))
        _wait_for_workers(client, options)
        _check_versions(client)
        sys.stderr.write(_describe_cluster(client))
        return DaskExecutor(client, resources.pop_all())


def _processes(workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", silence_logs=logging.CRITICAL,
        dashboard_address="127.0.0.1:0",
    )  # fmt: skip


def _check_answer(address: str, options: DaskOptions) -> None:
    """Refuse an address without a scheduler; a client would wait forever for the answer of another server."""
    with ThreadPoolExecutor(1) as thread:  # the caller may run an event loop
        handshake = thread.submit(asyncio.run, _shake_hands(address, options.timeout))
        try:
            handshake.result()
        except (OSError, ValueError) as error:
            raise _no_scheduler(address, error) from error
        except Exception as error:
            raise _other_server(address) from error


async def _shake_hands(address: str, seconds: float) -> None:
    connection = connect_to(address, timeout=seconds, **Security().get_connection_args("client"))
    comm = await asyncio.wait_for(connection, seconds + _GRACE)
    await comm.close()


def _no_scheduler(target: LocalCluster | str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or "no answer in time"
    advice = "start one there with 'dask scheduler', or check the address"
    return ConfigError(f"no scheduler answers at {target}: {advice} ({reason})", key=_SCHEDULER)


def _other_server(address: str) -> ConfigError:
    advice = "check the port: dask's dashboard has another one than its scheduler"
    return ConfigError(f"{address} is not a dask scheduler: {advice}", key=_SCHEDULER)


def _client(target: LocalCluster | str, options: DaskOptions) -> Client:
    try:
        return Client(target, timeout=options.timeout, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _no_scheduler(target, error) from error


def _wait_for_workers(client: Client, options: DaskOptions) -> None:
    try:
        client.wait_for_workers(1, timeout=options.timeout)
    except TimeoutError as error:
        advice = f"start some with 'dask worker {options.scheduler or 'ADDRESS'}'"
        raise ConfigError(f"no worker came within {options.timeout:g} s: {advice}", key=_WORKERS) from error


def _check_versions(client: Client) -> None:
    here = installed()
    for worker, there in sorted(client.run(_read_versions, on_error="return").items()):
        if isinstance(there, BaseException):
            reason = f"has no pptrace with pptrace-dask ({type(there).__name__}: {there})"
        elif not (reason := difference(here, there)):
            continue
        raise ConfigError(f"worker {worker}: {reason}; install there what is installed here", key=_WORKERS)


def _describe_cluster(client: Client) -> str:
    threads = client.nthreads()
    workers = f"{len(threads)} worker{'s' * (len(threads) > 1)}, {sum(threads.values())} threads"
    return f"dask: {workers}, dashboard {client.dashboard_link}\n"


def _read_versions() -> Mapping[str, str]:
    return dict(installed())


def run_there(expected: Mapping[str, str], fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run a call on a worker, which may have joined after the check of versions."""
    reason = difference(expected, installed())
    if reason:
        message = f"a worker has other versions ({reason}); install there what is installed here"
        raise RuntimeError(message)
    return fn(*args, **kwargs)


_GROUP = "pptrace"
"""Entry point group of plugins."""
_CORE_DISTRIBUTIONS = ("pptrace", "numpy")
"""Further distributions whose versions are compared."""


@cache
def installed() -> Mapping[str, str]:
    """Return the versions of Python, pptrace and all installed plugins, by name."""
    versions = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    plugins = {point.dist.name for point in metadata.entry_points(group=_GROUP) if point.dist is not None}
    for name in sorted(plugins.union(_CORE_DISTRIBUTIONS)):
        versions[name] = metadata.version(name)
    return versions


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the differences of another installation as text; empty without differences.

    >>> difference({"pptrace": "1.1", "mine": "2"}, {"pptrace": "1.0"})
    'mine: none, here 2; pptrace: 1.0, here 1.1'
    """
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return "; ".join(f"{name}: {there.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)
