"""Stories kept as text are read whole, name the line of what is wrong, and draw numbers that can be computed with."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from mini_agentic_rl.recipes.math.stories import LEVELS, STORIES, TRANSFER
from mini_agentic_rl.recipes.math.stories.written import parse, read_written

KIND = "== (a-b)/c | a 20-98, b 2-9, c 3-7 | Subtract, then divide.\n"
UNSEEN_OPERATIONS = re.compile(r"\b(average|mean of|percent|perimeter|fence)\b", re.IGNORECASE)


def test_a_kind_has_its_wordings_and_numbers_that_come_out() -> None:
    wordings = [
        "Of {a} eggs {b} break; {c} fill a box. How many boxes?",
        "{a}, less {b}, shared by {c}: how many?",
    ]
    (story,) = parse(f"# a comment\n\n{KIND}{wordings[0]}\n{wordings[1]}\n", "eggs.txt")
    assert story.phrasings == tuple(wordings)
    assert (story.level, story.expression, story.thought) == (2, "({a}-{b})/{c}", "Subtract, then divide.")
    for seed in range(200):
        a, b, c = story.draw(random.Random(seed))
        assert (20 <= a <= 98, 2 <= b <= 9, 3 <= c <= 7) == (True, True, True)
        assert (a - b) % c == 0
        assert (a - b) // c > 1


def test_prices_have_two_decimal_places_and_steps_are_kept() -> None:
    (story,) = parse(
        "== a*b | a 1.05-9.95, b 20-60 by 10 | Multiply.\nAt {a} dollars, what do {b} cost?\n", "prices.txt"
    )
    drawn = [story.draw(random.Random(seed)) for seed in range(100)]
    assert all(re.fullmatch(r"\d\.\d\d", str(price)) for price, _ in drawn)
    assert {count for _, count in drawn} == {20, 30, 40, 50, 60}


def test_what_is_counted_comes_out_whole_beside_prices() -> None:
    (story,) = parse(
        "== a/b*c | a 40-99, b 3-9, c 1.05-4.95 | Fill boxes.\n{a} eggs, {b} to a box, {c} a box?\n", "x.txt"
    )
    drawn = [story.draw(random.Random(seed)) for seed in range(100)]
    assert all(eggs % size == 0 for eggs, size, _ in drawn)
    (story,) = parse("== a/b | a 4.00-99.00, b 1.05-4.95 | Divide.\n{a} dollars at {b} each: how many?\n", "x.txt")
    assert all(paid % price == 0 for paid, price in (story.draw(random.Random(seed)) for seed in range(20)))


def test_a_number_that_the_answer_does_not_need_is_told_and_is_no_operand() -> None:
    (story,) = parse(
        "== a+b | a 11-98, b 11-98, c 3-9 | Add.\nAt {c}, {name} had {a}, then {b} more. How many?\n", "x.txt"
    )
    problem = story.tell(random.Random(1), random.Random(1))
    assert len(re.findall(r"\d+", problem.expression)) == 2
    assert len(re.findall(r"\d+", problem.question)) == 3


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (f"{KIND}Only {{a}} and {{b}}?\n", 2, "wording"),
        (f"{KIND}{{a}}, {{b}}, {{c}} and {{d}}?\n", 2, "wording"),
        ("A wording without {a} kind?\n", 1, "kind"),
        ("== a+b | a 2-9, b x-7 | Add.\n{a} and {b}?\n", 2, "range"),
        ("== a+b | b 2-9, a 3-7 | Add.\n{a} and {b}?\n", 2, "order"),
        ("== a+b a 2-9\n", 1, "=="),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(ValueError, match=rf"x.txt, line {line}: .*{word}"):
        list(parse(text, "x.txt"))


def test_numbers_that_cannot_fit_are_refused_instead_of_sought_for_ever() -> None:
    (story,) = parse("== a-b | a 2-9, b 20-30 | Subtract.\n{a} less {b}?\n", "x.txt")
    with pytest.raises(ValueError, match="a-b"):
        story.draw(random.Random(0))


def test_thousands_of_wordings_are_written_and_none_twice() -> None:
    wordings = Counter(wording for story in read_written() for wording in story.phrasings)
    levels = Counter(story.level for story in STORIES for _ in story.phrasings)
    assert len(wordings) > 2300
    assert max(wordings.values()) == 1
    assert min(levels[1], levels[2]) > 900
    assert min(levels[level] for level in LEVELS) > 100


def test_operations_of_the_transfer_stories_are_in_no_written_one() -> None:
    assert not [wording for story in STORIES for wording in story.phrasings if UNSEEN_OPERATIONS.search(wording)]
    assert [wording for story in TRANSFER for wording in story.phrasings if UNSEEN_OPERATIONS.search(wording)]


def test_one_of_the_things_of_a_kind_is_told() -> None:
    (story,) = parse("== a+b | a 11-98, b 11-98 | Add. | things: pens, tin soldiers\n{a} {item} and {b}?\n", "x.txt")
    told = {story.tell(random.Random(seed), random.Random(seed)).question.split(" ", 1)[1][:4] for seed in range(30)}
    assert told == {"pens", "tin "}
    with pytest.raises(ValueError, match="wording"):
        list(parse("== a+b | a 11-98, b 11-98 | Add.\n{a} {item} and {b}?\n", "x.txt"))
