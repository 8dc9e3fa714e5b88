"""Running plans on httpx: the only two functions of this package that do I/O, one blocking and one for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TypeVar

import httpx

from dtq_client.address import Address
from dtq_client.deadline import within
from dtq_client.errors import InvalidCall
from dtq_client.exchange import Answer, Broken, Outcome, Plan, Send

T = TypeVar("T")
CONNECT_S = 5.0
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def run(http: httpx.Client, address: Address, plan: Plan[T]) -> T:
    """Follow `plan` to its end. Raises what it raises."""
    outcome: Outcome = None
    while True:
        try:
            step = plan.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(step, Send):
            outcome = _send(http, address, step)
        else:
            time.sleep(step.seconds)
            outcome = None


async def run_async(http: httpx.AsyncClient, address: Address, plan: Plan[T]) -> T:
    """As `run`, on the running event loop."""
    outcome: Outcome = None
    while True:
        try:
            step = plan.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(step, Send):
            outcome = await _send_async(http, address, step)
        else:
            await asyncio.sleep(step.seconds)
            outcome = None


def _send(http: httpx.Client, address: Address, step: Send) -> Outcome:
    request = _request(http, address, step)
    try:
        with within(step.timeout_s):
            response = http.send(request, follow_redirects=False)
        return _answer(response)
    except httpx.RequestError as exc:
        return _broken(exc)


async def _send_async(http: httpx.AsyncClient, address: Address, step: Send) -> Outcome:
    request = _request(http, address, step)
    try:
        async with asyncio.timeout(step.timeout_s):
            response = await http.send(request, follow_redirects=False)
        return _answer(response)
    except TimeoutError:
        return Broken(f"nothing complete within {step.timeout_s:.1f} s", sent=True)
    except httpx.RequestError as exc:
        return _broken(exc)


def _request(http: httpx.Client | httpx.AsyncClient, address: Address, step: Send) -> httpx.Request:
    if http.is_closed:
        raise InvalidCall("this client is closed")
    timeout = httpx.Timeout(step.timeout_s, connect=min(step.timeout_s, CONNECT_S))
    headers = [*address.headers, *((name.encode(), value.encode()) for name, value in step.headers.items())]
    return http.build_request(step.method, address.url + step.path, content=step.body, headers=headers, timeout=timeout)


def _answer(response: httpx.Response) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def _broken(exc: Exception) -> Broken:
    why = f"{type(exc).__name__}: {exc}"[:200] if str(exc) else type(exc).__name__
    return Broken(why, sent=not isinstance(exc, _NEVER_SENT), final=_is_untrusted(exc))


def _is_untrusted(exc: BaseException | None) -> bool:
    """Whether the other side's certificate was refused, which it will be again."""
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False
