"""Stories that are never trained on: other things, other wordings, and operations that training does not have.

They measure whether what was learnt carries over. Nothing here is made by the grammar, and no story of the grammar or
of the other files is written after one of these.
"""

from __future__ import annotations

from .templates import Draw, Story, divisible, larger_first, multiples, numbers, priced, told, with_rest


def _story(question: str, draw: Draw, expression: str) -> Story:
    return told(draw, expression, "", question)


TRANSFER: tuple[Story, ...] = (
    # one operation
    _story("The temperature in the desert was {a} degrees at noon and fell by {b} degrees during the night. What was "
           "it in the morning?", larger_first((31, 49), (5, 28)), "{a}-{b}"),
    _story("{name} climbs from {b} meters above the sea to a summit at {a} meters. How many meters does {name} climb?",
           larger_first((2450, 4810), (310, 1990)), "{a}-{b}"),
    _story("A theater has {a} rows with {b} seats in every row. How many people can sit in it?",
           numbers((14, 58), (12, 46)), "{a}*{b}"),
    _story("The village had {a} inhabitants ten years ago. Since then {b} have moved in. What is the population today?",
           numbers((1240, 8890), (112, 980)), "{a}+{b}"),
    _story("A phone battery lasts {a} hours on one charge. How many hours does {name} get out of {b} charges?",
           numbers((11, 38), (12, 64)), "{a}*{b}"),
    _story("Candidate {name} received {a} votes, {other} received {b}. By how many votes did {name} win?",
           larger_first((5210, 9880), (1230, 5190)), "{a}-{b}"),
    _story("{name} earns {a} dollars a month. How many dollars does {name} earn in {b} months?",
           numbers((1120, 4890), (5, 36)), "{a}*{b}"),
    _story("A rectangle is {a} centimeters long and {b} centimeters wide. What is its area in square centimeters?",
           numbers((14, 98), (12, 89)), "{a}*{b}"),
    _story("An elevator can lift {a} kilograms. It already carries {b} kilograms. How much more can it lift?",
           larger_first((610, 1490), (112, 590)), "{a}-{b}"),
    _story("{name} was born in {b}. How old did {name} turn in {a}?", larger_first((2090, 2120), (1921, 1989)),
           "{a}-{b}"),
    _story("A spaceship flew {a} million kilometers in its first year and {b} million in its second. How far did it "
           "fly in both years, in million kilometers?", numbers((113, 890), (113, 890)), "{a}+{b}"),
    _story("{a} kilograms of flour are used up in {b} days, the same amount every day. How many kilograms are used "
           "daily?", divisible((13, 98), (4, 31)), "{a}/{b}"),
    _story("A hiker has {a} kilometers behind and {b} kilometers ahead of the next hut. How long is the whole trail?",
           numbers((12, 189), (12, 189)), "{a}+{b}"),
    _story("Every night {name} sleeps {a} minutes. How many minutes of sleep is that in {b} nights?",
           numbers((380, 540), (6, 31)), "{a}*{b}"),
    _story("The concert hall sold {a} seats, but {b} visitors stayed away. How many came?",
           larger_first((1250, 4890), (112, 1190)), "{a}-{b}"),
    _story("A cook needs {a} grams of rice for each guest. How many grams does {name} weigh out for {b} guests?",
           numbers((65, 145), (12, 89)), "{a}*{b}"),
    _story("{a} soldiers march in {b} columns of equal length. How long is each column, in soldiers?",
           divisible((12, 89), (4, 36)), "{a}/{b}"),
    _story("Yesterday the shares of a company stood at {a} dollars. Today they rose by {b} dollars. What is the price "
           "now?", priced((2150, 9890), (3, 49)), "{a}+{b}"),
    _story("A marathon runner has covered {b} of {a} meters when it begins to rain. How many meters does {name} have "
           "to run in the rain?", larger_first((42195, 42195), (5200, 39800)), "{a}-{b}"),
    _story("A spider has 8 legs. How many legs do {a} spiders have?", numbers((13, 489)), "{a}*8"),
    # two operations
    _story("A fence runs once around a field that is {a} meters long and {b} meters wide. How long is the fence?",
           numbers((43, 289), (23, 189)), "2*({a}+{b})"),
    _story("{name} got {a}, {b} and {c} points in three exams. What is the sum of these points?",
           numbers((41, 99), (41, 99), (41, 99)), "{a}+{b}+{c}"),
    _story("A car uses {b} liters of fuel for 100 kilometers. How many liters does it use for {a} kilometers?",
           multiples(100, (2, 39), (4, 12)), "{a}*{b}/100"),
    _story("{name} borrows {a} dollars and has to give back {b} percent of it as a fee. How many dollars is the fee?",
           multiples(100, (3, 98), (2, 45)), "{a}*{b}/100"),
    _story("Two thermometers show {a} and {b} degrees. What is the mean of the two?",
           numbers((11, 60), (11, 99)), "({a}+{b})/2"),
    _story("A computer costs {a} dollars. {name} pays {b} dollars at once and the rest in {c} equal monthly rates. How "
           "high is a rate?", with_rest((4, 24), (31, 98), (100, 490)), "({a}-{b})/{c}"),
    _story("A cyclist rides {a} hours at {b} kilometers per hour and then pushes the bike for {c} kilometers. What is "
           "the whole distance?", numbers((3, 9), (14, 32), (2, 11)), "{a}*{b}+{c}"),
    _story("The rent of {name} is {a} dollars a month, heating included for {b} dollars. What is the rent without "
           "heating for {c} months?", larger_first((610, 1490), (42, 190), (4, 24)), "({a}-{b})*{c}"),
    _story("A hotel has {a} floors with {b} rooms each. {c} rooms are being painted. How many can be let?",
           numbers((8, 29), (14, 48), (5, 58)), "{a}*{b}-{c}"),
    _story("{name} is {a} years old, {other} is {b} years younger. How old are both together?",
           larger_first((41, 89), (3, 39)), "{a}+({a}-{b})"),
    _story("An orchestra plays {a} evenings. On each evening {b} seats downstairs and {c} in the balcony are taken. "
           "How many guests hear it?", numbers((4, 28), (210, 690), (35, 190)), "{a}*({b}+{c})"),
    _story("A swimmer does {a} lengths of {b} meters before breakfast and rests after half of the distance. After how "
           "many meters does {name} rest?", multiples(2, (8, 60), (25, 50)), "{a}*{b}/2"),
    _story("A reservoir held {a} cubic meters. It lost {b} in summer and gained {c} in winter. What does it hold now?",
           larger_first((5210, 9890), (512, 3190), (112, 1980)), "{a}-{b}+{c}"),
    _story("{a} grams of sugar make a cake for {b} people. How many grams are needed for {c} people?",
           divisible((11, 48), (4, 9), (12, 39)), "{a}/{b}*{c}"),
    _story("A taxi charges {a} dollars to start with and {b} dollars for every kilometer. What does {name} pay for {c} "
           "kilometers?", numbers((4, 12), (2, 6), (11, 49)), "{a}+{b}*{c}"),
    _story("A van may carry {a} kilograms. It is loaded with {b} parcels that weigh {c} kilograms each. How many "
           "kilograms is it below its limit?", larger_first((940, 1890), (11, 39), (6, 24)), "{a}-{b}*{c}"),
    # three operations
    _story("A class of {a} pupils goes to the museum. The bus is {b} dollars and each entry {c} dollars. {d} dollars "
           "come from the school. What do the parents pay?", numbers((14, 32), (120, 390), (4, 14), (20, 90)),
           "{b}+{a}*{c}-{d}"),
    _story("{name} runs {a} kilometers on each of {b} weekdays and {c} kilometers on both days of the weekend. How "
           "far is that in a week?", numbers((4, 14), (3, 5), (8, 24)), "{a}*{b}+{c}*2"),
    _story("Of {a} lottery tickets {b} percent win a prize of {c} dollars. How many dollars are paid out?",
           multiples(100, (3, 48), (2, 24), (5, 48)), "{a}*{b}/100*{c}"),
    _story("A garden is {a} meters long and {b} wide. A pond of {c} by {d} meters is dug in it. How many square meters "
           "remain?", numbers((24, 68), (18, 49), (3, 12), (3, 9)), "{a}*{b}-{c}*{d}"),
    _story("A plumber asks {a} dollars for coming and {b} dollars an hour. {name} pays for {c} hours with a voucher of "
           "{d} dollars. How many dollars are left to pay?", numbers((35, 160), (35, 70), (3, 9), (10, 25)),
           "{a}+{b}*{c}-{d}"),
    _story("Two ships leave opposite ends of a bay that is {d} kilometers wide and sail apart at {a} and {b} "
           "kilometers an hour. How far apart are they after {c} hours?",
           numbers((17, 40), (16, 39), (2, 7), (5, 19)), "({a}+{b})*{c}+{d}"),
    _story("{name} mixes {a} bottles of {b} deciliters with {c} deciliters of water and pours everything into 4 equal "
           "jugs. How many deciliters are in a jug?", numbers((4, 14), (5, 12), (12, 98)), "({a}*{b}+{c})/4"),
    _story("The four sides of a kite measure {a}, {a}, {b} and {b} centimeters. How long is its border?",
           numbers((23, 89), (31, 120)), "{a}*2+{b}*2"),
    # four operations
    _story("A family of {a} adults and {b} children goes swimming. Adults pay {c} dollars, children {d} dollars, and "
           "the locker for all costs 5 dollars. What does the family pay?",
           numbers((2, 9), (3, 14), (9, 24), (3, 8)), "{a}*{c}+{b}*{d}+5"),
    _story("A worker is paid {a} dollars an hour for {b} hours of the day and double for {c} hours of the night. What "
           "is that in dollars?", numbers((14, 39), (21, 40), (3, 9)), "{a}*{b}+{a}*2*{c}"),
    _story("A room is {a} meters long and {b} wide. One square meter of carpet costs {c} dollars, laying it {d} "
           "dollars in all, and {name} has a discount of 20 dollars. What is to be paid?",
           numbers((4, 14), (3, 9), (12, 48), (60, 190)), "{a}*{b}*{c}+{d}-20"),
    _story("{name} drives {a} kilometers with a car that needs one liter for {b} kilometers. A liter costs {c} "
           "dollars, the toll is {d} dollars, and a coffee 4 dollars. What does the trip cost?",
           divisible((8, 48), (11, 19), (2, 3), (6, 38)), "{a}/{b}*{c}+{d}+4"),
)  # fmt: skip
