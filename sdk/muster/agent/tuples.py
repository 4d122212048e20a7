"""Named tuples that are declared as those of ``typing``, whose import would take a tenth of an agent's start."""

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class NamedTuple(tuple):
        """A tuple with the fields that its class declares: a name, a type and perhaps a default value for each item."""

        _fields = ()
        _field_defaults = {}
        _last_defaults = ()

        def __init_subclass__(cls):
            cls._fields = cls.__match_args__ = tuple(getattr(cls, "__annotations__", ()))
            cls._field_defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}
            cls._last_defaults = tuple(cls._field_defaults.values())  # these follow fields that have none
            for index, name in enumerate(cls._fields):
                setattr(cls, name, property(itemgetter(index)))

        def __new__(cls, *values, **named):
            """Return the tuple of these values, and of the defaults of the fields that are not given."""
            lacking = len(cls._fields) - len(values)
            if named or not 0 <= lacking <= len(cls._last_defaults):
                values = cls._filled_in(values, named)
            elif lacking:
                values += cls._last_defaults[-lacking:]
            return tuple.__new__(cls, values)

        @classmethod
        def _filled_in(cls, values, named):
            """Return all values, given some by position and some by name. Raises TypeError where they do not fit."""
            given = dict(zip(cls._fields, values))
            found = dict(cls._field_defaults, **dict(given, **named))
            is_clear = len(values) <= len(cls._fields) and not given.keys() & named.keys()
            if not is_clear or found.keys() != set(cls._fields):
                wrong = sorted(found.keys() ^ set(cls._fields)) or "too many values"
                raise TypeError("{} does not fit its fields: {}".format(cls.__name__, wrong))
            return [found[name] for name in cls._fields]

        def __repr__(self):
            pairs = ("{}={!r}".format(name, value) for name, value in zip(self._fields, self))
            return "{}({})".format(type(self).__name__, ", ".join(pairs))

        def __getnewargs__(self):
            return tuple(self)

        def _asdict(self):
            """Return the values by the names of their fields."""
            return dict(zip(self._fields, self))

        def _replace(self, **named):
            """Return a copy with other values for some fields."""
            return type(self)(**dict(self._asdict(), **named))
