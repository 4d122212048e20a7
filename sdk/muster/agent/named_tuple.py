"""Named tuples whose classes are made quickly.

``typing.NamedTuple`` compiles source for every class, and of messages alone there are fifty: that would be a quarter of
what a guard has to do before it can start its first agent.
"""

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Meta(type):
        """Makes a property of each annotation, in their order; what is assigned to one is its default."""

        def __new__(cls, name, bases, namespace):
            made = super().__new__(cls, name, bases, dict(namespace, __slots__=()))
            fields = tuple(getattr(made, "__annotations__", ()))
            made._fields = fields
            made._field_defaults = {field: namespace[field] for field in fields if field in namespace}
            for index, field in enumerate(fields):
                setattr(made, field, property(itemgetter(index)))
            return made

    class NamedTuple(tuple, metaclass=_Meta):
        """A tuple whose items have names, as that of ``typing``."""

        def __new__(cls, *values, **named):
            """Make one of the fields' values, in their order or by name; those that are missing have their defaults."""
            try:
                rest = [
                    named.pop(field) if field in named else cls._field_defaults[field]
                    for field in cls._fields[len(values) :]
                ]
            except KeyError as error:
                raise TypeError("{} lacks {}".format(cls.__name__, error)) from None
            if named or len(values) + len(rest) != len(cls._fields):
                raise TypeError("{} has only {}".format(cls.__name__, ", ".join(cls._fields)))
            return tuple.__new__(cls, values + tuple(rest))

        def __repr__(self):
            """Return the call that makes an equal one."""
            fields = ("{}={!r}".format(*item) for item in self._asdict().items())
            return "{}({})".format(type(self).__name__, ", ".join(fields))

        def _asdict(self):
            return dict(zip(self._fields, self))

        def _replace(self, **changes):
            return type(self)(**dict(self._asdict(), **changes))


__all__ = ["NamedTuple"]
