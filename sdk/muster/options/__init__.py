"""Options of strategies and platforms: fields of their dataclasses, from which arguments and flags are derived."""
