"""Units that may follow a number without changing its value, and currencies that may stand before it.

A word is a unit only if it is in this file: there are no prefixes to guess. Neither latex2sympy2's list nor a library
of units would do: the former drops ``more``, ``less``, ``pm``, ``c`` and ``t``, and a library reads any prefix before
any unit (``5 pin`` is five pico-inches) and knows no ``students``.
"""

from __future__ import annotations

import re

# One line per unit: its name here, then other spellings.
_SPELLINGS = """
mm millimeter millimeters millimetre millimetres
cm CM Cm centimeter centimeters centimetre centimetres
dm decimeter decimeters decimetre decimetres
m meter meters metre metres
km KM Km kilometer kilometers kilometre kilometres kms
nm nanometer nanometers
inch inches in in.
ft FT Ft foot feet ft.
yd yard yards yds
mi mile miles
acre acres
hectare hectares ha
ml mL milliliter milliliters millilitre millilitres
cl cL centiliter centiliters
L liter liters litre litres
cc
gallon gallons gal
quart quarts qt
pint pints
cup cups
tablespoon tablespoons tbsp
teaspoon teaspoons tsp
mg milligram milligrams
g gram grams gm gms
kg KG Kg kilogram kilograms kgs
ton tons tonne tonnes
oz ounce ounces
lb LB lbs LBS pound pounds
ms millisecond milliseconds
s sec secs second seconds
min mins minute minutes
h hr hrs hour hours
day days
week weeks
month months
year years yr yrs
decade decades
century centuries
N newton newtons
J joule joules
kJ kilojoule kilojoules
W watt watts
kW kilowatt kilowatts
V volt volts
ohm ohms
Hz hertz
kHz kilohertz
MHz megahertz
Pa pascal pascals
kPa kilopascal kilopascals
mol mole moles
cal calorie calories
kcal kilocalorie kilocalories
kWh
degree degrees deg degs
radian radians rad rads
degC celsius
degF fahrenheit
dollar dollars USD usd buck bucks
cent cents
euro euros EUR eur
GBP gbp
yen JPY jpy
rupee rupees INR inr Rs Rs.
franc francs CHF
won KRW
ruble rubles RUB
peso pesos
yuan CNY cny RMB rmb
rev revolution revolutions revs
bit bits
byte bytes
unit units
point points pt pts
pixel pixels
"""

# What is counted, in the singular and the plural; each is a unit of its own.
_COUNTED = """
way student teacher child person people man woman boy girl adult player team member friend guest worker employee dog
cat animal bird fish cow horse pig sheep chicken duck rabbit bee frog monkey book page word letter digit card coin
marble ball stamp ticket pen pencil crayon sticker toy block tile stick brick apple orange banana egg cookie cake
candy pizza slice piece bottle can box bag basket jar cup bowl meal car bus train bike bicycle truck plane boat wheel
tire seat room house table chair door window floor step stair tree flower plant leaf seed rose number integer value
solution root zero factor divisor multiple term prime pair set subset triple tuple triangle square rectangle circle
polygon region side edge vertex face diagonal angle point line segment sequence function permutation combination
arrangement path route outcome case choice possibility game match round trip vote problem question test class grade
item object thing time lap roll flip toss move turn jump row column sock shirt hat shoe glove dress button ring dollar
nickel dime penny quarter barrel bucket container crate packet package pack handshake share
"""

_IRREGULAR = {
    **{"child": "children", "person": "persons", "man": "men", "woman": "women", "sheep": "sheep", "fish": "fish"},
    **{"leaf": "leaves", "vertex": "vertices", "people": "people", "penny": "pennies", "zero": "zeros"},
}
# They say what kind of thing is counted, and say nothing of how many.
_ADJECTIVES = frozenset("distinct different possible total right red blue green black white real positive".split())  # noqa: SIM905
_ADJECTIVES |= {"ordered"}
# Counted nouns that say something else after a number.
_NO_UNITS = frozenset("time times square quarter quarters prime primes zero zeros root triple set".split())  # noqa: SIM905


def _plurals(noun: str) -> tuple[str, ...]:
    if noun in _IRREGULAR:
        return noun, _IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun, noun[:-1] + "ies"
    return noun, noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


_NAMES: dict[str, str] = {
    **{spelling: noun for noun in _COUNTED.split() for spelling in _plurals(noun) if spelling not in _NO_UNITS},
    **{spelling: line.split()[0] for line in _SPELLINGS.strip().splitlines() for spelling in line.split()},
}
_CURRENCIES = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "GBP", "¥": "yen", "₹": "rupee", "¢": "cent"}
_CURRENCIES |= {"₩": "won", "₽": "ruble", "円": "yen", "元": "yuan"}
_CURRENCY_COMMANDS = {
    r"\euro": "€",
    r"\texteuro": "€",
    r"\pounds": "£",
    r"\textsterling": "£",
    r"\yen": "¥",
    r"\textdollar": r"\$",
    r"\mathdollar": r"\$",
}
_CODES = frozenset("USD EUR GBP JPY INR CNY RMB CHF KRW RUB".split())  # noqa: SIM905

_PREFIX = re.compile(
    r"^([+-]?\s*)(?:(?:US|AU?|CA?|HK|NZ|S)?(\\\$|[$€£¥₹₩₽])|"
    r"(USD|EUR|GBP|JPY|INR|CNY|RMB|CHF|KRW|RUB|Rs\.?)(?=\s*\d))\s*(?=[\d.\\(-])"
)
_SUFFIX = re.compile(r"\s*(\\\$|[$€£¥₹₩₽¢円元])$")
_PER = re.compile(r"(?<=[\d})])\s*(?:/\s*|per\s+|\\text\s*\{\s*(?:/|per )\s*)([A-Za-z]{2,12})\s*\}?$")
_DEGREES = re.compile(r"\s*\^\s*\\circ\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF]))?$")
_ANGULAR = {"C": "degC", "F": "degF", None: "degree"}
_DEGREES_OF_HEAT = re.compile(r"\bdeg(?:rees?)? (?:(c|f)(?:elsius|ahrenheit)|(C|F))\b", re.IGNORECASE)
_ATOM = re.compile(r"([A-Za-z]+\.?)(?:\s*\^?\s*(?:\{\s*(-?\d)\s*\}|(-?\d)))?")
_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
_PERIODS = {
    "mph": "mi/h",
    "kmh": "km/h",
    "kph": "km/h",
    "kmph": "km/h",
    "fps": "ft/s",
    "rpm": "rev/min",
    "mpg": "mi/gal",
}

# The end of an answer that may be a unit: set as text, or words after a number.
_SET_AS_TEXT = re.compile(
    r"(?:\\(?:text|mathrm|textrm|operatorname) ?\{[^{}]{0,60}\}(?: ?\^ ?(?:\{ ?-?\d ?\}|-?\d))?"
    r" ?(?:(?:/|\\cdot) ?)?){1,6}$"
)
_COMMAND = re.compile(r"\\(?:text|mathrm|textrm|operatorname)\s*\{([^{}]*)\}")
_POWER = r"(?: ?\^ ?(?:\{-?\d\}|-?\d)|[23](?![\d.]))?"
_WORDS = re.compile(
    rf"(?<=[\d}})\s])( ?)(?![eE]\d)"
    rf"([A-Za-z]{{1,20}}\.?{_POWER}(?:(?: ?(?:/|\\cdot) ?| )[A-Za-z]{{1,20}}\.?{_POWER}){{0,7}})$"
)
_ENDS_IN_NUMBER = re.compile(
    r"(?:^|[^A-Za-z\\])\d[\d.,]*(?:[eE][+-]?\d+)?$|^[+-]?\s*(?:\d+\s*)?\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}$"
)
_ANGLE = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # \sin 30^\circ is the sine of an angle, not an angle
_WORD_INSIDE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")

Unit = tuple[tuple[str, int], ...]


def split_unit(text: str) -> tuple[str, Unit]:
    """The answer without its unit or currency, and the unit as names with their powers.

    ``5 km/h`` gives ``5`` and ``(("h", -1), ("km", 1))``. Where nothing on the list stands, the answer comes back as it
    is, with an empty unit.
    """
    for command, sign in _CURRENCY_COMMANDS.items():
        text = text.replace(command, sign)
    if prefix := _PREFIX.match(text):
        rest, unit = split_unit(prefix[1] + text[prefix.end() :])
        currency = _CURRENCIES.get(prefix[2], _NAMES.get(prefix[3] or "", ""))
        if not unit or unit == ((currency, 1),):
            return rest, ((currency, 1),)
        if all(power < 0 for _, power in unit):  # $5 per hour
            return rest, tuple(sorted((*unit, (currency, 1))))
        return text, ()
    if (suffix := _SUFFIX.search(text)) and suffix.start():
        return text[: suffix.start()], ((_CURRENCIES[suffix[1]], 1),)
    if (degrees := _DEGREES.search(text)) and degrees.start() and not _ANGLE.search(text):
        return text[: degrees.start()], ((_ANGULAR[degrees[1] or degrees[2]], 1),)
    if (end := _SET_AS_TEXT.search(text)) and end.start():
        unit = read_unit(_COMMAND.sub(r" \1 ", end[0]))
        if unit:
            return text[: end.start()].rstrip(), unit
    if (per := _PER.search(text)) and (unit := read_unit(per[1])):
        return text[: per.start()], tuple((name, -power) for name, power in unit)
    if words := _WORDS.search(text):
        number = text[: words.start()].rstrip()
        unit = read_unit(words[2])
        # ``2m`` is a product, ``2 m`` and ``2cm`` are lengths; ``x m`` is a product, ``x cm`` a length.
        single = len(words[2].rstrip(".")) == 1 or (len(words[2]) < 4 and words[2].isupper() and words[2] not in _CODES)
        spaced = bool(words[1]) or text[words.start() - 1].isspace()
        if not number or _WORD_INSIDE.search(number):
            return text, ()
        if unit and (spaced or not single) and (_ENDS_IN_NUMBER.search(number) or (spaced and not single)):
            return number, unit
    return text, ()


def read_unit(text: str) -> Unit:
    """The unit that a text names; empty if some word in it is none."""
    text = re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", text.replace(r"\cdot", " "))
    text = " ".join(text.split()).strip(" .")
    text = re.sub(r"((?:year|month|week|day)s?) old$", r"\1", text)
    for period, long in _PERIODS.items():
        text = re.sub(rf"(?<![A-Za-z]){period}(?![A-Za-z])", long, text)
    text = _DEGREES_OF_HEAT.sub(lambda match: "deg" + (match[1] or match[2]).upper(), text)
    above, *below = re.split(r"\s*/\s*|\s+per\s+", " " + text)
    powers: dict[str, int] = {}
    for sign, part in ((1, above), *((-1, part) for part in below)):
        found = _product(part.strip())
        if not found:
            return ()
        for name, power in found.items():
            powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted(item for item in powers.items() if item[1]))


def _product(text: str) -> dict[str, int]:
    """The powers of the units in ``square meters`` or ``kg m^2``; empty if some word is no unit."""
    powers: dict[str, int] = {}
    squared = 1
    last: str | None = None  # the unit that "squared" after it means
    place = 0
    while place < len(text):
        atom = _ATOM.match(text, place)
        if atom is None:
            return {}
        word, power = atom[1], int(atom[2] or atom[3] or 1)
        place = atom.end()
        while place < len(text) and text[place] == " ":
            place += 1
        if word in _POWERS_AFTER and last is not None:
            powers[last] *= _POWERS_AFTER[word]
            last = None
        elif word in _POWERS and place < len(text):
            squared = _POWERS[word]
        elif word not in _ADJECTIVES or place == len(text):
            name = _NAMES.get(word) or _NAMES.get(word.rstrip(".")) or _NAMES.get(word.rstrip(".").lower())
            if name is None or (len(word) < 3 and word.rstrip(".") not in _NAMES):
                return {}
            powers[name] = powers.get(name, 0) + power * squared
            squared, last = 1, name
    return powers if squared == 1 else {}
