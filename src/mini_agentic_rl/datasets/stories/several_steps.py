"""Stories of three and four operations from many walks of life."""

from __future__ import annotations

from .templates import Story, divisible, larger_first, multiples, numbers, told

SEVERAL_STEPS: tuple[Story, ...] = (
    # three operations
    told(
        numbers((34, 189), (13, 97), (34, 189), (13, 97)), "{a}*{b}+{c}*{d}", "Multiply each pair, then add.",
        "{name} buys {b} rolls of {a} stamps and {d} rolls of {c} stamps. How many stamps are bought?",
        "An inn has {b} small rooms at {a} dollars and {d} large rooms at {c} dollars. All are taken. What comes in?",
        "For {b} days {name} walks {a} minutes a day, then {c} minutes a day for {d} days. How many minutes is that?",
        "A truck takes {a} sacks of {b} kilograms and {c} sacks of {d} kilograms. What does its load weigh?",
        "{b} machines make {a} bolts an hour each, and {d} newer ones {c} each. How many bolts is that an hour?",
        "A quiz gives {a} points for each of {b} easy and {c} points for each of {d} hard questions. How many points "
        "can be won?",
    ),
    told(
        numbers((134, 389), (43, 97), (13, 69), (13, 59)), "{a}*{b}-{c}*{d}", "Multiply each pair, then subtract.",
        "{name} earns {a} dollars a day for {b} days, and pays a helper {c} dollars for each of {d}. What is left?",
        "A store had {b} crates of {a} bottles and sold {d} packs of {c} bottles. How many bottles are left?",
        "A river brings {a} liters a second for {b} seconds while pumps take {c} liters a second for {d} seconds. How "
        "many liters are gained?",
        "{b} pages of {a} words were written and {d} paragraphs of {c} words deleted. How many words are left?",
    ),
    told(
        larger_first((5400, 9890), (112, 1480), (13, 48), (12, 67)), "{a}-{b}-{c}*{d}",
        "Subtract the first, then the product.",
        "From {a} dollars {name} pays {b} dollars for a flight and {d} dollars a night for {c} nights. What remains?",
        "{a} kilometers have to be driven. {name} has done {b}, and then drives {d} kilometers an hour for {c} hours. "
        "How many kilometers remain?",
        "A silo of {a} tons loses {b} tons by fire, and {c} trucks take {d} tons each. How many tons are left?",
    ),
    told(
        numbers((23, 289), (23, 289), (13, 48), (112, 980)), "({a}+{b})*{c}+{d}", "Add, multiply, then add the rest.",
        "A night costs {a} dollars and the meals {b} dollars a day. {name} stays {c} days and pays {d} dollars for the "
        "trip there. What does it cost in all?",
        "Each of {c} tables has {a} red and {b} white roses, and another {d} roses stand at the door. How many roses "
        "are there?",
        "On each of {c} days {a} boys and {b} girls came, on the last evening {d} parents. How many visits is that?",
    ),
    told(
        numbers((123, 289), (123, 289), (23, 48), (112, 4980)), "({a}+{b})*{c}-{d}", "Add, multiply, then subtract.",
        "A pair of workers lay {a} and {b} stones a day. After {c} days {d} stones are found to be loose. How many are "
        "firm?",
        "Every month {name} earns {a} dollars in a shop and {b} dollars as a singer. In {c} months {d} dollars went "
        "to a dentist. What is left?",
        "{c} boxes hold {a} plain and {b} filled chocolates each. {d} are eaten. How many are there still?",
    ),
    told(
        numbers((312, 989), (12, 290), (4, 48), (112, 980)), "({a}-{b})*{c}+{d}",
        "Subtract, multiply, then add the rest.",
        "{name} earns {a} dollars a week, spends {b} of them and saves the rest. How much is it after {c} weeks, with "
        "{d} dollars at the beginning?",
        "Of {a} seats in a bus {b} stay free. {c} such buses and {d} people on foot arrive. How many people arrive?",
        "Each of {c} jars takes {a} grams, {b} grams of it syrup and the rest fruit. With {d} grams of fruit eaten "
        "fresh, how many grams of fruit were picked?",
    ),
    told(
        divisible((112, 689), (6, 48), (12, 98), (3, 29)), "({a}/{b}+{c})*{d}", "Divide, add, then multiply.",
        "{b} shirts cost {a} dollars to make, and printing one costs {c} dollars. What do {d} printed shirts cost?",
        "{a} apples are spread over {b} baskets equally, and {c} pears are put into each. How much fruit is in {d} "
        "baskets?",
    ),
    told(
        divisible((213, 689), (6, 48), (12, 198), (3, 29)), "({a}/{b}-{c})*{d}", "Divide, subtract, then multiply.",
        "{b} coats are sold for {a} dollars, and making one costs {c} dollars. What is the gain on {d} coats?",
        "{a} hens live in {b} equal stalls. In each stall {c} do not lay. How many hens lay in {d} of the stalls?",
    ),
    told(
        multiples(60, (3, 98), (60, 60), (2, 5), (12, 98)), "({a}+{b})/{c}+{d}", "Add, divide, then add the rest.",
        "Two purses with {a} and {b} dollars are shared by {c} heirs equally. {name}, one of them, had {d} dollars. "
        "How many dollars does {name} have now?",
        "{a} red and {b} blue balls are put into {c} equal nets, and {d} white ones into each. How many balls are in "
        "a net?",
    ),
    told(
        numbers((23, 480), (3, 19), (12, 380)), "{a}+{a}*{b}+{c}", "Find the multiple, add both and the rest.",
        "{name} picked {a} berries, {other} {b} times as many, and a child {c}. How many berries did they pick?",
        "A stool costs {a} dollars, a bed {b} times as much, and a lamp {c} dollars. What do the three cost?",
    ),
    told(
        numbers((123, 480), (12, 98), (12, 98)), "{a}+({a}+{b})+{c}", "Find the second amount, then add all three.",
        "The first day brought {a} visitors, the second {b} more than the first, and the third {c}. How many came?",
        "{other} has {a} coins, {name} {b} more, and a friend {c}. How many coins do the three have?",
    ),
    told(
        numbers((12, 48), (12, 48), (4, 19), (12, 98)), "{a}*{b}*{c}+{d}", "Multiply all three, then add the rest.",
        "{c} trains with {b} cars each bring {a} people a car, and {d} more come by bicycle. How many people come?",
        "{name} works {b} days a month at {a} dollars a day for {c} months and is given {d} dollars more. How much "
        "money is that?",
    ),
    told(
        numbers((24, 48), (23, 48), (4, 19), (112, 980)), "{a}*{b}*{c}-{d}", "Multiply all three, then subtract.",
        "There are {c} halls with {b} rows of {a} seats. {d} seats are empty. How many people sit there?",
        "A shop gets {c} pallets with {b} cartons of {a} bulbs, and {d} bulbs are broken. How many are whole?",
    ),
    # four operations
    told(
        numbers((34, 189), (13, 97), (34, 189), (13, 97), (112, 980)), "{a}*{b}+{c}*{d}+{e}",
        "Multiply each pair, then add all.",
        "{name} sells {b} tickets at {a} dollars and {d} at {c} dollars, and {e} dollars are given as presents. How "
        "much money comes in?",
        "A museum has {b} rooms with {a} pictures and {d} rooms with {c} pictures each, and {e} pictures in store. How "
        "many pictures does it own?",
        "{b} lessons of {a} minutes, {d} lessons of {c} minutes and an exam of {e} minutes make a course. How many "
        "minutes does it take?",
    ),
    told(
        numbers((34, 189), (33, 97), (34, 189), (33, 97), (112, 980)), "{a}*{b}+{c}*{d}-{e}",
        "Multiply each pair, add them, then subtract.",
        "A farm loads {b} boxes of {a} plums and {d} boxes of {c} plums. On the way {e} go bad. How many plums arrive "
        "in order?",
        "{name} is paid for {b} hours at {a} dollars and for {d} hours at {c} dollars, less {e} dollars of taxes. How "
        "much is that?",
    ),
    told(
        larger_first((5400, 9890), (112, 980), (13, 48), (12, 67), (112, 980)), "{a}-{b}-{c}*{d}+{e}",
        "Subtract the first and the product, then add.",
        "{name} has {a} dollars, pays {b} dollars of rent, eats for {d} dollars on each of {c} days, and gets {e} "
        "dollars back. How many dollars are there now?",
        "A well of {a} liters loses {b} liters in the sun and {d} liters a day for {c} days. Rain brings {e} liters. "
        "How many liters are in it?",
    ),
    told(
        numbers((23, 289), (23, 289), (13, 48), (112, 980), (12, 98)), "({a}+{b})*{c}+{d}-{e}",
        "Add, multiply, then add and subtract the rest.",
        "Each of {c} guests gets {a} grams of rice and {b} grams of beans. The cook boils {d} grams more and drops {e} "
        "grams. How many grams are there?",
        "In {c} weeks {name} reads {a} pages of novels and {b} pages of news a week, before that {d} pages, of which "
        "{e} were read twice and count once. How many different pages is that?",
    ),
    told(
        numbers((312, 989), (12, 290), (14, 48), (112, 980), (12, 98)), "({a}-{b})*{c}+{d}+{e}",
        "Subtract, multiply, then add the rest.",
        "{name} earns {a} dollars and spends {b} dollars a month, for {c} months. With {d} dollars at first and {e} "
        "dollars found, how much is it?",
        "{c} buses of {a} seats have {b} free each. {d} people come by car and {e} on foot. How many people come?",
    ),
    told(
        divisible((112, 689), (6, 48), (12, 98), (3, 29), (112, 980)), "({a}/{b}+{c})*{d}+{e}",
        "Divide, add, multiply, then add the rest.",
        "{b} cups cost {a} dollars, and painting one costs {c} dollars. {name} orders {d} painted cups and pays {e} "
        "dollars for the post. What is the bill?",
        "{a} books are spread over {b} shelves equally, and {c} new ones are put on each. {name} counts {d} shelves, "
        "and {e} books on the floor. How many books are counted?",
    ),
    told(
        numbers((12, 48), (12, 48), (4, 19), (13, 48), (4, 19)), "{a}*{b}*{c}+{d}*{e}",
        "Multiply three, multiply two, then add.",
        "{c} floors have {b} flats with {a} lamps each, and {e} stairs have {d} lamps each. How many lamps is that?",
        "{name} sews {b} shirts with {a} buttons on each of {c} days, and {e} coats with {d} buttons. How many buttons "
        "are needed?",
    ),
    told(
        numbers((23, 480), (3, 19), (12, 380), (4, 29)), "({a}+{a}*{b}+{c})*{d}",
        "Find the multiple, add all, then multiply.",
        "A pencil costs {a} cents, a pen {b} times as much and a ruler {c} cents. What do {d} sets of the three cost, "
        "in cents?",
        "Every day {name} walks {a} meters, rides {b} times as far and swims {c} meters. How many meters is that in "
        "{d} days?",
    ),
)  # fmt: skip
