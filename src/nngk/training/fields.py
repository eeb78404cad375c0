"""What a setting says about itself: its help, its group and the values that it accepts."""

from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nngk.errors import InputError


@dataclass(frozen=True)
class About:
    """The help, group and limits of one setting."""

    help: str  # full sentences: what it does, what an empty value means, and the reason for the default
    group: str
    everyday: bool = False  # whether 'nngk train --help' shows it; '--help-all' shows every setting
    least: float | None = None
    most: float | None = None
    above: float | None = None  # a limit that is not itself allowed
    below: float | None = None  # likewise
    empty: str = ""  # the word for None, where None is allowed: 'auto' or 'none'
    form: str = ""  # the values of a text, such as 'NUMBER|auto'

    @property
    def brief(self) -> str:
        """The first sentence of the help, which stands on its own."""
        return self.help.split(". ")[0].removesuffix(".") + "."

    def holds(self, value: float) -> bool:
        """Return whether a number is within the limits; NaN never is."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def limits(self) -> str:
        """Return the limits in words.

        >>> About("", "", least=0, below=1).limits(), About("", "", least=1, empty="auto").limits()
        ('from 0 to below 1', 'at least 1, or 0 for auto')
        """
        most, below = _number(self.most), _number(self.below)
        if self.above is not None:
            words = f"above {_number(self.above)}" + (f" and up to {most}" if most else "")
        elif self.least is not None:
            high = most or (f"below {below}" if below else "")
            words = f"from {_number(self.least)} to {high}" if high else f"at least {_number(self.least)}"
        else:
            words = f"at most {most}" if most else ""
        return words + (f", or 0 for {self.empty}" if words and self.empty else "")


def setting(default: Any, group: str, help: str, **limits: Any) -> Any:
    """Return a dataclass field that carries its help, group and limits (the fields of :class:`About`)."""
    return field(default=default, metadata={"about": About(help, group, **limits)})


def about(described: Field[Any]) -> About:
    """Return what a field says about itself."""
    told = described.metadata["about"]
    assert isinstance(told, About)
    return told


def check_values(settings: Any) -> None:
    """Raise InputError if a field of a settings object has a value of another type or beyond its limits.

    A whole number that may be empty takes 0 for empty, since TOML has no empty value.
    """
    hints = get_type_hints(type(settings))
    for described in fields(settings):
        name, hint, told = described.name, hints[described.name], about(described)
        value = getattr(settings, name)
        if told.empty and int in _parts(hint) and _is_count(value) and value == 0:
            object.__setattr__(settings, name, None)
            continue
        if not _fits(value, hint):
            raise InputError(f"The setting '{name}' must be {expected(hint, told)}; got {value!r}.")
        if isinstance(value, int | float) and not isinstance(value, bool) and not told.holds(value):
            raise InputError(f"The setting '{name}' must be {told.limits()}; got {value!r}.")


def expected(hint: Any, told: About) -> str:
    """Return what a setting accepts, in words.

    >>> expected(float | Literal["auto", "learned"], About("", ""))
    "a number, 'auto' or 'learned'"
    """
    words = [_kind(part) for part in _parts(hint) if part is not type(None)]
    words += [repr(told.empty)] if type(None) in _parts(hint) and told.empty else []
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def shape(hint: Any, told: About) -> str:
    """Return what a setting accepts as a command line shows it.

    >>> shape(int | None, About("", "", empty="auto")), shape(float | Literal["auto", "learned"], About("", ""))
    ('N|auto', 'NUMBER|auto|learned')
    """
    if told.form:
        return told.form
    short = {float: "NUMBER", int: "N", str: "TEXT", bool: "yes|no", type(None): told.empty}
    return "|".join(short[part] if part in short else str(part) for part in _parts(hint))


def _parts(hint: Any) -> list[Any]:
    """Return the types and the literal values that a hint consists of."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [part for inner in get_args(hint) for part in _parts(inner)] or [hint]


def _fits(value: object, hint: Any) -> bool:
    return any(_fits_one(value, part) for part in _parts(hint))


def _fits_one(value: object, part: Any) -> bool:
    if isinstance(part, str):
        return value == part
    if part is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return _is_count(value) if part is int else isinstance(value, part)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(part: Any) -> str:
    return {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}.get(part) or repr(part)


def _number(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:g}"
