"""Which Workloads wait, and which is looked at next."""

from __future__ import annotations

import asyncio

import pytest

from tests.check.kueue_objects import workload
from webhook.check.agenda import Agenda, Waiting
from webhook.rule.trainjob import Execution
from webhook.rule.workload import Workload, read_workload

ONE, TWO, THREE = ("n", "one"), ("n", "two"), ("n", "three")
EXECUTION = Execution("j-1", "s-1")


def of_trainjob(name: str, trainjob: str = "llama") -> Workload:
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": trainjob, "uid": "u"}
    return read_workload(workload(name, namespace="n", owner=owner))


def test_news_of_a_trainjob_is_for_its_own_workloads_only() -> None:
    waiting = Waiting()
    waiting.put(of_trainjob("one"))
    waiting.put(of_trainjob("two", "other"))
    assert waiting.of_trainjob("n", "llama") == {ONE}
    assert waiting.of_trainjob("elsewhere", "llama") == frozenset()


def test_news_of_an_execution_is_for_the_workload_that_names_it() -> None:
    waiting = Waiting()
    waiting.put(of_trainjob("one"))
    waiting.carries(ONE, "llama", frozenset({EXECUTION}))
    assert waiting.of_execution("n", EXECUTION) == {ONE}
    waiting.carries(ONE, "llama", frozenset())
    assert waiting.of_execution("n", EXECUTION) == frozenset()


def test_one_that_waits_no_more_hears_nothing() -> None:
    waiting = Waiting()
    waiting.put(of_trainjob("one"))
    waiting.carries(ONE, "llama", frozenset({EXECUTION}))
    waiting.remove(ONE)
    assert len(waiting) == 0
    assert waiting.of_trainjob("n", "llama") == waiting.of_execution("n", EXECUTION) == frozenset()


def test_one_that_gets_another_owner_hears_of_that_one() -> None:
    waiting = Waiting()
    waiting.put(of_trainjob("one"))
    waiting.put(of_trainjob("one", "other"))
    assert waiting.of_trainjob("n", "llama") == frozenset()
    assert waiting.of_trainjob("n", "other") == {ONE}


def test_one_whose_trainjob_is_found_by_its_owners_owner_hears_of_it() -> None:
    waiting = Waiting()
    owner = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "parent", "uid": "u"}
    waiting.put(read_workload(workload("one", namespace="n", owner=owner)))
    assert waiting.of_trainjob("n", "llama") == frozenset()
    waiting.carries(ONE, "llama", frozenset())
    waiting.put(read_workload(workload("one", namespace="n", owner=owner)))
    assert waiting.of_trainjob("n", "llama") == {ONE}
    waiting.remove(ONE)
    assert waiting.of_trainjob("n", "llama") == frozenset()


async def test_the_earliest_that_is_due_comes_first_and_news_before_routine() -> None:
    agenda = Agenda()
    now = asyncio.get_running_loop().time()
    agenda.put(ONE, now - 3)
    agenda.put(TWO, now - 2)
    agenda.put(THREE, now - 1, is_news=True)
    assert [await agenda.next() for _ in range(3)] == [THREE, ONE, TWO]


async def test_one_is_not_given_twice_at_a_time_but_again_once_it_is_done() -> None:
    agenda = Agenda()
    now = asyncio.get_running_loop().time()
    agenda.put(ONE, now)
    assert await agenda.next() == ONE
    agenda.put(ONE, now)
    again = asyncio.ensure_future(agenda.next())
    await asyncio.sleep(0)
    assert not again.done()
    agenda.done(ONE)
    assert await again == ONE


async def test_one_that_is_planned_is_looked_at_earlier_when_there_is_news() -> None:
    agenda = Agenda()
    loop = asyncio.get_running_loop()
    agenda.put(ONE, loop.time() + 3600)
    coming = asyncio.ensure_future(agenda.next())
    await asyncio.sleep(0)
    agenda.put(ONE, loop.time(), is_news=True)
    assert await coming == ONE


async def test_one_that_is_struck_off_does_not_come() -> None:
    agenda = Agenda()
    agenda.put(ONE, asyncio.get_running_loop().time())
    agenda.discard(ONE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await agenda.next()
