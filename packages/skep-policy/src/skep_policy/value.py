"""Values that cost nothing to define: slotted, compared by what they hold, and frozen unless they say otherwise.

`dataclasses` and msgspec each take longer to import than all else that stands between `skep exec` and its command. So
values that live inside one process are these, and nothing is imported for them. Who asks one for the fields of a
dataclass gets them: msgspec encodes it, `dataclasses.replace` and `fields` know it. msgspec decodes those whose
annotations name what is there at run time, which is not so of `Literal` and its like where they are the checker's only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import cached_property
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T", bound="Value | Record")
    lazy = cached_property
else:

    def dataclass_transform(**_):
        return lambda found: found

    class lazy:
        """A method whose result is kept: `functools.cached_property`, without its import."""

        def __init__(self, compute):
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.compute.__name__] = self.compute(instance)
            return value


@dataclass_transform(frozen_default=True)
class ValueType(type):
    """The type of values. The annotated names of a class are its fields and become slots, their values defaults; a
    dictionary or list for a default is copied for each. `order` compares them field by field.
    """

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        order: bool = False,
    ) -> ValueType:
        if any(getattr(base, "__match_args__", ()) for base in bases):
            raise TypeError(f"{name} has fields of its own only: no value is the base of another")
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        slots = (*fields, "__dict__") if any(isinstance(item, lazy) for item in namespace.values()) else fields
        more: dict[str, Any] = {"__slots__": slots, "__match_args__": fields, "_defaults": defaults}
        if order:
            more["__lt__"] = _less
        made = super().__new__(mcls, name, bases, {**namespace, **more})
        made._puts = tuple([getattr(made, field).__set__ for field in fields])
        made._rest = {}
        rest: tuple[Any, ...] = ()
        for field in reversed(fields):  # what completes a call that leaves out the last ones
            if field not in defaults or isinstance(defaults[field], (dict, list)):
                break
            rest = (defaults[field], *rest)
            made._rest[len(fields) - len(rest)] = rest
        return made

    if TYPE_CHECKING:
        _puts: tuple[Callable[[object, object], None], ...]
        _defaults: dict[str, Any]
        _rest: dict[int, tuple[Any, ...]]


def _copier(default: Any) -> Callable[[], Any]:
    return default.copy


class _Fields:
    """What `dataclasses` calls the fields of a class, made when somebody asks."""

    def __init__(self) -> None:
        self._made: dict[ValueType, dict[str, Any]] = {}

    def __get__(self, instance: object, owner: ValueType) -> dict[str, Any]:
        if owner not in self._made:
            self._made[owner] = _dataclass_fields(owner)
        return self._made[owner]


def _dataclass_fields(owner: Any) -> dict[str, Any]:
    from dataclasses import field, make_dataclass

    made: list[tuple[str, Any, Any]] = []
    for name in owner.__match_args__:
        default: Any = owner._defaults.get(name, owner)
        if default is owner:
            described: Any = field()
        elif isinstance(default, (dict, list)):
            described = field(default_factory=_copier(default))
        else:
            described = field(default=default)
        made.append((name, owner.__annotations__[name], described))
    found: Any = make_dataclass("Fields", made, kw_only=True)
    return found.__dataclass_fields__


class _Held:
    """What values and records have in common."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __dataclass_fields__ = _Fields()

        def __init__(self, *args, **named):
            puts = self._puts
            if named or len(args) != len(puts):
                rest = None if named else self._rest.get(len(args))
                args = _complete(type(self), args, named) if rest is None else args + rest
            for put, value in zip(puts, args):  # noqa: B905 (as many as there are; strict takes its time)
                put(self, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and held(self) == held(other)

    def __hash__(self) -> int:
        return hash(held(self))

    def __repr__(self) -> str:
        shown = ", ".join([f"{name}={value!r}" for name, value in zip(_fields_of(type(self)), held(self), strict=True)])
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), held(self)


class Value(_Held, metaclass=ValueType):
    """The base of what never changes."""

    if not TYPE_CHECKING:

        def __setattr__(self, name, value=None):
            raise AttributeError(f"a {type(self).__name__} is frozen")

        __delattr__ = __setattr__


@dataclass_transform()
class RecordType(ValueType):
    """The type of records."""


class Record(_Held, metaclass=RecordType):
    """The base of what is filled while something goes on."""

    __hash__ = None  # type: ignore[assignment]


def _fields_of(made: type) -> tuple[str, ...]:
    return made.__match_args__  # type: ignore[attr-defined]


def held(value: object) -> tuple[Any, ...]:
    """What the fields of a value hold, in their order."""
    return tuple([getattr(value, name) for name in _fields_of(type(value))])


def replace(value: T, **changes: Any) -> T:
    """The value with other things in the named fields."""
    return type(value)(**dict(zip(_fields_of(type(value)), held(value), strict=True)) | changes)


def _less(one: object, other: object) -> bool:
    return held(one) < held(other) if type(one) is type(other) else NotImplemented


def _complete(made: ValueType, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The arguments of all fields. Raises TypeError like any call that does not fit."""
    fields = _fields_of(made)
    found = list(args)
    for name in fields[len(args) :]:
        if name in named:
            found.append(named.pop(name))
        elif name in made._defaults:  # pyright: ignore[reportPrivateUsage]
            default = made._defaults[name]  # pyright: ignore[reportPrivateUsage]
            found.append(default.copy() if isinstance(default, (dict, list)) else default)
        else:
            raise TypeError(f"{made.__name__} needs {name}")
    if named or len(args) > len(fields):
        raise TypeError(f"{made.__name__} has no {', '.join(named) or 'field for so many values'}")
    return found
