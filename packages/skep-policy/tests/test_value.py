"""Values: what a frozen dataclass promises, and that those who ask for one's fields get them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import msgspec
import pytest
from skep_policy import replace
from skep_policy.value import Record, Value, lazy


class Spot(Value, order=True):
    path: str
    mode: int = 0
    links: dict[str, str] = {}


class Area(Value):
    spots: tuple[Spot, ...]

    @lazy
    def names(self) -> list[str]:
        return [spot.path for spot in self.spots]


class Count(Record):
    what: str
    seen: list[int] = []


def test_fields_are_given_by_place_or_by_name_and_have_defaults() -> None:
    assert Spot("/a") == Spot(path="/a", mode=0, links={}) != Spot("/a", 1)
    assert repr(Spot("/a", mode=2)) == "Spot(path='/a', mode=2, links={})"
    match Spot("/a", 3):
        case Spot(path, mode):
            assert (path, mode) == ("/a", 3)


def test_a_call_that_does_not_fit_is_a_type_error() -> None:
    made: Any = Spot
    for call in (made, lambda: made("/a", 1, {}, 4), lambda: made("/a", path="/b"), lambda: made("/a", size=1)):
        with pytest.raises(TypeError, match="Spot"):
            call()


def test_a_value_cannot_be_changed_and_a_record_can() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Spot("/a").path = "/b"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del Spot("/a").path  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Count("a").other = 1  # type: ignore[attr-defined]
    count = Count("a")
    count.what = "b"
    assert count == Count("b")


def test_a_value_is_no_base_of_another_whose_fields_would_be_lost() -> None:
    with pytest.raises(TypeError, match="no value is the base of another"):

        class Deeper(Spot):  # pyright: ignore[reportUnusedClass]
            depth: int = 0


def test_what_holds_the_same_is_equal_and_of_one_type() -> None:
    class Other(Value):
        path: str
        mode: int = 0
        links: dict[str, str] = {}

    assert Spot("/a") != Other("/a")
    assert len({Area((Spot("/a"),)) == Area((Spot("/a"),)), True}) == 1
    assert hash(Area(())) == hash(Area(())) and sorted([Spot("/b"), Spot("/a", 2), Spot("/a", 1)])[0].mode == 1
    with pytest.raises(TypeError):
        hash(Count("a"))


def test_a_mutable_default_is_each_values_own() -> None:
    one, other = Count("a"), Count("a")
    one.seen.append(1)
    assert other.seen == [] and Spot("/a").links is not Spot("/a").links


def test_what_is_lazy_is_computed_once() -> None:
    area = Area((Spot("/a"),))
    assert area.names == ["/a"] and area.names is area.names


def test_values_are_copied_pickled_and_replaced() -> None:
    area = Area((Spot("/a", 1),))
    assert copy.deepcopy(area) == pickle.loads(pickle.dumps(area)) == copy.copy(area) == area
    assert replace(area.spots[0], mode=4) == dataclasses.replace(area.spots[0], mode=4) == Spot("/a", 4)


def test_msgspec_and_dataclasses_know_the_fields() -> None:
    area = Area((Spot("/a", 1),))
    assert msgspec.to_builtins(area) == {"spots": ({"path": "/a", "mode": 1, "links": {}},)}
    assert msgspec.json.decode(msgspec.json.encode(area), type=Area) == area
    assert [field.name for field in dataclasses.fields(Spot)] == ["path", "mode", "links"]  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spots\[0\]\.path"):
        msgspec.convert({"spots": [{"path": 1}]}, Area)
