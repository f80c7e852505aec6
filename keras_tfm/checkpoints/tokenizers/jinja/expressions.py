"""Expressions of a Jinja program: the value of each node of its syntax tree."""

from __future__ import annotations

from typing import Any

from keras_tfm.checkpoints.tokenizers.jinja import filters
from keras_tfm.checkpoints.tokenizers.jinja.meter import Meter, TemplateError, Undefined
from keras_tfm.checkpoints.tokenizers.jinja.operators import COMPARISONS, OPERATORS, TESTS


class Scope:
    """The variables of a block, over those of the block around it."""

    def __init__(self, outer: Scope | None, names: dict[str, Any] | None = None):
        self.outer, self.names = outer, {} if names is None else names

    def find(self, name: str) -> Any:
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

    def value(self, node: Any, scope: Scope) -> Any:
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

    def _value_Const(self, node: Any, scope: Scope) -> Any:
        return self._meter.keep(node.value)

    def _value_TemplateData(self, node: Any, scope: Scope) -> Any:
        return node.data

    def _value_Name(self, node: Any, scope: Scope) -> Any:
        return scope.find(node.name)

    def _value_Tuple(self, node: Any, scope: Scope) -> Any:
        return self._meter.keep(tuple(self.value(x, scope) for x in node.items))

    def _value_List(self, node: Any, scope: Scope) -> Any:
        return self._meter.keep([self.value(x, scope) for x in node.items])

    def _value_Dict(self, node: Any, scope: Scope) -> Any:
        made = {self.value(x.key, scope): self.value(x.value, scope) for x in node.items}
        return self._meter.keep(made)

    def _value_CondExpr(self, node: Any, scope: Scope) -> Any:
        if self.value(node.test, scope):
            return self.value(node.expr1, scope)
        return Undefined() if node.expr2 is None else self.value(node.expr2, scope)

    def _value_And(self, node: Any, scope: Scope) -> Any:
        return self.value(node.left, scope) and self.value(node.right, scope)

    def _value_Or(self, node: Any, scope: Scope) -> Any:
        return self.value(node.left, scope) or self.value(node.right, scope)

    def _value_Not(self, node: Any, scope: Scope) -> Any:
        return not self.value(node.node, scope)

    def _value_Neg(self, node: Any, scope: Scope) -> Any:
        return -self.value(node.node, scope)

    def _value_Pos(self, node: Any, scope: Scope) -> Any:
        return +self.value(node.node, scope)

    def _value_Concat(self, node: Any, scope: Scope) -> Any:
        texts = [self._meter.string(self.value(x, scope)) for x in node.nodes]
        self._meter.text(sum(map(len, texts)))
        return "".join(texts)

    def _value_Compare(self, node: Any, scope: Scope) -> Any:
        left = self.value(node.expr, scope)
        for operand in node.ops:
            right = self.value(operand.expr, scope)
            self._meter.read(left, right)
            if not COMPARISONS[operand.op](left, right):
                return False
            left = right
        return True

    def _value_Getattr(self, node: Any, scope: Scope) -> Any:
        owner = self.value(node.node, scope)
        method = self._method(owner, node.attr)
        return method if method is not None else self._item(owner, node.attr)

    def _value_Getitem(self, node: Any, scope: Scope) -> Any:
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

    def _item(self, owner: Any, key: Any) -> Any:
        found = filters.item(self._meter, owner, key)
        if isinstance(found, Undefined) and isinstance(key, str) and key.startswith("_"):
            raise TemplateError(f"the attribute {key[:40]!r} is unsafe")
        return found

    def _method(self, owner: Any, name: Any) -> Any:
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

    def _value_Filter(self, node: Any, scope: Scope) -> Any:
        value = self.value(node.node, scope)
        return self._filter(node.name, value, *self._arguments(node, scope))

    def _filtered(self, node: Any, text: Any, scope: Scope) -> Any:
        """The text of a block after its chain of filters."""
        if node is None:
            return text
        text = self._filtered(node.node, text, scope)
        return self._filter(node.name, text, *self._arguments(node, scope))

    def _filter(self, name: str, value: Any, given: list[Any], named: dict[str, Any]) -> Any:
        if name in ("map", "select", "reject", "selectattr", "rejectattr"):
            return self._meter.keep(self._each(name, value, given, named))
        if name not in filters.FILTERS:
            raise TemplateError(f"there is no filter {name!r} for chat templates")
        return self._meter.keep(filters.FILTERS[name](self._meter, value, *given, **named))

    def _each(self, name: str, value: Any, given: list[Any], named: dict[str, Any]) -> list[Any]:
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

    def _value_Test(self, node: Any, scope: Scope) -> Any:
        value = self.value(node.node, scope)
        given, _ = self._arguments(node, scope)
        return self._test(node.name, value, given)

    def _test(self, name: str, value: Any, given: list[Any]) -> bool:
        if name not in TESTS:
            raise TemplateError(f"there is no test {name!r} for chat templates")
        if given:
            self._meter.read(value, *given)
        return bool(TESTS[name](value, *given))

    def _value_Call(self, node: Any, scope: Scope) -> Any:
        return self._call(node, scope, {})

    def _call(self, node: Any, scope: Scope, more: dict[str, Any]) -> Any:
        function = self.value(node.node, scope)
        given, named = self._arguments(node, scope)
        if isinstance(function, Undefined):
            raise TemplateError(f"{function.name} is undefined")
        if not callable(function):
            raise TemplateError("it calls a value that is no function")
        return self._meter.keep(function(self._meter, *given, **named, **more))

    def _arguments(self, node: Any, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        given = [self.value(x, scope) for x in node.args]
        named = {x.key: self.value(x.value, scope) for x in node.kwargs}
        if node.dyn_args is not None:
            given += filters.elements(self._meter, self.value(node.dyn_args, scope))
        if node.dyn_kwargs is not None:
            named |= self.value(node.dyn_kwargs, scope)
        return given, named
