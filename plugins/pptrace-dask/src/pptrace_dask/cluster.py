"""An executor on a cluster's workers, which are known to run what runs here.

distributed gives a lost worker's calls to others by itself; a call that costs several workers their lives fails
alone.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from distributed import Client, LocalCluster, Security
from distributed.comm import connect as connect_to

from pptrace.plugin import ConfigError
from pptrace_dask.options import DaskOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from pptrace.plugin import ExecutorRequest

P = ParamSpec("P")
R = TypeVar("R")

_SCHEDULER, _WORKERS = "executor.scheduler", "executor"
_GRACE = 0.5
"""Seconds beyond the timeout, so that an address that cannot be reached is told as such."""


class Cluster(Executor):
    """Executor on the workers of a dask client. Closing it also ends the cluster that it started."""

    def __init__(self, client: Client, ending: ExitStack) -> None:
        self._inner = client.get_executor(pure=False)
        self._ending = ending

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Hand a call to the scheduler; it runs where the versions are this process's, else it fails."""
        future: Future[R] = self._inner.submit(partial(run_there, dict(installed()), fn, *args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - theirs
        """Wait for what runs, or cancel it, and leave the cluster; one that was started here ends."""
        self._inner.shutdown(wait=wait and not cancel_futures)
        self._ending.close()


def connect(request: ExecutorRequest) -> Cluster:
    """Return an executor on a scheduler's workers, or on as many processes of this machine as are asked for.

    Raises:
        ConfigError: no scheduler answers, it has no worker, or a worker has other versions or plugins.
    """
    options = DaskOptions.model_validate(dict(request.options))
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is raised
    with ExitStack() as ending:
        target: Any = options.scheduler
        if target is None:
            target = ending.enter_context(_processes(request.workers))
        else:
            _check_answer(target, options)
        client = ending.enter_context(_client(target, options))
        _wait_for_workers(client, options)
        _check_versions(client)
        sys.stderr.write(_told(client))
        return Cluster(client, ending.pop_all())


def _processes(workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", silence_logs=logging.CRITICAL,
        dashboard_address="127.0.0.1:0",
    )  # fmt: skip


def _check_answer(address: str, options: DaskOptions) -> None:
    """Refuse an address behind which no scheduler is; a client waits for other servers' answers for ever."""
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop of its own
        handshake = thread.submit(asyncio.run, _shake_hands(address, options.timeout))
        try:
            handshake.result()
        except (OSError, ValueError) as error:
            raise _no_scheduler(address, error) from error
        except Exception as error:
            raise _other_server(address) from error


async def _shake_hands(address: str, seconds: float) -> None:
    reaching = connect_to(address, timeout=seconds, **Security().get_connection_args("client"))
    opened = await asyncio.wait_for(reaching, seconds + _GRACE)
    await opened.close()


def _no_scheduler(target: LocalCluster | str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or "nothing said hello in time"
    advice = "start one there with 'dask scheduler', or check the address"
    return ConfigError(f"no scheduler answers at {target}: {advice} ({reason})", key=_SCHEDULER)


def _other_server(address: str) -> ConfigError:
    advice = "check the port: dask's dashboard has another one than its scheduler"
    return ConfigError(f"what answers at {address} is no dask scheduler: {advice}", key=_SCHEDULER)


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
    for worker, there in sorted(client.run(_installed_there, on_error="return").items()):
        if isinstance(there, BaseException):
            reason = f"has no pptrace with pptrace-dask ({type(there).__name__}: {there})"
        elif not (reason := difference(here, there)):
            continue
        raise ConfigError(f"worker {worker}: {reason}; install there what is installed here", key=_WORKERS)


def _told(client: Client) -> str:
    threads = client.nthreads()
    workers = f"{len(threads)} worker{'s' * (len(threads) > 1)}, {sum(threads.values())} threads"
    return f"dask: {workers}, dashboard {client.dashboard_link}\n"


def _installed_there() -> Mapping[str, str]:
    return dict(installed())


def run_there(expected: Mapping[str, str], fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run a call on a worker that may have joined after the others were checked."""
    reason = difference(expected, installed())
    if reason:
        message = f"a worker has other versions ({reason}); install there what is installed here"
        raise RuntimeError(message)
    return fn(*args, **kwargs)


_GROUP = "pptrace"
"""The entry points of plugins."""
_ALSO = ("pptrace", "numpy")
"""Distributions whose version is compared though they are no plugins."""


@cache
def installed() -> Mapping[str, str]:
    """Return the versions of Python, pptrace and all installed plugins, by name."""
    versions = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    plugins = {point.dist.name for point in metadata.entry_points(group=_GROUP) if point.dist is not None}
    for name in sorted(plugins.union(_ALSO)):
        versions[name] = metadata.version(name)
    return versions


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Say in what another installation differs, or nothing.

    >>> difference({"pptrace": "1.1", "mine": "2"}, {"pptrace": "1.0"})
    'mine: none, here 2; pptrace: 1.0, here 1.1'
    """
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return "; ".join(f"{name}: {there.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)
