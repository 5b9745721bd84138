"""Our dataclasses behave as the standard ones do."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, replace

import pytest

from kvctl.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Base:
    """Frozen class with every kind of field."""

    first: int
    second: list[int] = field(default_factory=list)
    third: str = field(default="x", repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    """Class that adds fields by keyword."""

    fourth: int
    fifth: int = 2
    checked: list[str] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self.checked.append("checked")


@dataclass(slots=True)
class Mutable:
    """Class whose fields can be set."""

    value: int = 0


@dataclass(slots=True, eq=False)
class Unequal:
    """Class compared by identity."""

    value: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Own:
    """Class with methods of its own."""

    value: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __repr__(self) -> str:
        return "own"


def test_text_and_errors_are_those_of_the_standard_classes():
    texts = []
    for decorator in (dataclass, dataclasses.dataclass):

        @decorator(frozen=True, slots=True)
        class Local:
            """Class with a required and an optional field."""

            first: int
            second: str = "x"

        texts.append([repr(Local(1)), Local.__match_args__])
        for arguments in ((), (1, "x", 3)):
            with pytest.raises(TypeError) as error:
                Local(*arguments)
            texts[-1].append(str(error.value).rpartition(".")[2])
    assert texts[0] == texts[1]


def test_equality_and_hash_are_of_the_compared_fields():
    one: tuple[int, ...] = (1,)
    assert Base(1) == Base(1, third="other") != Base(2)
    assert Base(1) != one
    assert Derived(1, fourth=3) != Base(1)
    assert hash(Base(1, second=(), third="a")) == hash(Base(1, second=(), third="b"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(Base(1))
    with pytest.raises(TypeError):
        hash(Mutable())
    assert Mutable(1) == Mutable(1)
    assert Unequal() != Unequal()
    assert {Unequal()}
    assert Own(1) == Own(2)
    assert repr(Own(1)) == "own"


def test_defaults_are_made_for_each_instance():
    one, other = Derived(1, fourth=2), Derived(1, fourth=2)
    one.second.append(1)
    assert (other.second, other.fifth, other.checked) == ([], 2, ["checked"])


def test_frozen_fields_cannot_be_set():
    one = Derived(1, fourth=2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        one.first = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del one.first  # type: ignore[misc]
    changed = Mutable()
    changed.value = 1
    assert not hasattr(one, "__dict__")
    assert changed == Mutable(1)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_instances_can_be_copied(again):
    for one in (Base(1, [2], "z"), Derived(1, fourth=2), Mutable(3)):
        assert again(one) == one
        assert again(one) is not one
    assert again(Base(1, [2], "z")).third == "z"
    assert replace(Derived(1, fourth=2), fourth=3).fourth == 3
    assert dataclasses.asdict(Mutable(3)) == {"value": 3}
