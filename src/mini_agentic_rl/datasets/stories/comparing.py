"""Stories that compare, and stories of time, money, distance, dozens and parts."""

from __future__ import annotations

from .templates import Story, divisible, larger_first, multiples, numbers, priced, with_rest

COMPARING: tuple[Story, ...] = (
    Story(
        phrasings=(
            "{name} has {a} {item}. {other} has {b} more than {name}. How many {item} does {other} have?",
            "{other} has {b} more {item} than {name}, who has {a}. How many does {other} have?",
        ),
        items=("marbles", "cards", "shells", "pencils"),
        draw=numbers((14, 980), (12, 890)),
        expression="{a}+{b}",
        thought="Add how many more.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item}. {other} has {b} fewer than {name}. How many {item} does {other} have?",
            "{other} has {b} fewer {item} than {name}, who has {a}. How many does {other} have?",
        ),
        items=("marbles", "cards", "shells", "pencils"),
        draw=larger_first((320, 4980), (12, 310)),
        expression="{a}-{b}",
        thought="Subtract how many fewer.",
    ),
    Story(
        phrasings=(
            "{name} collected {a} {item} and {other} collected {b}. How many more {item} did {name} collect?",
            "There are {a} {item} in one box and {b} in another. How many more are in the first than in the second?",
            "{other} needs {a} {item} but has only {b}. How many more {item} does {other} need?",
        ),
        items=("nuts", "bottles", "leaves", "buttons"),
        draw=larger_first((420, 4980), (12, 410)),
        expression="{a}-{b}",
        thought="Subtract to compare.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item}. {other} has {b} times as many. How many {item} does {other} have?",
            "{other} has {b} times as many {item} as {name}, who has {a}. How many does {other} have?",
        ),
        items=("toys", "coins", "plants", "drawings"),
        draw=numbers((23, 890), (3, 48)),
        expression="{a}*{b}",
        thought="Multiply by how many times.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item}, which is {b} times as many as {other} has. How many {item} does {other} have?",
            "A box of {a} {item} holds {b} times as many as a bag. How many {item} does a bag hold?",
        ),
        items=("toys", "coins", "beads", "nails"),
        draw=divisible((13, 480), (3, 48)),
        expression="{a}/{b}",
        thought="Divide by how many times.",
    ),
    Story(
        phrasings=(
            "A movie lasts {a} minutes. {name} has watched {b} minutes of it. How many minutes are left?",
            "{name} has {a} minutes for a test and has used {b} of them. How many minutes remain?",
            "The trip takes {a} hours. {name} has been travelling for {b} hours. How many hours are still to go?",
        ),
        items=("minutes",),
        draw=larger_first((112, 490), (12, 99)),
        expression="{a}-{b}",
        thought="Subtract the time that has passed.",
    ),
    Story(
        phrasings=(
            "One lap takes {name} {a} seconds. How many seconds do {b} laps take?",
            "{name} practices the piano {a} minutes a day. How many minutes is that in {b} days?",
            "A course has {b} lessons of {a} minutes. How many minutes does {name} spend in all of them?",
        ),
        items=("minutes",),
        draw=numbers((14, 189), (12, 98)),
        expression="{a}*{b}",
        thought="Multiply the time by how often.",
    ),
    Story(
        phrasings=(
            "{name} works {a} minutes before lunch and {b} minutes after it. How many minutes is that altogether?",
            "{name} walks {a} meters to school and then {b} meters to the pool. How many meters is that in all?",
            "A rope of {a} meters is tied to one of {b} meters by {name}. How long are they together, in meters?",
        ),
        items=("minutes",),
        draw=numbers((34, 890), (34, 890)),
        expression="{a}+{b}",
        thought="Add both.",
    ),
    Story(
        phrasings=(
            "{name} pays a bill of {b} dollars with {a} dollars. How many dollars of change does {name} get?",
            "A bicycle costs {a} dollars. {name} has {b} dollars. How many more dollars does {name} need?",
            "A coat cost {a} dollars and is now {b} dollars cheaper. What does {name} pay for it in dollars?",
        ),
        items=("dollars",),
        draw=larger_first((112, 980), (12, 99)),
        expression="{a}-{b}",
        thought="Subtract the amounts of money.",
    ),
    Story(
        phrasings=(
            "{name} buys a bag for {a} dollars and a hat for {b} dollars. How many dollars does {name} spend?",
            "A room costs {a} dollars and breakfast {b} dollars. What does {name} pay for both, in dollars?",
        ),
        items=("dollars",),
        draw=priced((511, 9989), (3, 98)),
        expression="{a}+{b}",
        thought="Add the prices.",
    ),
    Story(
        phrasings=(
            "{a} dollars are shared equally by {b} people, one of them {name}. How many dollars does {name} get?",
            "{name} pays {a} dollars for {b} equal chairs. How many dollars does one chair cost?",
            "A loan of {a} dollars is paid back by {name} in {b} equal parts. How many dollars is one part?",
        ),
        items=("dollars",),
        draw=divisible((13, 489), (3, 48)),
        expression="{a}/{b}",
        thought="Divide the money equally.",
    ),
    Story(
        phrasings=(
            "A car drives {a} kilometers an hour. How many kilometers does {name} drive in {b} hours?",
            "{name} types {a} words a minute. How many words does {name} type in {b} minutes?",
            "A tap gives {a} liters a minute. {name} opens it for {b} minutes. How many liters flow?",
        ),
        items=("kilometers",),
        draw=numbers((23, 140), (3, 59)),
        expression="{a}*{b}",
        thought="Multiply the rate by the time.",
    ),
    Story(
        phrasings=(
            "{name} drives {a} kilometers in {b} hours, always at the same speed. How many kilometers is that an hour?",
            "{name} reads {a} pages in {b} days, the same number each day. How many pages is that a day?",
            "A pump moves {a} liters in {b} minutes. How many liters does it move in one minute for {name}?",
        ),
        items=("kilometers",),
        draw=divisible((13, 189), (3, 49)),
        expression="{a}/{b}",
        thought="Divide by the time.",
    ),
    Story(
        phrasings=(
            "{name} buys {a} dozen {item}. One dozen is 12. How many {item} is that?",
            "{name} needs {a} dozen {item} for a party, 12 in each dozen. How many {item} does {name} need?",
        ),
        items=("eggs", "roses", "rolls", "napkins"),
        draw=numbers((13, 489)),
        expression="{a}*12",
        thought="Multiply the dozens by twelve.",
    ),
    Story(
        phrasings=(
            "{name} runs for {a} hours. How many minutes is that, with 60 minutes in an hour?",
            "A machine of {name} works for {a} hours without a stop. An hour has 60 minutes. How many minutes is that?",
        ),
        items=("hours",),
        draw=numbers((3, 98)),
        expression="{a}*60",
        thought="Multiply the hours by sixty.",
    ),
    Story(
        phrasings=(
            "Half of the {a} {item} in a room belong to {name}. How many {item} does {name} have there?",
            "{name} has {a} {item} and gives half of them to {other}. How many {item} does {other} get?",
        ),
        items=("boxes", "bags", "games", "pens"),
        draw=multiples(2, (24, 2400)),
        expression="{a}/2",
        thought="Divide by two.",
    ),
    Story(
        phrasings=(
            "{name} read a third of a book with {a} pages. How many pages has {name} read?",
            "A third of the {a} guests of {name} are children. How many children are there?",
        ),
        items=("pages",),
        draw=multiples(3, (24, 900)),
        expression="{a}/3",
        thought="Divide by three.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item} and {other} has {b} more. How many {item} do they have together?",
            "There are {a} {item} in a box and {b} more than that in a bag. How many {item} does {name} find in both?",
        ),
        items=("marbles", "coins", "buttons", "nuts"),
        draw=numbers((23, 980), (12, 480)),
        expression="{a}+({a}+{b})",
        thought="Add the larger amount to the first.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item} and {other} has {b} times as many. How many {item} do they have together?",
            "{name} counts {a} {item} on Monday and {b} times as many on Tuesday. How many is that on both days?",
        ),
        items=("birds", "cars", "coins", "stars"),
        draw=numbers((23, 480), (3, 19)),
        expression="{a}+{a}*{b}",
        thought="Multiply, then add the first amount.",
    ),
    Story(
        phrasings=(
            "{name} buys {b} {item} for {c} dollars each and pays with {a} dollars. What is the change in dollars?",
            "{name} has {a} dollars and buys {b} {item} at {c} dollars each. How many dollars are left?",
        ),
        items=("shirts", "books", "plants", "cups"),
        draw=larger_first((1300, 4890), (13, 24), (12, 48)),
        expression="{a}-{b}*{c}",
        thought="Subtract price times count from the money.",
    ),
    Story(
        phrasings=(
            "A ticket costs {a} dollars for adults and {b} dollars less for children. What do {c} children pay, in "
            "dollars?",
            "A shirt for {a} dollars is reduced by {b} dollars. How many dollars does {name} pay for {c} such shirts?",
        ),
        items=("tickets",),
        draw=larger_first((51, 189), (3, 24), (3, 25)),
        expression="({a}-{b})*{c}",
        thought="Subtract, then multiply.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item}, keeps {b} and shares the rest equally among {c} friends. How many does each get?",
            "Of {a} {item}, {b} are broken. {name} packs the others into {c} equal boxes. How many are in a box?",
        ),
        items=("sweets", "eggs", "glasses", "cards"),
        draw=with_rest((3, 29), (12, 98), (5, 99)),
        expression="({a}-{b})/{c}",
        thought="Subtract, then divide.",
    ),
    Story(
        phrasings=(
            "{name} had {a} {item}, bought {b} more and filled {c} equal bags. How many are in each bag?",
            "{a} {item} and {b} more are put into {c} equal rows by {name}. How many are in a row?",
        ),
        items=("marbles", "balls", "ribbons", "stones"),
        draw=multiples(60, (3, 98), (60, 60), (2, 5)),
        expression="({a}+{b})/{c}",
        thought="Add, then divide.",
    ),
    Story(
        phrasings=(
            "Each of {a} shelves holds {b} boxes with {c} {item} each. How many {item} does {name} count?",
            "{name} works {b} hours a day for {a} days and makes {c} {item} an hour. How many {item} is that?",
        ),
        items=("toys", "lamps", "bottles", "screws"),
        draw=numbers((3, 48), (3, 24), (12, 89)),
        expression="{a}*{b}*{c}",
        thought="Multiply all three.",
    ),
    Story(
        phrasings=(
            "A quarter of {a} {item} are sold and {b} more are given away. How many {item} did {name} part with?",
            "{name} uses a quarter of {a} {item} in June and {b} in July. How many {item} did {name} use?",
        ),
        items=("tickets", "sacks", "bricks", "eggs"),
        draw=multiples(4, (24, 900), (12, 480)),
        expression="{a}/4+{b}",
        thought="Take the part, then add.",
    ),
)
