"""Options of strategies and platforms: fields of their dataclasses, which arguments and flags follow from."""
