"""Expressions of a Jinja program: the value of each node of its syntax tree."""

from __future__ import annotations

from keras_tfm.checkpoints.tokenizers.jinja import filters
from keras_tfm.checkpoints.tokenizers.jinja.meter import (
    Meter,
    Node,
    TemplateError,
    Undefined,
    Value,
)
from keras_tfm.checkpoints.tokenizers.jinja.operators import COMPARISONS, OPERATORS, TESTS


class Scope:
    """The variables of a block, over those of the block around it."""

    def __init__(self, outer: Scope | None, names: dict[str, Value] | None = None):
        self.outer, self.names = outer, {} if names is None else names

    def find(self, name: str) -> Value:
        """The innermost variable of a name, or undefined."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return Undefined(repr(name))


class Expressions:
    """The values of nodes.

    Args:
        meter: `Meter`.
    """

    def __init__(self, meter: Meter):
        self._meter = meter

    def value(self, node: Node, scope: Scope) -> Value:
        """The value of an expression."""
        self._meter.charge()
        kind = type(node).__name__
        with self._meter:
            if kind in OPERATORS:
                x, y = self.value(node.left, scope), self.value(node.right, scope)
                for one in (x, y):
                    if isinstance(one, Undefined):
                        raise TemplateError(f"{one.name} is undefined")
                return OPERATORS[kind](self._meter, x, y)
            expression = getattr(self, f"_value_{kind}", None)
            if expression is None:
                raise TemplateError(f"{kind} is not supported in chat templates")
            return expression(node, scope)

    def _value_Const(self, node: Node, scope: Scope) -> Value:
        return self._meter.keep(node.value)

    def _value_TemplateData(self, node: Node, scope: Scope) -> Value:
        return node.data

    def _value_Name(self, node: Node, scope: Scope) -> Value:
        return scope.find(node.name)

    def _value_Tuple(self, node: Node, scope: Scope) -> Value:
        return self._meter.keep(tuple(self.value(x, scope) for x in node.items))

    def _value_List(self, node: Node, scope: Scope) -> Value:
        return self._meter.keep([self.value(x, scope) for x in node.items])

    def _value_Dict(self, node: Node, scope: Scope) -> Value:
        made = {self.value(x.key, scope): self.value(x.value, scope) for x in node.items}
        return self._meter.keep(made)

    def _value_CondExpr(self, node: Node, scope: Scope) -> Value:
        if self.value(node.test, scope):
            return self.value(node.expr1, scope)
        return Undefined() if node.expr2 is None else self.value(node.expr2, scope)

    def _value_And(self, node: Node, scope: Scope) -> Value:
        return self.value(node.left, scope) and self.value(node.right, scope)

    def _value_Or(self, node: Node, scope: Scope) -> Value:
        return self.value(node.left, scope) or self.value(node.right, scope)

    def _value_Not(self, node: Node, scope: Scope) -> Value:
        return not self.value(node.node, scope)

    def _value_Neg(self, node: Node, scope: Scope) -> Value:
        return -self.value(node.node, scope)

    def _value_Pos(self, node: Node, scope: Scope) -> Value:
        return +self.value(node.node, scope)

    def _value_Concat(self, node: Node, scope: Scope) -> Value:
        texts = [self._meter.string(self.value(x, scope)) for x in node.nodes]
        self._meter.text(sum(map(len, texts)))
        return "".join(texts)

    def _value_Compare(self, node: Node, scope: Scope) -> Value:
        left = self.value(node.expr, scope)
        for operand in node.ops:
            right = self.value(operand.expr, scope)
            self._meter.read(left, right)
            if not COMPARISONS[operand.op](left, right):
                return False
            left = right
        return True

    def _value_Getattr(self, node: Node, scope: Scope) -> Value:
        owner = self.value(node.node, scope)
        method = self._method(owner, node.attr)
        return method if method is not None else self._item(owner, node.attr)

    def _value_Getitem(self, node: Node, scope: Scope) -> Value:
        owner = self.value(node.node, scope)
        if type(node.arg).__name__ == "Slice":
            arguments = (node.arg.start, node.arg.stop, node.arg.step)
            parts = [None if x is None else self.value(x, scope) for x in arguments]
            self._meter.read(owner)
            return self._meter.keep(owner[slice(*parts)])
        key = self.value(node.arg, scope)
        found = self._item(owner, key)
        method = self._method(owner, key) if isinstance(found, Undefined) else None
        return found if method is None else method

    def _item(self, owner: Value, key: Value) -> Value:
        found = filters.item(self._meter, owner, key)
        if isinstance(found, Undefined) and isinstance(key, str) and key.startswith("_"):
            raise TemplateError(f"the attribute {key[:40]!r} is unsafe")
        return found

    def _method(self, owner: Value, name: Value) -> Value:
        """A method of a text, a dictionary or a list; None if there is none of this name."""
        for kind, methods in (
            (str, filters.TEXT_METHODS),
            (dict, filters.MAPPING_METHODS),
            (list | tuple, filters.LIST_METHODS),
        ):
            if isinstance(owner, kind) and isinstance(name, str) and name in methods:
                method = methods[name]
                return lambda meter, /, *given, **named: method(meter, owner, *given, **named)
        return None

    def _value_Filter(self, node: Node, scope: Scope) -> Value:
        value = self.value(node.node, scope)
        return self._filter(node.name, value, *self._arguments(node, scope))

    def _apply_filters(self, node: Node, text: Value, scope: Scope) -> Value:
        """The text of a block after its chain of filters."""
        if node is None:
            return text
        text = self._apply_filters(node.node, text, scope)
        return self._filter(node.name, text, *self._arguments(node, scope))

    def _filter(
        self, name: str, value: Value, given: list[Value], named: dict[str, Value]
    ) -> Value:
        if name in ("map", "select", "reject", "selectattr", "rejectattr"):
            return self._meter.keep(self._each(name, value, given, named))
        if name not in filters.FILTERS:
            raise TemplateError(f"there is no filter {name!r} for chat templates")
        return self._meter.keep(filters.FILTERS[name](self._meter, value, *given, **named))

    def _each(
        self, name: str, value: Value, given: list[Value], named: dict[str, Value]
    ) -> list[Value]:
        """The filters of lists whose argument is a filter, a test or an attribute."""
        meter, elements = self._meter, filters.elements(self._meter, value)
        if name == "map" and not given:
            attribute, other = named["attribute"], named.get("default", Undefined())
            found = [filters.attribute_of(meter, x, attribute) for x in elements]
            return [other if isinstance(x, Undefined) else x for x in found]
        if name == "map":
            filtered = []
            for x in elements:
                meter.charge()
                filtered.append(self._filter(given[0], x, given[1:], named))
            return filtered
        tested = elements
        if name.endswith("attr"):
            tested, given = [filters.attribute_of(meter, x, given[0]) for x in elements], given[1:]
        kept = []
        for x, one in zip(elements, tested, strict=True):
            holds = bool(self._test(given[0], one, given[1:]) if given else one)
            if holds == name.startswith("select"):
                kept.append(x)
        return kept

    def _value_Test(self, node: Node, scope: Scope) -> Value:
        value = self.value(node.node, scope)
        given, _ = self._arguments(node, scope)
        return self._test(node.name, value, given)

    def _test(self, name: str, value: Value, given: list[Value]) -> bool:
        if name not in TESTS:
            raise TemplateError(f"there is no test {name!r} for chat templates")
        if given:
            self._meter.read(value, *given)
        return bool(TESTS[name](value, *given))

    def _value_Call(self, node: Node, scope: Scope) -> Value:
        return self._call(node, scope, {})

    def _call(self, node: Node, scope: Scope, more: dict[str, Value]) -> Value:
        function = self.value(node.node, scope)
        given, named = self._arguments(node, scope)
        if isinstance(function, Undefined):
            raise TemplateError(f"{function.name} is undefined")
        if not callable(function):
            raise TemplateError("it calls a value that is no function")
        return self._meter.keep(function(self._meter, *given, **named, **more))

    def _arguments(self, node: Node, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        given = [self.value(x, scope) for x in node.args]
        named = {x.key: self.value(x.value, scope) for x in node.kwargs}
        if node.dyn_args is not None:
            given += filters.elements(self._meter, self.value(node.dyn_args, scope))
        if node.dyn_kwargs is not None:
            named |= self.value(node.dyn_kwargs, scope)
        return given, named
