"""Stories of two operations from many walks of life, told in the order of the operations and in others."""

from __future__ import annotations

from .templates import Story, divisible, larger_first, multiples, numbers, priced, told, with_rest

TWO_STEPS: tuple[Story, ...] = (
    told(
        numbers((112, 4890), (23, 980), (23, 980)), "{a}+{b}+{c}", "Add all three.",
        "A relay has three runners who run {a}, {b} and {c} meters. How long is the whole relay?",
        "{name} swam {a} meters on Friday, {b} meters on Saturday and {c} meters on Sunday. How far is that in all?",
        "The shop sold {a} red, {b} green and {c} yellow balloons. How many balloons is that?",
        "A parcel weighs {a} grams, its wrapping {b} grams and the label {c} grams. What is the total weight?",
        "On top of {a} dollars from the sale, {name} got {b} dollars as tips and {c} dollars back from taxes. How much "
        "money is that?",
    ),
    told(
        larger_first((2810, 9890), (112, 1290), (112, 1480)), "{a}-{b}-{c}", "Subtract both.",
        "A theft cost the museum {b} of its {a} coins, and a fire {c} more. How many coins does it have left?",
        "{name} had to drive {a} kilometers: {b} were done on the first day and {c} on the second. How many were left "
        "for the third?",
        "Of {a} runners {b} did not start and {c} gave up. How many finished?",
        "A barrel of {a} milliliters loses {b} by a crack and {c} by the sun. What remains?",
        "The mixture weighs {a} grams. It consists of sugar, {b} grams of salt and {c} grams of pepper. How many grams "
        "of sugar are in it?",
        "There are {a} books: {b} in English, {c} in French, and all the rest in Chinese. How many are in Chinese?",
    ),
    told(
        numbers((2210, 8890), (112, 2180), (112, 1980)), "{a}-{b}+{c}", "Subtract what went, add what came.",
        "At noon {a} people were in the park. Until two o'clock {b} had left and {c} had come. How many were there at "
        "two?",
        "A lift stands at a height of {a} centimeters. It goes down {b} centimeters and up {c} again. Where is it?",
        "{name} owed the bank {a} dollars, paid back {b} and borrowed {c} more. How many dollars are owed now?",
        "From a page of {a} letters {name} deletes {b} and types {c} new ones. How many letters are on the page?",
        "The flock counted {a} birds. {b} flew south, then {c} arrived from the north. How many birds are in it?",
    ),
    told(
        numbers((23, 389), (12, 78), (12, 890)), "{a}*{b}+{c}", "Multiply, then add the rest.",
        "A stadium has {b} blocks of {a} seats, and {c} places to stand. How many people fit in?",
        "{name} carries {b} crates with {a} oranges each into the shop, where {c} oranges are already. How many are "
        "there then?",
        "Each of the {b} floors has {a} doors; the cellar has another {c}. How many doors are in the building?",
        "The basic fee is {c} dollars, and every one of the {b} lessons costs {a} dollars. What does the course cost?",
        "For {b} nights at {a} dollars and one breakfast for {c} dollars, what is the bill?",
        "{c} volunteers came on foot. The others came in {b} buses with {a} people in each. How many came?",
        "A tree was {c} centimeters high. It grew {a} centimeters a year for {b} years. How high is it?",
        "{name} starts with {c} dollars and puts aside {a} dollars in each of {b} weeks. How much is it in the end?",
        "An order is for {b} chairs of {a} dollars each; bringing them costs {c} dollars more. What is to be paid?",
        "A typist wrote {a} words an hour for {b} hours and then {c} words more. How many words were written?",
    ),
    told(
        numbers((63, 389), (42, 78), (112, 2390)), "{a}*{b}-{c}", "Multiply, then subtract.",
        "A printer made {b} copies of a paper with {a} sheets, of which {c} sheets were smudged. How many sheets are "
        "good?",
        "{name} harvested {b} rows of {a} cabbages but {c} were eaten by snails. How many can be sold?",
        "For {b} days {name} earned {a} dollars a day and in that time spent {c} dollars. How much was kept?",
        "The puzzle has {b} rows with {a} pieces in each. {c} pieces are in place. How many still have to be placed?",
        "A hall with {b} rows of {a} chairs is used by {c} visitors. How many chairs stay empty?",
        "{name} needs {b} tiles for each of {a} rooms and has {c} tiles. How many tiles must be bought?",
        "{c} of the eggs broke on the way. There were {b} cartons of {a} eggs. How many arrived whole?",
        "A tour of {b} days with {a} kilometers a day: {c} kilometers are behind us. How many lie ahead?",
    ),
    told(
        larger_first((3300, 9890), (13, 48), (12, 67)), "{a}-{b}*{c}", "Multiply, then subtract that from the amount.",
        "A tank of {a} liters loses {c} liters an hour through a leak. What is in it after {b} hours?",
        "{name} begins with {a} dollars and spends {c} dollars a day. How many dollars are left after {b} days?",
        "Out of {a} meters of wire {name} cuts {b} pieces of {c} meters. How many meters remain?",
        "The stock is {a} kilograms of rice, and {b} families get {c} kilograms each. What remains in stock?",
        "{b} buses with {c} people in each have left. At first there were {a} people. How many are still waiting?",
        "{name} has to sort {a} letters, and sorts {c} a minute for {b} minutes. How many are not sorted yet?",
        "A debt of {a} dollars is reduced by {b} payments of {c} dollars. How much of it is left?",
    ),
    told(
        numbers((23, 689), (23, 689), (4, 48)), "({a}+{b})*{c}", "Add, then multiply.",
        "Every day {name} rides {a} meters to school and {b} meters to the stable. How many meters is that in {c} "
        "days?",
        "A set holds {a} large and {b} small pearls. How many pearls are in {c} sets?",
        "A cleaner gets {a} dollars for the rooms and {b} dollars for the stairs of one house. What are {c} such "
        "houses worth?",
        "Each of the {c} rooms has {a} books on the left wall and {b} on the right one. How many books are there?",
        "A machine makes {a} cups in the day shift and {b} in the night shift. How many cups is that in {c} days?",
        "In each of {c} matches one team scored {a} points and the other {b}. How many points were scored in all?",
    ),
    told(
        numbers((342, 989), (12, 290), (4, 48)), "({a}-{b})*{c}", "Subtract, then multiply.",
        "A worker earns {a} dollars a week and pays {b} dollars of it for rent. What is left after {c} weeks?",
        "Of every {a} seeds in a bag {b} are bad. How many good seeds are in {c} such bags?",
        "A pump brings {a} liters a minute into a pool, and {b} liters a minute run out. How many liters are in it "
        "after {c} minutes?",
        "A full crate weighs {a} grams, an empty one {b} grams. How many grams of fruit are in {c} full crates?",
        "A bus carries {a} people when full. {b} seats stay free on each trip. How many people ride on {c} trips?",
        "A snail climbs {a} millimeters by day and slips back {b} millimeters by night. How far is it after {c} days "
        "and nights?",
    ),
    told(
        with_rest((3, 39), (12, 98), (13, 99)), "({a}-{b})/{c}", "Subtract, then divide the rest.",
        "From {a} dollars {name} keeps {b} and pays the rest in {c} equal parts. How many dollars is a part?",
        "A band earned {a} dollars. After {b} dollars for the bus, the {c} players share what is left. What does a "
        "player get?",
        "A rope of {a} inches loses {b} inches at its torn end. The rest is cut into {c} equal pieces. How long is a "
        "piece?",
        "{name} has read {b} of {a} pages and wants to finish in {c} days. How many pages a day is that?",
        "{b} of the {a} children are ill. The others form {c} equal groups. How many are in a group?",
    ),
    told(
        multiples(60, (3, 98), (60, 60), (2, 5)), "({a}+{b})/{c}", "Add, then divide.",
        "Two sacks of {a} and {b} potatoes are mixed and shared out to {c} homes equally. How many does a home get?",
        "{name} collected {a} cans and {other} {b}. They put all of them into {c} equal heaps. How many cans are in a "
        "heap?",
        "On Monday {a} and on Tuesday {b} parcels came; {c} drivers took equally many of them. How many did a driver "
        "take?",
    ),
    told(
        divisible((112, 689), (6, 48), (13, 98)), "{a}/{b}+{c}", "Divide, then add.",
        "{a} fans are spread evenly over {b} trains, and in each train there are {c} other people. How many people "
        "ride in one train?",
        "{a} dollars are shared out to {b} heirs equally. {name}, one of them, gets {c} dollars more from an uncle. "
        "How many dollars is that?",
        "A cake of {a} grams is cut into {b} equal slices. {name} puts {c} grams of cream on one. What does it weigh?",
        "A bill of {a} dollars is split by {b} friends. {name}, one of them, adds {c} dollars as a tip. What does "
        "{name} pay?",
    ),
    told(
        divisible((112, 689), (6, 48), (13, 98)), "{a}/{b}-{c}", "Divide, then subtract.",
        "{a} sweets are shared by {b} children equally. {name}, one of them, eats {c}. How many does {name} have left?",
        "A factory sends {a} lamps to {b} shops in equal parts. One shop sells {c} of its lamps. How many does it "
        "still have?",
        "A wire of {a} centimeters is cut into {b} equal parts, and {c} centimeters are filed off one. How long is "
        "that part now?",
    ),
    told(
        divisible((12, 98), (6, 48), (3, 29)), "{a}/{b}*{c}", "Find the value of one, then multiply.",
        "{b} tickets cost {a} dollars. What do {c} of them cost?",
        "A car needs {a} milliliters for {b} kilometers. How many milliliters does it need for {c} kilometers?",
        "{name} solves {a} tasks in {b} hours. At that speed, how many tasks are solved in {c} hours?",
        "A printer prints {a} pages in {b} minutes. How many pages does it print in {c} minutes?",
        "If {b} boxes hold {a} pencils, how many pencils do {c} boxes hold?",
    ),
    told(
        multiples(180, (4, 38), (2, 5), (2, 3)), "{a}/{b}/{c}", "Divide twice.",
        "A prize of {a} dollars goes to {b} teams in equal parts, and each team divides its part among {c} players. "
        "What does a player get?",
        "{a} books stand in {b} rooms, in each the same number, on {c} equal shelves a room. How many are on a shelf?",
    ),
    told(
        numbers((12, 89), (12, 48), (4, 29)), "{a}*{b}*{c}", "Multiply all three.",
        "A box is {a} centimeters long, {b} wide and {c} high. What is its volume in cubic centimeters?",
        "{c} gardeners plant {b} rows each, with {a} bulbs in a row. How many bulbs are planted?",
        "A bakery bakes {a} loaves an hour, {b} hours a day. How many loaves does it bake in {c} days?",
        "There are {c} cupboards with {b} drawers each, and in every drawer {a} spoons. How many spoons is that?",
    ),
    told(
        numbers((23, 890), (12, 480)), "{a}+({a}+{b})", "Find the other amount, then add both.",
        "A cat weighs {a} grams and a dog {b} grams more. What do the two weigh together?",
        "{name} is {b} dollars richer than {other}, who owns {a} dollars. How much do they own together?",
        "The first act lasts {a} seconds, the second {b} seconds longer. How long do both last?",
    ),
    told(
        larger_first((512, 989), (12, 480)), "{a}+({a}-{b})", "Find the smaller amount, then add both.",
        "A red rope is {a} inches long and a blue one {b} inches shorter. How long are they if tied together?",
        "{name} scored {a} points, {other} {b} points fewer. How many points did the two score?",
        "On Sunday {a} people came, on Monday {b} fewer. How many people came on the two days?",
    ),
    told(
        numbers((23, 480), (3, 19)), "{a}+{a}*{b}", "Find the multiple, then add both.",
        "A lamp costs {a} dollars and a sofa {b} times as much. What do a lamp and a sofa cost together?",
        "A pup weighs {a} grams, its mother {b} times as much. What do they weigh together?",
    ),
    told(
        numbers((23, 480), (3, 19)), "{a}*{b}-{a}", "Find the multiple, then the difference.",
        "{other} has saved {a} dollars and {name} {b} times as much. How many dollars more does {name} have?",
        "A snake is {a} inches long, a python {b} times that. By how many inches is the python longer?",
    ),
    told(
        priced((211, 2990), (12, 89), (12, 98)), "{a}*{b}+{c}", "Price times number, plus the rest.",
        "{name} buys {b} kilograms of nuts at {a} dollars a kilogram and a bowl for {c} dollars. What is the total?",
        "A gym asks {c} dollars to join and {a} dollars a visit. What do {b} visits cost with joining?",
        "Besides a tent for {c} dollars, {name} hires {b} sleeping bags for {a} dollars each. What does that cost?",
    ),
    told(
        numbers((13, 98), (12, 78)), "{a}*2*{b}", "There and back, as many times as it is done.",
        "{name} lives {a} blocks from school, and walks there and back on each of {b} days. How many blocks is that?",
        "A ferry crosses a lake of {a} kilometers and returns. It does so {b} times. How many kilometers does it sail?",
    ),
    told(
        multiples(2, (24, 890), (12, 98)), "{a}/2+{b}", "Take a half, then add.",
        "{name} gets half of {a} apples and finds {b} more. How many apples does {name} have?",
        "Half of the {a} seats are taken, and {b} people come in and sit down. How many people are sitting now?",
    ),
    told(
        multiples(2, (112, 890), (12, 98)), "{a}/2-{b}", "Take a half, then subtract.",
        "Half of the {a} sailors went ashore, but {b} of those came back. How many are ashore?",
        "{name} sold half of {a} tickets on the first day. {b} of these were returned. How many stayed sold?",
    ),
)  # fmt: skip
