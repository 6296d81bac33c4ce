from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from autoj_reward.client.in_flight import run_in_order


async def test_results_come_in_the_order_of_the_items_and_items_are_taken_as_needed() -> None:
    drawn = in_flight = max_in_flight = 0
    results: list[int] = []

    def draw_items() -> Iterator[int]:
        nonlocal drawn
        for number in range(1, 201):
            drawn = number
            yield number

    async def work(item: int) -> int:
        nonlocal in_flight, max_in_flight
        in_flight += 1
        max_in_flight = max(max_in_flight, in_flight)
        for _ in range(item * 7 % 5):  # turns of the loop that an item takes
            await asyncio.sleep(0)
        in_flight -= 1
        return item

    def record(item: int) -> None:
        results.append(item)
        assert drawn - item <= 20

    await run_in_order(draw_items(), work, record, 10)
    assert results == list(range(1, 201)) and 5 <= max_in_flight <= 10


@pytest.mark.parametrize(
    ("room", "size"),
    [
        pytest.param(6, 2, id="sizes of 12"),
        pytest.param(3, 0, id="no size, which counts as one"),
    ],
)
async def test_one_that_is_late_holds_up_no_more_than_as_many_again(room: int, size: int) -> None:
    late = asyncio.Event()
    drawn: list[int] = []
    results: list[int] = []

    async def work(item: int) -> int:
        drawn.append(item)
        if item == 0:
            await late.wait()
        return item

    job = asyncio.create_task(
        run_in_order(range(100), work, results.append, room, lambda item: size)
    )
    for _ in range(300):
        await asyncio.sleep(0)
    assert drawn == [0, 1, 2, 3, 4, 5] and results == []
    late.set()
    await job
    assert results == list(range(100))


@pytest.mark.parametrize("where", ["work", "done"])
async def test_an_error_ends_all(where: str) -> None:
    async def work(item: int) -> int:
        if item == 3 and where == "work":
            raise RuntimeError("no")
        return item

    def record(item: int) -> None:
        if item == 3 and where == "done":
            raise RuntimeError("no")

    with pytest.raises(ExceptionGroup) as caught:
        await run_in_order(range(100), work, record, 4)
    assert caught.group_contains(RuntimeError, match="no")


async def test_an_item_larger_than_the_room_has_it_alone() -> None:
    results: list[int] = []

    async def work(item: int) -> int:
        return item

    await run_in_order([1, 50, 2], work, results.append, 8, lambda item: item)
    assert results == [1, 50, 2]
