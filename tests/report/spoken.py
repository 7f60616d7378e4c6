"""The sentences that the package makes for its readers, found in its source: what the catalogue must know.

A text is followed from where it is shown (a notice, a reason, a remark, a result) back to its literals: through names,
conditions, f-strings, lists, returned values and the parameters of functions. What an f-string fills in stands as `{}`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

PACKAGE = Path(__file__).parents[2] / "gradforensics"
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
# Fields of ours that hold a text for a reader, by the class that has them.
FIELDS = {
    "Notice": ("text",), "Fault": ("text",), "Source": ("remark",), "Reading": ("remark",), "Ending": ("text",),
    "Told": ("why",), "Measure": ("unit", "text"), "Naming": ("how",), "Skipped": ("reason",), "Lost": ("why",),
    "Result": ("question", "changed", "result", "conclusion"), "_Told": ("result", "conclusion"), "Damage": ("what",),
    "_Relation": (), "_Graph": ("lacking",), "State": ("lacking",), "Weighting": ("reason",), "_Finding": ("words",),
    "_Step": ("doubt",),
}  # fmt: skip
# Exceptions whose text becomes part of a notice or of a result.
ERRORS = {
    "RefusedError", "DamagedError", "CutError", "TornJsonError", "MalformedError", "UnreadError", "NotMlflowError",
    "_UnsuitableError", "NotWrittenError",
}  # fmt: skip
KEYWORDS = {"remark", "reason", "conclusion", "question", "changed", "result", "why"}
LISTS = {"notices", "remarks"}
UNCHANGED = {"clean", "shorten", "str", "tuple", "list", "sorted", "set", "printable"}
DEEPEST, MOST = 6, 12


class Module:
    """One parsed file."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.name = str(path.relative_to(PACKAGE.parent))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.functions: dict[str, list[Function]] = defaultdict(list)
        self.constants: dict[str, ast.expr] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                self.functions[node.name].append(node)
        for node in self.tree.body:
            for target in _targets(node):
                if isinstance(target, ast.Name) and node.value is not None:  # type: ignore[attr-defined]  # it has
                    self.constants[target.id] = node.value  # type: ignore[attr-defined]  # likewise

    def around(self, node: ast.AST) -> Function | None:
        """The function that a node stands in."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return None


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) else []


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _parameters(function: Function) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


class Walk:
    """Collects the texts, each with the place where it was found."""

    def __init__(self) -> None:
        self.modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py")) if "messages" not in path.parts]
        self.found: dict[str, str] = {}
        self.open: list[tuple[Module, Function, str]] = []
        self.seen: set[tuple[Function, str]] = set()
        self.functions: dict[str, list[tuple[Module, Function]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[Module, ast.Call]]] = defaultdict(list)
        self.nodes: dict[Function, list[ast.AST]] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, Function):
                    self.functions[node.name].append((module, node))
                    self.nodes[node] = list(ast.walk(node))
                elif isinstance(node, ast.Call):
                    self.calls[_called(node)].append((module, node))
        self.fields = {
            node.name: [
                b.target.id for b in node.body if isinstance(b, ast.AnnAssign) and isinstance(b.target, ast.Name)
            ]
            for module in self.modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef) and node.name in FIELDS
        }
        for module in self.modules:
            for node in ast.walk(module.tree):
                for expression in self.shown(node):
                    self.take(module, node, expression)
        while self.open:
            self.arguments(*self.open.pop())

    # -- where texts are shown -----------------------------------------------------------------------------------------

    def shown(self, node: ast.AST) -> Iterator[ast.expr]:
        """The expressions of a statement or call that a reader sees."""
        if isinstance(node, ast.Call):
            name = _called(node)
            names = self.fields.get(name, [])
            yield from (a for field, a in zip(names, node.args, strict=False) if field in FIELDS[name])
            yield from (k.value for k in node.keywords if k.arg in KEYWORDS or k.arg in FIELDS.get(name, ()))
            if name == "Missing":
                yield from node.args
            if name in ERRORS or name == "remark":
                yield from node.args[:1]
            if name == "result" and len(node.args) > 4:  # Context.result
                yield from node.args[1:4]
            if name == "append" and isinstance(node.func, ast.Attribute) and _named(node.func.value) in LISTS:
                yield _last(node.args[0])
        for target in _targets(node):
            if isinstance(target, ast.Attribute) and target.attr in KEYWORDS:
                yield node.value  # type: ignore[attr-defined]  # an assignment has a value

    def arguments(self, module: Module, function: Function, parameter: str) -> None:
        """Follow a parameter that is shown to what the calls of its function give it."""
        names = _parameters(function)
        place = names.index(parameter) - (names[0] in ("self", "cls"))
        for other, node in self.calls[function.name]:
            if (module, function) in self.ours(other, node):
                given = [k.value for k in node.keywords if k.arg == parameter]
                if not given and 0 <= place < len(node.args):
                    given = [node.args[place]]
                for expression in given:
                    self.take(other, node, expression)

    def take(self, module: Module, node: ast.AST, expression: ast.expr) -> None:
        """Note the texts that an expression can have."""
        for text in self.texts(module, expression, module.around(node), 0):
            self.found.setdefault(text, f"{module.name}:{expression.lineno}")

    # -- what an expression can say ------------------------------------------------------------------------------------

    def ours(self, module: Module, node: ast.Call) -> list[tuple[Module, Function]]:
        """The function of the package that is called, as far as its name tells."""
        own = [(module, one) for one in module.functions.get(_called(node), [])]
        every = self.functions.get(_called(node), [])
        return own or (every if len(every) == 1 else [])

    def texts(self, module: Module, node: ast.expr, within: Function | None, depth: int) -> list[str]:
        """The texts of an expression; a text that it cannot tell is left out."""
        if depth > DEEPEST:
            return []
        each: Callable[[Iterable[ast.expr | None]], list[str]] = lambda nodes: [  # noqa: E731  # short, and used below
            text for one in nodes if one is not None for text in self.texts(module, one, within, depth + 1)
        ]
        match node:
            case ast.Constant(value=str(value)):
                return [value]
            case ast.JoinedStr(values=values):
                return self.filled(module, values, within, depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [a + b for a in each([left]) or ["{}"] for b in each([right]) or ["{}"]]
            case ast.IfExp(body=body, orelse=orelse):
                return each([body, orelse])
            case ast.BoolOp(values=values) | ast.Dict(values=values):
                return each(values)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return each(items)
            case ast.Starred(value=value) | ast.Subscript(value=value) | ast.NamedExpr(value=value):
                return each([value])
            case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item):
                return each([item])
            case ast.Name(id=name):
                return self.named(module, name, within, depth)
            case ast.Call():
                return self.returned(module, node, within, depth)
        return []

    def filled(self, module: Module, values: list[ast.expr], within: Function | None, depth: int) -> list[str]:
        """The texts of an f-string: what it chooses from is written out, the rest stands as {}."""
        parts: list[list[str]] = []
        for value in values:
            if isinstance(value, ast.Constant):
                parts.append([str(value.value)])
                continue
            assert isinstance(value, ast.FormattedValue)
            chosen = isinstance(value.value, ast.IfExp | ast.Name) and value.format_spec is None
            told = self.texts(module, value.value, within, depth + 1) if chosen else []
            parts.append(told if 0 < len(told) <= 4 and any(told) else ["{}"])
        return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), MOST)]

    def named(self, module: Module, name: str, within: Function | None, depth: int) -> list[str]:
        """The texts that a name stands for: of the function around it, of a parameter, or of the module."""
        if within is not None:
            given = [one for node in self.nodes[within] for one in _given(node, name)]
            if given:
                return [text for one in given for text in self.texts(module, one, within, depth + 1)]
            if name in _parameters(within):
                if (within, name) not in self.seen:
                    self.seen.add((within, name))
                    self.open.append((module, within, name))
                return []
        constant = module.constants.get(name)
        return [] if constant is None else self.texts(module, constant, None, depth + 1)

    def returned(self, module: Module, node: ast.Call, within: Function | None, depth: int) -> list[str]:
        """The texts that a call returns."""
        name = _called(node)
        if name in UNCHANGED or name == "fromkeys":
            return self.texts(module, node.args[0], within, depth + 1) if node.args else []
        if name == "get" and isinstance(node.func, ast.Attribute):
            return self.texts(module, node.func.value, within, depth + 1)
        return [
            text
            for other, function in self.ours(module, node)
            if function is not within
            for one in self.nodes[function]
            if isinstance(one, ast.Return | ast.Yield) and one.value is not None and other.around(one) is function
            for text in self.texts(other, one.value, function, depth + 1)
        ]


def _named(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _last(node: ast.expr) -> ast.expr:
    return node.elts[-1] if isinstance(node, ast.Tuple) and node.elts else node


def _given(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """What a statement gives a name."""
    for target in _targets(node):
        value: ast.expr | None = node.value  # type: ignore[attr-defined]  # an assignment has a value
        if isinstance(target, ast.Name) and target.id == name and value is not None:
            yield value
        if isinstance(target, ast.Tuple):
            values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for place, one in enumerate(target.elts):
                for given in values:
                    if _named(one) == name and isinstance(given, ast.Tuple):
                        yield given.elts[place]
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name) and node.target.id == name:
        yield node.iter
    appended = isinstance(node, ast.Call) and _called(node) == "append" and isinstance(node.func, ast.Attribute)
    if appended and isinstance(node.func.value, ast.Name) and node.func.value.id == name:  # type: ignore[attr-defined]  # see above
        yield _last(node.args[0])  # type: ignore[attr-defined]  # likewise


KEY = re.compile(r"[\w.:/>={}<-]*")  # a need of a check, a name, a setting


def spoken() -> dict[str, str]:
    """Every text of one word or more that is no key -> where it is made."""
    found = Walk().found.items()
    return {text: place for text, place in found if re.search("[a-z]{2}", text) and not KEY.fullmatch(text)}
