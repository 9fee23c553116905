"""The scenes that composed stories are set in: who has what, what is added and taken away, and how it is asked for.

In a clause `{n}` is a first name, `{i}` the things, `{x}` and `{y}` numbers. Clauses begin without a capital where they
do not begin with a name, so that they can stand anywhere in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """The words of one setting."""

    items: tuple[str, ...]
    """Plural nouns; one is drawn for a story."""
    has: tuple[str, ...]
    """x things at the beginning."""
    packed: tuple[str, ...]
    """x packs of y things at the beginning."""
    gains: tuple[str, ...]
    """x things are added."""
    losses: tuple[str, ...]
    """x things are taken away."""
    packs: tuple[str, ...]
    """x packs of y things are added."""
    count: tuple[str, ...]
    """The question how many there are at the end."""
    share: tuple[tuple[str, str], ...] = ()
    """They are divided into x equal parts, and the question for one part."""
    price: tuple[tuple[str, str], ...] = ()
    """Each is worth x, and the question for the worth of all."""


_SOLD = (
    ("each of them is sold for {x} dollars", "how many dollars does {n} get for all of them?"),
    ("{n} sells every one of them at {x} dollars", "how many dollars is that?"),
)
_PARTS = (
    ("{n} divides them equally among {x} friends", "how many {i} does each friend get?"),
    ("{n} puts them into {x} bags, the same number in each", "how many {i} are in one bag?"),
)

SCENES: tuple[Scene, ...] = (
    Scene(
        items=("stamps", "coins", "postcards", "badges", "comics", "stickers", "trading cards"),
        has=(
            "{n} has {x} {i}",
            "{n} owns {x} {i}",
            "{n} keeps {x} {i} in an album",
            "there are {x} {i} in the collection of {n}",
        ),
        packed=("{n} has {x} albums with {y} {i} each", "{n} owns {x} boxes, and every box holds {y} {i}"),
        gains=("{n} buys {x} more", "{n} gets {x} {i} as a present", "{n} finds {x} more in the attic"),
        losses=("{n} gives {x} of them away", "{n} loses {x} {i}", "{n} trades {x} of them for a book"),
        packs=("{n} buys {x} packs of {y} {i}", "{n} gets {x} more albums with {y} {i} in each"),
        count=("how many {i} does {n} have now?", "how many {i} are in the collection in the end?"),
        share=_PARTS,
        price=_SOLD,
    ),
    Scene(
        items=("apples", "pears", "plums", "peaches", "lemons", "pumpkins", "melons"),
        has=("{n} picks {x} {i}", "{n} has {x} {i} on the cart", "the farm of {n} has {x} ripe {i}"),
        packed=("{n} picks {x} baskets of {y} {i}", "there are {x} trees on the farm, and {n} picks {y} {i} from each"),
        gains=("{n} picks {x} more the next day", "a neighbor brings {x} {i}", "{x} more {i} ripen"),
        losses=("{x} of them are rotten and thrown away", "{n} sells {x} {i} at the market", "birds eat {x} of them"),
        packs=("{n} adds {x} crates of {y} {i}", "a neighbor brings {x} baskets with {y} {i} in each"),
        count=("how many {i} are there now?", "how many {i} does {n} have left to sell?"),
        share=(("{n} packs them into {x} equal crates", "how many {i} go into each crate?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("muffins", "cookies", "rolls", "pretzels", "cupcakes", "pies"),
        has=("{n} bakes {x} {i}", "the bakery of {n} has {x} {i}", "{n} made {x} {i} this morning"),
        packed=("{n} bakes {x} trays of {y} {i}", "{n} fills {x} plates with {y} {i} each"),
        gains=("{n} bakes {x} more", "a helper brings {x} {i} from the oven", "{x} more come out of the oven"),
        losses=("customers buy {x} of them", "{n} burns {x} {i}", "{n} eats or gives away {x} {i}"),
        packs=("{n} bakes another {x} trays of {y}", "a helper brings {x} boxes with {y} {i} in each"),
        count=("how many {i} are there at the end?", "how many {i} remain in the bakery?"),
        share=(("{n} puts them on {x} plates, the same number on each", "how many {i} are on one plate?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("books", "magazines", "novels", "dictionaries", "maps"),
        has=("a library has {x} {i}", "there are {x} {i} in the library of {n}", "{n} counts {x} {i} in the library"),
        packed=("a library has {x} shelves with {y} {i} on each", "{n} counts {x} shelves of {y} {i} in a library"),
        gains=("{n} donates {x} {i} to it", "{x} {i} are brought back", "the library orders {x} new {i}"),
        losses=("readers borrow {x} of them", "{x} old {i} are thrown out", "{x} {i} are lent to a school"),
        packs=("{x} boxes of {y} {i} are delivered", "{n} brings {x} bags with {y} {i} in each"),
        count=("how many {i} are in the library now?", "how many {i} does the library have after that?"),
        share=(("the {i} are put on {x} shelves, the same number on each", "how many {i} are on one shelf?"),),
        price=(("each of the {i} is worth {x} dollars", "what are all of them worth in dollars?"),),
    ),
    Scene(
        items=("dollars",),
        has=("{n} has {x} dollars", "{n} has saved {x} dollars", "there are {x} dollars in the purse of {n}"),
        packed=("{n} works {x} hours for {y} dollars an hour", "{n} saves {y} dollars a week for {x} weeks"),
        gains=(
            "{n} earns {x} dollars",
            "an aunt gives {n} {x} dollars",
            "{n} finds {x} dollars",
            "{n} is paid {x} more",
        ),
        losses=("{n} spends {x} dollars on shoes", "{n} pays {x} dollars for food", "{n} lends a friend {x} dollars"),
        packs=("{n} works {x} more days for {y} dollars a day", "{n} sells {x} toys for {y} dollars each"),
        count=("how many dollars does {n} have now?", "how much money does {n} have in the end?"),
        share=(
            ("{n} spends all of it evenly over {x} days", "how many dollars is that for each day?"),
            ("{n} shares the money equally with others, {x} people in all", "how many dollars does each of them get?"),
        ),
    ),
    Scene(
        items=("points",),
        has=("{n} has {x} points in a game", "{n} scores {x} points in the first round", "{n} starts with {x} points"),
        packed=("{n} plays {x} rounds and scores {y} points in each", "{n} hits the target {x} times for {y} points"),
        gains=("{n} scores {x} more", "{n} wins a bonus of {x} points", "{n} adds {x} points in the next round"),
        losses=("{n} loses {x} points", "a mistake costs {n} {x} points", "{n} is fined {x} points"),
        packs=("{n} wins {x} more rounds with {y} points each", "{n} finds {x} jewels worth {y} points each"),
        count=("how many points does {n} have now?", "what is the final score of {n}?"),
    ),
    Scene(
        items=("passengers", "people", "tourists"),
        has=("there are {x} {i} on a ship", "a train leaves with {x} {i}", "{n} drives a bus with {x} {i}"),
        packed=("a train has {x} cars with {y} {i} in each", "{n} counts {x} buses with {y} {i} each"),
        gains=("{x} more get on at the next stop", "{x} {i} join them", "another {x} {i} come aboard"),
        losses=("{x} of them get off", "{x} {i} leave at the harbor", "{x} go home"),
        packs=("{x} groups of {y} {i} join them", "{x} more cars with {y} {i} each are added"),
        count=("how many {i} are there then?", "how many {i} are on the way now?"),
        share=(("the {i} are divided into {x} equal groups", "how many {i} are in each group?"),),
        price=(("each of the {i} pays {x} dollars", "how many dollars do they pay altogether?"),),
    ),
    Scene(
        items=("liters of water", "liters of oil", "liters of milk"),
        has=("a tank holds {x} {i}", "{n} has {x} {i} in a tank", "there are {x} {i} in the barrel of {n}"),
        packed=("{n} has {x} cans with {y} {i} each", "{n} pours {x} buckets of {y} {i} into an empty tank"),
        gains=("{n} pours in {x} liters", "a truck brings {x} liters", "{x} more liters flow in"),
        losses=("{n} uses {x} liters", "{x} liters leak out", "{n} pours out {x} liters"),
        packs=("{n} adds {x} cans of {y} liters", "{x} buckets of {y} liters are poured in"),
        count=("how many {i} are there now?", "how many liters are left?"),
        share=(("{n} fills all of it into {x} equal bottles", "how many liters are in one bottle?"),),
        price=(("a liter costs {x} dollars", "how many dollars is all of it worth?"),),
    ),
    Scene(
        items=("bricks", "tiles", "boards", "panels", "stones"),
        has=("{n} has {x} {i} for a house", "{x} {i} lie on the building site of {n}", "{n} orders {x} {i}"),
        packed=("{n} unloads {x} pallets of {y} {i}", "{x} trucks bring {y} {i} each to {n}"),
        gains=("a truck brings {x} more", "{n} buys another {x}", "{x} {i} are left over from another house"),
        losses=("{n} uses {x} of them for a wall", "{x} {i} break", "workers take {x} of them away"),
        packs=("{x} more pallets with {y} {i} each arrive", "{n} buys {x} packs of {y} {i}"),
        count=("how many {i} are on the site now?", "how many {i} does {n} still have?"),
        share=(("the {i} are used for {x} equal walls", "how many {i} go into one wall?"),),
        price=(("each of them costs {x} dollars", "how many dollars do they cost together?"),),
    ),
    Scene(
        items=("fish", "crabs", "shrimps"),
        has=("{n} catches {x} {i}", "the boat of {n} brings in {x} {i}", "there are {x} {i} in the net of {n}"),
        packed=("{n} fills {x} buckets with {y} {i} each", "{n} empties {x} nets and finds {y} {i} in each"),
        gains=("{n} catches {x} more in the afternoon", "another boat gives {n} {x} {i}"),
        losses=("{n} throws {x} of them back", "{x} {i} escape", "a restaurant buys {x} of them"),
        packs=("{n} empties {x} more nets with {y} {i} in each", "a friend adds {x} buckets of {y} {i}"),
        count=("how many {i} does {n} bring home?", "how many {i} are left?"),
        share=(("{n} lays them on {x} trays, the same number on each", "how many {i} are on one tray?"), *_PARTS),
        price=_SOLD,
    ),
    Scene(
        items=("pages", "words", "lines"),
        has=("{n} writes {x} {i} on Monday", "{n} has written {x} {i} of a story", "a report by {n} has {x} {i}"),
        packed=("{n} writes {y} {i} a day for {x} days", "{n} writes {x} chapters of {y} {i} each"),
        gains=("{n} adds {x} {i}", "{n} writes {x} more the day after", "a friend contributes {x} {i}"),
        losses=("{n} deletes {x} of them", "{x} {i} are cut by the editor", "{n} crosses out {x} {i}"),
        packs=("{n} writes {x} more chapters with {y} {i} each", "{n} adds {x} parts of {y} {i}"),
        count=("how many {i} are there in the end?", "how many {i} does the text have now?"),
        share=(("the text is divided into {x} equal parts", "how many {i} has each part?"),),
    ),
    Scene(
        items=("chairs", "tables", "lamps", "desks", "benches"),
        has=("a school has {x} {i}", "there are {x} {i} in a hall", "{n} sets up {x} {i}"),
        packed=("a hall has {x} rows of {y} {i}", "{n} equips {x} rooms with {y} {i} each"),
        gains=("{n} carries in {x} more", "{x} new {i} are bought", "the neighbors lend {x} {i}"),
        losses=("{x} of them are broken and removed", "{n} takes {x} {i} to another room", "{x} {i} are sold"),
        packs=("{n} adds {x} more rows of {y}", "{x} vans bring {y} {i} each"),
        count=("how many {i} are there now?", "how many {i} are left in place?"),
        share=(("{n} arranges them in {x} equal rows", "how many {i} are in one row?"),),
        price=(("one of them costs {x} dollars", "how many dollars do all of them cost?"),),
    ),
    Scene(
        items=("sheep", "chickens", "ducks", "goats", "rabbits"),
        has=("{n} has {x} {i}", "there are {x} {i} on a meadow", "a farmer, {n}, keeps {x} {i}"),
        packed=("{n} has {x} stables with {y} {i} in each", "there are {x} pens of {y} {i} on a farm"),
        gains=("{x} young ones are born", "{n} buys {x} {i}", "{x} {i} come over from the next farm"),
        losses=("{x} of them run away", "{n} sells {x} {i}", "{x} {i} are moved to another farm"),
        packs=("{n} buys {x} herds of {y} {i}", "{x} trailers bring {y} {i} each"),
        count=("how many {i} does {n} have after that?", "how many {i} are there now?"),
        share=(("{n} drives them into {x} pens, the same number into each", "how many {i} are in one pen?"),),
        price=_SOLD,
    ),
    Scene(
        items=("files", "photos", "songs", "videos", "messages"),
        has=("{n} has {x} {i} on a computer", "there are {x} {i} on the phone of {n}", "{n} stores {x} {i}"),
        packed=("{n} has {x} folders with {y} {i} each", "{n} copies {x} disks of {y} {i} to an empty computer"),
        gains=("{n} downloads {x} more", "{n} receives {x} {i}", "a friend sends {x} {i}"),
        losses=("{n} deletes {x} of them", "{x} {i} are lost", "{n} moves {x} {i} to a disk"),
        packs=("{n} copies {x} more folders of {y} {i}", "{n} adds {x} albums with {y} {i} in each"),
        count=("how many {i} does {n} have now?", "how many {i} are stored in the end?"),
        share=(("{n} sorts them into {x} equal folders", "how many {i} are in each folder?"),),
    ),
    Scene(
        items=("tickets", "flags", "candles", "balloons", "toys", "cups"),
        has=("{n} has {x} {i} to sell", "a stall at the fair has {x} {i}", "{n} brings {x} {i} to the fair"),
        packed=("{n} opens {x} boxes of {y} {i}", "a stall gets {x} cartons with {y} {i} each"),
        gains=("{n} fetches {x} more", "a supplier delivers {x} {i}", "{x} unsold {i} come back"),
        losses=("{n} sells {x} of them before noon", "visitors buy {x} {i}", "the rain ruins {x} of them"),
        packs=("a supplier delivers {x} cartons of {y}", "{n} opens another {x} boxes with {y} {i} each"),
        count=("how many {i} are left to sell?", "how many {i} does the stall have now?"),
        share=_PARTS,
        price=_SOLD,
    ),
    Scene(
        items=("trees", "roses", "tulips", "bushes", "seedlings"),
        has=("{n} plants {x} {i}", "a park has {x} {i}", "there are {x} {i} in the garden of {n}"),
        packed=("{n} plants {x} rows of {y} {i}", "a park has {x} beds with {y} {i} each"),
        gains=("{n} plants {x} more in spring", "{x} {i} are donated", "the city adds {x} {i}"),
        losses=("a storm destroys {x} of them", "{n} cuts down {x} {i}", "{x} of them dry up"),
        packs=("{n} plants another {x} rows with {y} {i} in each", "{x} schools plant {y} {i} each"),
        count=("how many {i} grow there now?", "how many {i} are left?"),
        share=(("the {i} stand in {x} equal rows", "how many {i} are in a row?"),),
    ),
)

ASIDES: tuple[str, ...] = (
    "{n} is {x} years old",
    "it is {x} degrees outside",
    "the way there takes {x} minutes",
    "{n} lives in house number {x}",
    "{n} has done this for {x} years",
    "the room has {x} windows",
    "{n} has {x} cousins",
    "it is day {x} of the month",
)
"""Sentences with a number that the answer does not need."""
