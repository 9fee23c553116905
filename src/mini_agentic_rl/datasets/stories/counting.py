"""Stories of things that are counted, packed, shared and sold."""

from __future__ import annotations

from .templates import Story, divisible, larger_first, numbers, priced

COUNTING: tuple[Story, ...] = (
    Story(
        phrasings=(
            "{name} collected {a} {item} last year and {b} {item} this year. How many {item} does {name} have in "
            "total?",
            "{name} has {a} {item}. A friend, {other}, has {b} {item}. How many {item} do they have together?",
            "A museum owned {a} {item} until {name} donated {b} more. How many {item} does the museum own now?",
        ),
        items=("stamps", "coins", "postcards", "shells", "badges", "photographs"),
        draw=numbers((1200, 9899), (1200, 9899)),
        expression="{a}+{b}",
        thought="Add both amounts.",
    ),
    Story(
        phrasings=(
            "A warehouse held {a} {item}. {name} shipped {b} of them on Monday. How many {item} are left in the "
            "warehouse?",
            "{name} ordered {a} {item}, but only {b} have arrived so far. How many {item} are still missing?",
            "Out of {a} {item} in the store, {name} sold {b}. How many {item} remain to be sold?",
        ),
        items=("boxes", "bricks", "bottles", "tiles", "notebooks", "light bulbs"),
        draw=larger_first((5200, 9899), (1100, 5100)),
        expression="{a}-{b}",
        thought="Subtract what is gone.",
    ),
    Story(
        phrasings=(
            "{name} packs {b} {item} into each crate and fills {a} crates. How many {item} does {name} pack "
            "altogether?",
            "There are {a} shelves with {b} {item} on every one. How many {item} does {name} count on all the shelves?",
            "Each of the {a} workers led by {name} carries {b} {item}. How many {item} do they carry in all?",
        ),
        items=("jars", "books", "apples", "cans", "candles", "parcels"),
        draw=numbers((23, 98), (23, 98)),
        expression="{a}*{b}",
        thought="Multiply groups by size.",
    ),
    Story(
        phrasings=(
            "{name} drives {a} {item} in spring and {b} {item} in autumn. How many {item} does {name} drive in both "
            "seasons?",
            "The road from the coast to the lake is {a} {item}, and from the lake to the mountains {b} {item}. How "
            "many {item} does {name} travel on the whole road?",
        ),
        items=("kilometers", "miles"),
        draw=numbers((340, 4980), (1340, 7980)),
        expression="{a}+{b}",
        thought="Add both distances.",
    ),
    Story(
        phrasings=(
            "{name} reads {a} pages of {item} every month. How many pages of {item} does {name} read in {b} months?",
            "A printer of {item} makes {a} pages a minute. {name} lets it run for {b} minutes. How many pages come "
            "out?",
        ),
        items=("poems", "letters", "reports", "stories"),
        draw=numbers((104, 489), (13, 89)),
        expression="{a}*{b}",
        thought="Multiply the rate by the time.",
    ),
    Story(
        phrasings=(
            "A factory makes {a} {item} every day. {name} manages it for {b} days. How many {item} are made in that "
            "time?",
            "{name} needs {a} {item} for one building. How many {item} does {name} need for {b} such buildings?",
            "Each of the {b} trucks that {name} loads takes {a} {item}. How many {item} do the trucks take in total?",
        ),
        items=("screws", "bricks", "panels", "cables", "chairs", "buttons"),
        draw=numbers((213, 989), (113, 789)),
        expression="{a}*{b}",
        thought="Multiply both numbers.",
    ),
    Story(
        phrasings=(
            "{name} shares {a} {item} equally among {b} schools. How many {item} does each school get?",
            "{a} {item} have to be packed into {b} equal boxes by {name}. How many {item} go into one box?",
            "A machine fills {b} bags evenly with {a} {item} while {name} watches. How many {item} are in each bag?",
        ),
        items=("pencils", "seeds", "marbles", "crayons", "beads", "rulers"),
        draw=divisible((113, 989), (23, 97)),
        expression="{a}/{b}",
        thought="Divide into equal parts.",
    ),
    Story(
        phrasings=(
            "One pack of {item} costs {a} dollars. {name} buys {b} packs for the office. How many dollars does "
            "{name} pay?",
            "{name} sells {item} at {a} dollars a pack and sells {b} packs. How many dollars does {name} earn?",
        ),
        items=("paper", "batteries", "coffee", "tea", "nails", "envelopes"),
        draw=priced((311, 4989), (113, 789)),
        expression="{a}*{b}",
        thought="Multiply price by packs.",
    ),
    Story(
        phrasings=(
            "{name} buys {a} boxes with {b} {item} each and already owns {c} {item}. How many {item} does {name} own "
            "now?",
            "There are {c} {item} in the store room. {name} brings in {a} more boxes, each with {b} {item}. How many "
            "{item} are there now?",
        ),
        items=("pens", "cups", "plates", "candles", "batteries", "towels"),
        draw=numbers((34, 289), (23, 98), (312, 4980)),
        expression="{a}*{b}+{c}",
        thought="Boxes times size, plus the rest.",
    ),
    Story(
        phrasings=(
            "{name} bakes {a} trays of {b} {item}. Customers buy {c} of them. How many {item} are left?",
            "A kitchen prepares {a} plates with {b} {item} each. {name} serves {c} of them. How many {item} are "
            "still there?",
        ),
        items=("muffins", "rolls", "cookies", "bagels", "waffles"),
        draw=numbers((43, 189), (32, 98), (312, 1280)),
        expression="{a}*{b}-{c}",
        thought="Multiply, then take away.",
    ),
    Story(
        phrasings=(
            "{name} has {a} {item} and {other} has {b} {item}. They sell them all for {c} dollars each. How many "
            "dollars do they get?",
            "A club orders {a} red {item} and {b} blue {item}. Each costs {c} dollars. How many dollars must {name} "
            "pay?",
        ),
        items=("shirts", "caps", "scarves", "mugs", "posters"),
        draw=numbers((112, 689), (112, 689), (13, 48)),
        expression="({a}+{b})*{c}",
        thought="Add the pieces, then multiply by the price.",
    ),
    Story(
        phrasings=(
            "{name} had {a} {item}, gave {b} to {other} and lost {c}. How many {item} does {name} still have?",
            "A library lends {b} of its {a} {item} in May and {c} more in June. None comes back. How many {item} can "
            "{name} still find there?",
        ),
        items=("comics", "magazines", "novels", "films", "records"),
        draw=larger_first((6200, 9899), (1034, 3080), (412, 2980)),
        expression="{a}-{b}-{c}",
        thought="Subtract both amounts.",
    ),
    Story(
        phrasings=(
            "{name} splits {a} {item} equally among {b} teams, and then each team finds {c} more. How many {item} "
            "does one team have?",
            "{b} gardeners share {a} {item} evenly. {name} is one of them and buys {c} more. How many {item} does "
            "{name} have?",
        ),
        items=("balls", "plants", "ropes", "flags", "pots"),
        draw=divisible((113, 689), (17, 89), (124, 980)),
        expression="{a}/{b}+{c}",
        thought="Divide, then add.",
    ),
    Story(
        phrasings=(
            "{name} buys {b} {item} at {a} dollars each and pays {c} dollars for delivery. How many dollars is that "
            "in all?",
            "{name} orders {b} {item} for {a} dollars each, and wrapping adds {c} dollars to the bill. What is the "
            "total in dollars?",
        ),
        items=("clocks", "lamps", "puzzles", "vases", "games"),
        draw=priced((411, 9889), (23, 189), (12, 96)),
        expression="{a}*{b}+{c}",
        thought="Price times count, plus the fee.",
    ),
    Story(
        phrasings=(
            "{name} sells {a} {item} in the morning and {b} in the afternoon for {c} dollars each, then pays {d} "
            "dollars of rent. How many dollars are left?",
            "A shop sold {a} {item} in March and {b} in April at {c} dollars a piece. {name} spent {d} dollars on "
            "repairs. How many dollars remain?",
        ),
        items=("cakes", "baskets", "bags", "belts", "kites"),
        draw=numbers((112, 589), (112, 589), (12, 47), (213, 1890)),
        expression="({a}+{b})*{c}-{d}",
        thought="Add the sales, multiply by the price, subtract the cost.",
    ),
    Story(
        phrasings=(
            "{name} fills {a} boxes with {b} {item} each, and {other} fills {c} boxes with {d} {item} each. How many "
            "{item} do they pack together?",
            "On one farm {a} rows hold {b} {item} each; on another {c} rows hold {d} each. How many {item} does "
            "{name} count on both farms?",
        ),
        items=("oranges", "melons", "onions", "lemons", "peppers"),
        draw=numbers((34, 189), (23, 97), (34, 189), (23, 97)),
        expression="{a}*{b}+{c}*{d}",
        thought="Multiply each pair and add.",
    ),
    Story(
        phrasings=(
            "A hall has {a} {item}. {name} removes {b} broken ones and buys {c} packs of {d} new ones. How many "
            "{item} are in the hall now?",
            "{name} owned {a} {item}, gave away {b}, and then bought {c} sets with {d} in each. How many {item} does "
            "{name} own now?",
        ),
        items=("chairs", "lamps", "glasses", "plates", "forks"),
        draw=numbers((2400, 8899), (312, 2280), (13, 49), (23, 98)),
        expression="({a}-{b})+{c}*{d}",
        thought="Subtract, then add packs times size.",
    ),
    Story(
        phrasings=(
            "Each of {c} classes gets {a} {item} and {b} folders. {name} has already handed out {d} things. How many "
            "things are still to be handed out?",
            "{name} prepares {c} kits, each with {a} {item} and {b} screws. So far {d} parts are ready. How many "
            "parts are still missing?",
        ),
        items=("markers", "brushes", "stickers", "clips", "hooks"),
        draw=numbers((43, 189), (43, 189), (24, 89), (213, 1890)),
        expression="({a}+{b})*{c}-{d}",
        thought="Add the parts, multiply by the kits, subtract what is done.",
    ),
    Story(
        phrasings=(
            "{name} shares {a} {item} equally among {b} camps, and each camp uses {c} of them. How many {item} do {d} "
            "of the camps have left together?",
            "{a} {item} are split evenly over {b} stores, and each store sells {c}. {name} runs {d} of the stores. "
            "How many {item} do these still have in total?",
        ),
        items=("snacks", "maps", "torches", "blankets", "whistles"),
        draw=divisible((413, 989), (17, 79), (113, 398), (3, 16)),
        expression="({a}/{b}-{c})*{d}",
        thought="Divide, subtract the used ones, multiply by the places.",
    ),
)
