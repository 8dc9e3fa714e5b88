"""`idempotent_operation` on a real engine, with both kinds of client; contract §15."""

from __future__ import annotations

import asyncio
import json

import pytest
import redis
import redis.asyncio

from dtq_tasks import RetryableError, idempotent_operation

pytestmark = pytest.mark.contract("C15.06")
KEY = "charge:7"


class Effect:
    """Something that must happen once: counts how often it did."""

    def __init__(self, value: object = None, raises: BaseException | None = None) -> None:
        self.runs = 0
        self.value = value
        self.raises = raises

    def __call__(self) -> object:
        self.runs += 1
        if self.raises is not None:
            raise self.raises
        return self.value

    async def later(self) -> object:
        await asyncio.sleep(0)
        return self()


@pytest.fixture
def client(engine):
    with redis.Redis.from_url(engine.url(), decode_responses=True) as client:
        yield client


@pytest.fixture(params=["blocking client", "asyncio client", "asyncio client and function"])
def once(request, engine):
    """idempotent_operation(KEY, ttl, effect) in one of the ways to call it."""

    def blocking(effect: Effect, ttl: int = 60, key: str = KEY) -> object:
        with redis.Redis.from_url(engine.url()) as client:
            return idempotent_operation(client, key, ttl, effect)

    def asynchronous(effect: Effect, ttl: int = 60, key: str = KEY) -> object:
        async def main() -> object:
            async with redis.asyncio.Redis.from_url(engine.url()) as client:
                return await idempotent_operation(client, key, ttl, effect.later if "and" in request.param else effect)

        return asyncio.run(main())

    return blocking if request.param == "blocking client" else asynchronous


def test_the_function_runs_once_and_later_calls_get_its_value(once, client):
    first, second = Effect({"id": [1, "ü"]}), Effect("other")
    assert once(first) == once(second) == {"id": [1, "ü"]}
    assert (first.runs, second.runs) == (1, 0)
    assert 0 < client.ttl(KEY) <= 60
    assert once(second, key="charge:8") == "other"


@pytest.mark.parametrize("value", [None, 0, False, "", [], "done:x", "running:x"])
def test_empty_values_are_remembered_as_what_they_are(once, value):
    assert once(Effect(value)) == value
    again = Effect("other")
    assert once(again) == value and again.runs == 0


@pytest.mark.parametrize("value", [{1}, float("nan"), object()])
def test_a_value_that_is_not_json_is_given_once_and_remembered_as_null(once, value):
    assert once(Effect(value)) is value
    assert once(Effect("other")) is None


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), SystemExit(1)], ids=repr)
def test_a_function_that_raises_gives_the_key_back(once, client, error):
    with pytest.raises(type(error)):
        once(Effect(raises=error))
    assert not client.exists(KEY)
    assert once(Effect("fine")) == "fine"


def test_while_it_runs_elsewhere_others_are_told_to_come_again(once, client):
    client.set(KEY, "running:0123456789abcdef", ex=60)
    effect = Effect()
    with pytest.raises(RetryableError, match="under way"):
        once(effect)
    assert effect.runs == 0
    assert client.get(KEY) == "running:0123456789abcdef"


def test_when_its_time_is_over_the_operation_may_run_again(once, client):
    once(Effect(1))
    client.delete(KEY)
    assert once(Effect(2)) == 2


def test_a_key_that_is_another_s_by_now_is_not_given_back(once, client):
    def outlived_its_ttl() -> None:
        client.set(KEY, "running:another")
        raise ValueError("too late")

    effect = Effect()
    effect.__class__ = type("Late", (Effect,), {"__call__": lambda self: outlived_its_ttl()})
    with pytest.raises(ValueError, match="too late"):
        once(effect)
    assert client.get(KEY) == "running:another"


def test_the_error_of_the_function_is_told_even_if_the_key_cannot_be_given_back(engine):
    class Gone(redis.Redis):
        def eval(self, *args: object) -> None:
            raise redis.ConnectionError("gone")

    with Gone.from_url(engine.url()) as client, pytest.raises(ValueError, match="mine"):
        idempotent_operation(client, KEY, 60, Effect(raises=ValueError("mine")))


def test_of_many_at_once_one_runs(engine, client):
    effect = Effect("value")

    async def main() -> list[object]:
        async with redis.asyncio.Redis.from_url(engine.url()) as shared:
            calls = (idempotent_operation(shared, KEY, 60, effect.later) for _ in range(30))
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(main())
    assert effect.runs == 1
    assert all(answer == "value" or isinstance(answer, RetryableError) for answer in answers)
    assert json.loads(client.get(KEY).removeprefix("done:")) == "value"
