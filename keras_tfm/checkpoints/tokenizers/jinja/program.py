"""Evaluates a Jinja program of a stranger: jinja2 parses it, and each step is counted here.

The limits hold on all platforms and in all threads, since they are neither times nor those of a
process: steps, characters, and depth. Of Jinja there is what chat templates of `transformers` use.
A program reaches no attribute of a Python object.
"""

from __future__ import annotations

from collections.abc import Callable

from keras_tfm.checkpoints.tokenizers.jinja import filters
from keras_tfm.checkpoints.tokenizers.jinja.expressions import Expressions, Scope
from keras_tfm.checkpoints.tokenizers.jinja.meter import (
    Meter,
    Namespace,
    Node,
    TemplateError,
    Undefined,
    Value,
)

# Of a program, in characters or bytes, and in tokens: some of 2026 have 30,000 and 5,000.
LARGEST_SOURCE = 200_000
_MOST_TOKENS = 20_000
_DEEPEST = 60  # brackets in brackets


class Program:
    """A chat template; all its renderings together may take some work, and no more.

    Args:
        source: str, the Jinja program.
        variables: dict, its variables besides those of `render`.

    Raises:
        TemplateError: the program is damaged, too long, or nested too deeply.
        ModuleNotFoundError: jinja2 is not installed.
    """

    def __init__(self, source: str, variables: dict[str, Value]):
        self._tree = _parse(source)
        self._meter = Meter()
        self._globals: dict[str, Value] = {**filters.FUNCTIONS, **variables}

    def render(self, **variables: Value) -> str:
        """The text of the program; raises a TemplateError, whatever it does."""
        scope = Scope(None, {**self._globals, **variables})
        try:
            output: list[str] = []
            _Statements(self._meter).run(self._tree.body, scope, output)
            text = "".join(output)
            text.encode("utf-8")  # raises at a lone surrogate
            return text
        except TemplateError:
            raise
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise TemplateError(lines[0][:200]) from None


def _parse(source: str) -> Node:
    """The syntax tree."""
    import jinja2
    from jinja2 import ext

    class Generation(ext.Extension):
        """The tag of `transformers` around the tokens of answers."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    if len(source) > LARGEST_SOURCE:
        raise TemplateError(f"it has {len(source):,} characters, more than {LARGEST_SOURCE:,}")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )
    try:
        depth = 0
        for count, (_, kind, token) in enumerate(environment.lex(source)):
            if kind == "operator":
                depth += (token in "([{") - (token in ")]}")
            if depth > _DEEPEST:
                raise TemplateError(f"it is nested more than {_DEEPEST} deep")
            if count > _MOST_TOKENS:
                raise TemplateError(f"it has more than {_MOST_TOKENS:,} tokens of Jinja")
        return environment.parse(source)
    except jinja2.TemplateError as error:
        raise TemplateError(str(error).splitlines()[0][:200]) from None
    except RecursionError:
        raise TemplateError("it is nested too deeply") from None
    except (ValueError, OverflowError, MemoryError) as error:  # a number of 5,000 digits
        raise TemplateError(str(error)[:200]) from None


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Statements(Expressions):
    """Runs nodes that write text or set variables."""

    def run(self, nodes: list[Node], scope: Scope, output: list[str]) -> None:
        """Runs statements, and appends their text to `output`."""
        for node in nodes:
            self._meter.charge()
            statement = getattr(self, f"_run_{type(node).__name__}", None)
            if statement is None:
                raise TemplateError(f"{type(node).__name__} is not supported in chat templates")
            with self._meter:
                statement(node, scope, output)

    def _text(self, nodes: list[Node], scope: Scope) -> str:
        """The text of a block in a scope of its own."""
        output: list[str] = []
        self.run(nodes, Scope(scope), output)
        self._meter.text(sum(map(len, output)))
        return "".join(output)

    def _run_Output(self, node: Node, scope: Scope, output: list[str]) -> None:
        for one in node.nodes:
            text = self._meter.string(self.value(one, scope))
            self._meter.text(len(text))
            output.append(text)

    def _run_ExprStmt(self, node: Node, scope: Scope, output: list[str]) -> None:
        self.value(node.node, scope)

    def _run_If(self, node: Node, scope: Scope, output: list[str]) -> None:
        for branch in (node, *node.elif_):
            if self.value(branch.test, scope):
                return self.run(branch.body, scope, output)
        return self.run(node.else_, scope, output)

    def _run_For(self, node: Node, scope: Scope, output: list[str]) -> None:
        if node.recursive:
            raise TemplateError("recursive loops are not supported in chat templates")
        elements = filters.elements(self._meter, self.value(node.iter, scope))
        if node.test is not None:
            elements = [x for x in elements if self._passes(node, x, scope)]
        loop: dict[str, Value] = {}
        for i, element in enumerate(elements):
            self._meter.charge()
            loop = {
                "index": i + 1,
                "index0": i,
                "revindex": len(elements) - i,
                "revindex0": len(elements) - i - 1,
                "first": i == 0,
                "last": i == len(elements) - 1,
                "length": len(elements),
                "depth": 1,
                "depth0": 0,
                "previtem": elements[i - 1] if i else Undefined("previtem"),
                "nextitem": elements[i + 1] if i + 1 < len(elements) else Undefined("nextitem"),
            }
            loop["cycle"] = lambda meter, *x, i=i: x[i % len(x)]
            inner = Scope(scope, {"loop": Namespace(loop)})
            self._assign(node.target, element, inner)
            try:
                self.run(node.body, inner, output)
            except _Break:
                break
            except _Continue:
                continue
        if not elements:
            self.run(node.else_, Scope(scope), output)

    def _passes(self, node: Node, element: Value, scope: Scope) -> bool:
        inner = Scope(scope)
        self._assign(node.target, element, inner)
        return bool(self.value(node.test, inner))

    def _run_Break(self, node: Node, scope: Scope, output: list[str]) -> None:
        raise _Break

    def _run_Continue(self, node: Node, scope: Scope, output: list[str]) -> None:
        raise _Continue

    def _run_Assign(self, node: Node, scope: Scope, output: list[str]) -> None:
        self._assign(node.target, self.value(node.node, scope), scope)

    def _run_AssignBlock(self, node: Node, scope: Scope, output: list[str]) -> None:
        text: Value = self._text(node.body, scope)
        self._assign(node.target, self._apply_filters(node.filter, text, scope), scope)

    def _run_FilterBlock(self, node: Node, scope: Scope, output: list[str]) -> None:
        text = self._apply_filters(node.filter, self._text(node.body, scope), scope)
        output.append(self._meter.string(text))

    def _run_With(self, node: Node, scope: Scope, output: list[str]) -> None:
        inner = Scope(scope)
        for target, value in zip(node.targets, node.values, strict=True):
            self._assign(target, self.value(value, scope), inner)
        self.run(node.body, inner, output)

    def _run_Macro(self, node: Node, scope: Scope, output: list[str]) -> None:
        scope.names[node.name] = self._macro(node, scope)

    def _run_CallBlock(self, node: Node, scope: Scope, output: list[str]) -> None:
        caller = self._macro(node, scope)
        output.append(self._meter.string(self._call(node.call, scope, {"caller": caller})))

    def _macro(self, node: Node, scope: Scope) -> Callable[..., str]:
        names = [argument.name for argument in node.args]
        first_default = len(names) - len(node.defaults)

        def call(meter: Meter, /, *given: Value, **named: Value) -> str:
            inner = Scope(scope)
            for i, name in enumerate(names):
                if i < len(given):
                    inner.names[name] = given[i]
                elif name in named:
                    inner.names[name] = named.pop(name)
                elif i >= first_default:
                    inner.names[name] = self.value(node.defaults[i - first_default], inner)
                else:
                    inner.names[name] = Undefined(repr(name))
            if "caller" in named:
                inner.names["caller"] = named.pop("caller")
            inner.names["varargs"] = meter.keep(given[len(names) :])
            inner.names["kwargs"] = meter.keep(named)
            return self._text(node.body, inner)

        return call

    def _assign(self, target: Node, value: Value, scope: Scope) -> None:
        kind = type(target).__name__
        if kind == "NSRef":
            owner = scope.find(target.name)
            if not isinstance(owner, Namespace):
                raise TemplateError(f"{target.name!r} is no namespace")
            owner.values[target.attr] = value
        elif kind == "Tuple":
            parts = filters.elements(self._meter, value)
            for one, part in zip(target.items, parts, strict=True):
                self._assign(one, part, scope)
        else:
            scope.names[target.name] = value
