"""Small symbolic mathematics for integration.py: expressions, derivatives, prefix notation.

    python examples/symbolic.py "x**2*sin(3*x)"      # the derivative and the tokens

Faster than SymPy by two orders of magnitude, because it does less: an `Expression` is a sum of
products with rational coefficients, always expanded and collected, so most equal expressions are
equal Python objects. It knows no trigonometric identities. Only `parse` imports SymPy: a device
that reads, differentiates and checks the tokens of an answer needs the standard library alone.
"""

import cmath
import functools
import math
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from fractions import Fraction

Number = int | Fraction
Atom = tuple  # ("x",), or a function and its argument; "sum" is a sum in parentheses
Monomial = frozenset  # of (atom, exponent)

FUNCTIONS = ("exp", "log", "sin", "cos", "tan", "atan")
SYMBOLS = ("x", "y", "c")
# Powers of sums up to this exponent are expanded, higher ones stay: (x + 1)**5.
EXPANDED = 2
LARGEST = 99  # exponent, of what is read


class Expression:
    """A sum of rational numbers times products of powers; immutable and hashable.

    Attributes:
        terms: frozenset of (monomial, coefficient), no coefficient is 0.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Iterable[tuple[Monomial, Number]]):
        self.terms = frozenset(terms)
        self._hash = hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.terms == other.terms

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: "Expression") -> "Expression":
        return collected([*self.terms, *other.terms])

    def __sub__(self, other: "Expression") -> "Expression":
        return self + other.times(-1)

    def __mul__(self, other: "Expression") -> "Expression":
        result: list[tuple[Monomial, Number]] = []
        for a, p in self.terms:
            for b, q in other.terms:
                result += product(a, b).times(p * q).terms
        return collected(result)

    def times(self, number: Number) -> "Expression":
        return Expression((m, tidy(p * number)) for m, p in self.terms) if number else ZERO

    def __pow__(self, exponent: Number) -> "Expression":
        exponent = tidy(exponent)
        if exponent == 0:
            return ONE
        if exponent == 1:
            return self
        if not self:
            if exponent < 0:
                raise ZeroDivisionError("division by zero")
            return ZERO
        whole = isinstance(exponent, int)
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms
            root = rational_power(coefficient, exponent)
            if root is not None:
                powers = [(atom, tidy(e * exponent)) for atom, e in monomial]
                result = number(root)
                for atom, e in powers:
                    result = result * power_of(atom, e)
                return result
        if whole and 0 < exponent <= EXPANDED:
            return self * self
        if not whole:
            return Expression([(frozenset([(("sum", self), exponent)]), 1)])
        content = self.content()
        primitive = self.times(Fraction(1) / content)
        scale = tidy(Fraction(content) ** exponent)
        return Expression([(frozenset([(("sum", primitive), exponent)]), scale)])

    def content(self) -> Number:
        """The rational number that leaves coprime integers, the first of them positive."""
        values = [Fraction(p) for _, p in self.terms]
        size = Fraction(
            math.gcd(*(x.numerator for x in values)), math.lcm(*(x.denominator for x in values))
        )
        return tidy(size if self.ordered()[0][1] > 0 else -size)

    def ordered(self) -> list[tuple[Monomial, Number]]:
        """The terms in the order in which they are written: short ones first."""
        return sorted(self.terms, key=lambda term: key(term[0]))

    def derivative(self, symbol: str = "x") -> "Expression":
        result: list[tuple[Monomial, Number]] = []
        for monomial, coefficient in self.terms:
            result += monomial_derivative(monomial, symbol).times(coefficient).terms
        return collected(result)

    def replace(self, symbol: str, by: "Expression") -> "Expression":
        """The expression with a symbol replaced by another expression."""
        result = ZERO
        for monomial, coefficient in self.terms:
            term = number(coefficient)
            for atom, exponent in monomial:
                if atom == (symbol,):
                    base = by
                elif len(atom) == 1:
                    base = Expression([(frozenset([(atom, 1)]), 1)])
                else:
                    inner = atom[1].replace(symbol, by)
                    base = inner if atom[0] == "sum" else function(atom[0], inner)
                term = term * base**exponent
            result = result + term
        return result

    def value(self, **symbols: complex) -> complex:
        """The value at complex numbers; NaN at a pole or where it is too large."""
        try:
            return self._value(symbols)
        except (ArithmeticError, ValueError):
            return complex("nan")

    def _value(self, symbols: dict[str, complex]) -> complex:
        total = 0j
        for monomial, coefficient in self.terms:
            result = complex(coefficient)
            for atom, exponent in monomial:
                if len(atom) == 1:
                    base = symbols[atom[0]]
                else:
                    base = atom[1]._value(symbols)
                    if atom[0] != "sum":
                        base = getattr(cmath, atom[0])(base)
                result *= base**exponent if isinstance(exponent, int) else base ** float(exponent)
            total += result
        return total

    def symbols(self) -> set[str]:
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                found |= {atom[0]} if len(atom) == 1 else atom[1].symbols()
        return found

    def tokens(self) -> list[str]:
        """Prefix notation, numbers in digits: 12*x is "mul +1 2 x"."""
        terms = self.ordered()
        result: list[str] = []
        for i, (monomial, coefficient) in enumerate(terms):
            if i < len(terms) - 1:
                result.append("add")
            factors = monomial_tokens(monomial)
            if not factors:
                result += number_tokens(coefficient)
            elif coefficient == 1:
                result += factors
            elif coefficient == -1:
                result += ["neg", *factors]
            else:
                result += ["mul", *number_tokens(coefficient), *factors]
        return result or ["+0"]

    def __str__(self) -> str:
        result = ""
        for monomial, coefficient in self.ordered():
            factors = [factor_text(atom, e) for atom, e in ordered_factors(monomial)]
            size = abs(coefficient)
            text = "*".join(factors if size == 1 and factors else [str(size), *factors])
            sign = "-" if coefficient < 0 else "+"
            result += f" {sign} {text}" if result else ("-" if sign == "-" else "") + text
        return result or "0"

    __repr__ = __str__


def tidy(value: Number) -> Number:
    """An int where the value is whole: faster than a `Fraction`."""
    return value.numerator if value.denominator == 1 else value


def number(value: Number) -> Expression:
    return Expression([(frozenset(), value)]) if value else ZERO


def symbol(name: str) -> Expression:
    return Expression([(frozenset([((name,), 1)]), 1)])


ZERO, ONE = Expression([]), Expression([(frozenset(), 1)])
X, Y, C = map(symbol, SYMBOLS)


def function(name: str, argument: Expression) -> Expression:
    """exp, log, sin, cos, tan or atan, with signs and inverses simplified."""
    if not argument:
        if name == "log":
            raise ZeroDivisionError("log(0)")
        return ONE if name in ("exp", "cos") else ZERO
    if name == "log":
        if argument == ONE:
            return ZERO
        ((monomial, coefficient), *others) = argument.terms
        if not others and coefficient == 1 and len(monomial) == 1:
            ((atom, exponent),) = monomial
            if atom[0] == "exp":
                return atom[1].times(exponent)
            if exponent != 1:
                return function("log", power_of(atom, 1)).times(exponent)
    elif name == "exp":
        for monomial, coefficient in argument.terms:
            if isinstance(coefficient, int) and len(monomial) == 1:
                ((atom, exponent),) = monomial
                if atom[0] == "log" and exponent == 1:
                    rest = Expression(argument.terms - {(monomial, coefficient)})
                    return atom[1] ** coefficient * function("exp", rest)
    elif argument.ordered()[0][1] < 0:
        result = function(name, argument.times(-1))
        return result if name == "cos" else result.times(-1)
    return Expression([(frozenset([((name, argument), 1)]), 1)])


def collected(terms: Iterable[tuple[Monomial, Number]]) -> Expression:
    """The sum of terms: coefficients of equal products are added."""
    sums: dict[Monomial, Number] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    return Expression((m, tidy(p)) for m, p in sums.items() if p)


@functools.lru_cache(1 << 16)
def product(a: Monomial, b: Monomial) -> Expression:
    """The product of two products; exponentials are joined, small powers of sums expanded."""
    powers: dict[Atom, Number] = dict(a)
    for atom, exponent in b:
        powers[atom] = tidy(powers.get(atom, 0) + exponent)
    exponentials = [atom for atom in powers if atom[0] == "exp"]
    joined = ONE
    if len(exponentials) > 1 or any(powers[atom] != 1 for atom in exponentials):
        argument = ZERO
        for atom in exponentials:
            argument = argument + atom[1].times(powers.pop(atom))
        joined = function("exp", argument)
    expanded = [
        atom
        for atom, e in powers.items()
        if atom[0] == "sum" and isinstance(e, int) and 0 < e <= EXPANDED
    ]
    for atom in expanded:
        joined = joined * atom[1] ** powers.pop(atom)
    rest = Expression([(frozenset((atom, e) for atom, e in powers.items() if e), 1)])
    return rest if joined == ONE else _multiplied(rest, joined)


def _multiplied(rest: Expression, joined: Expression) -> Expression:
    ((monomial, _),) = rest.terms
    terms = joined.terms
    if len(terms) == 1 and not {m for m, _ in monomial} & {m for t, _ in terms for m, _ in t}:
        return Expression((monomial | m, p) for m, p in terms)
    return rest * joined


def power_of(atom: Atom, exponent: Number) -> Expression:
    if atom[0] == "sum":
        return atom[1] ** exponent
    if atom[0] == "exp":
        return function("exp", atom[1].times(exponent))
    return Expression([(frozenset([(atom, exponent)]), 1)])


def rational_power(base: Number, exponent: Number) -> Number | None:
    """The power if it is rational and real, else None."""
    base, exponent = Fraction(base), Fraction(exponent)
    if exponent.denominator > 1 and base < 0:
        return None
    roots = []
    for part in (base.numerator, base.denominator):
        root = round(abs(part) ** (1 / exponent.denominator)) * (1 if part > 0 else -1)
        if root**exponent.denominator != part:
            return None
        roots.append(root)
    return tidy(Fraction(*roots) ** exponent.numerator)


@functools.lru_cache(1 << 16)
def monomial_derivative(monomial: Monomial, name: str) -> Expression:
    result: list[tuple[Monomial, Number]] = []
    for atom, exponent in monomial:
        inner = atom_derivative(atom, name)
        if inner:
            others = Expression([(monomial - {(atom, exponent)}, 1)])
            one_less = power_of(atom, exponent - 1) if exponent != 1 else ONE
            result += (others * one_less * inner).times(exponent).terms
    return collected(result)


@functools.lru_cache(1 << 16)
def atom_derivative(atom: Atom, name: str) -> Expression:
    if len(atom) == 1:
        return ONE if atom[0] == name else ZERO
    kind, argument = atom
    inner = argument.derivative(name)
    if kind == "sum" or not inner:
        return inner
    outer = {
        "exp": lambda u: function("exp", u),
        "log": lambda u: u**-1,
        "sin": lambda u: function("cos", u),
        "cos": lambda u: function("sin", u).times(-1),
        "tan": lambda u: function("tan", u) ** 2 + ONE,
        "atan": lambda u: (u * u + ONE) ** -1,
    }[kind](argument)
    return outer * inner


# Prefix notation


@functools.lru_cache(1 << 18)
def key(monomial: Monomial) -> tuple:
    tokens = monomial_tokens(monomial)
    return (len(tokens), tokens)


def ordered_factors(monomial: Monomial) -> list[tuple[Atom, Number]]:
    def rank(factor):
        tokens = factor_tokens(*factor)
        return (len(tokens), tokens)

    return sorted(monomial, key=rank)


@functools.lru_cache(1 << 18)
def monomial_tokens(monomial: Monomial) -> list[str]:
    factors = [factor_tokens(atom, e) for atom, e in ordered_factors(monomial)]
    result: list[str] = []
    for i, factor in enumerate(factors):
        result += ["mul", *factor] if i < len(factors) - 1 else factor
    return result


def factor_tokens(atom: Atom, exponent: Number) -> list[str]:
    if len(atom) == 1:
        base = [atom[0]]
    else:
        base = atom[1].tokens() if atom[0] == "sum" else [atom[0], *atom[1].tokens()]
    if exponent == 1:
        return base
    if exponent == Fraction(1, 2):
        return ["sqrt", *base]
    return ["pow", *base, *number_tokens(exponent)]


def number_tokens(value: Number) -> list[str]:
    """A sign with the first digit, then the other digits: -37/2 is "div -3 7 +2"."""
    if isinstance(value, Fraction):
        return ["div", *number_tokens(value.numerator), *number_tokens(value.denominator)]
    first, *others = str(abs(value))
    return [("-" if value < 0 else "+") + first, *others]


def factor_text(atom: Atom, exponent: Number) -> str:
    text = atom[0] if len(atom) == 1 else f"{atom[0]}({atom[1]})".removeprefix("sum")
    if exponent == 1:
        return text
    if exponent == Fraction(1, 2):
        return f"sqrt{text}" if atom[0] == "sum" else f"sqrt({text})"
    return f"{text}**{exponent}" if exponent in range(100) else f"{text}**({exponent})"


def expression(tokens: Iterable[str]) -> Expression:
    """The expression of prefix tokens.

    Raises:
        ValueError: they are not one whole expression.
        ZeroDivisionError: they divide by zero.
    """
    rest = iter(tokens)
    result, following = _read(next(rest, None), rest)
    if following is not None:
        raise ValueError(f"expected the end, received {following!r}")
    return result


def _read(token: str | None, rest: Iterator[str]) -> tuple[Expression, str | None]:
    """An expression, and the token behind it."""
    if token is None:
        raise ValueError("expected an expression, received the end")
    if token in ("add", "mul", "div", "pow"):
        a, following = _read(token=next(rest, None), rest=rest)
        b, following = _read(following, rest)
        if token == "pow":
            exponent = dict(b.terms).get(frozenset(), 0)
            if b != number(exponent) or abs(exponent) > LARGEST:
                raise ValueError(f"expected a small rational exponent, received {b}")
            return a**exponent, following
        return (a + b if token == "add" else a * (b if token == "mul" else b**-1)), following
    if token in ("neg", "sqrt", *FUNCTIONS):
        a, following = _read(next(rest, None), rest)
        if token == "neg":
            return a.times(-1), following
        return (a ** Fraction(1, 2) if token == "sqrt" else function(token, a)), following
    if token in SYMBOLS:
        return symbol(token), next(rest, None)
    if len(token) == 2 and token[0] in "+-" and token[1].isdigit():
        digits, following = token, next(rest, None)
        while following is not None and following.isdigit():
            digits, following = digits + following, next(rest, None)
        return number(int(digits)), following
    raise ValueError(f"unknown token {token!r}")


# What people write


def parse(text: str, symbols: tuple[str, ...] = ("x",)) -> Expression:
    """The expression that a person wrote: "x^2 cos(3x)", "ln(x)/x".

    Raises:
        ValueError: it does not parse, or has something that `Expression` does not.
    """
    import sympy
    from sympy.parsing import sympy_parser

    names = {*symbols, "exp", "log", "ln", "sin", "cos", "tan", "atan", "arctan", "sqrt"}
    # SymPy evaluates Python code: only these names and characters get there.
    unknown = [word for word in re.findall(r"[^\W\d_]+", text) if word not in names]
    unknown += re.findall(r"[^\w\s+*/^().-]|_", text)
    if unknown:
        raise ValueError(f"cannot read {text!r}: unknown {unknown[0]!r}")
    rules = (
        *sympy_parser.standard_transformations,
        sympy_parser.convert_xor,
        sympy_parser.implicit_multiplication,
    )
    known = {
        name: getattr(sympy, {"arctan": "atan"}.get(name, name)) for name in names - {*symbols}
    }
    try:
        found = sympy_parser.parse_expr(
            text, {name: sympy.Symbol(name) for name in symbols} | known, rules, evaluate=False
        )
    except (SyntaxError, tokenize.TokenError, TypeError, AttributeError, ValueError, IndexError):
        raise ValueError(f"cannot read {text!r}: not an expression") from None
    try:
        return from_sympy(found)
    except ZeroDivisionError:
        raise ValueError(f"cannot read {text!r}: division by zero") from None
    except ValueError as error:
        raise ValueError(f"cannot read {text!r}: {error}") from None


def from_sympy(found) -> Expression:
    """An `Expression` of a SymPy expression; ValueError if it has something else."""
    import sympy

    if isinstance(found, sympy.Rational):
        return number(tidy(Fraction(found.p, found.q)))
    if isinstance(found, sympy.Float):
        return number(tidy(Fraction(str(found)).limit_denominator(10**6)))
    if isinstance(found, sympy.Symbol):
        return symbol(found.name)
    if isinstance(found, sympy.Add | sympy.Mul):
        parts = [from_sympy(x) for x in found.args]
        return functools.reduce(lambda a, b: a + b if found.is_Add else a * b, parts)
    if isinstance(found, sympy.Pow):
        base, power = (from_sympy(x) for x in found.args)
        exponent = dict(power.terms).get(frozenset(), 0)
        if power != number(exponent) or abs(exponent) > LARGEST:
            raise ValueError(f"unsupported exponent {power}")
        if not base.symbols() and base and rational_power(base.content(), exponent) is None:
            raise ValueError(f"a number that is not rational, {found}")
        return base**exponent
    name = type(found).__name__
    if name in FUNCTIONS:
        argument = from_sympy(found.args[0])
        if not argument.symbols():
            raise ValueError(f"a number that is not rational, {found}")
        return function(name, argument)
    if found in (sympy.zoo, sympy.oo, -sympy.oo, sympy.nan):
        raise ZeroDivisionError("division by zero")
    raise ValueError(f"unsupported {found}")


def main() -> None:
    found = parse(sys.argv[1])
    print(found.derivative())
    print(*found.derivative().tokens())


if __name__ == "__main__":
    main()
